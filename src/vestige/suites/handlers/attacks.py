"""Membership inference: AUCs of attack scores, forget rows against fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vestige.errors import UserError
from vestige.metrics import membership, memorisation
from vestige.metrics.dialects import Dialect
from vestige.stats import vectors
from vestige.suites.handlers.common import (
    NO_TOKENS,
    Value,
    by_index,
    clean,
    mean_score,
    one_stat,
    scores_of,
    targets,
    wants_answers,
)
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored, at_each_step
from vestige.types import BAD_LOGITS, Example, Rows, Score
from vestige.wants import GradientWant, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

SETS = ("forget", "holdout")


def _gradient(spec: MetricSpec, example: Example, dialect: Dialect) -> GradientWant | None:
    if example.target is None:
        return None
    p = str(spec.params.get("p", 2)).removesuffix(".0")
    return GradientWant(example.target, p, spec.handler in dialect.drop_last, dialect.gradnorm_train_mode)


def wants_gradients(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    wanted = (_gradient(spec, e, dialect) for rows in data.values() for row in rows.examples for e in row)
    return Wants(gradients=[w for w in wanted if w is not None])


def wants_reference(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    path = reference_path(spec)
    wanted = targets(data)
    return Wants(answers=wanted, reference={path: wanted}) if path else Wants()


def reference_path(spec: MetricSpec) -> str | None:
    path = spec.params.get("reference_model_path")
    return None if path in (None, "", "???") else str(path)


def _attack(inputs: Inputs, value: Callable[[Example], Value]) -> Scored:
    """AUC of an attack score, forget rows against holdout rows, with both sets' scores."""
    for key in SETS:
        if key not in inputs.data:
            raise UserError(f"Metric '{inputs.spec.name}' needs a data set with access_key '{key}'.")
    parts = [mean_score(by_index(inputs.data[key], value), "score") for key in SETS]

    def one(forget: Score, holdout: Score, *scores: list[float]) -> Score:
        both = dict(zip(SETS, (forget, holdout), strict=True))
        reason = next((f"{k}: {s.reason}" for k, s in both.items() if s.agg_value is None), "")
        notes = tuple(f"{k}: {n}" for k, s in both.items() for n in s.notes)
        area = None if reason else vectors.auc(*scores)
        return Score(area, extra={"auc": area}, reason=reason, notes=notes)

    found = at_each_step(one, *parts, *map(scores_of, parts))
    # Along steps a part stays as it is: StepScores.at gives its JSON.
    kept = {k: s.to_json() if isinstance(s, Score) else s for k, s in zip(SETS, parts, strict=True)}
    return replace(found, extra={**kept, **found.extra})


@handler("mia_loss", wants_answers, steps=True, settings=())
def mia_loss(inputs: Inputs) -> Scored:
    """Attack by loss."""
    return _attack(inputs, one_stat(inputs, lambda t: {"score": membership.mia_loss(t)}))


@handler("mia_zlib", wants_answers, steps=True, settings=())
def mia_zlib(inputs: Inputs) -> Scored:
    """Attack by loss over compressed length."""

    def value(example: Example) -> Value:
        text = example.answer if inputs.dialect.written_answer else example.label_text
        return one_stat(inputs, lambda t: {"score": membership.mia_zlib(t, text)})(example)

    return _attack(inputs, value)


def _k(inputs: Inputs) -> float:
    k = float(inputs.spec.params.get("k", 0.2))
    if not 0 < k <= 1:
        raise UserError(f"Metric '{inputs.spec.name}': k must lie in (0, 1], it is {k}.")
    return k


@handler("mia_min_k", wants_answers, steps=True, settings=("k",))
def mia_min_k(inputs: Inputs) -> Scored:
    """Attack by the least likely tokens."""
    k = _k(inputs)
    return _attack(inputs, one_stat(inputs, lambda t: {"score": membership.mia_min_k(t, k)}))


@handler("mia_min_k_plus_plus", wants_answers, steps=True, reads=["spread"], settings=("k",))
def mia_min_k_plus_plus(inputs: Inputs) -> Scored:
    """Attack by the least likely tokens, standardised over the vocabulary."""
    k = _k(inputs)
    return _attack(inputs, one_stat(inputs, lambda t: {"score": membership.mia_min_k_plus_plus(t, k)}))


@handler("mia_gradnorm", wants_gradients, settings=("p",))
def mia_gradnorm(inputs: Inputs) -> Scored:
    """Attack by the norm of the loss's gradient."""

    def value(example: Example) -> Value:
        want = _gradient(inputs.spec, example, inputs.dialect)
        norm = None if want is None else clean(inputs.evidence.gradients[want.key])
        if norm is None and want is not None and len(want.target.labels) > want.drop_last:
            return {"score": None, "reason": BAD_LOGITS}
        if norm is None:
            stand_in = inputs.dialect.empty.get("mia_gradnorm")
            return {"score": stand_in, **({} if stand_in is not None else {"reason": NO_TOKENS})}
        return {"score": membership.mia_gradnorm(norm)}

    return _attack(inputs, value)


@handler("mia_reference", wants_reference, settings=("reference_model_path",))
def mia_reference(inputs: Inputs) -> Scored:
    """Attack by the loss beside a reference model's."""
    path = reference_path(inputs.spec)
    if path is None:
        return Score(None, reason="no reference model given (reference_model_path / --reference-model)")
    reference = inputs.evidence.reference[path]

    def compute(example: Example) -> Value:
        if example.target is None:
            return {"score": None, "reason": NO_TOKENS}
        mine, theirs = inputs.evidence.answers[example.target.key], reference[example.target.key]
        gap = clean(membership.mia_reference(memorisation.loss(mine), memorisation.loss(theirs)))
        return {"score": gap} if gap is not None else {"score": None, "reason": BAD_LOGITS}

    return _attack(inputs, compute)
