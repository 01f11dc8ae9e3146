"""Resampling: properties that must hold whatever the numbers, and small cases done by hand or by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest, norm
from scipy.stats import t as student

from vestige.stats import bootstrap, vectors
from vestige.stats.bootstrap import Resampler, Sample, Statistic, sample
from vestige.types import Array

RNG = np.random.default_rng(7)


def draws(statistic: Statistic, samples: list[Sample], resamples: int = 2000, seed: int = 0) -> Array:
    return Resampler(samples, resamples, seed).draws({"x": statistic})["x"]


def cases(n: int = 60) -> dict[str, tuple[Statistic, list[Sample], float]]:
    rng = np.random.default_rng(3)
    a, b = sample(rng.beta(2, 3, n), "a"), sample(rng.beta(3, 2, n), "b")
    means = [bootstrap.mean(a), bootstrap.mean(b)]
    area = bootstrap.auc(a, b)
    return {
        "mean": (means[0], [a], float(a.values.mean())),
        "auc": (area, [a, b], vectors.auc(a.values, b.values)),
        "harmonic": (
            bootstrap.harmonic_mean(means),
            [a, b],
            vectors.harmonic_mean([float(a.values.mean()), float(b.values.mean())]),
        ),
        "privleak": (
            bootstrap.combined(vectors.privleak, area, bootstrap.constant(0.5)),
            [a, b],
            vectors.privleak(vectors.auc(a.values, b.values), 0.5),
        ),
        "ks": (bootstrap.ks_distance(a, b), [a, b], float(ks_2samp(a.values, b.values).statistic)),
    }


@pytest.mark.parametrize("name", cases())
def test_each_row_once_is_the_plain_estimate(name: str) -> None:
    statistic, _, estimate = cases()[name]
    assert float(statistic(bootstrap.once)[0]) == pytest.approx(estimate, abs=1e-12)


@pytest.mark.parametrize("name", ["mean", "auc", "harmonic", "privleak"])
def test_intervals_hold_the_estimate_and_shrink(name: str) -> None:
    widths = []
    for n in (30, 480):
        statistic, samples, estimate = cases(n)[name]
        low, high = bootstrap.interval(draws(statistic, samples), n) or (0, 0)
        assert low < estimate < high
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.35)  # the root of 16


def test_resamplings_match_indexing_by_hand() -> None:
    """Counts are only a quicker way to write a drawn sample down."""
    low, high = sample([0.1, 0.4, 0.4, 0.9], "a"), sample([0.4, 0.2, 0.7], "b")
    for counts in Resampler([low, high], 50).chunks():
        x, y = counts(low), counts(high)
        assert (x.sum(axis=1) == 4).all() and (y.sum(axis=1) == 3).all()
        areas, gaps = bootstrap.auc(low, high)(counts), bootstrap.ks_distance(low, high)(counts)
        for i in range(50):
            drawn = np.repeat(low.values, x[i].astype(int)), np.repeat(high.values, y[i].astype(int))
            assert areas[i] == vectors.auc(*drawn)
            assert gaps[i] == pytest.approx(ks_2samp(*drawn).statistic)
            assert bootstrap.mean(low)(counts)[i] == pytest.approx(drawn[0].mean())


def test_rows_of_one_data_set_are_drawn_together() -> None:
    x = RNG.random(50)
    same = [sample(x, "a"), sample(1 - x, "a")]
    apart = [sample(x, "a"), sample(1 - x, "b")]
    for samples, correlation in ((same, -1.0), (apart, 0.0)):
        found = Resampler(samples, 4000).draws({str(i): bootstrap.mean(s) for i, s in enumerate(samples)})
        assert np.corrcoef(found["0"], found["1"])[0, 1] == pytest.approx(correlation, abs=0.06)


def test_bootstrap_and_delong_agree_with_the_textbook() -> None:
    low, high = RNG.normal(0, 1, 45).round(1), RNG.normal(0.8, 1, 60).round(1)  # rounded: with ties
    wins = (low[:, None] < high[None, :]) + 0.5 * (low[:, None] == high[None, :])
    textbook = wins.mean(axis=1).var(ddof=1) / 45 + wins.mean(axis=0).var(ddof=1) / 60
    assert bootstrap.delong_variance(low, high) == pytest.approx(textbook, rel=1e-12)
    a, b = sample(low, "a"), sample(high, "b")
    assert draws(bootstrap.auc(a, b), [a, b], 8000).var() == pytest.approx(textbook, rel=0.12)


@pytest.mark.parametrize(("n", "m"), [(32, 32), (40, 100), (400, 400), (7, 5)])
def test_the_smallest_distance_is_where_significance_begins(n: int, m: int) -> None:
    found = vectors.smallest_detectable(n, m)
    assert found is not None
    size, other = max(n, m), (np.arange(min(n, m)) + 0.5) / min(n, m)
    for steps, significant in ((round(found * size), True), (round(found * size) - 1, False)):
        sample_ = np.where(np.arange(size) < steps, -1.0, (np.arange(size) + 1) / size)
        test = ks_2samp(sample_, other)
        assert test.statistic == pytest.approx(steps / size)
        assert (test.pvalue < 0.05) == significant


@pytest.mark.parametrize("n", [3, 5, 40])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_where_the_percentiles_are_read(n: int, level: float) -> None:
    """Hesterberg's expanded percentile: t quantiles for normal ones, and sqrt(n / (n - 1)). Draws that are evenly
    spread over 0..1 have each percentile at its own place."""
    tail = norm.cdf(student.ppf((1 - level) / 2, n - 1) * np.sqrt(n / (n - 1)))
    even = np.linspace(0, 1, 1001)
    assert bootstrap.interval(even, n, level) == pytest.approx((tail, 1 - tail), abs=1e-9)


def test_two_sided_p_by_hand() -> None:
    ahead = np.arange(19.0)  # 0 counts for both sides: 1 of 19 at or below, so 2 (1 + 1) / (19 + 1)
    assert bootstrap.two_sided_p(ahead) == bootstrap.two_sided_p(-ahead) == pytest.approx(0.2)
    assert bootstrap.two_sided_p(ahead + 1) == pytest.approx(0.1)
    assert bootstrap.two_sided_p(np.array([-1.0, 1.0])) == 1.0  # 4 / 3, cut


def test_holm_by_hand() -> None:
    assert bootstrap.holm([0.02, 0.01, 0.5, 0.04]) == pytest.approx([0.06, 0.04, 0.5, 0.08])
    assert bootstrap.holm([0.9, 0.8]) == [1.0, 1.0]
    assert bootstrap.holm([]) == []


def test_p_values_are_uniform_when_nothing_differs() -> None:
    rng = np.random.default_rng(11)
    flips, boots = [], []
    for i in range(200):
        d = rng.normal(0, 1, 40)
        flips.append(bootstrap.sign_flip_p(d, 400, i))
        s = sample(d)
        boots.append(bootstrap.two_sided_p(draws(bootstrap.mean(s), [s], 400, i)))
    assert kstest(flips, "uniform").pvalue > 0.01
    assert kstest(boots, "uniform").pvalue > 0.01
    assert bootstrap.sign_flip_p(rng.normal(1, 1, 40), 2000) < 0.01
