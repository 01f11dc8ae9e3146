"""stress.json as a kind of run: its evidence is that of the evaluations inside it. See runs/run.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.io import decode
from vestige.runs.run import Kind, Reader, RunSource
from vestige.types import RunAccount, RunNumber, RunTable


@dataclass(frozen=True)
class _Row:
    model: str
    attack: str
    budget: float | None
    values: dict[str, float | None]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _StressFile:
    rows: list[_Row]


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    """The table, the manifests before any attack, and every evaluation: model | retain -> label -> its two files."""
    file = path / "stress.json"
    data = read(file, dict) if file.is_file() else None
    if data is None or "rows" not in data:
        return
    files: dict[Path, None] = {file: None}
    manifests: dict[str, Any] = {}
    for who in ("model", "retain"):
        manifest = path / "evals" / who / "before" / "manifest.json"
        if manifest.is_file():
            files[manifest] = None
            manifests[who] = read(manifest, dict) or {}
    evals: dict[str, dict[str, Any]] = {}
    for manifest in sorted(path.glob("evals/*/*/manifest.json")):
        run = manifest.parent
        for results in sorted(run.glob("*_EVAL.json"))[:1]:
            files |= {results: None, manifest: None}
            content = {"results": read(results, dict) or {}, "manifest": read(manifest, dict) or {}}
            evals.setdefault(run.parent.name, {})[run.name] = content
    yield RunSource("stress", path, tuple(files), {**data, "manifests": manifests, "evals": evals})


def _values(path: Path) -> dict[str, Any]:
    """Every number of the table: model, attack, budget and metric."""
    values: dict[str, Any] = {}
    for row in decode(path / "stress.json", _StressFile).rows:
        budget = [] if row.budget is None else [f"{row.budget:g}"]
        for metric, value in row.values.items():
            values["/".join([row.model, row.attack, *budget, metric])] = value
    return values


def _account(path: Path) -> RunAccount:
    """A number per model, attack, budget and metric; the same as a table."""
    rows = decode(path / "stress.json", _StressFile).rows
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    lines = []
    for row in rows:
        lines.append((row.model, row.attack, row.budget, *(row.values.get(metric) for metric in metrics)))
    manifest = path / "manifest.json"
    created = decode(manifest, dict[str, Any]).get("created", "") if manifest.is_file() else ""
    return RunAccount(
        name=path.resolve().name,
        kind="stress",
        suite="stress",
        created=str(created),
        numbers={name: RunNumber(value) for name, value in _values(path).items()},
        tables={"attacks": RunTable(("model", "attack", "budget", *metrics), tuple(lines))},
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )


KIND = Kind("stress", gather=_gather, values=_values, account=_account)
