"""The facts of a verdict: measures, attacks over their budgets, damage and secrets, as plain numbers.

    JudgedRuns (evaluations, layers, attacked copies of model, full and retain) --collect_facts--> AuditFacts

Which metric speaks for which test is fixed here, before any value is seen: the first of its kind on the forget rows.
A difference between models comes with the variance that leaving out one cluster of rows after the other shows.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np

from vestige.engine.scores import Estimate
from vestige.io import number
from vestige.metrics.cards import is_attack
from vestige.stats import bootstrap
from vestige.stats.bootstrap import Sample, Statistic
from vestige.stats.clusters import jackknife
from vestige.stats.contrast import Contrast
from vestige.stats.vectors import share_interval
from vestige.verdict.rule import TESTS
from vestige.verdict.runs import PATH, AttackedRun, Evaluated, JudgedRuns, ModelRuns

# The first of these that was evaluated says how able the model still is.
UTILITY = (
    "model_utility", "utility", "retain_Q_A_ROUGE", "retain_ROUGE", "retain_knowmem_ROUGE", "utility_rel",
    "retain_Q_A_Prob",
)  # fmt: skip
# Which handler speaks for which test; the second are the rows that say their secret.
SPEAKS = {"rouge": "says", "secrets_said": "says", "probability": "likely"}
SECRETS = "secrets_said"
# Of the membership attacks one is judged: the first of these that was tried, else the first there is.
MEMBERSHIP = ("mia_min_k", "mia_min_k_plus_plus", "mia_loss")
FLUENCY = {"repetition": False, "said_likelihood": True}  # handler -> whether it is lost as a share of the reference's


# ---- records ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One metric of the audited model next to the references'. High means "knows" (of utility: able)."""

    metric: str
    test: str  # says | likely | membership | layers | utility | repetition | said_likelihood
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    retain: float | None = None
    full: float | None = None
    contrast: Contrast | None = None  # against the retain model; of damage against the full one
    secrets: bool = False  # rows that say their secret
    why: str = ""  # why a contrast is missing


@dataclass(frozen=True)
class AttackPoint:
    """One budget of an attack: the attacked model, and the control attacked alike (else the retain model as it is)."""

    budget: float | None
    value: float
    control: float | None
    contrast: Contrast | None = None


@dataclass(frozen=True)
class AttackCurve:
    """One attack on one metric, over all of its budgets."""

    attack: str
    metric: str
    teaches: bool  # it shows the model answers: without a control, what comes back proves nothing
    points: Sequence[AttackPoint]
    controlled: bool  # a retain model was attacked as well
    before: float | None = None
    unit: str = ""
    seeds: int = 1
    secrets: bool = False
    zero: str = ""  # what a budget of 0 stands for ("1 epoch")


@dataclass(frozen=True)
class SecretCounts:
    """How many rows have a secret, and of how many of them a text says it."""

    rows: int
    with_secret: int
    said: int
    lo: float | None = None  # of said / with_secret
    hi: float | None = None
    retain: int | None = None
    full: int | None = None


@dataclass(frozen=True)
class AuditFacts:
    """Everything the rule may look at, for one model."""

    measures: Sequence[Measure] = ()
    attacks: Sequence[AttackCurve] = ()
    utility: Measure | None = None
    fluency: Sequence[Measure] = ()
    secrets: SecretCounts | None = None
    has_retain: bool = False
    has_full: bool = False
    retain_runs: int = 1
    retain_spread: float = 0.0  # of several retain runs: the standard deviation between them, as a share of the way
    clustered: bool = False  # clusters of rows (authors, documents) are the unit, not rows
    commands: Mapping[str, str] = field(default_factory=dict)  # test -> the command that would make it
    notes: Sequence[str] = ()  # further limits, as sentences


def collect_facts(runs: JudgedRuns) -> AuditFacts:
    """Everything a verdict may look at."""
    forget_rows = _forget_rows(runs.model)
    measures = _measure_outputs(runs)
    measures += [m for m in (_measure_membership(runs), _measure_layers(runs.model, forget_rows)) if m is not None]
    return AuditFacts(
        measures=measures,
        attacks=_attack_curves(runs),
        utility=_measure_utility(runs),
        fluency=_measure_fluency(runs),
        secrets=_count_secrets(runs),
        has_retain=bool(runs.retain),
        has_full=runs.full is not None,
        retain_runs=len(runs.retain),
        retain_spread=_retain_spread(runs),
        clustered=forget_rows is not None and forget_rows.clusters is not None,
        commands=runs.commands,
    )


# ---- contrasts from rows ------------------------------------------------------------------------------------------


def _mean_of(estimates: Sequence[Estimate]) -> Statistic:
    """The mean of several runs' statistics: retain models trained with other seeds, attacks with other seeds."""
    return lambda counts: np.mean([e.statistic(counts) for e in estimates], axis=0)


def _estimates_of(models: Sequence[ModelRuns], metric: str) -> list[Estimate]:
    """A metric by its rows, of those models whose rows are known."""
    estimates = [model.estimate(metric) for model in models]
    return [estimate for estimate in estimates if estimate is not None]


def _value_of(model: ModelRuns | None, metric: str) -> float | None:
    return None if model is None else model.value(metric)


def _difference(a: Statistic, b: Statistic) -> Statistic:
    return bootstrap.combined(np.subtract, a, b)


def _samples_of(*estimates: Estimate) -> list[Sample]:
    return [sample for estimate in estimates for sample in estimate.samples]


def _contrast(gap: Statistic, scale: Statistic | float, samples: Sequence[Sample]) -> Contrast:
    """Gap and scale with their variances and covariance, clusters left out one after the other for gap, scale and both
    together. A scale that is a number is taken as exact.
    """
    exact = isinstance(scale, float)
    of_scale = bootstrap.constant(scale) if isinstance(scale, float) else scale
    first = jackknife(gap, samples)
    at = float(of_scale(bootstrap.once)[0])
    rows = len({(s.group, row) for s in samples for row in s.rows})
    if first.se is None or first.df is None:
        return Contrast(first.value, at, rows=rows, clusters=first.clusters)
    if exact:
        return Contrast(first.value, at, first.se**2, df=first.df, rows=rows, clusters=first.clusters)
    var_scale = (jackknife(of_scale, samples).se or 0.0) ** 2
    var_both = (jackknife(_difference(gap, of_scale), samples).se or 0.0) ** 2
    covariance = (first.se**2 + var_scale - var_both) / 2
    return Contrast(first.value, at, first.se**2, var_scale, covariance, first.df, rows, first.clusters)


# What there was to forget before any attack, and the rows it rests on; a number where rows are not known.
Scale = tuple[Statistic | float, list[Sample]]


def _scale_of(runs: JudgedRuns, metric: str) -> Scale | None:
    """Full less retain, before any attack."""
    base, top = _mean([r.value(metric) for r in runs.retain]), runs.ceiling(metric)
    if base is None or top is None:
        return None
    retain = _estimates_of(runs.retain, metric)
    full = runs.full.estimate(metric) if runs.full else None
    if len(retain) < len(runs.retain) or (runs.full and full is None):
        return float(top - base), []
    if full is None:
        return _difference(bootstrap.constant(top), _mean_of(retain)), _samples_of(*retain)
    return _difference(full.statistic, _mean_of(retain)), _samples_of(*retain, full)


def contrast_with_retain(runs: JudgedRuns, metric: str) -> tuple[Contrast | None, str]:
    """Model less retain on the way to full, or why there is none. Without a full model the way goes to 1."""
    retain = [r for r in runs.retain if r.value(metric) is not None]
    if not retain:
        return None, "the retain model was not measured so" if runs.retain else ""
    ceiling = runs.ceiling(metric)
    if ceiling is None:
        return None, "the full model was not measured so"
    mine, theirs = runs.model.estimate(metric), _estimates_of(retain, metric)
    if mine is None or len(theirs) < len(retain):
        return _contrast_of_numbers(runs, metric, retain, ceiling), ""
    found = _scale_of(runs, metric)
    assert found is not None
    scale, rows = found
    return _contrast(_difference(mine.statistic, _mean_of(theirs)), scale, [*_samples_of(mine, *theirs), *rows]), ""


def _contrast_of_numbers(runs: JudgedRuns, metric: str, retain: Sequence[ModelRuns], ceiling: float) -> Contrast:
    """Where rows are not known: the intervals of the numbers, as if each model had rows of its own."""
    base = _mean([r.value(metric) for r in retain]) or 0.0
    mine = runs.model.variance(metric)
    theirs = (retain[0].variance(metric) or 0.0) / len(retain)
    top = (runs.full.variance(metric) if runs.full else None) or 0.0
    gap, scale = (runs.model.value(metric) or 0.0) - base, ceiling - base
    return Contrast(gap, scale, None if mine is None else mine + theirs, top + theirs, theirs)


# ---- knowledge ----------------------------------------------------------------------------------------------------


def _measure(runs: JudgedRuns, metric: str, test: str, secrets: bool = False) -> Measure:
    """A metric of the forget rows, with its distance from the retain model."""
    found, why = contrast_with_retain(runs, metric)
    if secrets and found is not None:
        found = found.at_least(_agresti(runs.model.estimate(metric)))
    lo, hi = runs.model.interval(metric)
    retain = _mean([r.value(metric) for r in runs.retain])
    full = _value_of(runs.full, metric)
    return Measure(metric, test, runs.model.value(metric), lo, hi, retain, full, found, secrets, why)


def _measure_outputs(runs: JudgedRuns) -> list[Measure]:
    """What it says and finds likely; of a diffusion model also on the way there."""
    out = []
    for handler, test in SPEAKS.items():
        metric = runs.model.metric_of(handler)
        if metric:
            out.append(_measure(runs, metric, test, handler == SECRETS))
    for metric, handler in runs.model.handlers.items():
        if metric.endswith(PATH) and handler in SPEAKS:
            out.append(_measure(runs, metric, SPEAKS[handler], handler == SECRETS))
    return out


def _measure_membership(runs: JudgedRuns) -> Measure | None:
    """The attack that is judged: one is chosen before any value is seen."""
    model = runs.model
    tried = []
    for evaluated in model.evals:
        for metric in evaluated.results:
            if is_attack(evaluated.handler(metric)) and evaluated.value(metric) is not None:
                tried.append(metric)
    for metric, handler in model.handlers.items():
        if is_attack(handler) and model.value(metric) is not None:
            tried.append(metric)
    if not tried:
        return None
    judged = next((m for m in MEMBERSHIP if m in tried), tried[0])
    return _measure(runs, judged, "membership")


def _measure_layers(model: ModelRuns, forget_rows: Sample | None) -> Measure | None:
    """Of the depth score, 1 - UDS is the share of the way by definition."""
    scored: dict[str, float] = {}
    for i, record in enumerate(model.depth):
        uds = number(record.get("uds"))
        if uds is not None:
            scored[str(record.get("idx", i))] = uds
    lo, hi = model.interval("uds")
    if scored:
        rows = tuple(scored)
        clusters = None
        if forget_rows is not None and forget_rows.clusters is not None:  # depth rows have the forget rows' numbers
            cluster_of = dict(zip(forget_rows.rows, forget_rows.clusters, strict=True))
            clusters = tuple(cluster_of.get(row, f"row {row}") for row in rows)
        sample = Sample("depth", rows, 1 - np.asarray(list(scored.values()), float), clusters)
        found = _contrast(bootstrap.mean(sample), 1.0, [sample])
        return Measure("uds", "layers", 1 - found.gap, lo, hi, 1.0, 0.0, found)
    value = model.value("uds")
    if value is None:
        return None
    return Measure("uds", "layers", value, lo, hi, 1.0, 0.0, Contrast(1 - value, 1.0, model.variance("uds")))


def _forget_rows(model: ModelRuns) -> Sample | None:
    """The forget rows of the evaluation that has values for most of them."""
    found = []
    for handler in SPEAKS:
        metric = model.metric_of(handler)
        estimate = model.estimate(metric) if metric else None
        if estimate is not None and estimate.rows is not None:
            found.append(estimate.rows)
    return max(found, key=len, default=None)


def _retain_spread(runs: JudgedRuns) -> float:
    """Of several retain runs: the largest standard deviation between them on a measure, as a share of the way."""
    found = [0.0]
    for handler in ("rouge", "probability"):
        metric = runs.model.metric_of(handler)
        values = [r.value(metric) for r in runs.retain]
        known = [value for value in values if value is not None]
        top = runs.ceiling(metric)
        if metric and len(known) > 1 and top is not None:
            center = float(np.mean(known))
            if top > center:
                found.append(float(np.std(known, ddof=1)) / (top - center))
    return max(found)


# ---- attacks over their budgets -----------------------------------------------------------------------------------
#
# The gap at a budget is model less control, both attacked with that budget. The scale is what there was to forget
# before any attack (full less retain): where the control has learned nearly everything, a scale of what is left would
# be tiny.


def _attack_curves(runs: JudgedRuns) -> list[AttackCurve]:
    """A curve for each attack and each metric that speaks for a test."""
    controls = [a for r in runs.retain for a in r.attacks]
    out = []
    for attack in dict.fromkeys(a.attack for a in runs.model.attacks):
        for handler in SPEAKS:
            metric = runs.model.metric_of(handler)
            mine = [a for a in runs.model.attacks if a.attack == attack and a.value(metric) is not None]
            theirs = [a for a in controls if a.attack == attack and a.value(metric) is not None]
            if metric and mine:
                out.append(_attack_curve(runs, metric, mine, theirs, handler == SECRETS))
    return out


def _attack_curve(
    runs: JudgedRuns, metric: str, mine: Sequence[AttackedRun], theirs: Sequence[AttackedRun], secrets: bool
) -> AttackCurve:
    """One attack on one metric, budget by budget."""
    points = []
    controlled, seeds = False, 1
    for budget in dict.fromkeys(a.budget for a in mine):
        copies = [a for a in mine if a.budget == budget]
        controls = [a for a in theirs if a.budget == budget]
        controlled = controlled or bool(controls)
        seeds = max(seeds, len(copies))
        value = _mean([a.value(metric) for a in copies])
        control = _mean([a.value(metric) for a in controls or runs.retain])
        assert value is not None
        found = _contrast_under_attack(runs, metric, copies, controls) if control is not None else None
        points.append(AttackPoint(budget, value, control, found))
    first = mine[0]
    return AttackCurve(
        first.attack, metric, first.teaches, points, controlled, runs.model.value(metric), first.unit, seeds, secrets,
        first.zero,
    )  # fmt: skip


def _contrast_under_attack(
    runs: JudgedRuns, metric: str, copies: Sequence[AttackedRun], controls: Sequence[AttackedRun]
) -> Contrast | None:
    """Attacked model less attacked control; without a control less the retain model as it is."""
    span = _scale_of(runs, metric)
    if span is None:
        return None
    scale, rows = span
    retain = next((r for r in runs.retain if r.value(metric) is not None), None)
    unattacked, plain = runs.model.estimate(metric), retain.estimate(metric) if retain else None
    mine = [a.estimate(metric, unattacked) for a in copies]
    theirs = [a.estimate(metric, plain) for a in controls] if controls else [plain]
    a, b = [e for e in mine if e is not None], [e for e in theirs if e is not None]
    if len(a) < len(mine) or len(b) < len(theirs) or not b:
        value = _mean([c.value(metric) for c in copies])
        if controls:
            base = _mean([c.value(metric) for c in controls])
        else:
            base = retain.value(metric) if retain else None
        far = scale if isinstance(scale, float) else float(scale(bootstrap.once)[0])
        return None if base is None or value is None else Contrast(value - base, far)
    found = _contrast(_difference(_mean_of(a), _mean_of(b)), scale, [*_samples_of(*a, *b), *rows])
    # What seeds of the attack add to the variance, where several were given.
    of_seeds = 0.0
    for estimates in (a, b):
        if len(estimates) > 1:
            of_seeds += float(np.var([e.value for e in estimates], ddof=1)) / len(estimates)
    if found.var_gap is None or not of_seeds:
        return found
    return replace(found, var_gap=found.var_gap + of_seeds)


# ---- damage -------------------------------------------------------------------------------------------------------


def _measure_utility(runs: JudgedRuns) -> Measure | None:
    """gap = model - full, scale = full; the retain model stands in for a full one that was not measured."""
    metric = next((m for m in UTILITY if runs.model.value(m) is not None), "")
    if not metric:
        return None
    lo, hi = runs.model.interval(metric)
    value = runs.model.value(metric)
    top = next((m for m in (runs.full, *runs.retain[:1]) if m is not None and m.value(metric)), None)
    if top is None:
        return Measure(metric, "utility", value, lo, hi)
    mine, theirs = runs.model.estimate(metric), top.estimate(metric)
    if mine is not None and theirs is not None:
        gap = _difference(mine.statistic, theirs.statistic)
        found = _contrast(gap, theirs.statistic, _samples_of(mine, theirs))
    else:
        at = top.value(metric) or 0.0
        found = Contrast((value or 0.0) - at, at, runs.model.variance(metric))
    if top is runs.full:
        return Measure(metric, "utility", value, lo, hi, full=top.value(metric), contrast=found)
    return Measure(metric, "utility", value, lo, hi, retain=top.value(metric), contrast=found)


def _measure_fluency(runs: JudgedRuns) -> list[Measure]:
    """How much worse its texts are than the retain model's (else the full model's) about the same rows."""
    out = []
    for handler, lost in FLUENCY.items():
        metric = runs.model.metric_of(handler)
        if not metric:
            continue
        lo, hi = runs.model.interval(metric)
        first_retain = runs.retain[0] if runs.retain else None
        retain, full = _value_of(first_retain, metric), _value_of(runs.full, metric)
        found = None
        for other in (first_retain, runs.full):
            if found is None and other is not None and other.value(metric) is not None:
                found = _worsening(runs.model, other, metric, lost)
        out.append(Measure(metric, handler, runs.model.value(metric), lo, hi, retain, full, found))
    return out


def _worsening(model: ModelRuns, other: ModelRuns, metric: str, lost: bool) -> Contrast:
    """How much more of something bad there is, or what share of something good is lost."""
    mine, theirs = model.estimate(metric), other.estimate(metric)
    if mine is None or theirs is None:
        less = (other.value(metric) or 0.0) - (model.value(metric) or 0.0)
        return Contrast(less, other.value(metric) or 0.0) if lost else Contrast(-less, 1.0)
    samples = _samples_of(mine, theirs)
    if lost:
        return _contrast(_difference(theirs.statistic, mine.statistic), theirs.statistic, samples)
    return _contrast(_difference(mine.statistic, theirs.statistic), 1.0, samples)


# ---- secrets ------------------------------------------------------------------------------------------------------


def _count_secrets(runs: JudgedRuns) -> SecretCounts | None:
    """How many secrets the model says, with an interval that knows about rows that all agree."""
    metric = runs.model.metric_of(SECRETS)
    estimate = runs.model.estimate(metric) if metric else None
    holder = runs.model.holder(metric) if metric else None
    if estimate is None or estimate.rows is None or holder is None:
        return None
    sample = estimate.rows
    lo, hi = runs.model.interval(metric)
    said = round(float(sample.values.sum()))
    if said in (0, len(sample)):
        # Rows that all agree show no spread, which does not mean that others would agree: Wilson's interval, by
        # clusters where there are some.
        units = len(set(sample.clusters or sample.rows))
        lo, hi = share_interval(units if said else 0, units)
    if lo is not None:
        lo = 0.0 if said == 0 else max(lo, 0.0)
    if hi is not None:
        hi = min(hi, 1.0)
    rows = holder.results[metric].get("value_by_index") or {}
    retain = _count_said(runs.retain[0], metric) if runs.retain else None
    full = _count_said(runs.full, metric) if runs.full else None
    return SecretCounts(len(rows), len(sample), said, lo, hi, retain, full)


def _count_said(model: ModelRuns, metric: str) -> int | None:
    found = model.estimate(metric)
    if found is None or found.rows is None:
        return None
    return round(float(found.rows.values.sum()))


def _agresti(found: Estimate | None) -> float:
    """The variance of a share after two more hits and two more misses: 0 of 38 does not mean "never"."""
    if found is None or found.rows is None or not len(found.rows):
        return 0.0
    n = len(found.rows) + 4
    p = (float(found.rows.values.sum()) + 2) / n
    return p * (1 - p) / n


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of what was measured."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


# ---- the command for each test that was not made ------------------------------------------------------------------

COMMANDS = {
    "says": "vestige eval {suite} --model {model} --data {data}",
    "likely": "vestige eval {suite} --model {model} --data {data}",
    "membership": "vestige eval {suite} --model {model} --data {data} --metrics mia_min_k",
    "layers": "vestige depth --unlearned {model} --full {full} --retain-model {retain} --forget {forget}",
    "teach": "vestige stress relearn{of} --model {model} --retain-model {retain} --data {data}",
    "disturb": "vestige stress quantise prune{of} --model {model} --retain-model {retain} --data {data}",
}


def commands(
    model: str,
    full: str,
    retain: str,
    evals: Sequence[Evaluated] = (),
    forget: str = "",
) -> dict[str, str]:
    """Test -> command line, from the paths of checkpoints. What is not known is a word in capitals.

    `forget`: the file of the forget rows, if no evaluation names it.
    """
    suite = ""
    for evaluated in evals:  # the first that names one
        suite = suite or str((evaluated.manifest.get("config") or {}).get("suite") or "")
        forget = forget or forget_file(evaluated)
    suite = suite or "tofu"
    names = {
        "model": model or "MODEL",
        "full": full or "FULL",
        "retain": retain or "RETAIN",
        "forget": forget or "DATA/forget.jsonl",
        "data": str(PurePath(forget).parent) if forget else "DATA",
        "suite": suite,
    }
    quoted = {key: shlex.quote(value) for key, value in names.items()}
    quoted["of"] = "" if suite == "tofu" else f" --suite {quoted['suite']}"
    return {test: COMMANDS[test].format(**quoted) for test in TESTS}


def forget_file(evaluated: Evaluated) -> str:
    """The file of the forget rows, as the run names it; of a hub's data there is none."""
    for data in (evaluated.manifest.get("data") or {}).values():
        path = PurePath(str(data.get("source") or ""))
        if path.stem == "forget" and path.suffix:
            return str(data["source"])
    return ""
