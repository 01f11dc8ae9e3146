"""What the model finds likely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vestige.metrics import memorisation
from vestige.suites.handlers.common import by_index, mean_score, one_stat, wants_answers
from vestige.suites.registry import Inputs, handler
from vestige.types import Score, TokenStats


@handler("probability", wants_answers)
def probability(inputs: Inputs) -> Score:
    """Length-normalised probability of the answer."""

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {"prob": memorisation.probability(t), "avg_loss": memorisation.loss(t)}

    return mean_score(by_index(inputs.rows, one_stat(inputs, compute)), "prob")


@handler("probability_confidence_ordered", wants_answers)
def probability_confidence_ordered(inputs: Inputs) -> Score:
    """The same probability, with the token probabilities listed from most to least confident."""

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {
            "prob": memorisation.probability_confidence_ordered(t),
            "avg_loss": memorisation.loss(t),
            "confidence_ordered_probs": memorisation.confidence_order(t),
        }

    return mean_score(by_index(inputs.rows, one_stat(inputs, compute)), "prob")


@handler("loss", wants_answers)
def loss(inputs: Inputs) -> Score:
    """Mean negative log-probability of the answer's tokens."""
    value = one_stat(inputs, lambda t: {"score": memorisation.loss(t)})
    return mean_score(by_index(inputs.rows, value), "score")


@handler("exact_memorization", wants_answers)
def exact_memorization(inputs: Inputs) -> Score:
    """Share of answer tokens that are the model's first choice."""
    kind = np.float32 if inputs.dialect.float32_shares else np.float64
    value = one_stat(inputs, lambda t: {"score": memorisation.exact_memorization(t).astype(kind)})
    return mean_score(by_index(inputs.rows, value), "score")


@handler("extraction_strength", wants_answers)
def extraction_strength(inputs: Inputs) -> Score:
    """Share of the answer the model finishes without a miss."""
    floor = inputs.dialect.extraction_floor
    value = one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, floor)})
    return mean_score(by_index(inputs.rows, value), "score")
