"""Comparisons with another run: the retain model's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vestige.errors import UserError
from vestige.metrics.dialects import published_auc
from vestige.stats import vectors
from vestige.suites.handlers.common import scores_of
from vestige.suites.handlers.likelihood import is_broken, need
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored, at_each_step, unless
from vestige.types import NO_RETAIN_LOGS, Score

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

# Why a step of a trajectory is compared with nothing.
ORDINARY_RUN = "the retain logs are of an ordinary run, which has a value for the last step alone"


@handler("ks_test", steps=True, settings=())
def ks_test(inputs: Inputs) -> Scored:
    """Two-sided KS p-value of the truth ratios against the retain model's (forget quality)."""
    missing, reference = need(inputs, "forget"), inputs.reference("retain")
    if reference is None:
        return unless(missing, lambda: Score(None, reason=_no_reference(inputs)))

    def one(retain: Score, mine: list[float], theirs: list[float]) -> Score:
        if not retain.value_by_index:
            return Score(None, reason=_lacking(retain) if retain.reason else _no_reference(inputs))
        if is_broken(retain):
            return Score(None, reason=_lacking(retain))
        if not mine or not theirs:
            return Score(None, reason="no row has a truth ratio to compare")
        test = vectors.ks(mine, theirs)
        found = {"ks_statistic": test.distance, "n": test.n, "m": test.m}
        log10_p, least = test.log10_p if test.p > 0 else None, vectors.smallest_detectable(test.n, test.m)
        return Score(test.p, extra={**found, "log10_p": log10_p, "smallest_detectable": least})

    mine, theirs = scores_of(inputs.parents["forget"]), scores_of(reference)
    return unless(missing, lambda: at_each_step(one, reference, mine, theirs))


def _lacking(reference: Score) -> str:
    if reference.reason == ORDINARY_RUN:
        return ORDINARY_RUN
    return f"the retain logs have no value either: {reference.reason or 'it is null there'}"


def _no_reference(inputs: Inputs) -> str:
    paths = [r.path for r in inputs.spec.references]
    if any(paths):
        wanted = ", ".join(m for r in inputs.spec.references for m in r.include)
        return f"the reference file {next(p for p in paths if p)} holds no {wanted}"
    return NO_RETAIN_LOGS


def ref_value(spec: MetricSpec) -> float:
    """What stands in for a retain model that is not there."""
    return float(spec.params.get("ref_value", 0.5))


def _against_reference(inputs: Inputs, formula: Callable[[float, float], float], nothing: str) -> Scored:
    """`nothing`: why a comparison with this reference has no value, when the formula gives none."""
    if "forget" not in inputs.parents:
        raise UserError(f"Metric '{inputs.spec.name}' needs a parent with access_key 'forget' in pre_compute.")

    def one(parent: Score, reference: Score | None) -> Score:
        if parent.agg_value is None:
            return Score(None, reason=f"its parent '{inputs.spec.parents['forget']}' is missing: {parent.reason}")
        if reference is not None and reference.agg_value is not None:
            return _value(formula(parent.agg_value, reference.agg_value), nothing)
        if reference is not None:  # there, but without a value: another one in its place would be a guess
            return Score(None, reason=_lacking(reference))
        published = _published(inputs)
        if published is not None:
            note = f"compared with the published retrain model (AUC {published:.4f}), as no retain logs were given"
            return _value(formula(parent.agg_value, published), nothing, note)
        stand_in = ref_value(inputs.spec)
        note = f"compared with ref_value {stand_in}, not with a retain model: {_no_reference(inputs)}"
        return _value(formula(parent.agg_value, stand_in), nothing, note)

    return at_each_step(one, inputs.parents["forget"], inputs.reference("retain"))


def _value(number: float, nothing: str, *notes: str) -> Score:
    return Score(None, reason=nothing, notes=notes) if math.isnan(number) else Score(number, notes=notes)


def _published(inputs: Inputs) -> float | None:
    """The benchmark's own retrain AUC for the attack behind this metric, in dialects that compare with it."""
    split = inputs.spec.params.get("data_split")
    if not inputs.dialect.published_references or split is None:
        return None
    return published_auc(str(split), str(inputs.spec.params.get("attack", "")), inputs.spec.params.get("attack_k"))


@handler("privleak", steps=True, settings=("ref_value", "data_split", "attack", "attack_k"))
def privleak(inputs: Inputs) -> Scored:
    """Relative change of 1 - AUC against the retain model's, in per cent."""
    nothing = "the retain model's AUC is 1, so that 1 - AUC is 0 and a change relative to it has no value"
    return _against_reference(inputs, vectors.privleak, nothing)


@handler("rel_diff", steps=True, settings=("ref_value",))
def rel_diff(inputs: Inputs) -> Scored:
    """Relative difference to the retain model's value, in per cent."""
    nothing = "the retain model's value is 0, and a difference relative to 0 has no value"
    return _against_reference(inputs, vectors.rel_diff, nothing)
