"""Where finished runs can be published to: a record per tool, and what a round trip through it loses.

    RunAccount --write--> files of a tool --read--> RunAccount', and `losses` compares both

In: a RunAccount (types.py) and, where there is one, the report's page. Out: files below a directory that the user
names. A tool's own library is imported when it is asked for. `read` uses the tool's own reader, so that what
is reported is what the tool itself finds. Caller: results/publish.py.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vestige.errors import UserError, first_line, how_to_install, reraise_ours, unknown_name
from vestige.guard import read_json
from vestige.schema import misfit
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable
from vestige.writing import write_bytes


@dataclass(frozen=True)
class Sending:
    """What is written, and how."""

    account: RunAccount
    out: Path
    page: bytes | None = None  # the report's page
    online: bool = False  # send it, by the tool's own settings; else files on this machine
    dataset: str = ""  # the hub's data set that was evaluated, as ORG/NAME
    project: str = "vestige"


@dataclass
class Written:
    """What came of it."""

    files: list[Path] = field(default_factory=list)
    next: list[str] = field(default_factory=list)  # commands that show or send it
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Exporter:
    """One tool."""

    name: str
    module: str  # has write(Sending) -> Written and read(Path) -> (RunAccount, page or None)
    extra: str = ""  # of pyproject.toml, if it needs one
    package: str = ""  # that is imported
    sends: bool = False  # whether it can be told to send

    def _module(self) -> Any:
        if self.package:
            need(self.package, self.extra)
        return importlib.import_module(f"vestige.integrations.{self.module}")

    def write(self, sending: Sending) -> Written:
        found: Written = self._module().write(sending)
        return found

    def read(self, out: Path) -> tuple[RunAccount, bytes | None]:
        found: tuple[RunAccount, bytes | None] = self._module().read(out)
        return found


EXPORTERS = {
    exporter.name: exporter
    for exporter in (
        Exporter("json", "exporters"),
        Exporter("tensorboard", "export_tensorboard", "tensorboard", "tensorboard"),
        Exporter("wandb", "export_wandb", "wandb", "wandb", sends=True),
        Exporter("mlflow", "export_mlflow", "mlflow", "mlflow", sends=True),
        Exporter("hub", "export_hub"),
        Exporter("inspect", "export_inspect"),
    )
}


def exporter_named(name: str) -> Exporter:
    if name not in EXPORTERS:
        raise unknown_name("place to publish to", name, EXPORTERS)
    return EXPORTERS[name]


def need(package: str, extra: str) -> None:
    """Imports somebody else's package, or says what to install."""
    try:
        with quiet_environment():
            importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"Publishing to {extra} needs the package {package} ({first_line(error).rstrip('.')}); "
            f"run `{how_to_install(extra)}`."
        ) from None


# Nothing is told to anybody by being imported: usage statistics and error reports are off unless the user sends.
QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder of files is what is asked for here; newer versions want to be told
}


@contextmanager
def quiet_environment(**more: str) -> Iterator[None]:
    """Settings of trackers that they read from the environment, for a while."""
    wanted = {**QUIET, **more}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def foreign_code(tool: str) -> Iterator[None]:
    """What a tracker's own code raises is one sentence; our own mistakes stay what they are."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # any type: their network, their files, their server
        reraise_ours(error)
        raise UserError(f"{tool} refused: {type(error).__name__}: {first_line(error)}") from error


# ---- an account as JSON, and back: the form that loses nothing ------------------------------------------------------

ACCOUNT, PAGE = "publication.json", "index.html"
VERSION = 1


class _Numbers(TypedDict):
    value: float | None
    low: float | None
    high: float | None
    n: int | None
    reason: str


class _CurveForm(TypedDict):
    axis: str
    at: list[float]
    points: list[_Numbers]


class _TableForm(TypedDict):
    columns: list[str]
    rows: list[list[Any]]


class _AccountForm(TypedDict):
    vestige: str
    version: int
    name: str
    kind: str
    model: str
    suite: str
    created: str
    numbers: dict[str, _Numbers]
    curves: dict[str, _CurveForm]
    tables: dict[str, _TableForm]
    facts: dict[str, str]
    notes: list[str]


def account_json(account: RunAccount) -> dict[str, Any]:
    return {"vestige": "publication", "version": VERSION, **asdict(account)}


def account_from(body: Mapping[str, Any]) -> RunAccount:
    numbers = {k: RunNumber(**v) for k, v in body["numbers"].items()}
    curves = {
        k: RunCurve(v["axis"], tuple(v["at"]), tuple(RunNumber(**p) for p in v["points"]))
        for k, v in body["curves"].items()
    }
    tables = {k: table_of(v["columns"], v["rows"]) for k, v in body["tables"].items()}
    own = {k: body[k] for k in ("name", "kind", "model", "suite", "created")}
    return RunAccount(
        **own, numbers=numbers, curves=curves, tables=tables, facts=body["facts"], notes=tuple(body["notes"])
    )


def table_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> RunTable:
    return RunTable(tuple(columns), tuple(tuple(row) for row in rows))


def as_bytes(data: Any, indent: int | None = 1) -> bytes:
    return (json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode(
        "utf-8", "surrogatepass"
    )


def write(sending: Sending) -> Written:
    """JSON of our own: everything, in one file; the page beside it."""
    out = sending.out
    write_bytes(out / ACCOUNT, as_bytes(account_json(sending.account)))
    files = [out / ACCOUNT]
    if sending.page is not None:
        write_bytes(out / PAGE, sending.page)
        files.append(out / PAGE)
    return Written(files)


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    body = read_json(out / ACCOUNT)
    if words := misfit(body, _AccountForm):
        raise UserError(f"{out / ACCOUNT} does not hold a publication: {words}.")
    page = out / PAGE
    return account_from(body), page.read_bytes() if page.is_file() else None


# ---- what is lost ---------------------------------------------------------------------------------------------------

PARTS: tuple[tuple[str, Callable[[RunNumber], Any]], ...] = (
    ("values", lambda m: m.value),
    ("interval ends", lambda m: (m.low, m.high)),
    ("numbers of rows", lambda m: m.n),
    ("reasons", lambda m: m.reason),
)


def losses(before: RunAccount, after: RunAccount, page: bytes | None, page_after: bytes | None) -> list[str]:
    """What a round trip lost, a line each; nothing: it is all there, bit for bit."""
    out = [*_lost_numbers("metrics", before.numbers, after.numbers), *_lost_curves(before.curves, after.curves)]
    for name, table in before.tables.items():
        there = after.tables.get(name)
        if there is None:
            out.append(f"the table {name} ({len(table.rows)} rows)")
        elif there != table:
            out.append(f"parts of the table {name} ({_table_difference(table, there)})")
    gone = [k for k, v in before.facts.items() if after.facts.get(k) != v]
    out += [f"facts: {_few(gone)}"] if gone else []
    notes = [n for n in before.notes if n not in after.notes]
    out += [f"{len(notes)} of {len(before.notes)} notes"] if notes else []
    heads = [k for k in ("name", "kind", "model", "suite", "created") if getattr(before, k) != getattr(after, k)]
    out += [f"the run's {', '.join(heads)}"] if heads else []
    return [*out, *(["the page"] if page is not None and page != page_after else [])]


def _lost_numbers(what: str, before: Mapping[str, RunNumber], after: Mapping[str, RunNumber]) -> Iterator[str]:
    nothing = RunNumber(None)
    for part, get in PARTS:
        pairs = {k: (get(v), get(after.get(k, nothing))) for k, v in before.items()}
        wrong = {k: p for k, p in pairs.items() if p[0] != p[1] and not _is_empty(p[0])}
        rounded = [k for k, (a, b) in wrong.items() if _single(a) == _single(b) and not _is_empty(b)]
        gone = [k for k in wrong if k not in rounded]
        if rounded:
            yield f"digits of {what}: {part} of {len(rounded)} are rounded to single precision"
        if gone:
            yield f"{part} of {what}: {_few(gone)}"


def _lost_curves(before: Mapping[str, RunCurve], after: Mapping[str, RunCurve]) -> Iterator[str]:
    gone = [k for k in before if k not in after]
    if gone:
        yield f"curves: {_few(gone)}"
    there = {k: v for k, v in before.items() if k in after}
    moved = [k for k, v in there.items() if (v.axis, v.at) != (after[k].axis, after[k].at)]
    if moved:
        yield f"places on the axis of curves: {_few(moved)}"
    flat = {f"{k} at {x:g}": p for k, v in there.items() for x, p in zip(v.at, v.points, strict=True)}
    found = {f"{k} at {x:g}": p for k in there for x, p in zip(after[k].at, after[k].points, strict=True)}
    yield from _lost_numbers("curves", flat, found)


def _is_empty(value: Any) -> bool:
    return value in (None, "") or value == (None, None)


def _single(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_single(v) for v in value)
    return float(np.float32(value)) if isinstance(value, (int, float)) else value


def _table_difference(before: RunTable, after: RunTable) -> str:
    lost = [c for c in before.columns if c not in after.columns]
    if lost:
        return f"columns {_few(lost)}"
    if len(before.rows) != len(after.rows):
        return f"{len(after.rows)} of {len(before.rows)} rows are there"
    cells = sum(a != b for x, y in zip(before.rows, after.rows, strict=True) for a, b in zip(x, y, strict=False))
    return f"{cells} cells"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---- numbers as rows: what trackers show as a table -----------------------------------------------------------------

NUMBERS = ("metric", "value", "low", "high", "n", "reason")


def numbers_table(account: RunAccount) -> RunTable:
    """Every number with its interval, rows and reason."""
    rows = [(k, m.value, m.low, m.high, m.n, m.reason) for k, m in account.numbers.items()]
    return RunTable(NUMBERS, tuple(rows))


def numbers_in(table: RunTable) -> dict[str, RunNumber]:
    """The way back; a tool may hand a count back as 8.0."""
    out = {}
    for name, value, low, high, n, reason in table.rows:
        out[str(name)] = RunNumber(value, low, high, None if n is None else int(n), reason or "")
    return out


def ends_of(name: str, number: RunNumber) -> dict[str, float]:
    """A number as trackers take it, by the names that the callback gives them; what has no value is left out.

    >>> ends_of("p", RunNumber(0.5, 0.25, 0.75))
    {'p': 0.5, 'p_low': 0.25, 'p_high': 0.75}
    """
    found = {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
    return {k: float(v) for k, v in found.items() if v is not None}


def about_json(account: RunAccount) -> dict[str, Any]:
    """Everything of an account but its numbers and tables; the axis of each curve, and why points have no value."""
    reasons = {
        k: [[x, p.n, p.reason] for x, p in zip(c.at, c.points, strict=True) if p.reason or p.n is not None]
        for k, c in account.curves.items()
    }
    own = {k: getattr(account, k) for k in ("name", "kind", "model", "suite", "created")}
    axes = {k: [c.axis, list(c.at)] for k, c in account.curves.items()}
    return {**own, "facts": dict(account.facts), "notes": list(account.notes), "axes": axes, "reasons": reasons}


class AboutForm(TypedDict):
    name: str
    kind: str
    model: str
    suite: str
    created: str
    facts: dict[str, str]
    notes: list[str]
    axes: dict[str, tuple[str, list[float]]]
    reasons: dict[str, list[tuple[float, int | None, str]]]


def account_about(
    about: Mapping[str, Any],
    numbers: Mapping[str, RunNumber],
    points: Mapping[str, Mapping[float, Mapping[str, float]]],
    tables: Mapping[str, RunTable],
) -> RunAccount:
    """An account from what a tracker has of it. `points`: of each curve, by place, its value and the ends."""
    if words := misfit(about, AboutForm):
        raise UserError(f"What was published does not have the form it was written in: {words}.")
    curves = {}
    for name, (axis, at) in about["axes"].items():
        said = {x: (n, why) for x, n, why in about["reasons"].get(name, [])}
        found = points.get(name, {})
        if found or not at:
            curves[name] = RunCurve(axis, tuple(at), tuple(_point(name, found.get(x, {}), said.get(x)) for x in at))
    own = {k: about[k] for k in ("name", "kind", "model", "suite", "created")}
    return RunAccount(
        **own, numbers=numbers, curves=curves, tables=tables, facts=about["facts"], notes=tuple(about["notes"])
    )


def _point(name: str, found: Mapping[str, float], said: tuple[int | None, str] | None) -> RunNumber:
    n, why = said or (None, "")
    return RunNumber(found.get(name), found.get(f"{name}_low"), found.get(f"{name}_high"), n, why)
