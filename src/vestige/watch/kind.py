"""What was seen of a training run, as a kind of run: watch.json and the evaluations beside it. See store/kinds.py.

Comes in: the directory with watch.json (OUTPUT_DIR/vestige of a trainer, OUT/evals of `vestige unlearn`). Goes out: its
curves for a report and for `vestige publish`, the best look's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.io import damaged
from vestige.store.files import read_ours
from vestige.store.forms import WatchForm
from vestige.store.kinds import KINDS, Kind, Reader, RunSource
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable

CURVE = KINDS["watch"].marks[0]
COLUMNS = ("step", "epoch", "score", "why", "share", "kept", "verdict", "seconds", "tokens", "directory")


def watched(path: Path) -> WatchForm:
    """watch.json, which must agree with the evaluations that are kept beside it."""
    body: WatchForm = read_ours(path / CURVE, WatchForm)
    for look in body["looks"]:
        for file in sorted((path / look["directory"]).glob("*_SUMMARY.json")) if look["directory"] else ():
            kept = read_ours(file, dict[str, Any])
            wrong = [n for n, v in look["values"].items() if n in kept and not _same(kept[n], v)]
            if wrong:
                raise damaged(path / CURVE, f"{wrong[0]} at step {look['step']} is not what {file} has")
    return body


def _same(a: Any, b: float | None) -> bool:
    return a == b or (isinstance(a, (int, float)) and b is not None and math.isclose(a, b, rel_tol=1e-12))


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    data = read(path / CURVE, dict)
    if data is not None and data.get("vestige") == "watch":
        yield RunSource("watch", path, (path / CURVE,), data)


Seen = Mapping[str, Any]  # a look of a checked watch.json


def _best(body: WatchForm) -> Seen | None:
    """The best look, or the last one where none may be the best."""
    looks: list[Seen] = [dict(look) for look in body["looks"]]
    return next((look for look in looks if look["step"] == body["best"]), looks[-1] if looks else None)


def _values(path: Path) -> Mapping[str, Any]:
    look = _best(watched(path))
    return {} if look is None else look["values"]


def account(path: Path) -> RunAccount:
    """Every metric, and the place between both models, along the steps."""
    body = watched(path)
    looks: list[Seen] = [dict(look) for look in body["looks"]]
    best = _best(body)
    metrics = dict.fromkeys(name for look in looks for name in look["values"])
    curves = {name: _curve(looks, lambda look, n=name: _number(look, n)) for name in metrics}
    for name in ("share", "kept", "score"):
        curves[name] = _curve(looks, lambda look, n=name: RunNumber(look[n], reason=look["why"]))
    which = "best" if best is not None and best["step"] == body["best"] else "last (none may be the best)"
    facts = {f"retain model, {k}": repr(v) for k, v in body["retain"].items()}
    facts |= {f"before, {k}": repr(v) for k, v in body["before"].items()}
    rows = [(*(look[k] for k in COLUMNS[:6]), _verdict(look), *(look[k] for k in COLUMNS[7:])) for look in looks]
    return RunAccount(
        name=path.resolve().parent.name if path.name in ("vestige", "evals") else path.resolve().name,
        kind="watch",
        suite=body["suite"],
        numbers={} if best is None else {name: _number(best, name) for name in metrics},
        curves=curves,
        tables={"looks": RunTable(COLUMNS, tuple(rows))},
        facts={"numbers are of": f"step {best['step']}, {which}" if best else "no look", **facts},
    )


def _number(look: Seen, name: str) -> RunNumber:
    low, high = look["intervals"].get(name) or (None, None)
    why = (look.get("reasons") or {}).get(name, "")
    return RunNumber(look["values"].get(name), low, high, reason=why)


def _curve(looks: list[Seen], number: Any) -> RunCurve:
    return RunCurve("step", tuple(float(x["step"]) for x in looks), tuple(number(x) for x in looks))


def _verdict(look: Seen) -> str:
    return str((look.get("verdict") or {}).get("word", ""))


KIND = Kind("watch", gather=_gather, values=_values, account=account)
