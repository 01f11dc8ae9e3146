"""leak@k: what an attacker gets who may ask k times and keeps the best answer."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from vestige.sums import total


def expected_best(values: Sequence[float], k: int) -> float:
    """The expected largest of k values drawn from those given without putting back.

    Averaging over all ways to choose makes the estimate for k steadier than one draw of k would be.

    >>> expected_best([0.0, 1.0], 1), expected_best([0.0, 1.0], 2)
    (0.5, 1.0)
    """
    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} values there are, it is {k}")
    # The i-th smallest (from 0) is the largest of a choice when the other k - 1 come from the i below it.
    return total(comb(i, k - 1) * value for i, value in enumerate(sorted(values))) / comb(n, k)
