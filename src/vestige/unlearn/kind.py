"""Checkpoints of `vestige train` and `unlearn` as a kind of run: a record beside weights. See store/kinds.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.store.files import read_ours
from vestige.store.kinds import Kind
from vestige.types import RunAccount, RunCurve, RunNumber


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


def _account(path: Path) -> RunAccount:
    """The loss along the steps, and what was seen on the way (watch/kind.py)."""
    record = read_ours(path / "training.json", _Record)
    losses = record.get("losses") or []
    loss = RunCurve("step", tuple(float(i + 1) for i in range(len(losses))), tuple(RunNumber(x) for x in losses))
    curves = {"loss": loss} if losses else {}
    seen = RunAccount(path.resolve().name, "train")
    if (path / "evals" / "watch.json").is_file():
        from vestige.watch.kind import account

        seen = account(path / "evals")
    numbers = {**seen.numbers, **({"loss": loss.points[-1]} if losses else {})}
    return replace(seen, name=path.resolve().name, kind="train", numbers=numbers, curves={**seen.curves, **curves})


WEIGHTS = "it is a checkpoint, and archives never hold weights; pack the runs that evaluated it"
KIND = Kind("train", values=_values, account=_account, not_packed=WEIGHTS)
