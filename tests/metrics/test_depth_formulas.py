"""The formulas behind depth runs and their baselines, on numbers small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vestige.metrics import depth
from vestige.metrics.depth import EPS, LayerScore
from vestige.types import stats


def test_layer_scores_keep_every_axis_but_the_tokens() -> None:
    found = depth.layer_scores(stats(logprob=-np.arange(24.0).reshape(2, 3, 4)))
    assert found.tolist() == [[-1.5, -5.5, -9.5], [-13.5, -17.5, -21.5]]


def test_uds_by_hand() -> None:
    s1 = np.array([[2.0, 1.0, 0.05, -1.0], [0.05, 0.0, -1.0, 0.01]])
    s2 = np.array([[1.0, 4.0, 9.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
    assert depth.knowledge_layers(s1).sum(axis=-1).tolist() == [2, 0]  # the threshold itself does not count
    assert depth.uds(s1, s2)[0] == pytest.approx((1 + 1) / 3)
    assert depth.unclipped(s1, s2)[0] == pytest.approx((1 + 4) / 3)
    assert np.isnan(depth.uds(s1, s2)[1]) and np.isnan(depth.unclipped(s1, s2)[1])
    assert depth.uds(s1[0], -s2[0]) == 0  # a gain is no erasure
    assert depth.uds(s1[0], s1[0]) == 1
    assert depth.uds(s1, s2).shape == (2,)


def test_uds_against_the_published_formula() -> None:
    """Sum over layers of weight times clipped ratio, written out."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        d1, d2, tau = draw.normal(0.3, 1, 7), draw.normal(0.3, 1, 7), float(draw.uniform(0, 0.5))
        above = [(a, b) for a, b in zip(d1, d2, strict=True) if a > tau]
        expected = sum(a * min(max(b / a, 0), 1) for a, b in above) / sum(a for a, _ in above) if above else np.nan
        assert float(depth.uds(d1, d2, tau)) == pytest.approx(expected, nan_ok=True)


def test_cka_properties() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(30, 5)), draw.normal(size=(30, 9))
    turn = np.linalg.qr(draw.normal(size=(5, 5)))[0]
    assert depth.cka(x, 3 * x @ turn + 7) == pytest.approx(1)
    assert depth.cka(x, y) == pytest.approx(depth.cka(y, x)) and 0 < depth.cka(x, y) < 0.5
    wide = draw.normal(size=(4, 9))  # fewer positions than width: the other Gram form
    a, b = (m - m.mean(axis=0) for m in (wide, wide**2))
    by_hand = np.square(a.T @ b).sum() / np.sqrt(np.square(a.T @ a).sum() * np.square(b.T @ b).sum())
    assert depth.cka(wide, wide**2) == pytest.approx(by_hand)
    assert depth.cka(np.ones((4, 3)), x[:4]) == 0


def test_tiny_fisher_information_still_counts() -> None:
    """All excesses far below the published epsilon: scores are as for the same numbers a million times larger."""
    large = [(2.0, 1.0), (1.0, 0.25)]
    tiny = [(a * 1e-12, b * 1e-12) for a, b in large]
    assert depth.excess_scores(tiny)[0] == pytest.approx(depth.excess_scores(large)[0], abs=1e-4)
    assert depth.excess_scores([(0.0, 1.0)])[0] is None


@pytest.mark.parametrize(("p", "q"), [(9, 2), (2, 9), (9, 7), (2, 3)])
def test_cka_by_gram_matrices(p: int, q: int) -> None:
    """tr(KL) / sqrt(tr(KK) tr(LL)) of centred Gram matrices, for states wider and narrower than positions are many."""
    draw = np.random.default_rng(p)
    x, y = draw.normal(size=(4, p)), draw.normal(size=(4, q))
    centre = np.eye(4) - 1 / 4
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    assert depth.cka(x, y) == pytest.approx(np.trace(k @ m) / math.sqrt(np.trace(k @ k) * np.trace(m @ m)))


@pytest.mark.parametrize(
    ("full", "unlearned", "erasure", "weight"),
    [
        (0.5, 0.75, 0.25 / (0.5 + EPS), 0.5),  # half of the way
        (0.5, 0.25, 0.0, 0.5),  # away from the retain model
        (0.5, 1.5, 1.0, 0.5),
        (1 - EPS, 1 - EPS / 2, 0.25, EPS),  # so alike that the epsilon shows
        (1.25, 1.25, 0.0, 0.0),
    ],
)
def test_cka_of_a_layer(full: float, unlearned: float, erasure: float, weight: float) -> None:
    found = depth.cka_layer(full, unlearned)
    assert (found.erasure, found.weight) == (pytest.approx(erasure, rel=1e-7), pytest.approx(weight, rel=1e-7))


def test_logit_lens_by_hand() -> None:
    """The retain model lacks 2, 1 and tau (which does not count); the unlearned one 1, 3 and 9: (2 / 2 + 1) / 3."""
    full = np.zeros((4, 3))
    retain = -np.array([[2.0, 1.0, 0.05], [0.0, 0.0, 0.0], [4.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
    unlearned = -np.array([[1.0, 3.0, 9.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [-1.0, -1.0, 0.0]])
    found = depth.logit_lens(full + 7, retain + 7, unlearned + 7, tau=0.0500001)
    assert found == pytest.approx([2 / 3, np.nan, 0.25, 0.0], nan_ok=True)
    assert depth.logit_lens(full[0], retain[0], unlearned[0], tau=0.0500001) == pytest.approx(2 / 3)  # one example
    assert depth.logit_lens([[0.25]], [[0.0]], [[0.0]], tau=0.25).tolist() == pytest.approx([np.nan], nan_ok=True)
    assert np.isnan(depth.logit_lens([[EPS]], [[0.0]], [[0.0]], tau=0.0))  # nothing to speak of is missing
    assert depth.lens_ratio(np.array([EPS, 1.0, 1.0]), np.array([EPS, -1.0, 3.0])).tolist() == [0.5, 0.0, 1.0]


def test_the_largest_share_has_at_least_one() -> None:
    values = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    for share, want in ((0.01, {0}), (0.2, {0}), (0.5, {0, 2}), (0.6, {0, 2, 4}), (1.0, {0, 1, 2, 3, 4})):
        assert set(depth.top_mask(values, share).tolist()) == want


def test_fisher_information_where_the_retain_model_exceeds_most() -> None:
    full, retain = np.array([3.5, 0.0, 0.5, 0.0]), np.array([4.0, 1.0, 3.0, 0.0])  # excesses 0.5, 1, 2.5, 0
    unlearned = np.array([1.0, 9.0, 2.0, 9.0])
    assert depth.masked_excess(full, retain, unlearned, 0.5) == (2 - 0.25, 2 - 5.5)
    small = np.array([0.5, 0.25, 0.75, 0.125])
    assert depth.masked_excess(np.zeros(4), small, np.zeros(4), 0.25) == (0.75, 0.75)


def test_fisher_information_of_whole_blocks() -> None:
    """log(1 + mean): log 2, log 4 and log 1."""
    one, three, none = np.array([0.0, 2.0]), np.array([3.0, 3.0]), np.zeros(2)
    assert depth.plain_excess(one, three, none) == pytest.approx((math.log(2), math.log(4)))
    assert depth.plain_excess(three, one, three) == (0.0, 0.0)
    assert depth.fisher_level(np.array([8.0, 0.0, 0.0, 0.0]), 0.25) == pytest.approx(math.log(9))
    assert depth.fisher_level(np.array([8.0, 0.0, 0.0, 0.0]), None) == pytest.approx(math.log(3))


def test_gaps_closed_by_hand() -> None:
    """Weights 2 and 1. Of the first gap half is left, of the second nothing; a block without a gap does not count."""
    score, layers = depth.excess_scores([(2.0, 1.0), (1.0, -3.0), (0.0, 5.0)])
    assert score == pytest.approx((2 * 0.5 + 1 * 1) / 3, abs=1e-7)
    assert layers[2] == LayerScore(1.0, 0.0)
    assert depth.excess_scores([(1.0, 3.0)])[0] == 0.0  # a gap that grew is not closed at all
    assert depth.excess_scores([]) == (None, {})
