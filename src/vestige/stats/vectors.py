"""Three distributions written out: importing a statistics library takes longer than everything they serve.

All agree with scipy's to float rounding; tests hold them to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from vestige.types import Array


def smirnov_p(n: int, m: int, distance: float) -> tuple[float, float]:
    """The exact p-value of a two-sided two-sample KS test, and the distance as the fraction it must be.

    Under the null every order of the pooled sample is as likely as any other: a path of n + m steps from corner to
    corner of a grid. p is the share of paths that stray at least `distance` from the diagonal.

    >>> smirnov_p(2, 2, 1.0), smirnov_p(1, 3, 2 / 3)
    ((0.3333333333333333, 1.0), (1.0, 0.6666666666666666))
    """
    units = math.lcm(n, m)
    far = round(distance * units)
    if far == 0:
        return 1.0, 0.0
    p = _equal_sizes(n, far) if n == m else _straying(min(n, m), max(n, m), far)
    return min(max(p, 0.0), 1.0), far / units


def _equal_sizes(n: int, far: int) -> float:
    """Reflections: 2 (C(2n, n - h) - C(2n, n - 2h) + ...) / C(2n, n), each term from the one before it."""
    total, term, steps = 0.0, 1.0, np.arange(far)
    for k in range(n // far):
        done = k * far
        term *= float(np.prod((n - done - steps) / (n + done + 1 + steps)))
        total += -term if k % 2 else term
    return 2 * total


def _straying(n: int, m: int, far: int) -> float:
    """The share of paths to each point that have strayed, one diagonal of the grid after the other.

    Shares of straying paths are sums of positive terms: a tiny p keeps all its digits.
    """
    common = math.gcd(n, m)
    i = np.arange(n + 1)
    share: Array = np.zeros(n + 1)
    for step in range(1, n + m + 1):
        j = step - i
        before = np.concatenate([[0.0], share[:-1]])
        share = np.where(np.abs(i * (m // common) - j * (n // common)) >= far, 1.0, (i * before + j * share) / step)
    return float(share[n])


@lru_cache(maxsize=256)
def student_quantile(freedom: int, tail: float) -> float:
    """The t below which a share `tail` (under one half) of Student's distribution lies.

    >>> round(student_quantile(10, 0.025), 6)
    -2.228139
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(freedom)
    for _ in range(80):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(freedom, angle) < 1 - 2 * tail else (low, angle)
    return -math.sqrt(freedom) * math.tan((low + high) / 2)


def _within(freedom: int, angle: float) -> float:
    """The chance that |t| is below the angle's: a finite series for whole degrees of freedom (A&S 26.7.3, 26.7.4)."""
    odd = freedom % 2
    cosine, sine = math.cos(angle), math.sin(angle)
    k = np.arange(1, (freedom - odd) // 2)
    factors = (2 * k - 1 + odd) / (2 * k + odd) * cosine**2
    series = 1.0 + float(np.cumprod(factors).sum()) if freedom > 1 else 0.0
    return 2 / math.pi * (angle + sine * cosine * series) if odd else sine * series


@lru_cache(maxsize=1)
def _nodes() -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(80)


def student_within(freedom: float, t: float) -> float:
    """The share of Student's distribution between -t and t, for any degrees of freedom from 1 on.

    The density is a power of a cosine of the angle whose tangent is t / sqrt(freedom); quadrature adds it up.

    >>> round(student_within(10, 2.228139), 6), round(student_within(2.5, 3.574655), 6)
    (0.95, 0.95)
    """
    end = math.atan(t / math.sqrt(freedom))
    at, weight = _nodes()
    cosine = np.cos(end / 2 * (at + 1))
    return float(_gamma_step(freedom / 2) / math.sqrt(math.pi) * end * (weight * cosine ** (freedom - 1)).sum())


def _gamma_step(x: float) -> float:
    """gamma(x + 1/2) / gamma(x); for large x its series, because there the difference of logarithms loses digits."""
    if x < 500:
        return math.exp(math.lgamma(x + 0.5) - math.lgamma(x))
    return math.sqrt(x) * (1 - 1 / (8 * x) + 1 / (128 * x**2) + 5 / (1024 * x**3))


@lru_cache(maxsize=1024)
def student_reach(freedom: float, share: float) -> float:
    """The t with that share of Student's distribution between -t and t.

    >>> round(student_reach(4, 0.95), 4), round(student_reach(3.5, 0.9), 3)
    (2.7764, 2.222)
    """
    low, high = 0.0, 1.0
    while student_within(freedom, high) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(freedom, middle) < share else (low, middle)
    return (low + high) / 2


def normal_below(z: float) -> float:
    """The share of a standard normal distribution below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


# ---- Functions of score vectors: what two sets of numbers say about each other ------------------------------------

EPSILON = 1e-10
EXACT = 2000  # rows; beyond, scipy and its approximations
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
    x, y = np.asarray(a, float), np.asarray(b, float)
    p, distance = _ks_p(x, y)
    log10_p = float("-inf") if p == 0 else float(np.log10(p))  # a p that is missing (NaN) has no logarithm either
    return KolmogorovSmirnov(p, log10_p, distance, len(x), len(y))


def _ks_p(x: Array, y: Array) -> tuple[float, float]:
    ordinary = min(len(x), len(y)) > 0 and max(len(x), len(y)) <= EXACT and not (np.isnan(x).any() or np.isnan(y).any())
    if ordinary:
        gaps = gaps_of_counts(x, y, np.ones(len(x)), np.ones(len(y)))
        return smirnov_p(len(x), len(y), float(np.abs(gaps).max()))
    from scipy.stats import ks_2samp

    result = ks_2samp(x, y)
    return float(result.pvalue), float(result.statistic)


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
    value = change / (base + EPSILON) * 100
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
