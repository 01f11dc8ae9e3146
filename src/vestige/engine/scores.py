"""Evidence in; scores and their intervals out. No model, no tokenizer, no data files: `eval` and `score` share it.

For an interval rows are drawn again, and every metric is computed as it was scored. Metrics that read the same rows are
resampled together, so that composed metrics (model utility, privleak) keep the correlation between their parts. An
interval is only given where the formula, with every row drawn once, returns the number that was reported.

In: prepared metrics and evidence by want. Out: a Score per metric, with its values by row; intervals, by metric.
Callers: engine/evaluate.py after collecting, engine/stored.py and runs/evaluation.py for a finished run, results and
judging. What compares with another run is in engine/references.py, imported where a metric has a reference.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from vestige.data.clusters import NONE
from vestige.engine.prepare import Prepared
from vestige.errors import UserError, WriteError
from vestige.io import number
from vestige.metrics.cards import card_of
from vestige.metrics.memorisation import TRUTH_RATIO_AGGREGATORS
from vestige.numeric import mean
from vestige.runs.directory import remove
from vestige.runs.files import write_json
from vestige.runs.manifest import groupings
from vestige.runs.run import Number
from vestige.secrets import hidden, hide
from vestige.show.progress import Bar
from vestige.stats import bootstrap
from vestige.stats.bootstrap import Sample, Statistic
from vestige.suites.handlers.common import as_list, row_mean
from vestige.suites.postprocess import FROM_CODE, postprocessed
from vestige.suites.registry import HANDLERS, AtStep, Evidence, Inputs, MissingEvidence, Words
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import NO_RETAIN_LOGS, Array, Grouping, Score
from vestige.wants import ClassifierWant

log = logging.getLogger("vestige.engine")

Classify = Callable[[Sequence[ClassifierWant]], Mapping[str, float]]
Live = Callable[[MetricSpec, Mapping[str, Score], Mapping[str, Mapping[str, Score | None]]], Score]


@dataclass(frozen=True)
class Reference:
    """Another run's results, what to note when they are used, and which rows they came from."""

    results: Mapping[str, Any]
    caveats: Mapping[str, str] = field(default_factory=dict)  # metric -> why it is not quite comparable
    measured: Mapping[str, Number] = field(default_factory=dict)  # metric -> how; empty for another tool's results
    groupings: Mapping[str, Grouping] = field(default_factory=dict)  # fingerprint -> which rows hang together


def family(suite: SuiteSpec, metric: str) -> Iterator[str]:
    """A metric and all its parents."""
    yield metric
    for parent in suite.metrics[metric].parents.values():
        yield from family(suite, parent)


@dataclass(frozen=True)
class Scoring:
    """What scoring reads and calls, for any metric of a suite."""

    suite: SuiteSpec
    prepared: Prepared
    evidence: Evidence
    references: Mapping[str, Reference]
    classify: Classify | None = None
    live: Live | None = None
    words: Words | None = None
    at_step: AtStep | None = None

    def score(self, name: str, parents: Mapping[str, Score]) -> Score:
        """One metric. If it cannot be computed it is None with its reason. `parents` by access key."""
        spec, prepared = self.suite.metrics[name], self.prepared
        if name in prepared.unavailable:
            return Score(None, reason=prepared.unavailable[name])
        compared: dict[str, dict[str, Score | None]] = {}
        if spec.references:
            from vestige.engine.references import references_of, say_absent

            say_absent(spec, self.references)
            compared = references_of(spec, self.references)
        inputs = Inputs(
            spec=spec,
            dialect=prepared.dialect,
            data=prepared.data(name),
            evidence=self.evidence,
            parents=parents,
            references=compared,
            words=self.words,
            unavailable=_children_lost(name, prepared) if spec.children else {},
            at_step=self.at_step,
        )
        live = partial(self.live, spec, parents, compared) if self.live is not None else None
        score = _score(inputs, self.evidence, self.classify, live)
        if score.agg_value is not None and spec.references:
            from vestige.engine.references import with_caveats

            score = with_caveats(score, inputs, self.suite, self.references, prepared)
        # Paths from the environment are in reasons and notes.
        score = replace(score, reason=hide(score.reason), notes=tuple(map(hide, score.notes)))
        if "by_reference" in score.extra:
            score = replace(score, extra={**score.extra, "by_reference": hidden(score.extra["by_reference"])})
        for note in score.notes:
            if not note.endswith(NO_RETAIN_LOGS):  # the run said it at its start, for all metrics
                log.warning("%s: %s", name, note)
        if score.missing and not score.reason.endswith(NO_RETAIN_LOGS):
            log.warning("%s: no value, because %s", name, score.reason)
        return score

    def score_all(self) -> dict[str, Score]:
        """Every metric, parents first; then what the suite's own function makes of them."""
        scores: dict[str, Score] = {}
        for name, spec in self.suite.metrics.items():
            if spec.handler != FROM_CODE:
                scores[name] = self.score(name, {role: scores[parent] for role, parent in spec.parents.items()})
        if self.suite.postprocess:
            scores = postprocessed(self.suite, scores)
        for name, spec in self.suite.metrics.items():
            if spec.handler == FROM_CODE and name not in scores:
                scores[name] = self.score(name, {})
        return scores


def _children_lost(name: str, prepared: Prepared) -> dict[str, str]:
    return {k.removeprefix(f"{name}/"): why for k, why in prepared.unavailable.items() if k.startswith(f"{name}/")}


def _score(inputs: Inputs, evidence: Evidence, classify: Classify | None, live: Callable[[], Score] | None) -> Score:
    handler = HANDLERS[inputs.spec.handler]
    try:
        if handler.live is not None:
            if live is None:
                return Score(None, reason="this metric runs the model itself; it cannot be re-scored from evidence")
            return live()
        if handler.classify is not None:
            parent = inputs.parents.get("text")
            if parent is None or parent.value_by_index is None or parent.agg_value is None:
                return Score(None, reason=f"its texts are missing: {parent.reason if parent else 'no parent'}")
            if classify is not None:
                try:
                    evidence.classified = {**evidence.classified, **classify(handler.classify(inputs))}
                except WriteError:
                    raise
                except UserError as error:  # somebody else's model: without it the other metrics still stand
                    return Score(None, reason=str(error))
        return handler.score(inputs)
    except MissingEvidence:
        return Score(None, reason="the evidence it needs was not collected in this run (other dialect or settings)")


# ---- intervals ----------------------------------------------------------------------------------------------------


SEED = 20240  # fixed: the same evidence gives the same bytes
PERCENTILE = "percentile bootstrap over rows"
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
    share: bool = False  # by definition between 0 and 1, and so are the interval's ends

    @property
    def clustered(self) -> bool:
        return any(sample.clusters for sample in self.samples)

    @property
    def smallest(self) -> int:
        return min(map(len, self.samples))

    @property
    def n(self) -> int:
        """How many different rows are drawn from."""
        return len({(sample.group, row) for sample in self.samples for row in sample.rows})


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
        found = {}
        for reference in self.references.values():
            for key, grouping in reference.groupings.items():
                found[OTHERS + key] = grouping
        return found | groupings(self.manifest)

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
        if spec.parents:
            from vestige.engine.references import composed

            found = composed(self, spec) or self.plain(spec, score)
        else:
            found = self.plain(spec, score)
        if not math.isclose(float(found.statistic(bootstrap.once)[0]), found.value, rel_tol=1e-9, abs_tol=1e-12):
            raise NoInterval("its value is not a known function of its rows")
        card = card_of(spec.handler)
        inside = found.rows is None or (found.rows.values.min() >= 0 and found.rows.values.max() <= 1)
        return replace(found, share=card is not None and card.unit and bool(inside))

    def plain(self, spec: MetricSpec, score: Score, prefix: str = "") -> Estimate:
        """Means and AUCs: metrics with values of their own for each row. `prefix` keeps another run's rows apart."""
        value = float(score.agg_value or 0.0)
        if (forget := part_of(score, "forget")) and (holdout := part_of(score, "holdout")):
            low = self.sample(prefix + self.group(spec.name, "forget"), numbers_of(forget, "score"))
            high = self.sample(prefix + self.group(spec.name, "holdout"), numbers_of(holdout, "score"))
            return Estimate(value, bootstrap.auc(low, high), (low, high), unit=True)
        if not score.value_by_index:
            raise NoInterval("it has no values for single rows")
        rows = self.sample(prefix + self.group(spec.name), _averaged(spec, score.value_by_index, value))
        return Estimate(value, bootstrap.mean(rows), (rows,), rows=rows)


def part_of(score: Score, key: str) -> Mapping[str, Any] | None:
    """The rows of one of an attack's two data sets."""
    part = score.extra.get(key)
    return part.get("value_by_index") if isinstance(part, Mapping) else None


def numbers_of(by_index: Mapping[str, Mapping[str, Any]], field: str) -> dict[str, float]:
    found = {}
    for index, entry in by_index.items():
        if (value := row_mean(entry, field)) is not None:
            found[index] = value
    return found


def _averaged(spec: MetricSpec, by_index: Mapping[str, Mapping[str, Any]], value: float) -> RowNumbers:
    """The numbers whose mean a metric is."""
    if spec.handler == "truth_ratio":
        fold = TRUTH_RATIO_AGGREGATORS[str(spec.params.get("aggregator", "closer_to_1_better"))]
        return {i: float(fold(np.asarray(v))) for i, v in numbers_of(by_index, "score").items()}
    # Otherwise it is the field whose mean is the value: this holds for plug-ins as well as for our own.
    for name in next(iter(by_index.values())):
        if not _has_numbers(by_index, name):
            continue  # a text, or a field that not every row has
        numbers = numbers_of(by_index, name)
        if numbers and math.isclose(mean(numbers.values()), value, rel_tol=1e-9, abs_tol=1e-12):
            return numbers
    raise NoInterval("its value is not the mean of its rows' values")


def _has_numbers(by_index: Mapping[str, Mapping[str, Any]], field: str) -> bool:
    for entry in by_index.values():
        if field not in entry:
            return False
        for value in as_list(entry[field]):
            if value is not None and number(value) is None:
                return False
    return True


def intervals(run: Run, resamples: int, progress: bool = False) -> dict[str, dict[str, Any]]:
    """Every metric's interval, or why it has none."""
    estimates: dict[str, Estimate] = {}
    drawn: dict[str, Statistic] = {}
    samples: list[Sample] = []
    out: dict[str, dict[str, Any]] = {}
    for name in run.suite.metrics:
        try:
            e = estimates[name] = run.estimate(name)
        except NoInterval as why:
            out[name] = {"interval": None, "reason": str(why)}
            continue
        out[name] = {}  # keeps its place
        if e.deviation or not e.clustered:
            drawn[name] = e.deviation or e.statistic
            samples += e.samples
    resampler = bootstrap.Resampler(samples, resamples, SEED)
    with Bar("intervals", resamples * len(drawn), "value", progress) as bar:
        draws = resampler.draws(drawn, bar.add)
    for name, e in estimates.items():
        out[name] = _entry(e, draws.get(name), resamples)
    return out


def _entry(e: Estimate, draws: Array | None, resamples: int) -> dict[str, Any]:
    """The interval of a number, or why it has none. Where rows hang together, clusters are the unit."""
    counted: dict[str, Any] = {}
    if e.clustered:
        from vestige.stats import clusters

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
    if e.share and not e.of:  # Student's distribution knows no bounds
        ends = bootstrap.within_unit(ends)
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
