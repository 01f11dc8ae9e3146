"""What the model finds likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.errors import UserError, unknown_name
from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.numeric import mean, means, total
from vestige.stats import vectors
from vestige.suites.handlers.common import (
    Value,
    answers,
    as_list,
    by_index,
    clean,
    mean_score,
    one_number,
    one_stat,
    targets,
    wants_answers,
)
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored, at_each_step, unless, words_at_each_step
from vestige.types import BAD_LOGITS, Array, Example, Rows, Score, TokenStats
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


# ---- Scores made of parents' scores: ratios of likelihoods, harmonic means ----------------------------------------

Row = Mapping[str, Any]


def need(inputs: Inputs, *keys: str) -> str | Array:
    """Why the parents cannot serve, or nothing; along a trajectory at each step."""
    for key in keys:
        if key not in inputs.parents:
            raise UserError(f"Metric '{inputs.spec.name}' needs a parent with access_key '{key}' in pre_compute.")

    def why(*parents: Score) -> str:
        for key, parent in zip(keys, parents, strict=True):
            if parent.value_by_index is None or is_broken(parent):
                return f"its parent '{inputs.spec.parents[key]}' is missing: {parent.reason or 'no per-row values'}"
        return ""

    return words_at_each_step(why, *(inputs.parents[key] for key in keys))


def is_broken(score: Score) -> bool:
    """Whether NaN or infinite logits left a score without a value: what is left of its rows would flatter the model."""
    return score.agg_value is None and BAD_LOGITS in score.reason


def _pairs(inputs: Inputs) -> list[tuple[str, Row, Row]]:
    """Rows of the parents 'correct' and 'wrong', matched by index."""
    correct, wrong = (inputs.parents[k].value_by_index or {} for k in ("correct", "wrong"))
    if set(correct) != set(wrong):
        odd = sorted(set(correct) ^ set(wrong))[:5]
        raise UserError(f"Metric '{inputs.spec.name}': its parents cover different rows (first: {', '.join(odd)}).")
    return [(i, correct[i], wrong[i]) for i in correct]


def _of_pairs(inputs: Inputs, reads: str, writes: str, formula: Callable[[Array, Array], Array]) -> dict[str, Any]:
    """A number for each row, from its right and its wrong answers' values: (..., answers) each."""
    out = {}
    for index, right, wrong in _pairs(inputs):
        a, b = answers(right, reads), answers(wrong, reads)
        number = None if a is None or b is None else formula(a, b)
        out[index] = one_number(writes, number, right.get("reason", ""), wrong.get("reason", ""))
    return out


@handler("probability_w_options", steps=True, settings=())
def probability_w_options(inputs: Inputs) -> Scored:
    """The truth's share of the probability of all options."""

    def share(right: Array, wrong: Array) -> Array:
        if wrong.ndim > 1:  # an option that a step has no value of adds nothing, unless no option has one
            gone = np.isnan(wrong)
            wrong = np.where(gone & ~gone.all(axis=-1, keepdims=True), 0.0, wrong)
        return memorisation.probability_w_options(_mean_of(right), wrong)

    missing = need(inputs, "correct", "wrong")
    return unless(missing, lambda: mean_score(_of_pairs(inputs, "prob", "prob", share), "prob"))


def _mean_of(values: Array) -> Array:
    """The mean over answers. Only along steps does NaN mean that a value is missing; else it is a value, and shows."""
    return means(values) if values.ndim > 1 else np.asarray(mean(values))


_log = np.vectorize(math.log, otypes=[float])  # numpy's own has other last bits on some processors


def _mean_loss(losses: Array, paper: bool) -> Array:
    """The loss of several answers together. The paper's text averages their probabilities, all code their losses."""
    return np.asarray(-_log(_mean_of(np.exp(-losses)))) if paper else _mean_of(losses)


@handler("truth_ratio", steps=True, settings=("aggregator", "paper"))
def truth_ratio(inputs: Inputs) -> Scored:
    """P(wrong answers) / P(right answer)."""
    name = str(inputs.spec.params.get("aggregator", "closer_to_1_better"))
    if name not in memorisation.TRUTH_RATIO_AGGREGATORS:
        raise unknown_name("aggregator", name, memorisation.TRUTH_RATIO_AGGREGATORS, f"(metric '{inputs.spec.name}')")
    paper = bool(inputs.spec.params.get("paper", False))

    def ratio(right: Array, wrong: Array) -> Array:
        losses = _mean_loss(right, paper), _mean_loss(wrong, paper)
        return memorisation.truth_ratio(*losses, prob_mean=name == "prob_mean")

    each = memorisation.TRUTH_RATIO_AGGREGATORS[name]
    missing = need(inputs, "correct", "wrong")
    return unless(missing, lambda: mean_score(_of_pairs(inputs, "avg_loss", "score", ratio), "score", each))


@handler("hm_aggregate", steps=True, settings=())
def hm_aggregate(inputs: Inputs) -> Scored:
    """Harmonic mean of the parents' values (model utility)."""
    names = [inputs.spec.parents[key] for key in inputs.parents]

    def one(*parents: Score) -> Score:
        # Sorted: a manifest keeps parents in another order, and the same evidence must give the same words.
        missing = sorted((n, s.reason) for n, s in zip(names, parents, strict=True) if s.agg_value is None)
        if missing:
            name, why = missing[0]
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            return Score(None, reason=f"its parent '{name}' is missing{more}: {why}")
        return Score(vectors.harmonic_mean([float(s.agg_value or 0.0) for s in parents]))

    return at_each_step(one, *inputs.parents.values())
