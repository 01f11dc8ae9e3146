"""Verify, then trust: evidence that no name vouches for is compared with a few fresh answers before it is reused.

What a model in memory said before needs it: a hook or an attribute can change what it computes, and no fingerprint
shows it.

In: a bank and what is wanted of it. Out: the bank with only what can be relied on, and notes about the rest. Callers:
engine/obtain.py, engine/patches.py and collapse/evidence.py, before anything is read from a bank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vestige.numeric import distances
from vestige.runs.directory import temporary
from vestige.store.evidence import Bank
from vestige.store.laid_out import Joined
from vestige.types import Text, TokenStats, Trace

T = TypeVar("T")
CHECKED = 4  # entries that are made again
# How far numbers may be apart and still be the same: batches differ, so the last digits do. A hook, another scale or
# another mask is off by far more.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-4, 0.05
PRECISE = ("float32", "float64")

LIVE_KEPT = (
    "evidence of an earlier call was reused ({kind}): {n} of its {of} entries were made again with this model and agree"
)
LIVE_LOST = "evidence of an earlier call was not reused ({kind}): made again with this model, {why}"


@dataclass(frozen=True)
class Settling:
    """What one bank holds, before it is read: checked where no name vouches for it, and dropped where it is wrong."""

    bank: Bank[Any]
    wants: Mapping[str, Any]
    collect: Callable[[Path, dict[str, Any]], None]  # makes some wants into a directory
    live: bool  # of a model in memory
    dtype: Callable[[], str]  # known once the model is loaded
    companions: tuple[str, ...] = ()  # kinds that are collected along with it

    def run(self) -> list[str]:
        """Leaves in the bank only what can be trusted; returns the notes about it."""
        have = self.bank.load()
        notes = [self.bank.trouble] if self.bank.trouble else []
        if self.live:
            notes += self._check_live(Joined(have, self.bank.unfinished()))
        return notes

    def _check_live(self, have: Mapping[str, Any]) -> list[str]:
        kept = Joined.chosen(have, (k for k in self.wants if k in have))
        if not kept:
            if have:  # of other questions: what they were asked of may have been another model by now
                self._reset()
            return []
        count, why = self._compare(kept)
        if not why:
            return [LIVE_KEPT.format(kind=self.bank.kind, n=count, of=len(kept))]
        self._reset()
        return [LIVE_LOST.format(kind=self.bank.kind, why=why)]

    def _reset(self) -> None:
        for bank in self._all(self.bank):
            bank.reset()

    def _all(self, bank: Bank[Any]) -> list[Bank[Any]]:
        return [bank, *(Bank[Any](bank.path.parent, kind, bank.identity, bank.made) for kind in self.companions)]

    def _compare(self, kept: Mapping[str, Any]) -> tuple[int, str]:
        """How many entries were made again, and what is wrong with them."""
        chosen = to_check({k: self.wants[k] for k in kept})
        with temporary() as scratch:
            self.collect(scratch, chosen)
            fresh = self.bank.beside(scratch).load()
        return len(chosen), disagreement(kept, {k: fresh[k] for k in chosen}, self.dtype())


def to_check(wants: Mapping[str, T]) -> dict[str, T]:
    """The longest, and some others; keys are digests, so that their order is as good as chance."""
    longest = max(wants, key=lambda k: (_length(wants[k]), k))
    some = [longest, *(k for k in sorted(wants) if k != longest)][:CHECKED]
    return {k: wants[k] for k in some}


def _length(want: Any) -> int:
    inner = getattr(want, "target", None) or getattr(want, "prompt", None) or want
    return len(getattr(inner, "ids", ()))


def disagreement(kept: Mapping[str, Any], fresh: Mapping[str, Any], dtype: str) -> str:
    """What is not the same in entries made twice, in words; nothing where all agree."""
    for key, new in fresh.items():
        if words := _differs(kept[key], new, TOLERANCE if dtype in PRECISE else LOW_PRECISION_TOLERANCE):
            return words
    return ""


def _differs(old: Any, new: Any, tolerance: float) -> str:
    if isinstance(new, TokenStats):
        if not np.array_equal(old.label, new.label):
            return "other tokens were scored"
        gap = max(_gap(getattr(old, name), getattr(new, name)) for name in ("logprob", "mean", "std"))
        return f"log-probabilities differ by {gap:.2g} on average" if gap > tolerance else ""
    if isinstance(new, Text):
        return "" if old.ids == new.ids else "a text reads otherwise"
    if isinstance(new, Trace):
        if not np.array_equal(old.final, new.final):
            return "a text reads otherwise"
        gap = _gap(old.logprob, new.logprob)
        return f"log-probabilities differ by {gap:.2g} on average" if gap > tolerance else ""
    if isinstance(new, np.ndarray):
        gap = _gap(old, new)
        return f"log-probabilities differ by {gap:.2g} on average" if gap > tolerance else ""
    scale = max(1.0, abs(float(new)))
    gap = _gap(np.asarray(old), np.asarray(new)) / scale
    return f"a number differs by {gap:.2g}" if gap > 10 * tolerance else ""


def _gap(old: Any, new: Any) -> float:
    """The mean distance; NaN and NaN are at distance 0, NaN and a number infinitely far apart."""
    if np.shape(old) != np.shape(new) or not np.array_equal(np.isnan(old), np.isnan(new)):
        return float("inf")
    there = ~np.isnan(new)
    return (
        float(np.mean(distances(np.asarray(old, float)[there], np.asarray(new, float)[there]))) if there.any() else 0.0
    )
