"""What the model finds likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.numeric import total
from vestige.suites.handlers.common import Value, as_list, by_index, clean, mean_score, one_stat, targets, wants_answers
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored
from vestige.types import Example, Rows, Score, TokenStats
from vestige.wants import Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec


@handler("probability", wants_answers, steps=True, settings=())
def probability(inputs: Inputs) -> Scored:
    """Length-normalised probability of the answer."""

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {"prob": memorisation.probability(t), "avg_loss": memorisation.loss(t)}

    value = one_stat(inputs, compute)
    if not inputs.evidence.errors:  # only a diffusion model's answers are estimated
        return mean_score(by_index(inputs.rows, value), "prob")
    return with_total_error(mean_score(by_index(inputs.rows, with_error(inputs, value)), "prob"))


def with_total_error(score: Scored) -> Scored:
    """Adds how far the mean may be off because each row was estimated by Monte Carlo (diffusion models)."""
    if not isinstance(score, Score) or score.agg_value is None:
        return score  # along a trajectory nothing is estimated
    rows = [(p, se) for entry in (score.value_by_index or {}).values() for p, se in _errors(entry)]
    if not rows:
        return score
    # A small error of log p is p times that error of p; rows are drawn independently of each other.
    error = math.sqrt(total((p * se) ** 2 for p, se in rows)) / len(rows)
    return replace(score, extra={**score.extra, "monte_carlo_standard_error": error})


def _errors(entry: Mapping[str, Any]) -> list[tuple[float, float]]:
    pairs = zip(as_list(entry["prob"]), as_list(entry.get("avg_loss_standard_error")), strict=False)
    return [(p, se) for p, se in pairs if p is not None and se is not None]


def with_error(inputs: Inputs, value: Callable[[Example], Value]) -> Callable[[Example], Value]:
    """Adds the standard error of a value that was estimated by Monte Carlo (diffusion models)."""

    def found(example: Example) -> Value:
        out = value(example)
        error = inputs.evidence.errors.get(example.target.key) if example.target else None
        return out if error is None else {**out, "avg_loss_standard_error": clean(error)}

    return found


def wants_visible(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    asked = targets(data)
    return Wants(answers=asked, visible=asked)


@handler("probability_confidence_ordered", wants_visible, steps=True, settings=())
def probability_confidence_ordered(inputs: Inputs) -> Scored:
    """The same probability, with the token probabilities listed from most to least confident."""
    if inputs.evidence.visible:  # a diffusion model is asked about each token with the whole text in sight
        inputs = replace(inputs, evidence=replace(inputs.evidence, answers=inputs.evidence.visible))

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {
            "prob": memorisation.probability_confidence_ordered(t),
            "avg_loss": memorisation.loss(t),
            "confidence_ordered_probs": memorisation.confidence_order(t),
        }

    return mean_score(by_index(inputs.rows, one_stat(inputs, compute)), "prob")


@handler("loss", wants_answers, steps=True, settings=())
def loss(inputs: Inputs) -> Scored:
    """Mean negative log-probability of the answer's tokens."""
    value = one_stat(inputs, lambda t: {"score": memorisation.loss(t)})
    return mean_score(by_index(inputs.rows, value), "score")


@handler("exact_memorization", wants_answers, steps=True, reads=["first"], settings=())
def exact_memorization(inputs: Inputs) -> Scored:
    """Share of answer tokens that are the model's first choice."""
    kind = np.float32 if inputs.dialect.float32_shares else np.float64
    value = one_stat(inputs, lambda t: {"score": memorisation.exact_memorization(t).astype(kind)})
    return mean_score(by_index(inputs.rows, value), "score")


@handler("extraction_strength", wants_answers, steps=True, reads=["first"], settings=())
def extraction_strength(inputs: Inputs) -> Scored:
    """Share of the answer the model finishes without a miss."""
    floor = inputs.dialect.extraction_floor
    value = one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, floor)})
    return mean_score(by_index(inputs.rows, value), "score")
