"""Sums that do not depend on the order of what is added.

Floating-point addition rounds after every step, so the same numbers in another order give other last bits: a run scored
again from a manifest with sorted keys, or on another processor, would differ from the first. These round once, at the
end. Whatever ends in a file and is a sum over rows, models, layers or parents is added here.
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
    given = [float(v) for v in values]
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
