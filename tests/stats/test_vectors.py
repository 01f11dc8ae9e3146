"""Tests of score vectors, next to scipy's own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from vestige.stats import vectors


@pytest.mark.parametrize("sizes", [(7, 7), (40, 100), (400, 117)])
def test_ks_distance_is_the_largest_gap(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(sizes)
    x, y = rng.normal(size=sizes[0]).round(2), (rng.normal(size=sizes[1]) + 0.3).round(2)  # with ties
    gaps = vectors.gaps_of_counts(x, y, np.ones(len(x)), np.ones(len(y)))
    found, theirs = vectors.ks(x, y), ks_2samp(x, y)
    assert found.distance == pytest.approx(np.abs(gaps).max(), rel=1e-12)
    assert (found.p, found.n, found.m) == (theirs.pvalue, *sizes)


def test_a_missing_value_leaves_no_p() -> None:
    assert np.isnan(vectors.ks([1.0, float("nan")], [1.0, 2.0]).p)
