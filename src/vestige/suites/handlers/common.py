"""What handlers share: wants, per-row values, means that say what they left out.

Evidence may have a leading axis of denoising steps. Values of rows then are arrays over steps, and a mean over rows is
StepScores (suites/steps.py): the same lines serve one state of a model and a whole trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.metrics.dialects import Dialect
from vestige.numeric import mean, means
from vestige.suites.registry import Inputs
from vestige.suites.steps import Columns, Scored, StepScores, first_reason, steps_of
from vestige.types import BAD_LOGITS, Array, Example, Rows, Score, Target, TokenStats, stats
from vestige.wants import Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

Value = dict[str, Any]
NO_TOKENS = "the answer leaves no target tokens"


def targets(data: Mapping[str, Rows]) -> list[Target]:
    return [e.target for rows in data.values() for row in rows.examples for e in row if e.target]


def wants_answers(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    """Evidence for the answers of the metric's data sets."""
    return Wants(answers=targets(data))


def stats_of(inputs: Inputs, example: Example) -> TokenStats | None:
    """The evidence for one answer in this dialect's token set; None without a token to score."""
    if example.target is None:
        return None
    t = inputs.evidence.answers[example.target.key]
    if inputs.spec.handler in inputs.dialect.drop_last:
        t = t.without_last()
    return t if t.tokens else None


def clean(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def by_index(rows: Rows, value: Callable[[Example], Value]) -> dict[str, Value]:
    """One entry per row; with several answers per row, each field is the list over answers."""
    out: dict[str, Value] = {}
    for row in rows.examples:
        values = list(map(value, row))
        if rows.many:
            fields = dict.fromkeys(k for v in values for k in v if k != "reason")
            entry: Value = {k: [v.get(k) for v in values] for k in fields}
            reasons = [v["reason"] for v in values if "reason" in v]
            if reasons:
                entry["reason"] = first_reason(*reasons)
        else:
            entry = values[0]
        out[row[0].index] = entry
    return out


def answers(entry: Mapping[str, Any], field: str) -> Array | None:
    """A row's values with its answers on the last axis: (..., answers). None when no answer has one."""
    good = [v for v in as_list(entry.get(field)) if v is not None]
    return np.stack(np.broadcast_arrays(*good), axis=-1) if good else None


def row_mean(entry: Value | Mapping[str, Any], field: str) -> Any:
    """One row's value, or its values at each step: the mean over those of its answers that have one. None: none has."""
    good = [v for v in as_list(entry[field]) if v is not None]
    if steps_of(*good) is not None:
        return good[0] if len(good) == 1 else means(np.stack(np.broadcast_arrays(*good), axis=-1))
    return mean(good) if good else None


def mean_score(
    by_index: Mapping[str, Value], field: str, each: Callable[[Array], Array] | None = None, **extra: Any
) -> Scored:
    """The mean over rows (of the mean over a row's answers): a Score, or StepScores. `each` turns a row's value first.

    Rows without target tokens are left out, counted and named. A row the model answered with NaN makes the whole
    mean missing: leaving it out would flatter a broken model.
    """
    values = [row_mean(entry, field) for entry in by_index.values()]
    broken = [np.asarray(entry.get("reason", "")) == BAD_LOGITS for entry in by_index.values()]
    partial = [_partial(e, field) & ~bad for e, bad in zip(by_index.values(), broken, strict=True)]
    steps = steps_of(*values, *broken)
    if steps is None:
        value, reason, notes = _mean(list(by_index), values, broken, partial, each)
        return Score(value, by_index, extra, reason, notes)
    columns = zip(_columns(values, steps), _columns(broken, steps), _columns(partial, steps), strict=True)
    found = [_mean(list(by_index), v, bad, gone, each) for v, bad, gone in columns]
    return StepScores(
        np.array([np.nan if v is None else v for v, _, _ in found]),
        by_index,
        np.array([reason for _, reason, _ in found], dtype=object),
        tuple(notes for _, _, notes in found),
        np.ones(steps, dtype=bool),
        extra,
    )


def _partial(entry: Mapping[str, Any], field: str) -> Array:
    """Whether some answer of a row has no value."""
    gone: Array = np.asarray(False)
    for v in as_list(entry[field]):
        gone = gone | (np.isnan(v) if isinstance(v, np.ndarray) else v is None)
    return gone


def _columns(rows: Sequence[Any], steps: int) -> list[list[Any]]:
    """Rows of values over steps as one list per step, None for what is not there."""
    if steps_of(*rows) is None:
        return [list(rows)] * steps
    table = np.stack([np.broadcast_to(np.nan if v is None else v, steps) for v in rows], axis=-1)
    if table.dtype == bool or not np.isnan(table).any():
        return table.tolist()
    return [[None if math.isnan(v) else v for v in column] for column in table.tolist()]


def _mean(
    indices: Sequence[str],
    values: Sequence[float | None],
    broken: Sequence[Any],
    partial: Sequence[Any],
    each: Callable[[Array], Array] | None,
) -> tuple[float | None, str, tuple[str, ...]]:
    """The mean over rows, why there is none, and what was left out."""
    rows = [v for v, bad in zip(values, broken, strict=True) if v is not None and not bad]
    left_out = [i for i, gone in zip(indices, partial, strict=True) if gone]
    bad_rows = [i for i, bad in zip(indices, broken, strict=True) if bad]
    notes = (f"{len(left_out)} row(s) with {NO_TOKENS}: {', '.join(left_out[:10])}",) if left_out else ()
    if bad_rows:
        return None, f"{BAD_LOGITS} on {len(bad_rows)} of {len(indices)} rows (first: {bad_rows[0]})", notes
    if not rows:
        return None, "no row could be scored", notes
    return mean(rows if each is None else each(np.asarray(rows))), "", notes


def one_stat(inputs: Inputs, compute: Callable[[TokenStats], Mapping[str, Any]]) -> Callable[[Example], Value]:
    """A per-example value from TokenStats; missing values carry their reason, or the dialect's stand-in."""
    fields = list(compute(stats(hit=[1])))

    def value(example: Example) -> Value:
        t = stats_of(inputs, example)
        if t is None:
            stand_in = inputs.dialect.empty.get(inputs.spec.handler)
            return {**dict.fromkeys(fields, stand_in), **({} if stand_in is not None else {"reason": NO_TOKENS})}
        bad = np.asarray(np.isnan(t.logprob).any(axis=-1))
        if bad.all():
            return {**dict.fromkeys(fields), "reason": BAD_LOGITS}
        found = compute(t)
        if not bad.ndim and not all(np.isfinite(v).all() for v in found.values()):
            return {**dict.fromkeys(fields), "reason": BAD_LOGITS}  # a label of probability 0 has no loss
        if not bad.ndim:
            return {k: (v.tolist() if np.ndim(v) else float(v)) for k, v in found.items()}
        return _without(bad, {k: np.asarray(v, dtype=float) for k, v in found.items()})

    return value


def _without(bad: Array, found: Mapping[str, Array]) -> Value:
    """Values over steps without those of bad steps. A value that is not a number is as bad: it must not be lost."""
    for v in found.values():
        bad = bad | ~np.isfinite(v).reshape(len(bad), -1).all(axis=-1)
    if not bad.any():
        return dict(found)
    kept = {k: np.where(bad.reshape(-1, *(1,) * (v.ndim - 1)), np.nan, v) for k, v in found.items()}
    return {**kept, "reason": np.where(bad, np.array(BAD_LOGITS, dtype=object), "")}


def one_number(field: str, number: Any, *reasons: str | Array) -> Value:
    """A row's entry for one number; where it is missing (None, at a step NaN), the first of the reasons."""
    why = first_reason(*reasons, NO_TOKENS)
    if number is None:
        return {field: None, "reason": why}
    if not np.ndim(number):
        return {field: float(number)}
    gone = np.isnan(number)
    return {field: number, **({"reason": np.where(gone, why, "")} if gone.any() else {})}


def as_list(x: Any) -> list[Any]:
    """A row's values, one or several, as a list."""
    return x if isinstance(x, list) else [x]


def scores_of(score: Scored) -> Any:
    """The per-row scores that exist: a list, or Columns that give one for each step."""
    rows = (score.value_by_index or {}).values()
    found: list[Any] = [row.get("score") for row in rows]  # other tools' rows may have none
    if isinstance(score, Score):
        return [v for v in found if v is not None]
    table = [np.broadcast_to(np.nan if v is None else v, score.steps) for v in found]
    return Columns(np.stack(table) if table else np.empty((0, score.steps)))
