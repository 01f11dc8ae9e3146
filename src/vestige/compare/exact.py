"""Three distributions written out: importing a statistics library takes longer than everything they serve.

All agree with scipy's to float rounding; tests hold them to it.
"""

from __future__ import annotations

import math
from functools import lru_cache

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
