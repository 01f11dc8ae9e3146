"""Functions of score vectors: what two sets of numbers say about each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vestige.types import Array

EPSILON = 1e-10


def auc(forget: Sequence[float] | Array, holdout: Sequence[float] | Array) -> float:
    """The chance that a fresh example scores higher than a forget example (ties count half).

    Scores mean "less member-like", so 1 = an attacker always tells them apart, 0.5 = never.

    >>> auc([1, 2], [3, 4]), auc([1, 2], [1, 2])
    (1.0, 0.5)
    """
    low, high = np.asarray(forget, float), np.asarray(holdout, float)
    if not len(low) or not len(high) or np.isnan(low).any() or np.isnan(high).any():
        return float("nan")
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left")
    upto = np.searchsorted(ordered, high, side="right")
    # Twice the wins plus the ties: whole numbers, so that the only rounding is one division.
    return float((below + upto).sum() / (2 * len(low) * len(high)))


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
    from scipy.stats import ks_2samp

    x, y = np.asarray(a, float), np.asarray(b, float)
    result = ks_2samp(x, y)
    p = float(result.pvalue)
    return KolmogorovSmirnov(p, float(np.log10(p)) if p > 0 else float("-inf"), float(result.statistic), len(x), len(y))


def privleak(score: float, reference: float) -> float:
    """MUSE's PrivLeak: the relative change of 1 - AUC against the retain model's, in per cent.

    Negative: still recognisable (too little forgotten). Positive: stranger than never seen (too much).

    >>> privleak(0.5, 0.5)
    0.0
    """
    return ((1 - score) - (1 - reference)) / ((1 - reference) + EPSILON) * 100


def rel_diff(score: float, reference: float) -> float:
    """The relative difference to a reference, in per cent.

    >>> round(rel_diff(0.75, 0.5), 4)
    50.0
    """
    return (score - reference) / (reference + EPSILON) * 100


def harmonic_mean(values: Sequence[float]) -> float:
    """The harmonic mean; any zero makes it zero, so that one collapsed ability cannot be hidden by others.

    >>> harmonic_mean([1.0, 0.5]), harmonic_mean([1.0, 0.0])
    (0.6666666666666666, 0.0)
    """
    x = np.asarray(values, float)
    if (x == 0).any():
        return 0.0
    return float(len(x) / np.sum(1.0 / x))
