"""The facts of a verdict, from the finished runs of one model and of its references.

    ModelRuns (evaluations, layers, attacked copies) of model, full and retain --facts_of--> AuditFacts

Which metric speaks for which test is fixed here, before any value is seen: the first of its kind on the forget rows.

In: runs already read. Out: AuditFacts, for compare/verdict.py. Callers: judging/runs.py, report/audits.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vestige.compare import bootstrap
from vestige.compare.bootstrap import Sample
from vestige.compare.contrast import NORMAL_95, Contrast
from vestige.compare.evidence import in_words
from vestige.compare.facts import AttackCurve, AuditFacts, Measure, SecretCounts
from vestige.compare.rule import RULE
from vestige.compare.vectors import share_interval
from vestige.engine.scores import Estimate
from vestige.errors import UserError
from vestige.judging.attacked import AttackedRun, Span, attack_curves
from vestige.judging.contrasts import contrast, difference, mean_of
from vestige.judging.evaluated import SIDE, Evaluated, split_of
from vestige.judging.trajectory import PATH
from vestige.metrics.cards import direction_of, is_attack
from vestige.schema import number

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


@dataclass(frozen=True)
class ModelRuns:
    """What was measured of one model. `values`: numbers without rows, {"v", "lo", "hi"} by metric."""

    evals: Sequence[Evaluated] = ()
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    depth: Sequence[Mapping[str, Any]] = ()  # records of a depth run
    attacks: Sequence[AttackedRun] = ()

    def holder(self, metric: str) -> Evaluated | None:
        return next((e for e in self.evals if e.value(metric) is not None), None)

    def value(self, metric: str) -> float | None:
        found = self.holder(metric)
        return found.value(metric) if found else number((self.values.get(metric) or {}).get("v"))

    def estimate(self, metric: str) -> Estimate | None:
        found = self.holder(metric)
        return found.estimate(metric) if found else None

    def interval(self, metric: str) -> tuple[float | None, float | None]:
        found = self.holder(metric)
        stat = (found.stats.get(metric) or {}) if found else {}
        if stat.get("interval") and not stat.get("of"):
            return float(stat["interval"][0]), float(stat["interval"][1])
        told = self.values.get(metric) or {}
        return (None, None) if told.get("of") else (number(told.get("lo")), number(told.get("hi")))

    def variance(self, metric: str) -> float | None:
        """From the 95 % interval, where there is one."""
        lo, hi = self.interval(metric)
        return None if lo is None or hi is None else ((hi - lo) / 2 / NORMAL_95) ** 2


@dataclass(frozen=True)
class References:
    """What a model is held against."""

    full: ModelRuns | None = None
    retain: Sequence[ModelRuns] = ()  # several: trained with other seeds


def facts_of(
    model: ModelRuns,
    references: References,
    outputs: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
) -> AuditFacts:
    """Everything a verdict may look at. `outputs`: metric -> handler of values that come without an evaluation."""
    judge = _Judge(model, references, outputs or {})
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


def reading_against(model: ModelRuns, references: References, metric: str) -> str:
    """A number of the forget rows in words, against full and retain model; nothing where they do not tell."""
    holder = model.holder(metric)
    handler = holder.handler(metric) if holder else ""
    about = (split_of(metric) == "forget" and not any(word in metric for word in SIDE)) or is_attack(handler)
    if not handler or not about:
        return ""
    try:
        direction = direction_of(metric, handler)
    except UserError:
        return ""  # neither end of it means "knows"
    if direction.knows != "high" or not direction.unit:
        return ""
    found, _ = _Judge(model, references, {}).against_retain(metric)
    return in_words(found, RULE) if found is not None else ""


class _Judge:
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
