"""From a run's scores to intervals: rows are drawn again, and every metric is computed as it was scored.

Metrics that read the same rows are resampled together, so that composed metrics (model utility, privleak) keep the
correlation between their parts. An interval is only given where the formula, with every row drawn once, returns the
number that was reported.

In: scores with their values by row. Out: intervals, by metric. Callers: engine/evaluate.py, engine/rescore.py,
results/compare.py, results/verify.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vestige.compare import bootstrap, vectors
from vestige.compare.bootstrap import Sample, Statistic
from vestige.data.clusters import NONE
from vestige.engine.scores import Reference, family, references_of
from vestige.metrics.utility import TRUTH_RATIO_AGGREGATORS
from vestige.schema import number
from vestige.show.progress import Bar
from vestige.store.files import write_json
from vestige.store.manifest import data_fingerprints, groupings
from vestige.suites.handlers.common import as_list, row_mean
from vestige.suites.handlers.references import ref_value
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.sums import mean
from vestige.types import Array, Grouping, Score
from vestige.writing import remove

log = logging.getLogger("vestige.engine")

SEED = 20240  # fixed: the same evidence gives the same bytes
PERCENTILE = "percentile bootstrap over rows"
BAND = "bootstrap band of the two distribution functions"
OTHERS = "reference "  # before the group of another run's rows, which are drawn by themselves
NO_WIDTH = "no resampling differs: the rows at hand agree, which does not prove that others would"
RowNumbers = Mapping[str, float]


class NoInterval(Exception):  # noqa: N818 - not an error: some numbers have none, and the reason is told
    """Why a metric has no interval."""


@dataclass(frozen=True)
class Estimate:
    """A reported number as a function of how often each row was drawn."""

    value: float
    statistic: Statistic
    samples: tuple[Sample, ...]
    method: str = PERCENTILE
    deviation: Statistic | None = None  # the interval is value +- its quantile
    of: str = ""  # the number the interval is about, if it is not the metric's own value
    rows: Sample | None = None  # of plain means: the values averaged
    unit: bool = False  # an AUC

    @property
    def clustered(self) -> bool:
        return any(s.clusters is not None for s in self.samples)

    @property
    def smallest(self) -> int:
        return min(len(s) for s in self.samples)

    @property
    def n(self) -> int:
        """How many different rows are drawn from."""
        return len({(s.group, row) for s in self.samples for row in s.rows})


@dataclass
class Run:
    """What intervals are made from: one run's scores, and which rows they came from."""

    suite: SuiteSpec
    scores: Mapping[str, Score]
    manifest: Mapping[str, Any]
    references: Mapping[str, Reference]

    @cached_property
    def groupings(self) -> dict[str, Grouping]:
        """Which rows hang together, by group: our rows, and those of references that read others."""
        if ((self.manifest.get("config") or {}).get("stats") or {}).get("cluster") == NONE:
            return {}
        theirs = {OTHERS + key: g for r in self.references.values() for key, g in r.groupings.items()}
        return {**theirs, **groupings(self.manifest)}

    def sample(self, group: str, numbers: RowNumbers) -> Sample:
        """Values by row, with the cluster of each row where the data has some."""
        if not numbers:
            raise NoInterval("no row has a value")
        found = self.groupings.get(group)
        clusters = tuple(found.of.get(i, f"row {i}") for i in numbers) if found else None
        return Sample(group, tuple(numbers), np.asarray(list(numbers.values()), float), clusters)

    def group(self, metric: str, access_key: str | None = None) -> str:
        """The fingerprint of the rows behind a metric: its own data set, or that of its first parent with one."""
        for name in family(self.suite, metric):
            keys = self.manifest["data_of"].get(name) or {}
            for access, key in sorted(keys.items()):  # as the manifest on disk has them
                if access_key in (None, access):
                    return str(self.manifest["data"][key]["fingerprint"])
        return metric

    def estimate(self, metric: str) -> Estimate:
        """A metric's number as a function of counts, checked against the number reported."""
        score, spec = self.scores[metric], self.suite.metrics[metric]
        if score.agg_value is None:
            raise NoInterval("it has no value")
        build = _COMPOSED.get(spec.handler)
        found = build(self, spec) if build else self.plain(spec, score)
        if not math.isclose(float(found.statistic(bootstrap.once)[0]), found.value, rel_tol=1e-9, abs_tol=1e-12):
            raise NoInterval("its value is not a known function of its rows")
        return found

    def plain(self, spec: MetricSpec, score: Score, prefix: str = "") -> Estimate:
        """Means and AUCs: metrics with values of their own for each row. `prefix` keeps another run's rows apart."""
        value = float(score.agg_value or 0.0)
        sets = {k: _part(score, k) for k in ("forget", "holdout")}
        if all(sets.values()):
            groups = {k: prefix + self.group(spec.name, k) for k in sets}
            low, high = (self.sample(groups[k], _numbers(rows or {}, "score")) for k, rows in sets.items())
            return Estimate(value, bootstrap.auc(low, high), (low, high), unit=True)
        if not score.value_by_index:
            raise NoInterval("it has no values for single rows")
        rows = self.sample(prefix + self.group(spec.name), _averaged(spec, score.value_by_index, value))
        return Estimate(value, bootstrap.mean(rows), (rows,), rows=rows)

    def reference(self, spec: MetricSpec, parent: str) -> tuple[Score | None, str]:
        """The retain model's score of a parent, and the prefix of its rows: none when they are ours."""
        scores = references_of(spec, self.references)
        score = next((s["retain"] for s in scores.values() if "retain" in s), None)
        if score is None or score.agg_value is None:
            return None, ""
        # The same rows under two models are drawn together. Another tool's logs do not say which rows they read;
        # equal row numbers must do then.
        files = [self.references[r.path] for r in spec.references if r.path and r.path in self.references]
        known = [f.fingerprints[parent] for f in files if f.fingerprints.get(parent)]
        same = all(k == data_fingerprints(self.manifest, parent) for k in known)
        same = same and _row_numbers(score) == _row_numbers(self.scores[parent])
        return score, "" if same else OTHERS


def _row_numbers(score: Score) -> list[set[str]]:
    parts = [score.value_by_index, *(_part(score, k) for k in ("forget", "holdout"))]
    return [set(p or {}) for p in parts]


def _part(score: Score, key: str) -> Mapping[str, Any] | None:
    """The rows of one of an attack's two data sets."""
    part = score.extra.get(key)
    return part.get("value_by_index") if isinstance(part, Mapping) else None


def _numbers(by_index: Mapping[str, Mapping[str, Any]], field: str) -> dict[str, float]:
    found = {i: row_mean(entry, field) for i, entry in by_index.items()}
    return {i: v for i, v in found.items() if v is not None}


def _averaged(spec: MetricSpec, by_index: Mapping[str, Mapping[str, Any]], value: float) -> RowNumbers:
    """The numbers whose mean a metric is."""
    if spec.handler == "truth_ratio":
        fold = TRUTH_RATIO_AGGREGATORS[str(spec.params.get("aggregator", "closer_to_1_better"))]
        return {i: float(fold(np.asarray(v))) for i, v in _numbers(by_index, "score").items()}
    # Otherwise it is the field whose mean is the value: this holds for plug-ins as well as for our own.
    for field in next(iter(by_index.values())):
        if not all(_has_numbers(entry, field) for entry in by_index.values()):
            continue  # a text, or a field that not every row has
        numbers = _numbers(by_index, field)
        if numbers and math.isclose(mean(numbers.values()), value, rel_tol=1e-9, abs_tol=1e-12):
            return numbers
    raise NoInterval("its value is not the mean of its rows' values")


def _has_numbers(entry: Mapping[str, Any], field: str) -> bool:
    return field in entry and all(v is None or number(v) is not None for v in as_list(entry[field]))


def _harmonic(run: Run, spec: MetricSpec) -> Estimate:
    parts = [run.estimate(parent) for parent in spec.parents.values()]
    samples = tuple(s for p in parts for s in p.samples)
    value = float(run.scores[spec.name].agg_value or 0.0)
    return Estimate(value, bootstrap.harmonic_mean([p.statistic for p in parts]), samples)


def _relative(run: Run, spec: MetricSpec) -> Estimate:
    parent = spec.parents["forget"]
    formula = {"privleak": vectors.privleak, "rel_diff": vectors.rel_diff}[spec.handler]
    value, mine = float(run.scores[spec.name].agg_value or 0.0), run.estimate(parent)
    score, prefix = run.reference(spec, parent)
    try:
        if score is None:
            raise NoInterval("no reference")
        theirs = run.plain(run.suite.metrics[parent], score, prefix)
    except NoInterval:
        fixed = ref_value(spec) if score is None else float(score.agg_value or 0.0)
        both = bootstrap.combined(formula, mine.statistic, bootstrap.constant(fixed))
        return Estimate(value, both, mine.samples, f"{PERCENTILE}; the reference value is taken as exact")
    both = bootstrap.combined(formula, mine.statistic, theirs.statistic)
    return Estimate(value, both, (*mine.samples, *theirs.samples))


def _ks(run: Run, spec: MetricSpec) -> Estimate:
    """The interval of the KS distance D: the p-value is a verdict on it, and verdicts have no interval."""
    parent = spec.parents["forget"]
    score, prefix = run.reference(spec, parent)
    if score is None:
        raise NoInterval("no reference")
    group = run.group(parent)
    mine = run.sample(group, _numbers(run.scores[parent].value_by_index or {}, "score"))
    theirs = run.sample(prefix + group, _numbers(score.value_by_index or {}, "score"))
    extra: Mapping[str, Any] = run.scores[spec.name].extra
    return Estimate(
        float(extra["ks_statistic"]),
        bootstrap.ks_distance(mine, theirs),
        (mine, theirs),
        BAND,
        bootstrap.ks_deviation(mine, theirs),
        "ks_statistic",
    )


_COMPOSED = {"hm_aggregate": _harmonic, "privleak": _relative, "rel_diff": _relative, "ks_test": _ks}


def intervals(run: Run, resamples: int, progress: bool = False) -> dict[str, dict[str, Any]]:
    """Every metric's interval, or why it has none."""
    estimates: dict[str, Estimate] = {}
    out: dict[str, dict[str, Any]] = {}
    for name in run.suite.metrics:
        try:
            estimates[name] = run.estimate(name)
        except NoInterval as why:
            out[name] = {"interval": None, "reason": str(why)}
    drawn = {name: e for name, e in estimates.items() if e.deviation or not e.clustered}
    resampler = bootstrap.Resampler([s for e in drawn.values() for s in e.samples], resamples, SEED)
    with Bar("intervals", resamples * len(drawn), "value", progress) as bar:
        draws = resampler.draws({name: e.deviation or e.statistic for name, e in drawn.items()}, bar.add)
    for name, e in estimates.items():
        out[name] = _entry(e, draws.get(name), resamples)
    return {name: out[name] for name in run.suite.metrics}


def _entry(e: Estimate, draws: Array | None, resamples: int) -> dict[str, Any]:
    """The interval of a number, or why it has none. Where rows hang together, clusters are the unit."""
    counted: dict[str, Any] = {}
    if e.clustered:
        from vestige.compare import clusters

        found = clusters.jackknife(e.statistic, e.samples, e.unit)
        if draws is None:
            ends, method = found.interval(), "; ".join(filter(None, (clusters.JACKKNIFE, e.method.partition("; ")[2])))
        else:
            ends, method = clusters.band(e.value, draws, found, e.samples), f"{e.method}, of clusters"
        counted, why = {"clusters": found.clusters}, found.reason
    else:
        assert draws is not None
        ends, method, why = around(e, draws), e.method, ""
    drawn = {} if draws is None else {"resamples": resamples}
    entry: dict[str, Any] = {"n": e.n, **counted, "level": bootstrap.LEVEL, **drawn, "method": method}
    entry |= {"of": e.of, "value": e.value} if e.of else {}
    if ends is None:
        return {**entry, "interval": None, "reason": why or "some resamplings have no value (too few rows)"}
    entry |= {"note": NO_WIDTH} if ends[0] == ends[1] else {}
    return {**entry, "interval": list(ends)}


def around(e: Estimate, draws: Array) -> tuple[float, float] | None:
    """The interval of an estimate, in ten digits: more would depend on the machine that added them up."""
    if e.deviation is None:
        found = bootstrap.interval(draws, e.smallest)
    elif not len(draws) or not np.isfinite(draws).all():
        found = None
    else:
        reach = float(np.quantile(draws, bootstrap.LEVEL))
        found = max(0.0, e.value - reach), min(1.0, e.value + reach)
    return None if found is None else (rounded(found[0]), rounded(found[1]))


def rounded(x: float) -> float:
    return float(f"{x:.10g}")


def stats_file(directory: Path, suite: SuiteSpec) -> Path:
    return directory / f"{suite.file_stem}_STATS.json"


def write_statistics(directory: Path, run: Run, resamples: int, progress: bool = False) -> dict[str, dict[str, Any]]:
    """NAME_STATS.json beside the results. It comes last: whatever goes wrong here, the run and its numbers stand."""
    path = stats_file(directory, run.suite)
    remove(path)  # intervals of earlier numbers must not stand beside these
    if resamples == 0:
        return {}
    stats = intervals(run, resamples, progress)
    write_json(path, stats)
    return stats
