"""Numbers: sums that do not depend on the order of what is added, and numbers as people read them.

Floating-point addition rounds after every step, so the same numbers in another order give other last bits: a run scored
again from a manifest with sorted keys, or on another processor, would differ from the first. These round once, at the
end. Whatever ends in a file and is a sum over rows, models, layers or parents is added here. A number is written the
same in tables, verdicts and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from vestige.types import Array


def total(values: Iterable[float] | Array) -> float:
    """The sum, rounded once.

    >>> total([1e16, 1.0, -1e16]), total([1.0, 1e16, -1e16])
    (1.0, 1.0)
    """
    given = list(map(float, values))
    try:
        return math.fsum(given)
    except (OverflowError, ValueError):  # too large for a float, or both infinities: what IEEE addition would say
        return float("nan") if {math.inf, -math.inf} <= set(given) else float(np.sum(np.sort(given)))


def mean(values: Iterable[float] | Array) -> float:
    """The mean; NaN of nothing.

    >>> mean([1.0, 2.0, 6.0])
    3.0
    """
    given = list(values)
    return total(given) / len(given) if given else float("nan")


def spread(values: Iterable[float] | Array) -> float:
    """The standard deviation of a population.

    >>> spread([1.0, 3.0])
    1.0
    """
    given = [float(v) for v in values]
    middle = mean(given)
    return math.sqrt(mean([(v - middle) ** 2 for v in given]))


def means(values: Array) -> Array:
    """The mean over the last axis of those values that are there; leading axes pass through, NaN means missing.

    >>> means(np.array([[1.0, 2.0], [3.0, np.nan]])).tolist()
    [1.5, 3.0]
    """
    if values.shape[-1] == 1:
        return np.asarray(values[..., 0])
    lists = values.reshape(-1, values.shape[-1]).tolist()
    return np.reshape([mean(v for v in row if v == v) for row in lists], values.shape[:-1])


def distances(a: Array, b: Array) -> Array:
    """How far apart numbers are, one by one. The same infinity twice is at distance 0; NaN stays NaN.

    >>> distances(np.array([1.0, -np.inf, -np.inf]), np.array([3.0, -np.inf, 0.0])).tolist()
    [2.0, 0.0, inf]
    """
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


# ---- for people ----------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Four digits that mean something.

    >>> number(0.95163), number(1.9e-5), number(-99.99999), number(None)
    ('0.9516', '1.9e-05', '-100.00', '-')
    """
    if value is None:
        return "-"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def with_interval(value: float | None, lo: float | None = None, hi: float | None = None) -> str:
    """A number and, where there is one, its interval.

    >>> with_interval(0.25, 0.2, 0.3), with_interval(0.25)
    ('0.2500 (0.2000 to 0.3000)', '0.2500')
    """
    return number(value) if lo is None or hi is None else f"{number(value)} ({number(lo)} to {number(hi)})"


def percent(share: float) -> str:
    """A share in whole percents.

    >>> percent(0.264), percent(-0.1)
    ('26 %', '-10 %')
    """
    return f"{100 * share:.0f} %"


def counted(n: int, noun: str) -> str:
    """
    >>> counted(1, "cluster"), counted(3, "cluster")
    ('1 cluster', '3 clusters')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
