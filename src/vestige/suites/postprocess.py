"""Scores that code makes of other scores: a suite names a function (`postprocess: NAME`), a plug-in defines it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.suites.handlers.from_code import FROM_CODE
from vestige.suites.registry import POSTPROCESS
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import Score


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
