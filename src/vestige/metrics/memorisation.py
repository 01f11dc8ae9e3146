"""What the model finds likely, token by token. Each function reduces the last axis and keeps every other.

Missing is NaN: an answer without tokens has no probability, no share of hits, no extraction strength.
"""

from __future__ import annotations

import numpy as np

from vestige.metrics.cards import metric
from vestige.types import Array, TokenStats

PUBLISHED_FLOOR = 1e-12  # what published code adds to a probability before taking its logarithm


def _mean(x: Array) -> Array:
    """The mean over the last axis; NaN (without a warning) when there is nothing to average."""
    if x.shape[-1] == 0:
        return np.full(x.shape[:-1], np.nan)
    # Contiguous: numpy adds along an axis in an order that depends on how the array lies in memory.
    return np.asarray(np.ascontiguousarray(x).mean(axis=-1, dtype=np.float64))


@metric(knows="low", source="Yeom et al. 2018")
def loss(t: TokenStats) -> Array:
    """The mean negative log-probability of the answer's tokens.

    >>> from vestige.types import stats
    >>> float(loss(stats(logprob=[-1.0, -3.0])))
    2.0
    """
    return -_mean(t.logprob)


@metric(knows="high", source="Maini et al. 2024 (TOFU)")
def probability(t: TokenStats) -> Array:
    """The geometric mean of the answer's token probabilities: p(answer) to the power 1/length.

    >>> from vestige.types import stats
    >>> round(float(probability(stats(logprob=[-1.0, -3.0]))), 4)
    0.1353
    """
    return np.exp(-loss(t))


@metric(knows="high", source="Open Unlearning fork, diffusion guide")
def probability_confidence_ordered(t: TokenStats, floor: float = 0.0) -> Array:
    """The same scalar as probability: the order of the factors, most confident first, does not change a product.

    Published code takes the logarithm of p + 1e-12 (PUBLISHED_FLOOR), so that a token of probability 0 does not make
    the whole answer 0. It shows only where probabilities are below 1e-7. The token probabilities themselves are
    `confidence_order`.

    >>> from vestige.types import stats
    >>> never = stats(logprob=[-np.inf])
    >>> [f"{float(probability_confidence_ordered(never, floor)):.0e}" for floor in (0.0, PUBLISHED_FLOOR)]
    ['0e+00', '1e-12']
    """
    if not floor:
        return probability(t)
    return np.exp(_mean(np.logaddexp(t.logprob.astype(np.float64), np.log(floor))))


def confidence_order(t: TokenStats) -> Array:
    """The token probabilities, most confident first, for plots of probability against rank.

    >>> from vestige.types import stats
    >>> confidence_order(stats(logprob=[-2.0, 0.0])).round(3).tolist()
    [1.0, 0.135]
    """
    return np.flip(np.sort(np.exp(t.logprob.astype(np.float64)), axis=-1), axis=-1)


@metric(knows="high", source="Tirumala et al. 2022")
def exact_memorization(t: TokenStats) -> Array:
    """The share of the answer's tokens that are the model's first choice.

    >>> from vestige.types import stats
    >>> float(exact_memorization(stats(hit=[1, 0, 1, 1])))
    0.75
    """
    return _mean(t.hit)


@metric(knows="high", source="Carlini et al. 2021")
def extraction_strength(t: TokenStats, floor: bool = False, normalised: bool = False) -> Array:
    """The share of the answer, in decision order, that the model finishes without a miss.

    `floor` keeps a quirk of published code: the search stops one short of the end, so that a model that
    misses the last token still scores 1/n (and 1 for a wrong one-token answer).

    A denoiser may decide every token of an answer long before its last step. What it misses then still scores the
    steps that came after; `normalised` counts only the steps up to the answer's last decision.

    >>> from vestige.types import stats
    >>> float(extraction_strength(stats(hit=[0, 1, 1, 1])))
    0.75
    >>> missed_end = stats(hit=[1, 1, 0])
    >>> float(extraction_strength(missed_end)), round(float(extraction_strength(missed_end, floor=True)), 3)
    (0.0, 0.333)
    """
    if t.tokens == 0 or t.steps == 0:
        return np.full(t.hit.shape[:-1], np.nan)
    last_miss = np.where(t.hit, 0, t.order + 1).max(axis=-1)
    steps = t.order.max(axis=-1) + 1 if normalised else t.steps
    if floor:
        last_miss = np.minimum(last_miss, steps - 1)
    return 1 - last_miss / steps


# ---- Ratios of likelihoods: does the model prefer the truth to near misses? ---------------------------------------

EPSILON = 1e-10  # in every published formula; keeps a zero from dividing


@metric(knows="high", source="Maini et al. 2024 (TOFU)")
def probability_w_options(correct: Array | float, wrong: Array) -> Array:
    """The truth's share of the probability of all options. `wrong` has the options on its last axis.

    >>> round(float(probability_w_options(np.array(0.6), np.array([0.1, 0.1]))), 3)
    0.75
    """
    return correct / (correct + np.sum(wrong, axis=-1) + EPSILON)


@metric(knows="low", source="Maini et al. 2024 (TOFU)")
def truth_ratio(loss_correct: Array | float, loss_wrong: Array | float, prob_mean: bool = False) -> Array:
    """How likely wrong answers are beside the right one: P(wrong) / P(right), on length-normalised probabilities.

    Near 1: the model does not tell them apart (it does not know). Near 0: it knows. Losses are already means over
    several answers, so that the probabilities are geometric means.

    >>> round(float(truth_ratio(np.array(1.0), np.array(2.0))), 4)
    0.3679
    """
    right, wrong = np.exp(-np.asarray(loss_correct, float)), np.exp(-np.asarray(loss_wrong, float))
    if prob_mean:
        return right / (right + wrong + EPSILON)
    return wrong / (right + EPSILON)


def _closer_to_1_better(r: Array) -> Array:
    return np.minimum(r, 1 / (r + EPSILON))


def _true_better(r: Array) -> Array:
    return np.maximum(0, 1 - r)


def _prob_mean(r: Array) -> Array:
    return r


# How per-row truth ratios become one number: the mean of these.
TRUTH_RATIO_AGGREGATORS = {
    "closer_to_1_better": _closer_to_1_better,
    "true_better": _true_better,
    "prob_mean": _prob_mean,
}
