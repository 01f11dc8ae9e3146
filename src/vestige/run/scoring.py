"""Evidence in, scores out. No model, no tokenizer, no data files: the same code serves `eval` and `score`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.run.collecting import MissingEvidence
from vestige.run.prepare import Prepared
from vestige.store.files import read_json
from vestige.suites.registry import HANDLERS, Evidence, Inputs
from vestige.suites.spec import MetricSpec, ReferenceSpec, SuiteSpec
from vestige.types import Score
from vestige.wants import ClassifierWant

log = logging.getLogger("vestige.run")

Classify = Callable[[Sequence[ClassifierWant]], Mapping[str, float]]
Live = Callable[[MetricSpec, Mapping[str, Score], Mapping[str, Mapping[str, Score | None]]], Score]


def load_references(suite: SuiteSpec) -> dict[str, dict[str, Any]]:
    """Every reference file the suite names, read before anything is computed: a wrong path costs nothing."""
    paths = {r.path for spec in suite.metrics.values() for r in spec.references if r.path}
    return {path: read_results(Path(path).expanduser()) for path in sorted(paths)}


def read_results(path: Path) -> dict[str, Any]:
    """A result file, ours or open-unlearning's; a run directory stands for the one result file in it."""
    if path.is_dir():
        found = sorted(path.glob("*_EVAL.json"))
        if len(found) != 1:
            raise UserError(f"{path} holds {len(found)} *_EVAL.json files; name the one to use as retain logs.")
        path = found[0]
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"Retain logs {path} do not exist; evaluate the retain model first and give its *_EVAL.json."
        ) from None
    except ValueError as error:
        raise UserError(f"Retain logs {path} are not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise UserError(f"Retain logs {path} must hold an object of metrics, not {type(data).__name__}.")
    return data


def _references(spec: MetricSpec, files: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Score | None]]:
    return {r.name: _included(r, files.get(r.path, {}) if r.path else {}) for r in spec.references}


def _included(reference: ReferenceSpec, results: Mapping[str, Any]) -> dict[str, Score | None]:
    out: dict[str, Score | None] = {}
    for metric, access_key in reference.include.items():
        found = results.get(metric)
        out[access_key] = Score.from_json(found) if isinstance(found, dict) else None
        if reference.path and found is None:
            log.warning("%s holds no metric '%s'.", reference.path, metric)
    return out


def score_suite(
    suite: SuiteSpec,
    prepared: Prepared,
    evidence: Evidence,
    references: Mapping[str, Mapping[str, Any]],
    classify: Classify | None = None,
    live: Live | None = None,
) -> dict[str, Score]:
    """Scores every metric, parents first. A metric that cannot be had is None with its reason."""
    scores: dict[str, Score] = {}
    for name, spec in suite.metrics.items():
        if name in prepared.unavailable:
            scores[name] = Score(None, reason=prepared.unavailable[name])
            continue
        inputs = Inputs(
            spec=spec,
            dialect=prepared.dialect,
            data=prepared.data(name),
            evidence=evidence,
            parents={key: scores[parent] for key, parent in spec.parents.items()},
            references=_references(spec, references),
        )
        scores[name] = _score(inputs, evidence, classify, live)
        for note in scores[name].notes:
            log.warning("%s: %s", name, note)
        if scores[name].agg_value is None:
            log.warning("%s: no value, because %s", name, scores[name].reason)
    return scores


def _score(inputs: Inputs, evidence: Evidence, classify: Classify | None, live: Live | None) -> Score:
    handler = HANDLERS[inputs.spec.handler]
    try:
        if handler.live is not None:
            if live is None:
                return Score(None, reason="this metric runs the model itself; it cannot be re-scored from evidence")
            return live(inputs.spec, inputs.parents, inputs.references)
        if handler.classify is not None:
            parent = inputs.parents.get("text")
            if parent is None or parent.value_by_index is None:
                return Score(None, reason=f"its texts are missing: {parent.reason if parent else 'no parent'}")
            if classify is not None:
                evidence.classified = {**evidence.classified, **classify(handler.classify(inputs))}
        return handler.score(inputs)
    except MissingEvidence:
        return Score(None, reason="the evidence it needs was not collected in this run (other dialect or settings)")
