"""Scores that code makes of other scores: a suite's function (`postprocess: NAME`), or a plug-in's evaluator.

In: scores, and what the code returned. Out: scores, and the suite that names them. Callers: engine/scores.py,
engine/evaluate.py and engine/evaluator_session.py.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.suites.registry import POSTPROCESS, Inputs, handler
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import Score

FROM_CODE = "from_code"


@handler(FROM_CODE)
def from_code(inputs: Inputs) -> Score:
    """A number that code adds to a run (postprocess, evaluators)."""
    return Score(None, reason="the code that gave it a value did not do so this time")


def check_postprocess(suite: SuiteSpec) -> None:
    """Before anything runs: is the function that a suite names there?"""
    if suite.postprocess and suite.postprocess not in POSTPROCESS:
        hint = f"(eval.{suite.name}.postprocess; a plug-in defines it under @postprocess: --plugin FILE)"
        raise unknown_name("function of scores", suite.postprocess, POSTPROCESS, hint)


def postprocessed(suite: SuiteSpec, scores: Mapping[str, Score]) -> dict[str, Score]:
    """The scores with what the suite's function returns laid over them."""
    if not suite.postprocess:
        return dict(scores)
    check_postprocess(suite)
    function = POSTPROCESS[suite.postprocess]
    try:
        found = function(dict(scores))
    except Exception as error:  # the user's code, which may fail in any way
        reraise_ours(error, function.__module__)
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise UserError(
            f"The function '{suite.postprocess}' of suite '{suite.name}' failed at line {line}: "
            f"{type(error).__name__}: {error} (scores at hand: {', '.join(scores)})."
        ) from None
    if not isinstance(found, Mapping):
        raise UserError(f"The function '{suite.postprocess}' must return a dict of scores, not {type(found).__name__}.")
    new = {str(name): as_score(value, str(name), suite.postprocess) for name, value in found.items()}
    return {**scores, **{name: replaced(scores.get(name), score, suite.postprocess) for name, score in new.items()}}


def as_score(value: Any, name: str, by: str) -> Score:
    """A number, or a Score as it is. What is missing has a reason."""
    if isinstance(value, Score):
        return value
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Score(None, reason=f"{by} returned no number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"'{by}' gave '{name}' {value!r}; a score is a number, None or a vestige.types.Score.")
    return Score(float(value))


def replaced(before: Score | None, now: Score, by: str) -> Score:
    """A score in the place of a metric's own says so."""
    if before is None or before.agg_value == now.agg_value or before.missing:
        return now
    note = f"computed by {by}; the metric's own value is {before.agg_value}"
    return now if note in now.notes else replace(now, notes=(*now.notes, note))


def with_more(suite: SuiteSpec, scores: Mapping[str, Score]) -> SuiteSpec:
    """The suite with a metric for every score that code added: asked for, like those that it names itself."""
    more = {name: MetricSpec(name, FROM_CODE) for name in scores if name not in suite.metrics}
    if not more:
        return suite
    return replace(suite, metrics={**suite.metrics, **more}, top=tuple(dict.fromkeys((*suite.top, *more))))


def reported(
    name: str, measured: Mapping[str, Score], logs: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Score]:
    """What the evaluator `name` reports as scores: its logs and its summary, laid over what was measured for it."""
    scores = {}
    for metric, entry in logs.items():
        scores[metric] = replaced(measured.get(metric), _of_entry(entry, metric, name), name)
    for metric, value in summary.items():
        if isinstance(value, Mapping) and metric not in scores:
            value = value.get("agg_value")
        if isinstance(value, (str, bool, list, Mapping)):
            scores.setdefault(metric, Score(None, extra={"value": value}, reason="its evaluator gave no number"))
            continue
        found = as_score(value, metric, name)
        before = scores.get(metric)
        if before is None or before.agg_value != found.agg_value:
            scores[metric] = found if before is None else replaced(before, replace(before, **_value(found)), name)
    if not scores:
        raise UserError(f"Evaluator {name} reported nothing; return a dict of numbers from evaluate, or save logs.")
    return scores


def _value(found: Score) -> dict[str, Any]:
    return {"agg_value": found.agg_value, "reason": found.reason}


def _of_entry(entry: Any, metric: str, by: str) -> Score:
    """An entry of saved logs: a result with its `agg_value`, a number, or something else that is kept as it is."""
    if not isinstance(entry, Mapping):
        return as_score(entry, metric, by)
    value = entry.get("agg_value")
    if isinstance(value, Mapping) or value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        rows = entry.get("value_by_index")
        if rows is None or (isinstance(rows, Mapping) and all(isinstance(v, Mapping) for v in rows.values())):
            score = Score.from_json(entry)
            return (
                replace(score, reason="its evaluator gave no number") if score.missing and not score.reason else score
            )
    raise UserError(f"Evaluator {by} saved '{metric}' as {str(entry)[:80]}; 'agg_value' must be a number or None.")


def suite_of(suite: SuiteSpec, scores: Mapping[str, Score], top: list[str]) -> SuiteSpec:
    """The suite as an evaluator reported it: its metrics, those it added, and those it left out of its summary."""
    metrics = {}
    for name in scores:
        spec = suite.metrics.get(name) or MetricSpec(name, FROM_CODE)
        lost = any(parent not in scores for parent in spec.parents.values())
        metrics[name] = replace(spec, parents={}) if lost else spec
    ordered = {n: metrics[n] for n in suite.metrics if n in metrics}
    return replace(suite, metrics={**ordered, **metrics}, top=tuple(top or scores))
