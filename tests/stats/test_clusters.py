"""Clusters as the unit: errors, degrees of freedom, bounds, and coverage where the truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from vestige.stats import bootstrap, clusters
from vestige.stats.bootstrap import Resampler, sample
from vestige.stats.clusters import cluster_mean, jackknife


def labels(sizes: list[int], prefix: str = "") -> list[str]:
    return [f"{prefix}{g}" for g, size in enumerate(sizes) for _ in range(size)]


def test_rows_that_are_their_own_clusters_have_the_textbook_error() -> None:
    x = np.random.default_rng(0).normal(size=30)
    spread = cluster_mean(x)
    assert math.isclose(spread.se or 0, x.std(ddof=1) / math.sqrt(30), rel_tol=1e-12)
    there = scipy_stats.t.interval(0.95, 29, x.mean(), x.std(ddof=1) / math.sqrt(30))
    assert spread.interval() == pytest.approx(there, rel=1e-9)
    assert spread.p(0.2) == pytest.approx(scipy_stats.ttest_1samp(x, 0.2).pvalue, rel=1e-9)


def test_clusters_of_equal_size_are_a_t_test_of_their_means() -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(7, 1)) + rng.normal(size=(7, 20))).ravel()
    spread, means = cluster_mean(x, labels([20] * 7)), x.reshape(7, 20).mean(axis=1)
    assert spread.df == pytest.approx(6)
    assert spread.se == pytest.approx(means.std(ddof=1) / math.sqrt(7), rel=1e-12)
    residuals = (x - x.mean()).reshape(7, 20).sum(axis=1)
    assert (spread.se or 0) ** 2 == pytest.approx((residuals**2).sum() / 140**2 * 7 / 6, rel=1e-12)


def test_the_mean_is_a_jackknife_written_out() -> None:
    rng, sizes = np.random.default_rng(2), [3, 9, 20, 1, 14, 6]
    x, names = rng.normal(size=sum(sizes)), labels(sizes)
    direct, s = cluster_mean(x, names), sample(x, clusters=names)
    by_leaving_out = jackknife(bootstrap.mean(s), [s])
    assert by_leaving_out.se == pytest.approx(direct.se, rel=1e-12)
    assert by_leaving_out.df == pytest.approx(direct.df, rel=1e-12)
    rest = [np.mean([v for v, n in zip(x, names, strict=True) if n != g]) for g in dict.fromkeys(names)]
    slow = math.sqrt(5 / 6 * sum((r - x.mean()) ** 2 for r in rest))
    assert direct.se == pytest.approx(slow, rel=1e-12)
    assert direct.df == pytest.approx(sum(sizes) ** 2 / sum(n * n for n in sizes) - 1)


def test_too_few_clusters_have_no_interval_and_say_so() -> None:
    four = cluster_mean(np.arange(80.0), labels([20] * 4))
    assert four.interval() is four.lower() is four.p() is four.se is None
    assert four.value == 39.5 and four.reason == "too few clusters: 4, and an interval takes at least 5"
    one_large = cluster_mean(np.arange(104.0), labels([100, 1, 1, 1, 1]))
    assert one_large.interval() is None and "nearly all of the rows" in one_large.reason
    assert cluster_mean([]).reason == "it has no rows"
    s, h = sample(np.arange(80.0), "f", labels([20] * 4, "f")), sample(np.arange(80.0), "h", labels([10] * 8, "h"))
    found = jackknife(bootstrap.auc(s, h), [s, h])
    assert found.interval() is None and found.value == 0.5 and found.reason.startswith("too few clusters: 4")


def test_two_data_sets_add_their_errors_and_welch_has_the_freedom() -> None:
    rng = np.random.default_rng(4)
    a, b = (sample(rng.normal(size=20 * g), name, labels([20] * g, name)) for name, g in (("a", 6), ("b", 11)))
    both = jackknife(bootstrap.combined(np.subtract, bootstrap.mean(a), bootstrap.mean(b)), [a, b])
    parts = [cluster_mean(s.values, s.clusters) for s in (a, b)]
    variances = [(p.se or 0) ** 2 for p in parts]
    assert both.se == pytest.approx(math.sqrt(sum(variances)), rel=1e-12)
    assert both.df == pytest.approx(sum(variances) ** 2 / (variances[0] ** 2 / 5 + variances[1] ** 2 / 10))
    assert both.clusters == 6


def test_clusters_are_drawn_whole() -> None:
    s = sample(np.zeros(12), clusters=labels([2, 3, 4, 3]))
    (counts,) = [counts(s) for counts in Resampler([s], 200).chunks()]
    by_cluster = [counts[:, [i for i, c in enumerate(s.clusters or ()) if c == g]] for g in "0123"]
    assert all((part == part[:, :1]).all() for part in by_cluster)
    assert (sum(part[:, 0] for part in by_cluster) == 4).all()


def test_an_auc_stays_between_zero_and_one() -> None:
    rng = np.random.default_rng(6)
    low, high = (sample(rng.normal(m, 1, 50), n, labels([10] * 5, n)) for n, m in (("f", 0), ("h", 3)))
    area = jackknife(bootstrap.auc(low, high), [low, high], unit=True)
    ends = area.interval(0.999)
    assert ends is not None and 0 <= ends[0] < area.value < ends[1] <= 1
    certain = jackknife(bootstrap.auc(sample([0.0] * 9), sample([1.0] * 9)), [sample([0.0] * 9)], unit=True)
    assert certain.interval() == (1.0, 1.0)


def test_signs_of_clusters_are_flipped_exactly() -> None:
    """Against every one of the 2^6 flips."""
    rng = np.random.default_rng(7)
    d, names = rng.normal(0.4, 1, 60), labels([10] * 6)
    sums = clusters.cluster_sums(d, names)
    every = [
        abs(np.dot(signs, sums)) >= abs(sums.sum()) * (1 - 1e-12) for signs in itertools.product((-1, 1), repeat=6)
    ]
    assert bootstrap.sign_flip_p(sums, 20_000) == pytest.approx(np.mean(every), abs=0.015)


def coverage(sizes: list[int], repetitions: int, seed: int) -> tuple[float, float]:
    """How often the interval of a mean holds the truth (0), with clusters and without."""
    rng, unit = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    held = naive = 0
    for _ in range(repetitions):
        x = rng.normal(0, 0.3**0.5, len(sizes))[unit] + rng.normal(0, 0.7**0.5, len(unit))
        for clustered in (True, False):
            ends = cluster_mean(x, unit if clustered else None).interval() or (math.nan, math.nan)
            inside = ends[0] <= 0 <= ends[1]
            held, naive = held + (inside and clustered), naive + (inside and not clustered)
    return held / repetitions, naive / repetitions


@pytest.mark.parametrize("sizes", [[20] * 5, [20] * 10, [5, 12, 20, 28, 35], [*range(10, 30)]])
def test_intervals_of_clustered_means_hold_the_truth(sizes: list[int]) -> None:
    """The margin is wide (1,500 samples: a standard error of 0.6 points); bench/coverage.py measures sharply."""
    held, naive = coverage(sizes, 1500, len(sizes))
    assert 0.92 <= held <= 0.98
    assert naive < 0.75
