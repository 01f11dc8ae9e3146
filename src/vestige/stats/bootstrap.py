"""How far a number could be chance: examples drawn again, with replacement, and the number computed each time.

A resampling is a row of counts: how often each example was drawn. Every statistic here is a function of counts, so
one matrix product serves thousands of resamplings, and statistics that share examples can share counts.

In: values by example. Out: intervals and differences with their intervals. Callers: engine/scores.py,
depth/scores.py, results/compare.py, the room meta.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vestige.stats import vectors
from vestige.stats.vectors import normal_below, student_quantile
from vestige.types import Array

LEVEL = 0.95
CHUNK = 500_000  # counts held at a time for one data set: 4 MB stay near the core, 16 MB took twice as long
WITHIN, DIFFERS, CANNOT_TELL = "indistinguishable within margin", "differs", "cannot tell"


@dataclass(frozen=True)
class Sample:
    """Values of some rows of one data set. Samples of the same group are resampled together, row by row.

    Rows are kept in the order of their names, whatever order they come in: products with counts add in that order.
    Rows that hang together (questions about one author) name their cluster; then clusters are drawn, not rows.
    """

    group: str
    rows: tuple[str, ...]
    values: Array
    clusters: tuple[str, ...] | None = None  # of each row; None: rows are independent

    def __post_init__(self) -> None:
        order = sorted(range(len(self.rows)), key=lambda i: _by_number(self.rows[i]))
        object.__setattr__(self, "rows", tuple(self.rows[i] for i in order))
        object.__setattr__(self, "values", np.asarray(self.values)[order])
        if self.clusters is not None:
            object.__setattr__(self, "clusters", tuple(self.clusters[i] for i in order))

    def __len__(self) -> int:
        return len(self.rows)


def _by_number(row: str) -> tuple[int, str]:
    return len(row), row


def sample(
    values: Sequence[float] | Array, group: str = "rows", clusters: Sequence[object] | Array | None = None
) -> Sample:
    """Values in the order of their rows."""
    x = np.asarray(values, float)
    labels = None if clusters is None else tuple(map(str, clusters))
    return Sample(group, tuple(map(str, range(len(x)))), x, labels)


Counts = Callable[[Sample], Array]  # -> (resamplings, rows of the sample)
Statistic = Callable[[Counts], Array]  # -> (resamplings,)


def once(s: Sample) -> Array:
    """Every row exactly once: the counts under which a statistic is the plain estimate."""
    return np.ones((1, len(s)))


def mean(s: Sample) -> Statistic:
    def compute(counts: Counts) -> Array:
        times = counts(s)
        with np.errstate(invalid="ignore"):  # a resampling that drew none of the rows has no mean
            out: Array = (times @ s.values) / times.sum(axis=-1)
        return out

    return compute


def auc(forget: Sample, holdout: Sample) -> Statistic:
    return lambda counts: vectors.auc_of_counts(forget.values, holdout.values, counts(forget), counts(holdout))


def harmonic_mean(parts: Sequence[Statistic]) -> Statistic:
    return lambda counts: vectors.harmonic_means(np.stack([part(counts) for part in parts], axis=-1))


def combined(formula: Callable[[Array, Array], Array], a: Statistic, b: Statistic) -> Statistic:
    """A formula of two statistics: privleak, rel_diff, a plain difference."""
    return lambda counts: formula(a(counts), b(counts))


def constant(value: float) -> Statistic:
    return lambda counts: np.asarray([value])


def ks_distance(a: Sample, b: Sample) -> Statistic:
    def compute(counts: Counts) -> Array:
        gaps = vectors.gaps_of_counts(a.values, b.values, counts(a), counts(b))
        return np.asarray(np.abs(gaps).max(axis=-1))

    return compute


def ks_deviation(a: Sample, b: Sample) -> Statistic:
    """How far resampled distribution functions stray, at most, from where the data's own lie apart.

    D itself cannot be resampled for an interval: chance only ever adds to it. Its distance from the truth is at most
    this deviation, so D plus and minus the deviation's 95 % quantile is an interval that may reach zero.
    """
    at_rest = vectors.gaps_of_counts(a.values, b.values, once(a), once(b))

    def compute(counts: Counts) -> Array:
        gaps = vectors.gaps_of_counts(a.values, b.values, counts(a), counts(b))
        return np.asarray(np.abs(gaps - at_rest).max(axis=-1))

    return compute


@dataclass(frozen=True)
class Stratum:
    """What is drawn together: the rows of one data set, or the clusters of all data sets that share some."""

    name: str
    columns: Mapping[str, Mapping[str, int]]  # data set -> row -> which unit it belongs to
    units: int
    clustered: bool

    def of(self, s: Sample) -> list[int]:
        columns = self.columns[s.group]
        return [columns[row] for row in s.rows]

    def sizes(self) -> list[Array]:
        """How many rows each unit has, by data set."""
        return [np.bincount(list(c.values()), minlength=self.units) for c in self.columns.values()]


def strata(samples: Sequence[Sample]) -> list[Stratum]:
    """The units of all samples. An author whose rows are in two data sets is one unit of both."""
    rows: dict[str, dict[str, str | None]] = {}
    for s in samples:
        known = rows.setdefault(s.group, {})
        for row, cluster in zip(s.rows, s.clusters or [None] * len(s), strict=True):
            known[row] = cluster if cluster is not None else known.get(row)
    out, hanging = [], {}
    for group, known in rows.items():
        if set(known.values()) <= {None}:
            # Sorted by number, so that it does not matter which metric came first.
            out.append(Stratum(group, {group: _numbered(known)}, len(known), clustered=False))
        else:
            hanging[group] = known
    for groups in _sharing(hanging) if hanging else ():
        labels = {g: {row: _label(g, row, c) for row, c in rows[g].items()} for g in groups}
        unit = _numbered(dict.fromkeys(label for r in labels.values() for label in r.values()))
        columns = {g: {row: unit[label] for row, label in r.items()} for g, r in labels.items()}
        out.append(Stratum(" ".join(sorted(groups)), columns, len(unit), clustered=True))
    return out


def _numbered(names: Mapping[str, object]) -> dict[str, int]:
    return {name: i for i, name in enumerate(sorted(names, key=_by_number))}


def _label(group: str, row: str, cluster: str | None) -> str:
    """The name of a row's unit: rows without a cluster are units by themselves."""
    return f"row {group} {row}" if cluster is None else f"cluster {cluster}"


def _sharing(rows: Mapping[str, Mapping[str, str | None]]) -> list[list[str]]:
    """Data sets in lists: those that have a cluster in common, through others if need be, are in one."""
    found: list[tuple[list[str], set[str]]] = []
    for group, r in rows.items():
        names, clusters = [group], {c for c in r.values() if c is not None}
        apart = [f for f in found if not f[1] & clusters]
        for others, theirs in (f for f in found if f[1] & clusters):
            names, clusters = [*others, *names], clusters | theirs
        found = [*apart, (names, clusters)]
    return [names for names, _ in found]


class Resampler:
    """Draws of the units of every stratum: rows, or clusters where rows have them.

    What is drawn depends on the seed, the names of the data sets and their units alone.
    """

    def __init__(self, samples: Sequence[Sample], resamples: int, seed: int = 0) -> None:
        self.resamples = resamples
        self.seed = seed
        self.strata = strata(samples)
        self.stratum: dict[str, Stratum] = {}  # by data set
        for stratum in self.strata:
            self.stratum |= dict.fromkeys(stratum.columns, stratum)

    def chunks(self) -> Iterator[Counts]:
        """Counts for all resamplings, as many at a time as memory allows. The split does not change what is drawn."""
        generators = {t.name: np.random.default_rng([self.seed, zlib.crc32(t.name.encode())]) for t in self.strata}
        size = at_a_time(max((len(rows) for t in self.strata for rows in t.columns.values()), default=0))
        for start in range(0, self.resamples, size):
            many = min(size, self.resamples - start)
            drawn = {t.name: _draw(generators[t.name], many, t.units) for t in self.strata}
            yield lambda s, drawn=drawn: self._pick(s, drawn)  # type: ignore[misc]

    def _pick(self, s: Sample, drawn: Mapping[str, Array]) -> Array:
        stratum = self.stratum[s.group]
        wanted = stratum.of(s)
        return drawn[stratum.name] if wanted == list(range(stratum.units)) else drawn[stratum.name][:, wanted]

    def draws(
        self, statistics: Mapping[str, Statistic], done: Callable[[int], object] = lambda count: None
    ) -> dict[str, Array]:
        """Every statistic under the same resamplings; `done` is told how many more of them were computed."""
        if self.strata and all(stratum.units == 1 for stratum in self.strata):  # what is drawn is the data itself
            alike = {}
            for name, statistic in statistics.items():
                alike[name] = np.repeat(statistic(once), self.resamples)
                done(self.resamples)
            return alike
        parts: dict[str, list[Array]] = {name: [] for name in statistics}
        for counts in self.chunks():
            for name, statistic in statistics.items():
                parts[name].append(statistic(counts))
                done(len(parts[name][-1]))
        return {name: np.concatenate(p) if p else np.empty(0) for name, p in parts.items()}


def at_a_time(rows: int) -> int:
    """How many resamplings of so many rows are held at once."""
    return max(1, CHUNK // max(1, rows))


def _draw(generator: np.random.Generator, many: int, rows: int) -> Array:
    picked = generator.integers(0, rows, size=(many, rows), dtype=np.int32)
    picked += (np.arange(many, dtype=np.int32) * rows)[:, None]
    return np.bincount(picked.ravel(), minlength=many * rows).reshape(many, rows).astype(float)


def interval(draws: Array, n: int, level: float = LEVEL) -> tuple[float, float] | None:
    """The middle 95 % of resampled values, widened for few rows; None when some resampling had no value.

    Plain percentiles are too narrow by sqrt((n - 1) / n) and by the step from t to normal quantiles; reading them
    further out mends both (Hesterberg 2015, "expanded percentile"). At 400 rows it makes no difference.
    """
    if not len(draws) or not np.isfinite(draws).all():
        return None
    low, high = np.quantile(draws, _tails(n, level))
    return float(low), float(high)


def within_unit(ends: tuple[float, float]) -> tuple[float, float]:
    """The interval of a number that lies between 0 and 1 by definition, as a mean of shares does."""
    return max(ends[0], 0.0), min(ends[1], 1.0)


def _tails(n: int, level: float) -> tuple[float, float]:
    if n < 2:
        return 0.0, 1.0
    tail = normal_below(student_quantile(n - 1, (1 - level) / 2) * math.sqrt(n / (n - 1)))
    return tail, 1 - tail


def delong_variance(forget: Sequence[float] | Array, holdout: Sequence[float] | Array) -> float:
    """The variance of an AUC without resampling (DeLong et al. 1988): how much each example's own share varies.

    >>> delong_variance([1, 2], [3, 4])
    0.0
    """
    low, high = np.asarray(forget, float), np.asarray(holdout, float)
    of_low = vectors.auc_of_counts(low, high, np.eye(len(low)), np.ones((len(low), len(high))))
    of_high = vectors.auc_of_counts(low, high, np.ones((len(high), len(low))), np.eye(len(high)))
    return float(of_low.var(ddof=1) / len(low) + of_high.var(ddof=1) / len(high))


def two_sided_p(draws: Array) -> float:
    """How often a resampled difference falls on the other side of zero, twice; never 0, for resamplings are finite."""
    smaller = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(draws) + 1))


def sign_flip_p(differences: Sequence[float] | Array, resamples: int = 10_000, seed: int = 0) -> float:
    """If two runs were alike, each row's difference could as well have had the other sign. How often is the mean
    then at least as far from zero as it is?

    >>> sign_flip_p([0.0, 0.0, 0.0])
    1.0
    """
    d = np.asarray(differences, float)
    far, seen = abs(d.sum()) * (1 - 1e-12), 0
    generator = np.random.default_rng([seed, 1])
    size = at_a_time(len(d))
    for start in range(0, resamples, size):
        many = min(size, resamples - start)
        signs = generator.integers(0, 2, size=(many, len(d)), dtype=np.int8) * 2.0 - 1
        seen += int((np.abs(signs @ d) >= far).sum())
    return (seen + 1) / (resamples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values that allow for how many were looked at (Holm 1979): the k-th smallest of m is multiplied by m - k + 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty(len(p))
    out[order] = np.minimum(raised, 1.0)
    return [float(x) for x in out]


def equivalence(difference: tuple[float, float], margin: float) -> str:
    """What the interval of a difference says: all of it within the margin, none of it at zero, or neither.

    A difference can be both real and within the margin; then what matters is that it is small.

    >>> equivalence((-0.01, 0.02), 0.05), equivalence((0.1, 0.2), 0.05), equivalence((-0.1, 0.2), 0.05)
    ('indistinguishable within margin', 'differs', 'cannot tell')
    """
    low, high = difference
    if -margin <= low and high <= margin:
        return WITHIN
    return DIFFERS if low > 0 or high < 0 else CANNOT_TELL
