"""Evidence in, scores out. No model, no tokenizer, no data files: the same code serves `eval` and `score`.

In: prepared metrics and evidence by want. Out: a Score per metric, with its values by row. Callers: engine/evaluate.py
after collecting, engine/stored.py for a finished run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vestige.engine.prepare import Prepared
from vestige.errors import UserError
from vestige.secrets import hidden, hide
from vestige.store.files import WriteError
from vestige.suites.handlers.from_code import FROM_CODE
from vestige.suites.postprocess import postprocessed
from vestige.suites.registry import HANDLERS, AtStep, Evidence, Inputs, MissingEvidence, Words
from vestige.suites.spec import MetricSpec, ReferenceSpec, SuiteSpec
from vestige.types import NO_RETAIN_LOGS, Grouping, Score
from vestige.wants import ClassifierWant

log = logging.getLogger("vestige.engine")

Classify = Callable[[Sequence[ClassifierWant]], Mapping[str, float]]
Live = Callable[[MetricSpec, Mapping[str, Score], Mapping[str, Mapping[str, Score | None]]], Score]


@dataclass(frozen=True)
class Reference:
    """Another run's results, what to note when they are used, and which rows they came from."""

    results: Mapping[str, Any]
    caveats: Mapping[str, str] = field(default_factory=dict)  # metric -> why it is not quite comparable
    fingerprints: Mapping[str, frozenset[str]] = field(default_factory=dict)  # metric -> its rows
    groupings: Mapping[str, Grouping] = field(default_factory=dict)  # fingerprint -> which rows hang together


def references_of(spec: MetricSpec, files: Mapping[str, Reference]) -> dict[str, dict[str, Score | None]]:
    return {r.name: _included(r, files[r.path].results if r.path and r.path in files else {}) for r in spec.references}


def _caveats(suite: SuiteSpec, spec: MetricSpec, files: Mapping[str, Reference], prepared: Prepared) -> Iterator[str]:
    """What a reader must know about the references a metric was compared with."""
    for r in spec.references:
        if r.path is None or r.path not in files:
            continue
        file = files[r.path]
        for metric in r.include:
            if metric in file.caveats:
                yield file.caveats[metric]
            theirs, ours = file.fingerprints.get(metric), rows_behind(suite, metric, prepared)
            if theirs and ours and theirs != ours:
                yield f"the retain logs were made from other rows than this run ({metric})"
        if not file.fingerprints:
            yield from _other_counts(suite, r, file, prepared)


def rows_behind(suite: SuiteSpec, metric: str, prepared: Prepared) -> frozenset[str]:
    """The fingerprints of the rows a metric and its parents read."""
    if metric not in suite.metrics:
        return frozenset()
    mine = frozenset(rows.fingerprint for rows in prepared.data(metric).values())
    return mine.union(*(rows_behind(suite, p, prepared) for p in suite.metrics[metric].parents.values()))


def _other_counts(suite: SuiteSpec, r: ReferenceSpec, file: Reference, prepared: Prepared) -> Iterator[str]:
    """Another tool's logs say no more about their rows than how many there were."""
    for metric in r.include:
        entry = file.results.get(metric)
        if metric not in suite.metrics or not isinstance(entry, Mapping):
            continue
        theirs = _row_counts(entry)
        ours = {len(rows) for name in family(suite, metric) for rows in prepared.data(name).values()}
        if theirs and ours and not theirs <= ours:
            counts = " and ".join(map(str, sorted(theirs)))
            yield f"the retain logs hold {counts} rows of {metric}, this run {' and '.join(map(str, sorted(ours)))}"


def _row_counts(entry: Mapping[str, Any]) -> set[int]:
    parts = [entry, *(v for v in entry.values() if isinstance(v, Mapping))]
    return {len(p["value_by_index"]) for p in parts if p.get("value_by_index")}


def family(suite: SuiteSpec, metric: str) -> Iterator[str]:
    """A metric and all its parents."""
    yield metric
    for parent in suite.metrics[metric].parents.values():
        yield from family(suite, parent)


def _included(reference: ReferenceSpec, results: Mapping[str, Any]) -> dict[str, Score | None]:
    out: dict[str, Score | None] = {}
    for metric, access_key in reference.include.items():
        found = results.get(metric)
        out[access_key] = Score.from_json(found) if isinstance(found, dict) else None
    return out


def _say_absent(spec: MetricSpec, files: Mapping[str, Reference]) -> None:
    if spec.children:  # it knows several places to look, and says itself when a step is missing
        return
    for r in spec.references:
        for metric in r.include:
            if r.path and (r.path not in files or files[r.path].results.get(metric) is None):
                log.warning("%s holds no metric '%s'.", r.path, metric)


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
        if spec.references:
            _say_absent(spec, self.references)
        inputs = Inputs(
            spec=spec,
            dialect=prepared.dialect,
            data=prepared.data(name),
            evidence=self.evidence,
            parents=parents,
            references=(compared := references_of(spec, self.references) if spec.references else {}),
            words=self.words,
            unavailable=_children_lost(name, prepared) if spec.children else {},
            at_step=self.at_step,
        )
        live = partial(self.live, spec, parents, compared) if self.live is not None else None
        score = _score(inputs, self.evidence, self.classify, live)
        if score.agg_value is not None and any(r.others for r in spec.references):
            score = _against_each(score, inputs, self.references)
        if score.agg_value is not None and spec.references:
            caveats = _caveats(self.suite, spec, self.references, prepared)
            score = replace(score, notes=(*score.notes, *dict.fromkeys(caveats)))
        score = _shown(score)
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
                scores[name] = self.score(name, {key: scores[parent] for key, parent in spec.parents.items()})
        if self.suite.postprocess:
            scores = postprocessed(self.suite, scores)
        late = [n for n, spec in self.suite.metrics.items() if spec.handler == FROM_CODE and n not in scores]
        return {**scores, **{name: self.score(name, {}) for name in late}}


def _shown(score: Score) -> Score:
    """The words of a score without secrets: paths from the environment are in reasons and notes."""
    extra = dict(score.extra)
    if "by_reference" in extra:
        extra["by_reference"] = hidden(extra["by_reference"])
    return replace(score, reason=hide(score.reason), notes=tuple(map(hide, score.notes)), extra=extra)


def _children_lost(name: str, prepared: Prepared) -> dict[str, str]:
    return {k.removeprefix(f"{name}/"): why for k, why in prepared.unavailable.items() if k.startswith(f"{name}/")}


def _against_each(score: Score, inputs: Inputs, references: Mapping[str, Reference]) -> Score:
    """The same comparison with every retain model given: how much of it is the choice of that model."""
    values = {r.path: score.agg_value for r in inputs.spec.references if r.path}
    for path in (p for r in inputs.spec.references for p in r.others):
        spec = replace(inputs.spec, references=tuple(replace(r, path=path, others=()) for r in inputs.spec.references))
        other = replace(inputs, spec=spec, references=references_of(spec, references))
        values[path] = HANDLERS[spec.handler].score(other).agg_value
    known = [v for v in values.values() if v is not None]
    note = f"against {len(known)} retain models: {min(known):.4g} to {max(known):.4g}; the value is that of the first"
    return replace(score, extra={**score.extra, "by_reference": values}, notes=(*score.notes, note))


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
