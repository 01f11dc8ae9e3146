"""Distributions written out, beside scipy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtr, stdtrit
from scipy.stats import ks_2samp

from vestige.stats import vectors
from vestige.stats.vectors import normal_below, smirnov_p, student_quantile


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (7, 7), (15, 14), (40, 100), (400, 400), (400, 117), (117, 400)])
@pytest.mark.parametrize("shift", [0.0, 0.3, 3.0, 50.0])
def test_ks_is_scipys(sizes: tuple[int, int], shift: float) -> None:
    rng = np.random.default_rng(sizes)
    x, y = rng.normal(size=sizes[0]).round(2), (rng.normal(size=sizes[1]) + shift).round(2)  # with ties
    mine, theirs = vectors.ks(x, y), ks_2samp(x, y)
    assert mine.distance == pytest.approx(theirs.statistic, rel=1e-12)
    assert mine.p == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-300)


def test_no_p_exceeds_one() -> None:
    """Distances of one step: every path strays that far. The sum is 1 + 2e-16 before it is cut."""
    for n in (4, 5, 9):
        assert smirnov_p(n, n, 1 / n) == (1.0, 1 / n)


def test_what_is_not_ordinary_is_left_to_scipy() -> None:
    assert np.isnan(vectors.ks([1.0, float("nan")], [1.0, 2.0]).p)
    many = np.random.default_rng(0).normal(size=vectors.EXACT + 1)
    assert vectors.ks(many, many + 0.1).p == ks_2samp(many, many + 0.1).pvalue


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 39, 99, 400, 4001])
def test_quantiles_are_scipys(freedom: int) -> None:
    for tail in (0.005, 0.025, 0.05, 0.2):
        found = student_quantile(freedom, tail)
        assert found == pytest.approx(stdtrit(freedom, tail), rel=1e-10)
        assert normal_below(found) == pytest.approx(ndtr(found), rel=1e-10)


def test_intervals_and_tests_do_without_scipy() -> None:
    code = (
        "import sys; from vestige.stats import bootstrap, vectors; import numpy as np\n"
        "vectors.ks([1, 2, 3], [2, 3, 5]); bootstrap.interval(np.arange(9.0), 9)\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'scipy'])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
