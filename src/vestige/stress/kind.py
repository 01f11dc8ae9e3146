"""Stress runs as a kind of run: their evidence is that of the evaluations inside them. See store/kinds.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from vestige.schema import number
from vestige.store.files import read_ours
from vestige.store.forms import AttackedForm
from vestige.store.kinds import Kind, Reader, RunSource
from vestige.types import RunAccount, RunNumber, RunTable


class _Rows(TypedDict):
    rows: list[AttackedForm]


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    file = path / "stress.json"
    data = read(file, dict) if file.is_file() else None
    if data is None or "rows" not in data:
        return
    manifests = {who: path / "evals" / who / "before" / "manifest.json" for who in ("model", "retain")}
    there = {who: f for who, f in manifests.items() if f.is_file()}
    more = {who: read(f, dict) or {} for who, f in there.items()}
    files, evals = _evaluations(path, read)
    behind = dict.fromkeys((file, *there.values(), *files))
    yield RunSource("stress", path, tuple(behind), {**data, "manifests": more, "evals": evals})


def _evaluations(path: Path, read: Reader) -> tuple[list[Path], dict[str, Any]]:
    """The evaluations of attacked copies, with their rows: model | retain -> label -> results and manifest."""
    files: list[Path] = []
    out: dict[str, Any] = {}
    for manifest in sorted(path.glob("evals/*/*/manifest.json")):
        results = next(iter(sorted(manifest.parent.glob("*_EVAL.json"))), None)
        if results is not None:
            files += [results, manifest]
            one = {"results": read(results, dict) or {}, "manifest": read(manifest, dict) or {}}
            out.setdefault(manifest.parent.parent.name, {})[manifest.parent.name] = one
    return files, out


def _values(path: Path) -> dict[str, Any]:
    """Every number of the table: model, attack, budget and metric."""
    rows: list[AttackedForm] = read_ours(path / "stress.json", _Rows)["rows"]
    return {
        "/".join([r["model"], r["attack"], *([f"{r['budget']:g}"] if r["budget"] is not None else []), metric]): value
        for r in rows
        for metric, value in r["values"].items()
    }


def _account(path: Path) -> RunAccount:
    """A number per model, attack, budget and metric; the same as a table."""
    rows: list[AttackedForm] = read_ours(path / "stress.json", _Rows)["rows"]
    metrics = list(dict.fromkeys(m for r in rows for m in r["values"]))
    head = ("model", "attack", "budget")
    lines = [(r["model"], r["attack"], r["budget"], *(number(r["values"].get(m)) for m in metrics)) for r in rows]
    numbers = {name: RunNumber(number(value)) for name, value in _values(path).items()}
    notes = tuple(dict.fromkeys(str(n) for r in rows for n in r.get("notes") or ()))
    manifest = read_ours(path / "manifest.json", dict[str, Any]) if (path / "manifest.json").is_file() else {}
    return RunAccount(
        name=path.resolve().name,
        kind="stress",
        suite="stress",
        created=str(manifest.get("created", "")),
        numbers=numbers,
        tables={"attacks": RunTable((*head, *metrics), tuple(lines))},
        notes=notes,
    )


KIND = Kind("stress", gather=_gather, values=_values, account=_account)
