"""What a verdict may look at: measures, attacks over their budgets, damage, secrets. Plain numbers, no files.

In: nothing. Out: records. Made by the room judging from finished runs; read by verdict/points.py.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np

from vestige.engine.scores import Estimate
from vestige.metrics.cards import is_attack
from vestige.schema import number
from vestige.stats import bootstrap
from vestige.stats.bootstrap import Sample, Statistic
from vestige.stats.clusters import jackknife
from vestige.stats.contrast import Contrast
from vestige.stats.vectors import share_interval
from vestige.verdict.rule import TESTS
from vestige.verdict.runs import PATH, AttackedRun, Evaluated, ModelRuns, References


@dataclass(frozen=True)
class Measure:
    """One metric of the audited model beside the references'. High means "knows" (of utility: able)."""

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
    """All of it, for one model."""

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


# ---- Contrasts from rows: clusters are left out one after the other, for gap, scale and both together -------------
#
# In: estimates (functions of how often each row is drawn). Out: compare.contrast.Contrast. Caller: verdict/facts.py.


def mean_of(estimates: Sequence[Estimate]) -> Statistic:
    """The mean of several runs' statistics: retain models trained with other seeds, attacks with other seeds."""
    return lambda counts: np.mean([e.statistic(counts) for e in estimates], axis=0)


def contrast(gap: Statistic, scale: Statistic | float, samples: Sequence[Sample]) -> Contrast:
    """Both statistics with variances and covariance. A scale that is a number is taken as exact."""
    fixed = bootstrap.constant(scale) if isinstance(scale, float) else scale
    first = jackknife(gap, samples)
    at = float(fixed(bootstrap.once)[0])
    rows = len({(s.group, row) for s in samples for row in s.rows})
    if first.se is None or first.df is None:
        return Contrast(first.value, at, rows=rows, clusters=first.clusters)
    if isinstance(scale, float):
        return Contrast(first.value, at, first.se**2, df=first.df, rows=rows, clusters=first.clusters)
    second, both = jackknife(fixed, samples), jackknife(difference(gap, fixed), samples)
    var_scale, var_both = (second.se or 0.0) ** 2, (both.se or 0.0) ** 2
    covariance = (first.se**2 + var_scale - var_both) / 2
    return Contrast(first.value, at, first.se**2, var_scale, covariance, first.df, rows, first.clusters)


def difference(a: Statistic, b: Statistic) -> Statistic:
    return bootstrap.combined(np.subtract, a, b)


# ---- Attacks over all of their budgets: the attacked model against the attacked control, row by row ---------------
#
# The gap at a budget is model less control, both attacked with that budget. The scale is what there was to forget
# before any attack (full less retain): where the control has learned nearly everything, a scale of what is left would
# be tiny.
#
# In: attacked evaluations. Out: AttackCurves. Callers: verdict/facts.py; verdict/runs.py and the room report make
# AttackedRuns.

Span = tuple[Statistic | float, list[Sample]]  # what there was to forget, and the rows it rests on
Scale = Callable[[str], Span | None]


def attack_curves(
    model: ModelRuns, retain: Sequence[ModelRuns], metrics: Mapping[str, bool], scale: Scale
) -> list[AttackCurve]:
    """A curve for each attack and metric; `metrics`: which to look at, and whether each counts secrets."""
    out = []
    for attack in dict.fromkeys(a.attack for a in model.attacks):
        mine = [a for a in model.attacks if a.attack == attack]
        theirs = [a for r in retain for a in r.attacks if a.attack == attack]
        for metric, secrets in metrics.items():
            runs = [a for a in mine if a.value(metric) is not None]
            if runs:
                out.append(_curve(model, retain, metric, runs, theirs, scale, secrets))
    return out


def _curve(
    model: ModelRuns,
    retain: Sequence[ModelRuns],
    metric: str,
    mine: Sequence[AttackedRun],
    theirs: Sequence[AttackedRun],
    scale: Scale,
    secrets: bool,
) -> AttackCurve:
    points, controlled = [], False
    budgets = list(dict.fromkeys(a.budget for a in mine))
    for budget in budgets:
        copies = [a for a in mine if a.budget == budget]
        controls = [a for a in theirs if a.budget == budget and a.value(metric) is not None]
        controlled = controlled or bool(controls)
        at = [a.value(metric) for a in copies]
        others = [a.value(metric) for a in controls] or [r.value(metric) for r in retain]
        value, control = _mean_of_seeds(at), _mean_of_seeds(others)
        assert value is not None
        found = _contrast(model, retain, metric, copies, controls, scale) if control is not None else None
        points.append(AttackPoint(budget, value, control, found))
    first = mine[0]
    seeds = max(sum(a.budget == b for a in mine) for b in budgets)
    return AttackCurve(
        first.attack, metric, first.teaches, points, controlled, model.value(metric), first.unit, seeds, secrets,
        first.zero,
    )  # fmt: skip


def _contrast(
    model: ModelRuns,
    retain: Sequence[ModelRuns],
    metric: str,
    copies: Sequence[AttackedRun],
    controls: Sequence[AttackedRun],
    scale: Scale,
) -> Contrast | None:
    """Attacked model less attacked control; without a control less the retain model as it is."""
    span = scale(metric)
    if span is None:
        return None
    width, rows = span
    plain = next((r for r in retain if r.value(metric) is not None), None)
    mine = [a.estimate(metric, model.estimate(metric)) for a in copies]
    control = plain.estimate(metric) if plain else None
    theirs = [a.estimate(metric, control) for a in controls] if controls else [control]
    a, b = [e for e in mine if e is not None], [e for e in theirs if e is not None]
    if len(a) < len(mine) or len(b) < len(theirs) or not b:
        base = (
            _mean_of_seeds([c.value(metric) for c in controls])
            if controls
            else (plain.value(metric) if plain else None)
        )
        x = _mean_of_seeds([c.value(metric) for c in copies])
        far = width if isinstance(width, float) else float(width(bootstrap.once)[0])
        return None if base is None or x is None else Contrast(x - base, far)
    samples = [s for e in (*a, *b) for s in e.samples]
    found = contrast(difference(mean_of(a), mean_of(b)), width, [*samples, *rows])
    return _with_seeds(found, [e.value for e in a], [e.value for e in b])


def _with_seeds(found: Contrast, mine: Sequence[float], theirs: Sequence[float]) -> Contrast:
    """What seeds of the attack add to the variance, where several were given."""
    more = sum(float(np.var(x, ddof=1)) / len(x) for x in (mine, theirs) if len(x) > 1)
    return found if found.var_gap is None or not more else replace(found, var_gap=found.var_gap + more)


def _mean_of_seeds(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


# ---- The facts of a verdict, from the finished runs of one model and of its references ----------------------------
#
#     ModelRuns (evaluations, layers, attacked copies) of model, full and retain --facts_of--> AuditFacts
#
# Which metric speaks for which test is fixed here, before any value is seen: the first of its kind on the forget rows.
#
# In: runs already read. Out: AuditFacts, for verdict/judge.py. Callers: verdict/runs.py, report/audits.py.

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


def facts_of(
    model: ModelRuns,
    references: References,
    outputs: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
) -> AuditFacts:
    """Everything a verdict may look at. `outputs`: metric -> handler of values that come without an evaluation."""
    judge = FactFinder(model, references, outputs or {})
    attacks = judge.attacks()
    return AuditFacts(
        measures=[m for m in (*judge.outputs(), judge.membership(), judge.layers()) if m is not None],
        attacks=attacks,
        utility=judge.utility(),
        fluency=judge.fluency(),
        secrets=judge.secrets(),
        has_retain=bool(references.retain),
        has_full=references.full is not None,
        retain_runs=len(references.retain),
        retain_spread=judge.spread(),
        clustered=judge.clustered(),
        commands=commands or {},
    )


class FactFinder:
    def __init__(self, model: ModelRuns, references: References, outputs: Mapping[str, str]) -> None:
        self.model, self.full, self.retain = model, references.full, list(references.retain)
        self.told = outputs

    def named(self, handler: str) -> str:
        """The metric that speaks for a handler: measured by row if any was, else a number without rows."""
        rows = next((m for e in self.model.evals if (m := e.first(handler))), "")
        return rows or next((m for m, h in self.told.items() if h == handler and self.model.value(m) is not None), "")

    # ---- knowledge

    def outputs(self) -> list[Measure]:
        found = [(self.named(handler), handler, test) for handler, test in SPEAKS.items()]
        ways = [(m, h, SPEAKS[h]) for m, h in self.told.items() if m.endswith(PATH) and h in SPEAKS]
        return [self.measure(metric, test, handler == SECRETS) for metric, handler, test in (*found, *ways) if metric]

    def membership(self) -> Measure | None:
        tried = [m for e in self.model.evals for m in e.results if is_attack(e.handler(m)) and e.value(m) is not None]
        tried += [m for m, h in self.told.items() if is_attack(h) and self.model.value(m) is not None]
        metric = next((m for m in MEMBERSHIP if m in tried), tried[0] if tried else "")
        return self.measure(metric, "membership") if metric else None

    def measure(self, metric: str, test: str, secrets: bool = False) -> Measure:
        found, why = self.against_retain(metric)
        if secrets and found is not None:
            found = found.at_least(_agresti(self.model.estimate(metric)))
        lo, hi = self.model.interval(metric)
        return Measure(
            metric, test, self.model.value(metric), lo, hi, _mean([r.value(metric) for r in self.retain]),
            self.full.value(metric) if self.full else None, found, secrets, why,
        )  # fmt: skip

    def against_retain(self, metric: str) -> tuple[Contrast | None, str]:
        """Model less retain on the way to full; without a full model the way goes to 1, the most there is."""
        retain = [r for r in self.retain if r.value(metric) is not None]
        if not retain:
            return None, "the retain model was not measured so" if self.retain else ""
        mine, theirs = self.model.estimate(metric), [e for r in retain if (e := r.estimate(metric))]
        ceiling = 1.0 if self.full is None else self.full.value(metric)
        if ceiling is None:
            return None, "the full model was not measured so"
        if mine is None or len(theirs) < len(retain):
            return self._from_numbers(metric, retain, ceiling), ""
        span = self.scale(metric)
        assert span is not None
        samples = [s for e in (mine, *theirs) for s in e.samples]
        return contrast(difference(mine.statistic, mean_of(theirs)), span[0], [*samples, *span[1]]), ""

    def _from_numbers(self, metric: str, retain: Sequence[ModelRuns], ceiling: float) -> Contrast:
        """Where rows are not known: the intervals of the numbers, as if each model had rows of its own."""
        base = _mean([r.value(metric) for r in retain]) or 0.0
        mine = self.model.variance(metric)
        theirs = (retain[0].variance(metric) or 0.0) / len(retain)
        top = (self.full.variance(metric) if self.full else None) or 0.0
        gap, scale = (self.model.value(metric) or 0.0) - base, ceiling - base
        return Contrast(gap, scale, None if mine is None else mine + theirs, top + theirs, theirs)

    def layers(self) -> Measure | None:
        """Of the depth score, 1 - UDS is the share of the way by definition."""
        scored = ((str(r.get("idx", i)), number(r.get("uds"))) for i, r in enumerate(self.model.depth))
        rows = {i: uds for i, uds in scored if uds is not None}
        lo, hi = self.model.interval("uds")
        if rows:
            s = Sample("depth", tuple(rows), 1 - np.asarray(list(rows.values()), float), self.clusters(tuple(rows)))
            found = contrast(bootstrap.mean(s), 1.0, [s])
            return Measure("uds", "layers", 1 - found.gap, lo, hi, 1.0, 0.0, found)
        value = self.model.value("uds")
        if value is None:
            return None
        return Measure("uds", "layers", value, lo, hi, 1.0, 0.0, Contrast(1 - value, 1.0, self.model.variance("uds")))

    def attacks(self) -> list[AttackCurve]:
        metrics = {m: handler == SECRETS for handler in SPEAKS if (m := self.named(handler))}
        return attack_curves(self.model, self.retain, metrics, self.scale)

    def scale(self, metric: str) -> Span | None:
        """What there was to forget before any attack, with the rows behind it where they are known."""
        base = _mean([r.value(metric) for r in self.retain])
        top = 1.0 if self.full is None else self.full.value(metric)
        if base is None or top is None:
            return None
        theirs = [e for r in self.retain if (e := r.estimate(metric))]
        far = self.full.estimate(metric) if self.full else None
        if len(theirs) < len(self.retain) or (self.full and far is None):
            return float(top - base), []
        samples = [s for e in (*theirs, *([far] if far else [])) for s in e.samples]
        return difference(far.statistic if far else bootstrap.constant(top), mean_of(theirs)), samples

    # ---- damage

    def utility(self) -> Measure | None:
        """gap = model - full, scale = full; the retain model stands in for a full one that was not measured."""
        metric = next((m for m in UTILITY if self.model.value(m) is not None), "")
        if not metric:
            return None
        others = [m for m in (self.full, *self.retain[:1]) if m is not None and m.value(metric)]
        lo, hi = self.model.interval(metric)
        value = self.model.value(metric)
        if not others:
            return Measure(metric, "utility", value, lo, hi)
        top = others[0]
        mine, theirs = self.model.estimate(metric), top.estimate(metric)
        if mine is not None and theirs is not None:
            samples = [*mine.samples, *theirs.samples]
            found = contrast(difference(mine.statistic, theirs.statistic), theirs.statistic, samples)
        else:
            less = (value or 0.0) - (top.value(metric) or 0.0)
            found = Contrast(less, top.value(metric) or 0.0, self.model.variance(metric))
        retain, full = (None, top.value(metric)) if top is self.full else (top.value(metric), None)
        return Measure(metric, "utility", value, lo, hi, retain, full, found)

    def fluency(self) -> list[Measure]:
        """How much worse its texts are than the retain model's (else the full model's) about the same rows."""
        out = []
        for handler, lost in FLUENCY.items():
            metric = self.named(handler)
            others = [m for m in (*self.retain[:1], self.full) if m is not None and m.value(metric) is not None]
            if not metric:
                continue
            lo, hi = self.model.interval(metric)
            retain, full = (
                _mean([r.value(metric) for r in self.retain[:1]]),
                self.full.value(metric) if self.full else None,
            )
            found = self._worse(metric, others[0], lost) if others else None
            out.append(Measure(metric, handler, self.model.value(metric), lo, hi, retain, full, found))
        return out

    def _worse(self, metric: str, other: ModelRuns, lost: bool) -> Contrast:
        """How much more of something bad there is, or what share of something good is lost."""
        mine, theirs = self.model.estimate(metric), other.estimate(metric)
        if mine is None or theirs is None:
            less = (other.value(metric) or 0.0) - (self.model.value(metric) or 0.0)
            return Contrast(less, other.value(metric) or 0.0) if lost else Contrast(-less, 1.0)
        samples = [*mine.samples, *theirs.samples]
        if lost:
            return contrast(difference(theirs.statistic, mine.statistic), theirs.statistic, samples)
        return contrast(difference(mine.statistic, theirs.statistic), 1.0, samples)

    # ---- secrets, and what is common to all

    def secrets(self) -> SecretCounts | None:
        metric = self.named(SECRETS)
        found = self.model.estimate(metric) if metric else None
        holder = self.model.holder(metric) if metric else None
        if found is None or found.rows is None or holder is None:
            return None
        lo, hi = self.model.interval(metric)
        rows = holder.results[metric].get("value_by_index") or {}
        counts = [_said(m, metric) for m in (self.retain[0] if self.retain else None, self.full)]
        said = round(float(found.rows.values.sum()))
        if said in (0, len(found.rows)):
            # Rows that all agree show no spread, which does not mean that others would agree: Wilson's interval, by
            # clusters where there are some.
            units = len(set(found.rows.clusters or found.rows.rows))
            lo, hi = share_interval(units if said else 0, units)
        lo = None if lo is None else 0.0 if said == 0 else max(lo, 0.0)
        hi = None if hi is None else min(hi, 1.0)
        return SecretCounts(len(rows), len(found.rows), said, lo, hi, *counts)

    def spread(self) -> float:
        """Of several retain runs: the largest standard deviation between them on a measure, as a share of the way."""
        found = []
        for metric in filter(None, map(self.named, ("rouge", "probability"))):
            values = [v for r in self.retain if (v := r.value(metric)) is not None]
            top = self.full.value(metric) if self.full else 1.0
            if len(values) > 1 and top is not None and top > float(np.mean(values)):
                found.append(float(np.std(values, ddof=1)) / (top - float(np.mean(values))))
        return max(found, default=0.0)

    def forget_rows(self) -> Sample | None:
        """The forget rows of the first evaluation that has values for single rows."""
        named = [m for handler in SPEAKS if (m := self.named(handler))]
        found = [e.rows for m in named if (e := self.model.estimate(m)) is not None and e.rows is not None]
        return max(found, key=len, default=None)

    def clusters(self, rows: Sequence[str]) -> tuple[str, ...] | None:
        """The clusters of rows that another kind of run names by the numbers of the forget rows."""
        known = self.forget_rows()
        if known is None or known.clusters is None:
            return None
        of = dict(zip(known.rows, known.clusters, strict=True))
        return tuple(of.get(row, f"row {row}") for row in rows)

    def clustered(self) -> bool:
        known = self.forget_rows()
        return known is not None and known.clusters is not None


def _said(model: ModelRuns | None, metric: str) -> int | None:
    found = model.estimate(metric) if model else None
    return None if found is None or found.rows is None else round(float(found.rows.values.sum()))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return math.fsum(there) / len(there) if there else None


def _agresti(found: Estimate | None) -> float:
    """The variance of a share after two more hits and two more misses: 0 of 38 does not mean "never"."""
    if found is None or found.rows is None or not len(found.rows):
        return 0.0
    n = len(found.rows) + 4
    p = (float(found.rows.values.sum()) + 2) / n
    return p * (1 - p) / n


# ---- The exact command for each test that was not made, from the paths of the runs at hand ------------------------
#
# In: paths of checkpoints, and the audited model's evaluations. Out: test -> command line. Callers: report/audits.py,
# audit/run.py.

TEMPLATES = {
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
    """What is not known is a word in capitals. `forget`: the file of the forget rows, if no evaluation names it."""
    forget = forget or next((path for e in evals if (path := forget_file(e))), "")
    names = {
        "model": model or "MODEL",
        "full": full or "FULL",
        "retain": retain or "RETAIN",
        "forget": forget or "DATA/forget.jsonl",
        "data": str(PurePath(forget).parent) if forget else "DATA",
        "suite": next((str(s) for e in evals if (s := (e.manifest.get("config") or {}).get("suite"))), "tofu"),
    }
    quoted = {key: shlex.quote(value) for key, value in names.items()}
    quoted["of"] = "" if names["suite"] == "tofu" else f" --suite {quoted['suite']}"
    return {test: TEMPLATES[test].format(**quoted) for test in TESTS}


def forget_file(evaluated: Evaluated) -> str:
    """The file of the forget rows, as the run names it; of a hub's data there is none."""
    sources = [str(d.get("source") or "") for d in (evaluated.manifest.get("data") or {}).values()]
    return next((s for s in sources if PurePath(s).stem == "forget" and PurePath(s).suffix), "")
