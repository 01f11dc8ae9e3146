"""Stress runs as a kind of run: their evidence is that of the evaluations inside them. See store/kinds.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from vestige.store.files import read_ours
from vestige.store.forms import AttackedForm
from vestige.store.kinds import Kind, Reader, RunSource


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
    yield RunSource("stress", path, (file, *there.values()), {**data, "manifests": more})


def _values(path: Path) -> dict[str, Any]:
    """Every number of the table: model, attack, budget and metric."""
    rows: list[AttackedForm] = read_ours(path / "stress.json", _Rows)["rows"]
    return {
        "/".join([r["model"], r["attack"], *([f"{r['budget']:g}"] if r["budget"] is not None else []), metric]): value
        for r in rows
        for metric, value in r["values"].items()
    }


KIND = Kind("stress", gather=_gather, values=_values)
