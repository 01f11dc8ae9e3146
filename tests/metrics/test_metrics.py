"""Metrics as pure functions: independent references, edge cases, and the rule that leading axes pass through."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hmean
from sklearn.metrics import roc_auc_score

from vestige.metrics import membership, memorisation
from vestige.metrics.cards import reading
from vestige.stats import vectors
from vestige.types import TokenStats, stats

RNG = np.random.default_rng(0)
PER_TOKEN = {
    "loss": memorisation.loss,
    "probability": memorisation.probability,
    "probability_confidence_ordered": memorisation.probability_confidence_ordered,
    "exact_memorization": memorisation.exact_memorization,
    "extraction_strength": memorisation.extraction_strength,
    "extraction_strength (floor)": lambda t: memorisation.extraction_strength(t, floor=True),
    "mia_loss": membership.mia_loss,
    "mia_zlib": lambda t: membership.mia_zlib(t, "some text"),
    "mia_min_k": membership.mia_min_k,
    "mia_min_k_plus_plus": membership.mia_min_k_plus_plus,
}


def random_stats(*shape: int) -> TokenStats:
    lp = -RNG.exponential(2.0, shape)
    return stats(
        hit=RNG.random(shape) < 0.6, logprob=lp, mean=-RNG.exponential(3.0, shape), std=RNG.random(shape) + 0.1
    )


def one(t: TokenStats, i: int) -> TokenStats:
    cut = {n: getattr(t, n)[i] for n in ("label", "top1", "logprob", "mean", "std", "order")}
    return TokenStats(**cut, steps=t.steps)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_leading_axes_pass_through(name: str) -> None:
    metric, t = PER_TOKEN[name], random_stats(5, 9)
    whole = metric(t)
    assert whole.shape == (5,)
    np.testing.assert_allclose(whole, [metric(one(t, i)) for i in range(5)], rtol=1e-12)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_no_tokens_is_nan_without_a_warning(name: str, recwarn: pytest.WarningsRecorder) -> None:
    assert np.isnan(PER_TOKEN[name](stats(logprob=np.zeros(0))))
    assert not recwarn.list


@pytest.mark.parametrize("name", [n for n in PER_TOKEN if not n.startswith(("exact", "extraction"))])
def test_nan_log_probabilities_stay_nan(name: str) -> None:
    """The k smallest of [-1, NaN, -3] must not quietly be -3."""
    assert np.isnan(PER_TOKEN[name](stats(logprob=[-1.0, np.nan, -3.0])))


@pytest.mark.parametrize("name", ["loss", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus"])
def test_attacks_fall_as_the_model_knows_more(name: str) -> None:
    weak, strong = stats(logprob=[-3.0, -2.0, -4.0]), stats(logprob=[-0.3, -0.2, -0.4])
    assert PER_TOKEN[name](strong) < PER_TOKEN[name](weak)


def slow_strength(hit: list[int], floor: bool) -> float:
    n = len(hit)
    for k in range(n):
        if all(hit[k:]):
            return 1 - k / n
    return 1 - (n - 1) / n if floor else 0.0


@pytest.mark.parametrize("floor", [False, True])
def test_extraction_strength_against_a_search(floor: bool) -> None:
    for n in range(1, 8):
        for code in range(2**n):
            hit = [code >> i & 1 for i in range(n)]
            got = memorisation.extraction_strength(stats(hit=hit), floor=floor)
            assert got == pytest.approx(slow_strength(hit, floor)), hit


def test_decision_order_counts_not_position() -> None:
    """A diffusion model that decides the last token first and misses only that one has finished the rest."""
    t = TokenStats(**{**vars(stats(hit=[1, 1, 0])), "order": np.array([2, 1, 0])})
    assert memorisation.extraction_strength(t) == pytest.approx(2 / 3)


def test_min_k_plus_plus_against_the_formula() -> None:
    logits = RNG.normal(size=(6, 50)) * 3
    lp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    label = RNG.integers(0, 50, 6)
    p = np.exp(lp)
    mu, var = (p * lp).sum(-1), (p * lp**2).sum(-1) - (p * lp).sum(-1) ** 2
    z = np.sort((lp[np.arange(6), label] - mu) / np.sqrt(np.maximum(var, 1e-6)))
    t = stats(logprob=lp[np.arange(6), label], mean=mu, std=np.sqrt(var))
    assert membership.mia_min_k_plus_plus(t, 0.4) == pytest.approx(-z[:2].mean(), rel=1e-5)


def test_epsilons_are_added() -> None:
    """They show where probabilities are as small as they are, 1e-10: 1/3 instead of 1/2, 1/2 instead of 1."""
    tiny = -np.log(1e-10)
    assert memorisation.probability_w_options(1e-10, np.array([1e-10])) == pytest.approx(1 / 3)
    assert memorisation.truth_ratio(tiny, tiny) == pytest.approx(1 / 2)
    assert memorisation.truth_ratio(tiny, tiny, prob_mean=True) == pytest.approx(1 / 3)
    assert memorisation.TRUTH_RATIO_AGGREGATORS["closer_to_1_better"](np.array(1.0)) == 1 / (1 + 1e-10)
    assert vectors.rel_diff(2e-10, 1e-10) == pytest.approx(50)
    assert vectors.privleak(1.0, 1.0 - 1e-10) == pytest.approx(-50, rel=1e-5)


@pytest.mark.parametrize("ties", [False, True])
def test_auc_equals_sklearn(ties: bool) -> None:
    for n, m in ((1, 1), (3, 7), (40, 25), (200, 300)):
        a, b = RNG.normal(0, 1, n), RNG.normal(0.5, 1, m)
        if ties:
            a, b = a.round(0), b.round(0)
        expected = roc_auc_score([0] * n + [1] * m, np.concatenate([a, b]))
        assert vectors.auc(a, b) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(vectors.auc([], [1.0]))
    assert np.isnan(vectors.auc([np.nan, 0.0], [1.0]))
    assert np.isnan(vectors.auc([0.0], [1.0, np.nan]))


def test_ks_of_what_cannot_be_compared(recwarn: pytest.WarningsRecorder) -> None:
    """A missing p has no logarithm: minus infinity would be the strongest result there is."""
    beyond = vectors.ks(range(600), range(600, 1200))  # 2 / C(1200, 600), about 1e-359
    assert (beyond.p, beyond.log10_p) == (0.0, -np.inf)
    assert not recwarn.list
    for x, y in (([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, np.nan]), ([], [1.0]), ([1.0], [])):
        found = vectors.ks(x, y)
        assert np.isnan(found.p) and np.isnan(found.log10_p) and np.isnan(found.distance)
    assert vectors.smallest_detectable(0, 5) is None


def test_harmonic_mean() -> None:
    values = RNG.random(9) + 0.01
    assert vectors.harmonic_mean(list(values)) == pytest.approx(hmean(values), rel=1e-12)
    assert vectors.harmonic_mean([0.5, 0.0]) == 0
    assert vectors.harmonic_mean([0.0, float("nan")]) == 0  # whatever the missing one is
    assert np.isnan(vectors.harmonic_mean([0.5, float("nan")]))


def test_auc_readings_follow_the_code_not_the_guide() -> None:
    """AUC 1 means forget rows are recognised. A guide in circulation reads it as good unlearning."""
    assert "still known" in reading("mia_loss", 1.0)
    assert "cannot tell" in reading("mia_loss", 0.5)
    assert "over-forgotten" in reading("mia_loss", 0.0)
