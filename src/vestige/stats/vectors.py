"""Functions of score vectors: what two sets of numbers say about each other, and quantiles for their tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from vestige.types import Array

EPSILON = 1e-10
Number = TypeVar("Number", float, Array)  # one value, or one for each resampling


def auc(forget: Sequence[float] | Array, holdout: Sequence[float] | Array) -> float:
    """The chance that a fresh example scores higher than a forget example (ties count half).

    Scores mean "less member-like", so 1 = an attacker always tells them apart, 0.5 = never.

    >>> auc([1, 2], [3, 4]), auc([1, 2], [1, 2])
    (1.0, 0.5)
    """
    low, high = np.asarray(forget, float), np.asarray(holdout, float)
    if not len(low) or not len(high) or np.isnan(low).any() or np.isnan(high).any():
        return float("nan")
    return float(auc_of_counts(low, high, np.ones(len(low)), np.ones(len(high))))


def auc_of_counts(low: Array, high: Array, times_low: Array, times_high: Array) -> Array:
    """AUCs of samples in which each value stands as often as its count says; leading axes of counts pass through.

    >>> float(auc_of_counts(np.array([1, 5]), np.array([3]), np.array([2, 0]), np.array([1])))
    1.0
    """
    order = np.argsort(low, kind="stable")
    ordered, times = low[order], times_low[..., order]
    so_far = np.concatenate([np.zeros((*times.shape[:-1], 1)), np.cumsum(times, axis=-1)], axis=-1)
    below = so_far[..., np.searchsorted(ordered, high, side="left")]
    upto = so_far[..., np.searchsorted(ordered, high, side="right")]
    # Twice the wins plus the ties: whole numbers, so that the only rounding is one division.
    pairs = times_low.sum(axis=-1) * times_high.sum(axis=-1)
    with np.errstate(invalid="ignore"):  # a resampling without any usable row has no AUC
        out: Array = ((below + upto) * times_high).sum(axis=-1) / (2 * pairs)
    return out


@dataclass(frozen=True)
class KolmogorovSmirnov:
    """A two-sided two-sample test: p, its logarithm, the distance D and both sample sizes."""

    p: float
    log10_p: float
    distance: float
    n: int
    m: int


def ks(a: Sequence[float] | Array, b: Sequence[float] | Array) -> KolmogorovSmirnov:
    """Do two samples come from one distribution?

    >>> ks([1, 2, 3], [1, 2, 3]).p
    1.0
    """
    from scipy.stats import ks_2samp  # takes longer to import than most commands need

    result = ks_2samp(np.asarray(a, float), np.asarray(b, float))  # exact up to 10,000 rows
    p = float(result.pvalue)
    log10_p = float("-inf") if p == 0 else float(np.log10(p))  # a p that is missing (NaN) has no logarithm either
    return KolmogorovSmirnov(p, log10_p, float(result.statistic), len(a), len(b))


def gaps_of_counts(a: Array, b: Array, times_a: Array, times_b: Array) -> Array:
    """F_a - F_b, the gap between two distribution functions, at each pooled value; KS D is its largest size.

    >>> gaps_of_counts(np.array([1, 2]), np.array([3]), np.array([1, 1]), np.array([1])).tolist()
    [0.5, 1.0, 0.0]
    """
    pooled = np.unique(np.concatenate([a, b]))
    return _steps(a, times_a, pooled) - _steps(b, times_b, pooled)


def counts_up_to(values: Array, times: Array, at: Array) -> Array:
    """How many draws are at or below each point.

    >>> counts_up_to(np.array([3, 1]), np.array([1, 2]), np.array([0, 1, 5])).tolist()
    [0.0, 2.0, 3.0]
    """
    order = np.argsort(values, kind="stable")
    so_far = np.cumsum(times[..., order], axis=-1)
    so_far = np.concatenate([np.zeros((*times.shape[:-1], 1)), so_far], axis=-1)
    out: Array = so_far[..., np.searchsorted(values[order], at, side="right")]
    return out


def _steps(values: Array, times: Array, at: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a resampling that drew none of the rows has no distribution
        out: Array = counts_up_to(values, times, at) / times.sum(axis=-1, keepdims=True)
    return out


@lru_cache(maxsize=64)
def smallest_detectable(n: int, m: int, level: float = 0.05) -> float | None:
    """The smallest KS distance that samples of n and m can call significant; None when no distance would do.

    Looked for among the multiples of 1 / max(n, m), with the very p-value that `ks` reports.

    >>> smallest_detectable(400, 400), smallest_detectable(2, 2)
    (0.0975, None)
    """
    size, small = max(n, m), min(n, m)
    if not small:
        return None
    other = (np.arange(small) + 0.5) / small

    def significant(ahead: int) -> bool:
        """Samples alike but for `ahead` values of the larger one that come before everything else."""
        sample = np.where(np.arange(size) < ahead, -1.0, (np.arange(size) + 1) / size)
        return ks(sample, other).p < level

    if not significant(size):
        return None
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if significant(middle) else (middle, high)
    return high / size


def privleak(score: Number, reference: Number) -> Number:
    """MUSE's PrivLeak: the relative change of 1 - AUC against the retain model's, in per cent.

    Negative: still recognisable (too little forgotten). Positive: stranger than never seen (too much).

    A retain model that the attack always recognises (AUC 1) leaves nothing to relate a change to: NaN.

    >>> privleak(0.5, 0.5), privleak(1.0, 1.0), privleak(0.5, 1.0)
    (0.0, 0.0, nan)
    """
    return _relative((1 - score) - (1 - reference), 1 - reference)


def rel_diff(score: Number, reference: Number) -> Number:
    """The relative difference to a reference, in per cent.

    >>> round(rel_diff(0.75, 0.5), 4), rel_diff(0.75, 0.0)
    (50.0, nan)
    """
    return _relative(score - reference, reference)


def _relative(change: Number, base: Number) -> Number:
    """A change in per cent of its base, as published: with a tiny number against a division by zero. That number is not
    a scale, so that a change on a base of zero has no value; no change is 0 % of anything.
    """
    value = change / (base + EPSILON) * 100  # the published order of operations
    undefined = (base == 0) & (change != 0)
    if isinstance(value, np.ndarray):
        return np.where(undefined, np.nan, value)
    return float("nan") if undefined else value


def harmonic_mean(values: Sequence[float]) -> float:
    """The harmonic mean; any zero makes it zero, so that one collapsed ability cannot be hidden by others.

    >>> harmonic_mean([1.0, 0.5]), harmonic_mean([1.0, 0.0])
    (0.6666666666666666, 0.0)
    """
    return float(harmonic_means(np.asarray(values, float)))


def harmonic_means(values: Array) -> Array:
    """The same over the last axis; leading axes pass through. Added from small to large: no order matters."""
    with np.errstate(divide="ignore"):
        mean = values.shape[-1] / np.sum(np.sort(1.0 / values, axis=-1), axis=-1)
    return np.where((values == 0).any(axis=-1), 0.0, mean)


def share_interval(hits: float, rows: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share: it stays within 0 and 1, and has a width where none or all were hit.

    >>> [round(end, 4) for end in share_interval(1, 40)], [round(end, 4) for end in share_interval(0, 40)]
    ([0.0044, 0.1288], [0.0, 0.0876])
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = hits / rows
    middle, scale = share + z * z / (2 * rows), 1 + z * z / rows
    half = z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


# ---- Student's distribution ---------------------------------------------------------------------------------------


def student_within(freedom: float, t: float) -> float:
    """The share of Student's distribution between -t and t, for any degrees of freedom.

    >>> round(student_within(10, 2.228139), 6), round(student_within(2.5, 3.574655), 6)
    (0.95, 0.95)
    """
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, t)) - 1


def student_reach(freedom: float, share: float) -> float:
    """The t with that share of Student's distribution between -t and t.

    >>> round(student_reach(4, 0.95), 4), round(student_reach(3.5, 0.9), 3)
    (2.7764, 2.222)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + share) / 2))
