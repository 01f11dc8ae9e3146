"""Scores made of parents' scores: ratios of likelihoods, harmonic means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vestige.compare import vectors
from vestige.errors import UserError, unknown_name
from vestige.metrics import utility
from vestige.suites.handlers.common import NO_TOKENS, Value, as_list, mean_score
from vestige.suites.registry import Inputs, handler
from vestige.sums import mean
from vestige.types import BAD_LOGITS, Score


def need(inputs: Inputs, *keys: str) -> str:
    """Why the parents cannot serve, or nothing."""
    for key in keys:
        if key not in inputs.parents:
            raise UserError(f"Metric '{inputs.spec.name}' needs a parent with access_key '{key}' in pre_compute.")
        parent = inputs.parents[key]
        if parent.value_by_index is None or is_broken(parent):
            return f"its parent '{inputs.spec.parents[key]}' is missing: {parent.reason or 'no per-row values'}"
    return ""


def is_broken(score: Score) -> bool:
    """Whether NaN or infinite logits left a score without a value: what is left of its rows would flatter the model."""
    return score.agg_value is None and BAD_LOGITS in score.reason


def _pairs(inputs: Inputs) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Rows of the parents 'correct' and 'wrong', matched by index."""
    correct, wrong = (inputs.parents[k].value_by_index or {} for k in ("correct", "wrong"))
    if set(correct) != set(wrong):
        odd = sorted(set(correct) ^ set(wrong))[:5]
        raise UserError(f"Metric '{inputs.spec.name}': its parents cover different rows (first: {', '.join(odd)}).")
    return [(i, correct[i], wrong[i]) for i in correct]


def _present(entry: Mapping[str, Any], field: str) -> list[float]:
    return [v for v in as_list(entry.get(field)) if v is not None]


@handler("probability_w_options")
def probability_w_options(inputs: Inputs) -> Score:
    """The truth's share of the probability of all options."""
    if missing := need(inputs, "correct", "wrong"):
        return Score(None, reason=missing)
    by_index: dict[str, Value] = {}
    for index, right, wrong in _pairs(inputs):
        p, q = _present(right, "prob"), _present(wrong, "prob")
        if p and q:
            by_index[index] = {"prob": float(utility.probability_w_options(mean(p), np.asarray(q)))}
        else:
            by_index[index] = {"prob": None, "reason": right.get("reason") or wrong.get("reason") or NO_TOKENS}
    return mean_score(by_index, "prob")


def _mean_loss(losses: list[float], paper: bool) -> float:
    """The loss of several answers together. The paper's text averages their probabilities, all code their losses."""
    return -math.log(mean(np.exp(-np.asarray(losses)))) if paper else mean(losses)


@handler("truth_ratio")
def truth_ratio(inputs: Inputs) -> Score:
    """P(wrong answers) / P(right answer)."""
    name = str(inputs.spec.params.get("aggregator", "closer_to_1_better"))
    if name not in utility.TRUTH_RATIO_AGGREGATORS:
        raise unknown_name("aggregator", name, utility.TRUTH_RATIO_AGGREGATORS, f"(metric '{inputs.spec.name}')")
    if missing := need(inputs, "correct", "wrong"):
        return Score(None, reason=missing)
    paper = bool(inputs.spec.params.get("paper", False))
    by_index: dict[str, Value] = {}
    for index, right, wrong in _pairs(inputs):
        c, w = _present(right, "avg_loss"), _present(wrong, "avg_loss")
        if c and w:
            ratio = utility.truth_ratio(_mean_loss(c, paper), _mean_loss(w, paper), prob_mean=name == "prob_mean")
            by_index[index] = {"score": float(ratio)}
        else:
            by_index[index] = {"score": None, "reason": right.get("reason") or wrong.get("reason") or NO_TOKENS}
    plain = mean_score(by_index, "score")
    if plain.agg_value is None:
        return plain
    ratios = np.asarray([v["score"] for v in by_index.values() if v["score"] is not None])
    value = mean(utility.TRUTH_RATIO_AGGREGATORS[name](ratios))
    return Score(value, by_index, notes=plain.notes)


@handler("hm_aggregate")
def hm_aggregate(inputs: Inputs) -> Score:
    """Harmonic mean of the parents' values (model utility)."""
    # Sorted: a manifest keeps parents in another order, and the same evidence must give the same words.
    missing = sorted((inputs.spec.parents[k], s.reason) for k, s in inputs.parents.items() if s.agg_value is None)
    if missing:
        name, why = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return Score(None, reason=f"its parent '{name}' is missing{more}: {why}")
    return Score(vectors.harmonic_mean([float(s.agg_value or 0.0) for s in inputs.parents.values()]))
