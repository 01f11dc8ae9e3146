"""Checkpoints of `vestige train` and `unlearn` as a kind of run: a record beside weights. See engine/kinds.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from vestige.engine.kinds import Kind
from vestige.store.files import read_ours


class _Eval(TypedDict):
    values: dict[str, float | None]


class _Record(TypedDict, total=False):
    losses: list[float | None]
    evals: list[_Eval]


def _values(path: Path) -> dict[str, Any]:
    """What the evaluation after the last epoch gave, and the last loss."""
    record = read_ours(path / "training.json", _Record)
    losses, evals = record.get("losses") or [], record.get("evals") or []
    return {**(evals[-1]["values"] if evals else {}), **({"loss": losses[-1]} if losses else {})}


WEIGHTS = "it is a checkpoint, and archives never hold weights; pack the runs that evaluated it"
KIND = Kind("train", values=_values, not_packed=WEIGHTS)
