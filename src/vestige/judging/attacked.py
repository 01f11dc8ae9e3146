"""Attacks over all of their budgets: the attacked model against the attacked control, row by row.

The gap at a budget is model less control, both attacked with that budget. The scale is what there was to forget before
any attack (full less retain): where the control has learned nearly everything, a scale of what is left would be tiny.

In: attacked evaluations. Out: AttackCurves. Callers: judging/facts.py; judging/runs.py and the room report make
AttackedRuns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.compare import bootstrap
from vestige.compare.bootstrap import Sample, Statistic
from vestige.compare.contrast import Contrast
from vestige.compare.facts import AttackCurve, AttackPoint
from vestige.engine.scores import Estimate
from vestige.judging.contrasts import contrast, difference, mean_of
from vestige.judging.evaluated import Evaluated
from vestige.schema import number

if TYPE_CHECKING:
    from vestige.judging.facts import ModelRuns

Span = tuple[Statistic | float, list[Sample]]  # what there was to forget, and the rows it rests on
Scale = Callable[[str], Span | None]


@dataclass(frozen=True)
class AttackedRun:
    """One attacked copy, measured. Runs of other seeds have the same attack and budget."""

    attack: str
    budget: float | None
    teaches: bool
    unit: str = ""
    evaluated: Evaluated | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # where rows are not known
    by_row: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of attacks that ask more than once
    zero: str = ""  # what a budget of 0 stands for

    def value(self, metric: str) -> float | None:
        found = self.evaluated.value(metric) if self.evaluated else None
        return found if found is not None else number(self.values.get(metric))

    def estimate(self, metric: str, like: Estimate | None) -> Estimate | None:
        """By its own rows; values by row are taken for rows of the unattacked evaluation (`like`)."""
        if metric in self.by_row and like is not None and like.rows is not None:
            values = [self.by_row[metric].get(row) for row in like.rows.rows]
            if None not in values:
                sample = replace(like.rows, values=np.asarray(values, float))
                return Estimate(float(sample.values.mean()), bootstrap.mean(sample), (sample,), rows=sample)
        return self.evaluated.estimate(metric) if self.evaluated else None


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
        value, control = _mean(at), _mean(others)
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
        base = _mean([c.value(metric) for c in controls]) if controls else (plain.value(metric) if plain else None)
        x = _mean([c.value(metric) for c in copies])
        far = width if isinstance(width, float) else float(width(bootstrap.once)[0])
        return None if base is None or x is None else Contrast(x - base, far)
    samples = [s for e in (*a, *b) for s in e.samples]
    found = contrast(difference(mean_of(a), mean_of(b)), width, [*samples, *rows])
    return _with_seeds(found, [e.value for e in a], [e.value for e in b])


def _with_seeds(found: Contrast, mine: Sequence[float], theirs: Sequence[float]) -> Contrast:
    """What seeds of the attack add to the variance, where several were given."""
    more = sum(float(np.var(x, ddof=1)) / len(x) for x in (mine, theirs) if len(x) > 1)
    return found if found.var_gap is None or not more else replace(found, var_gap=found.var_gap + more)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None
