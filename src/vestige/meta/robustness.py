"""Robustness: does a metric say the same of an unlearned model after the model was relearned or quantised?

Values are m, high when the model knows. For each kept model, with D = after - before:

    symmetric (published)   Q = 1 - |after - before| / (|after| + |before|)
                            R = 1 - |D - D_retain| / (|D| + |D_retain|)
    one-sided               Q = min(before / after, 1);  R = min(D_retain / D, 1)

The symmetric rule punishes recovery and destruction alike; the one-sided rule (open-unlearning, equations 2 and 3) only
recovery. Where the paper leaves the one-sided rule open: nothing recovered (after <= before, D <= 0) gives 1; recovery
where the retain model learns nothing (D > 0 >= D_retain) gives R = 0; a ratio of negative m has no meaning, so Q
is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vestige.errors import UserError, unknown_name
from vestige.meta.faithfulness import RESAMPLES, Interval
from vestige.meta.pools import STATES, Attacks, as_m, choose_metrics, same_protocol
from vestige.metrics.cards import KNOWN, direction_of
from vestige.numeric import mean
from vestige.runs.run import Number
from vestige.stats import bootstrap, vectors

EPS = 1e-12
UTILITY_FILTER = 0.8
PARTS = ("relearning", "quantization")


def likeness(a: float, b: float) -> float:
    """1 when two numbers are equal (two zeros are), 0 when they have nothing in common.

    >>> likeness(0.2, 0.2), round(likeness(0.1, 0.3), 6), round(likeness(-1.0, 1.0), 6), likeness(0.0, 0.0)
    (1.0, 0.5, 0.0, 1.0)
    """
    return 1 - min(1.0, abs(a - b) / (abs(a) + abs(b) + EPS))


def one_sided_q(before: float, after: float) -> float | None:
    """
    >>> one_sided_q(0.2, 0.4), one_sided_q(0.4, 0.2), one_sided_q(0.0, 0.3), one_sided_q(-2.0, -1.0)
    (0.5, 1.0, 0.0, None)
    """
    if after <= before:
        return 1.0
    return None if before < 0 else before / after


def one_sided_r(change: float, retain_change: float) -> float:
    """
    >>> one_sided_r(0.4, 0.2), one_sided_r(0.1, 0.2), one_sided_r(-0.1, 0.2), one_sided_r(0.1, -0.2)
    (0.5, 1.0, 1.0, 0.0)
    """
    if change <= 0:
        return 1.0
    return min(max(retain_change, 0.0) / change, 1.0)


@dataclass(frozen=True)
class Rule:
    quantization: Callable[[float, float], float | None]  # (before, after)
    relearning: Callable[[float, float], float | None]  # (change, the retain model's change)
    words: str


RULES: dict[str, Rule] = {
    "symmetric": Rule(likeness, likeness, "punishes recovery and destruction alike"),
    "one-sided": Rule(one_sided_q, one_sided_r, "punishes recovery only"),
}


@dataclass(frozen=True)
class ModelState:
    """One model's m before and after each attack; None where it was not measured."""

    before: float | None = None
    relearning: float | None = None
    quantization: float | None = None

    @property
    def change(self) -> float | None:
        """What relearning added."""
        return None if self.before is None or self.relearning is None else self.relearning - self.before


@dataclass(frozen=True)
class Filters:
    """Which models a metric's robustness is read from: those still useful that the metric calls unlearned."""

    utility: Mapping[str, float | None] | None = None  # model -> utility_rel; None: not applied
    threshold: float | None = None  # on m; None: not applied
    least_utility: float = UTILITY_FILTER

    def why_not(self, model: str, m: float | None) -> str:
        """The reason a model is left out; empty when it is kept."""
        if self.utility is not None:
            useful = self.utility.get(model)
            if useful is None:
                return "no utility_rel"
            if useful < self.least_utility:
                return f"utility_rel below {self.least_utility:g}"
        if m is None:
            return "no value before the attack"
        if self.threshold is not None and m > self.threshold:
            return "above the threshold: it still looks like a model that knows"
        return ""


@dataclass(frozen=True)
class Robustness:
    """One metric under one rule: means over kept models, R and Q and their harmonic mean."""

    rule: str
    relearning: float | None
    quantization: float | None
    agg: float | None
    kept: tuple[str, ...]
    left_out: Mapping[str, str]  # model -> why
    per_model: Mapping[str, Mapping[str, float | None]]  # model -> R and Q
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # for what has no value


def keep(
    models: Mapping[str, ModelState], filters: Filters, judged: Mapping[str, float | None] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Kept models, and why the others are not. `judged`: the m's to compare with the threshold, if not the metric's."""
    kept, left_out = [], {}
    for name, state in models.items():
        why = filters.why_not(name, state.before if judged is None else judged.get(name))
        if why:
            left_out[name] = why
        else:
            kept.append(name)
    return kept, left_out


def robustness(
    models: Mapping[str, ModelState],
    retain: ModelState,
    rule: str = "symmetric",
    filters: Filters | None = None,
    judged: Mapping[str, float | None] | None = None,
    resamples: int = RESAMPLES,
) -> Robustness:
    """R, Q and HM(R, Q) of one metric. The retain model is the yardstick of R and is not among `models`."""
    kept, left_out = keep(models, filters or Filters(), judged)
    each = {name: _of_model(models[name], retain, RULES[rule]) for name in kept}
    values: dict[str, dict[str, float]] = {}
    means: dict[str, float | None] = {}
    reasons = {}
    for part in PARTS:
        values[part] = {name: value for name, both in each.items() if (value := both[part]) is not None}
        # A model without a value is left out of the mean; published files have such models.
        means[part] = mean(values[part].values()) if values[part] else None
        if values[part]:
            continue
        if not kept:
            reasons[part] = "no model passes the filters"
        elif part == "relearning" and (retain.before is None or retain.relearning is None):
            reasons[part] = "the retain model was not measured before and after relearning"
        else:
            reasons[part] = f"no kept model has a value after {part}"
    agg = overall(means["relearning"], means["quantization"])
    if agg is None:
        reasons["agg"] = f"no {' and no '.join(part for part in PARTS if means[part] is None)}"
    intervals = _intervals(values, kept, resamples)
    return Robustness(
        rule, means["relearning"], means["quantization"], agg, tuple(kept), left_out, each, intervals, reasons
    )


def _of_model(model: ModelState, retain: ModelState, rule: Rule) -> dict[str, float | None]:
    """R and Q of one model; None where one of the states they compare was not measured."""
    r = q = None
    if model.before is not None and model.quantization is not None:
        q = rule.quantization(model.before, model.quantization)
    if model.change is not None and retain.change is not None:
        r = rule.relearning(model.change, retain.change)
    return {"relearning": r, "quantization": q}


def _intervals(values: Mapping[str, Mapping[str, float]], kept: list[str], resamples: int) -> dict[str, Interval]:
    """Kept models drawn again, R and Q of a model together."""
    samples = {}
    for part, by_model in values.items():
        # The same draw of models for R and Q: a model that is easy to relearn may be easy to quantise, too.
        if len(by_model) > 1:
            places = tuple(str(kept.index(name)) for name in by_model)
            samples[part] = bootstrap.Sample("models", places, np.array(list(by_model.values()), float))
    if not resamples or not samples:
        return {}
    statistics = {part: bootstrap.mean(s) for part, s in samples.items()}
    if len(samples) == len(PARTS):
        statistics["agg"] = bootstrap.harmonic_mean([statistics[part] for part in PARTS])
    draws = bootstrap.Resampler(list(samples.values()), resamples).draws(statistics)
    return {name: bootstrap.interval(drawn, len(kept)) for name, drawn in draws.items()}


def overall(a: float | None, b: float | None) -> float | None:
    """The harmonic mean of R and Q, or of faithfulness and robustness (a metric's rank); None when one is missing.

    >>> round(overall(0.971, 0.9325), 4), overall(0.9, None)
    (0.9514, None)
    """
    return None if a is None or b is None else vectors.harmonic_mean([a, b])


# ---- every metric of attacked models -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A threshold on m, and the protocol it was measured by, where that is stated."""

    m: float
    protocol: str = ""


@dataclass(frozen=True)
class JudgedAttacks:
    """Every metric's entry in meta_eval.json, which models it was read from, and the metrics left alone."""

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # metric -> model -> why
    skipped: Mapping[str, str] = field(default_factory=dict)  # metric -> why


def judge_attacks(
    attacks: Attacks,
    metrics: Sequence[str] | None = None,
    rule: str = "symmetric",
    cuts: Mapping[str, Cut] | None = None,
    utility: Mapping[str, float | None] | None = None,
    least_utility: float = UTILITY_FILTER,
    own_thresholds: bool = False,
    accept_mixture: bool = False,
    resamples: int = RESAMPLES,
) -> JudgedAttacks:
    """Robustness of these metrics under the chosen rule and under the others; None: of all that can be judged.

    `utility`: utility_rel by model; None: no such filter. `own_thresholds`: judge s_mia_* by their own thresholds,
    where the published tables use their attack's. `accept_mixture`: use thresholds of another protocol, and say so.
    """
    if rule not in RULES:
        raise unknown_name("robustness rule", rule, RULES)
    cuts = cuts or {}
    before = [m.states["before"] for m in attacks.models if "before" in m.states]
    chosen, skipped = choose_metrics(before, metrics, attacks.metrics)
    entries, kept, left_out = {}, {}, {}
    for metric, direction in chosen.items():
        # Numbers of all models in all states must be of one protocol: R and Q are differences.
        numbers: dict[str, Number] = {}
        # (The retain model is the yardstick of R, so its numbers must be comparable as well.)
        for model in (attacks.retain, *attacks.models):
            for state in STATES:
                number = model.number(state, metric)
                if number is not None:
                    numbers[f"{model.name} ({state})"] = number
        protocol = same_protocol(numbers, metric)
        ms = as_m(numbers, direction, metric)
        states = {model.name: _state_of(model.name, ms) for model in attacks.models}
        retain = _state_of(attacks.retain.name, ms)

        filtered_by, judged, judged_protocol = metric, None, protocol
        attack = KNOWN[metric].filtered_by if metric in KNOWN and not own_thresholds else ""
        if attack in cuts and any(m.value("before", attack) is not None for m in attacks.models):
            # A likeness is filtered as its attack is: by the attack's threshold, on the attack's own values.
            of_attack = {m.name: m.number("before", attack) or Number(None) for m in attacks.models}
            filtered_by, judged = attack, as_m(of_attack, direction_of(attack), attack)
            judged_protocol = same_protocol(of_attack, attack)
        cut = cuts.get(filtered_by)
        threshold, measured = None, ""
        if cut is not None:
            threshold = cut.m
            measured = _other_protocol(filtered_by, cut, judged_protocol, accept_mixture)

        filters = Filters(utility, threshold, least_utility)
        # All rules, because a table by one of them is easily read as one by the other.
        results = {name: robustness(states, retain, name, filters, judged, resamples) for name in RULES}
        result = results.pop(rule)
        entry = {
            **_result_json(result),
            "rule": rule,
            "rule_in_words": RULES[rule].words,
            "n_models": len(result.kept),
            "knows": direction.knows,
            "m": direction.space,
            "protocol": protocol,
            "filtered_by": None if cut is None else filtered_by,
            "threshold_m": threshold,
        }
        if measured:
            entry["threshold_protocol"] = measured
        entry["per_model"] = result.per_model
        entry["states"] = {
            "retain": asdict(retain),
            "models": {name: asdict(state) for name, state in states.items()},
        }
        entry["other_rules"] = {name: _result_json(other) for name, other in results.items()}
        entries[metric], kept[metric], left_out[metric] = entry, result.kept, result.left_out
    return JudgedAttacks(entries, kept, left_out, skipped)


def _state_of(model: str, ms: Mapping[str, float | None]) -> ModelState:
    return ModelState(*(ms.get(f"{model} ({state})") for state in STATES))


def _other_protocol(metric: str, cut: Cut, protocol: str, accept_mixture: bool) -> str:
    """The threshold's protocol where it is not the models'; empty where it is. A threshold from one protocol says
    little about numbers of another, so that is refused unless the user accepts it."""
    if cut.protocol in ("", protocol):
        return ""
    if not accept_mixture:
        raise UserError(
            f"The threshold of {metric} was measured as '{cut.protocol}', the models here as '{protocol}'; measure "
            "both in the same way, give thresholds of these, or accept the mixture with --accept-mixture."
        )
    return cut.protocol


def _result_json(result: Robustness) -> dict[str, Any]:
    """The numbers of one rule, as meta_eval.json has them."""
    out: dict[str, Any] = {part: getattr(result, part) for part in (*PARTS, "agg")}
    out["intervals"] = dict(result.intervals)
    if result.reasons:
        out["reasons"] = dict(result.reasons)
    return out
