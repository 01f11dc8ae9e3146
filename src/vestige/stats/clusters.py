"""Rows that hang together (questions about one author, chunks of one document) are not independent: clusters are.

A number's standard error is how much it moves when one cluster is left out after the other (the cluster jackknife),
and its interval is read from Student's distribution:

    SE^2 = (G - 1) / G * sum over clusters of (value without the cluster - value)^2
    degrees of freedom = n^2 / (sum of squared cluster sizes) - 1,   which is G - 1 for clusters of equal size

For a mean this is the sum of squared cluster sums of residuals over n^2, each divided by (1 - its share of the rows)
squared: for clusters of equal size G / (G - 1) times the plain sum. Plain degrees of freedom (G - 1) cover too seldom
when sizes differ; docs/statistics.md has what was measured. Fewer than five clusters have no interval.

In: values by row and the cluster of each row. Out: spreads (value, standard error, degrees of freedom) that give
intervals, one-sided bounds and p-values. Callers: engine/scores.py, depth/scores.py, results/compare.py,
verdict/judge.py, the room meta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vestige.numeric import counted
from vestige.stats import bootstrap
from vestige.stats.bootstrap import LEVEL, Counts, Sample, Statistic, Stratum
from vestige.stats.vectors import student_reach, student_within
from vestige.types import Array, Grouping

FEWEST = 5
Labels = Sequence[object] | Array
JACKKNIFE = "cluster jackknife, Student's t"


@dataclass(frozen=True)
class Uncertain:
    """A number and how far it could be chance; without a standard error it says why."""

    value: float
    se: float | None
    df: float | None
    clusters: int  # the fewest of any data set behind it
    reason: str = ""  # why it has no standard error
    unit: bool = False  # a number between 0 and 1 that piles up at its ends (AUC): its ends are read as log-odds

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Both ends of a two-sided interval. Level 0.9 gives the interval of two one-sided tests at 5 %.

        >>> cluster_mean([1, 2, 3, 4, 5]).interval(0.9)
        (1.492556681, 4.507443319)
        """
        if self.se is None or self.df is None:
            return None
        reach = self.se * student_reach(self.df, level)
        if self.unit and 0 < self.value < 1:
            odds, reach = math.log(self.value / (1 - self.value)), reach / (self.value * (1 - self.value))
            return _plain(_from_odds(odds - reach)), _plain(_from_odds(odds + reach))
        return _plain(self.value - reach), _plain(self.value + reach)

    def lower(self, confidence: float = LEVEL) -> float | None:
        """The one-sided bound that the truth is above, with that confidence (at least one half)."""
        ends = self.interval(2 * confidence - 1)
        return None if ends is None else ends[0]

    def upper(self, confidence: float = LEVEL) -> float | None:
        """The one-sided bound that the truth is below, with that confidence (at least one half)."""
        ends = self.interval(2 * confidence - 1)
        return None if ends is None else ends[1]

    def p(self, null: float = 0.0) -> float | None:
        """Two-sided: how often chance alone would move the number this far from `null`. None without an error."""
        if self.se is None or self.df is None:
            return None
        away = abs(self.value - null)
        if self.se == 0:
            return 1.0 if away == 0 else 0.0
        return max(0.0, 1 - student_within(self.df, away / self.se))


def _from_odds(x: float) -> float:
    """The share whose log-odds are x, without overflow at either end."""
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _plain(x: float) -> float:
    """Ten digits: more would depend on the machine that added them up."""
    return float(f"{x:.10g}")


def cluster_mean(values: Sequence[float] | Array, clusters: Labels | None = None) -> Uncertain:
    """The mean of rows with its error. Contrasts of paired rows are means too: mean(x - r - d * (f - r)).

    Rows without clusters are their own clusters: the mean's plain standard error.

    >>> s = cluster_mean([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> s.value, round(s.se, 4), s.df, s.clusters
    (2.0, 0.7071, 4.0, 5)
    """
    x = np.asarray(values, float)
    if not len(x):
        return Uncertain(math.nan, None, None, 0, "it has no rows")
    unit = np.arange(len(x)) if clusters is None else _units(clusters)
    sizes, center = np.bincount(unit), float(math.fsum(x) / len(x))
    few = too_few(sizes)
    if few:
        return Uncertain(center, None, None, len(sizes), few)
    share, g = sizes / len(x), len(sizes)
    moved = np.bincount(unit, weights=x - center) / len(x) / (1 - share)
    return Uncertain(center, math.sqrt((g - 1) / g * math.fsum(moved**2)), freedom(sizes), g)


def _units(clusters: Labels) -> Array:
    """The number of each row's cluster."""
    return np.unique(np.asarray([str(c) for c in clusters]), return_inverse=True)[1].reshape(-1)


def freedom(sizes: Array) -> float:
    """Degrees of freedom: how many clusters of equal size would weigh as evenly, less one.

    >>> freedom(np.array([20, 20, 20, 20, 20])), round(freedom(np.array([5, 5, 5, 5, 60])), 2)
    (4.0, 0.73)
    """
    n = float(sizes.sum())
    return n * n / float((np.asarray(sizes, float) ** 2).sum()) - 1


def too_few(sizes: Array) -> str:
    """Why clusters of these sizes have no interval; nothing when they do."""
    held = int((sizes > 0).sum())
    if held < FEWEST:
        return f"too few clusters: {held}, and an interval takes at least {FEWEST}"
    if freedom(sizes) < 1:
        return f"too few clusters: one of {held} has nearly all of the rows"
    return ""


def jackknife(statistic: Statistic, samples: Sequence[Sample], unit: bool = False) -> Uncertain:
    """Any number that is a function of counts, with its error: clusters are left out one after the other.

    Data sets without common clusters are left out separately, and their errors add up (degrees of freedom as Welch
    has them). Rows without clusters are their own clusters.
    """
    value = float(statistic(bootstrap.once)[0])
    found = bootstrap.strata(samples)
    sizes = [s for t in found for s in t.sizes()]
    fewest = min((int((s > 0).sum()) for s in sizes), default=0)
    few = next(filter(None, map(too_few, sizes)), "") if sizes else "it has no rows"
    if few:
        return Uncertain(value, None, None, fewest, few)
    errors = []
    for t in found:
        left = np.concatenate([statistic(counts) for counts in _leaving_out(t)])
        errors.append((t.units - 1) / t.units * math.fsum((left - value) ** 2))
    total = math.fsum(errors)
    if not math.isfinite(total):
        return Uncertain(value, None, None, fewest, "it has no value when a cluster is left out")
    freedoms = [min(freedom(s) for s in t.sizes()) for t in found]
    weights = math.fsum(e * e / f for e, f in zip(errors, freedoms, strict=True))
    df = total * total / weights if weights else min(freedoms)
    return Uncertain(value, math.sqrt(total), df, fewest, unit=unit)


def _leaving_out(t: Stratum) -> Iterator[Counts]:
    """Counts with every row once but those of one unit; the rows of other strata all stay."""
    size = bootstrap.at_a_time(max(len(rows) for rows in t.columns.values()))
    for start in range(0, t.units, size):
        units = np.arange(start, min(t.units, start + size))

        def counts(s: Sample, units: Array = units) -> Array:
            if s.group not in t.columns:
                return np.ones((len(units), len(s)))
            return (units[:, None] != np.asarray(t.of(s))[None, :]).astype(float)

        yield counts


def band(
    value: float, draws: Array, found: Uncertain, samples: Sequence[Sample], level: float = LEVEL
) -> tuple[float, float] | None:
    """The interval of a distance (KS) from draws of the largest deviation, widened for few clusters.

    The band that holds zero is right for equal distributions, and too wide for others: where it does not hold zero,
    the distance is attained at one place, and its own jackknife (`found`) says how far it could be off.
    """
    far, _ = reach(draws, samples, level)
    if far is None:
        return None
    low, high = (found.interval(level) if value > far else None) or (value - far, value + far)
    return _plain(max(0.0, low)), _plain(min(1.0, high))


def reach(draws: Array, samples: Sequence[Sample], level: float = LEVEL) -> tuple[float | None, str]:
    """How far draws of a deviation go, widened for few clusters; or None and why."""
    sizes = [s for t in bootstrap.strata(samples) for s in t.sizes()]
    if few := next(filter(None, map(too_few, sizes)), ""):
        return None, few
    if not len(draws) or not np.isfinite(draws).all():
        return None, "some resamplings have no value (too few rows)"
    return _wider(sizes, level) * float(np.quantile(draws, level)), ""


def share_beyond(draws: Array, distance: float, samples: Sequence[Sample]) -> float:
    """How often a widened deviation is at least `distance`: the p-value that goes with `reach`."""
    sizes = [s for t in bootstrap.strata(samples) for s in t.sizes()]
    return (int((_wider(sizes, LEVEL) * draws >= distance).sum()) + 1) / (len(draws) + 1)


def _wider(sizes: Sequence[Array], level: float) -> float:
    """Draws of few clusters stray too little: by the missing degree of freedom, and by the step from t to normal."""
    fewest, df = min(int((s > 0).sum()) for s in sizes), min(map(freedom, sizes))
    return math.sqrt(fewest / (fewest - 1)) * student_reach(df, level) / student_reach(1e6, level)


def cluster_sums(values: Sequence[float] | Array, clusters: Labels) -> Array:
    """The sum of each cluster's rows: what sign flips flip.

    >>> cluster_sums([1, 2, 3], ["a", "b", "a"]).tolist()
    [4.0, 2.0]
    """
    unit = _units(clusters)
    return np.bincount(unit, weights=np.asarray(values, float))


def cluster_notes(found: Mapping[str, Grouping]) -> list[str]:
    """What a reader of the intervals must know, by source of rows: how clusters are known, and which are too few."""
    notes = []
    few = []
    for source, grouping in found.items():
        if grouping.by.startswith("every "):
            notes.append(f"{source}: clusters for intervals: {grouping.by}")
        count = len(set(grouping.of.values()))
        if count < FEWEST:
            name = source.rpartition("/")[2]
            few.append(f"{name} has {counted(count, 'cluster')} ({grouping.by})")
    if few:
        notes.append(
            f"no intervals where rows form fewer than {FEWEST} clusters: {', '.join(few)}; "
            "--cluster none treats rows as independent"
        )
    return notes
