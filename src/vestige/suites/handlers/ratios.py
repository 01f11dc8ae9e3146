"""Scores made of parents' scores: ratios of likelihoods, harmonic means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vestige.compare import vectors
from vestige.errors import UserError, unknown_name
from vestige.metrics import utility
from vestige.numeric import mean, means
from vestige.suites.handlers.common import answers, mean_score, one_number
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored, at_each_step, unless, words_at_each_step
from vestige.types import BAD_LOGITS, Array, Score

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
        return utility.probability_w_options(_mean_of(right), wrong)

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
    if name not in utility.TRUTH_RATIO_AGGREGATORS:
        raise unknown_name("aggregator", name, utility.TRUTH_RATIO_AGGREGATORS, f"(metric '{inputs.spec.name}')")
    paper = bool(inputs.spec.params.get("paper", False))

    def ratio(right: Array, wrong: Array) -> Array:
        losses = _mean_loss(right, paper), _mean_loss(wrong, paper)
        return utility.truth_ratio(*losses, prob_mean=name == "prob_mean")

    each = utility.TRUTH_RATIO_AGGREGATORS[name]
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
