"""Faithfulness: does a metric tell models that know (pool P) from models that do not (pool N)?

Values are m, a metric turned so that high means "knows" (names.Direction). The AUC is the chance that a model of P has
a higher m than a model of N, ties counting half: 1 is always right, 0.5 a coin, below 0.5 the wrong way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vestige.stats import bootstrap, vectors
from vestige.types import Array

RESAMPLES = 2000
Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Threshold:
    """The cut that sorts most models into their pools: above it is P."""

    m: float
    accuracy: float
    interval: Interval = None
    note: str = ""


@dataclass(frozen=True)
class Faithfulness:
    """One metric on two pools. None with a reason where a number is missing."""

    auc: float | None
    n_p: int  # models with a value
    n_n: int
    interval: Interval = None
    threshold: Threshold | None = None
    missing: tuple[str, ...] = ()  # models without a value
    reason: str = ""
    notes: tuple[str, ...] = field(default=())


def faithfulness(
    positive: Mapping[str, float | None],
    negative: Mapping[str, float | None],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Faithfulness:
    """AUC, its interval and the best threshold, from each model's m. Models without a value are left out, by name.

    >>> f = faithfulness({"a": 0.9, "b": 0.6}, {"c": 0.1, "d": 0.4, "e": None}, resamples=0)
    >>> f.auc, f.threshold.m, f.missing
    (1.0, 0.5, ('e',))
    """
    p, n = _values(positive), _values(negative)
    missing = tuple(name for pool in (positive, negative) for name, v in pool.items() if not _is_number(v))
    empty = [pool for pool, values in (("P", p), ("N", n)) if not len(values)]
    if empty:
        reason = f"no model of pool {' and '.join(empty)} has a value"
        return Faithfulness(None, len(p), len(n), missing=missing, reason=reason)
    high, low = bootstrap.sample(p, "P"), bootstrap.sample(n, "N")
    cuts = candidates(p, n)
    wanted: dict[str, bootstrap.Statistic] = {"auc": bootstrap.auc(low, high)}
    if len(cuts):
        wanted["cut"] = lambda counts: best_cuts(cuts, p, n, counts(high), counts(low))
    draws = bootstrap.Resampler([high, low], resamples, seed).draws(wanted) if resamples else {}
    fewest = min(len(p), len(n))

    def interval(name: str) -> Interval:
        return bootstrap.interval(draws[name], fewest) if name in draws and fewest > 1 else None

    auc = vectors.auc(n, p)
    return Faithfulness(
        auc, len(p), len(n), interval("auc"), threshold(p, n, interval("cut")), missing, notes=_notes(auc, len(cuts))
    )


def _notes(auc: float, cuts: int) -> tuple[str, ...]:
    out = [] if auc >= 0.5 else [f"AUC below 0.5 ({auc:.3f}): the metric points the wrong way on these pools"]
    return (*out, *([] if cuts else ["every model has the same value: no threshold"]))


def _is_number(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def _values(pool: Mapping[str, float | None]) -> Array:
    return np.array([v for v in pool.values() if v is not None and np.isfinite(v)], float)


def candidates(p: Array, n: Array) -> Array:
    """The cuts that can be told apart: midway between neighbouring distinct values."""
    both = np.unique(np.concatenate([p, n]))
    return np.asarray((both[1:] + both[:-1]) / 2)


def best_cuts(cuts: Array, p: Array, n: Array, times_p: Array, times_n: Array) -> Array:
    """For each resampling the cut that sorts most models rightly; the lowest of equals."""
    above = times_p.sum(axis=-1, keepdims=True) - vectors.counts_up_to(p, times_p, cuts)
    right = above + vectors.counts_up_to(n, times_n, cuts)
    return np.asarray(cuts[np.argmax(right, axis=-1)])


def threshold(p: Sequence[float] | Array, n: Sequence[float] | Array, interval: Interval = None) -> Threshold | None:
    """The most accurate cut: P above, N at or below. Midpoints only; the lowest of equals; None if all are alike.

    >>> threshold([0.8, 0.4], [0.2, 0.4])  # 0.3 and 0.6 both sort three of four rightly
    Threshold(m=0.30000000000000004, accuracy=0.75, interval=None, note='')
    """
    high, low = np.asarray(p, float), np.asarray(n, float)
    cuts = candidates(high, low)
    if not len(cuts):
        return None
    m = float(best_cuts(cuts, high, low, np.ones((1, len(high))), np.ones((1, len(low))))[0])
    accuracy = float(((high > m).sum() + (low <= m).sum()) / (len(high) + len(low)))
    guess = max(len(high), len(low)) / (len(high) + len(low))
    note = "" if accuracy > guess else "no better than calling every model by the larger pool's name"
    return Threshold(m, accuracy, interval, note)
