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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from vestige.meta.faithfulness import RESAMPLES, Interval
from vestige.numeric import mean
from vestige.stats import bootstrap, vectors

EPS = 1e-12
UTILITY_FILTER = 0.8


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
    said = {name: s.before for name, s in models.items()} if judged is None else judged
    why = {name: filters.why_not(name, said.get(name)) for name in models}
    return [name for name in models if not why[name]], {name: w for name, w in why.items() if w}


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
    values = {part: {name: v[part] for name, v in each.items() if v[part] is not None} for part in PARTS}
    reasons = {part: _why(part, kept, values[part], retain) for part in PARTS if not values[part]}
    means = {part: mean(x for x in v.values() if x is not None) if v else None for part, v in values.items()}
    r, q = means["relearning"], means["quantization"]
    agg = None if r is None or q is None else vectors.harmonic_mean([r, q])
    if agg is None:
        reasons["agg"] = f"no {' and no '.join(p for p in PARTS if means[p] is None)}"
    intervals = _intervals(values, kept, resamples)
    return Robustness(rule, r, q, agg, tuple(kept), left_out, each, intervals, reasons)


PARTS = ("relearning", "quantization")


def _of_model(model: ModelState, retain: ModelState, rule: Rule) -> dict[str, float | None]:
    before = model.before
    r = q = None
    if before is not None and model.quantization is not None:
        q = rule.quantization(before, model.quantization)
    if None not in (before, model.relearning, retain.before, retain.relearning):
        change, yardstick = (s.relearning - s.before for s in (model, retain))  # type: ignore[operator]
        r = rule.relearning(change, yardstick)
    return {"relearning": r, "quantization": q}


def _why(part: str, kept: list[str], values: Mapping[str, float | None], retain: ModelState) -> str:
    if not kept:
        return "no model passes the filters"
    if part == "relearning" and (retain.before is None or retain.relearning is None):
        return "the retain model was not measured before and after relearning"
    return f"no kept model has a value after {part}"


def _intervals(
    values: Mapping[str, Mapping[str, float | None]], kept: list[str], resamples: int
) -> dict[str, Interval]:
    """Kept models drawn again, R and Q of a model together."""
    place = {name: str(i) for i, name in enumerate(kept)}
    samples = {
        part: bootstrap.Sample("models", tuple(place[n] for n in v), np.array(list(v.values()), float))
        for part, v in values.items()
        if len(v) > 1
    }
    if not resamples or not samples:
        return {}
    statistics = {part: bootstrap.mean(s) for part, s in samples.items()}
    if len(samples) == len(PARTS):
        statistics["agg"] = bootstrap.harmonic_mean([statistics[p] for p in PARTS])
    draws = bootstrap.Resampler(list(samples.values()), resamples).draws(statistics)
    return {name: bootstrap.interval(d, len(kept)) for name, d in draws.items()}


def overall(auc: float | None, agg: float | None) -> float | None:
    """A metric's rank: the harmonic mean of faithfulness and robustness; None when one of them is missing.

    >>> round(overall(0.971, 0.9325), 4), overall(0.9, None)
    (0.9514, None)
    """
    return None if auc is None or agg is None else vectors.harmonic_mean([auc, agg])
