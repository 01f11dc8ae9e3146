"""Ratios of likelihoods: does the model prefer the truth to near misses?"""

from __future__ import annotations

import numpy as np

from vestige.metrics.cards import metric
from vestige.types import Array

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
