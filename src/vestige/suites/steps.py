"""Scores with a leading axis of denoising steps, and how code that knows one step meets them.

The axis rule of metrics holds for handlers, too: in a row, a number is an array over steps (NaN: there is none), and a
text that changes is an array of texts. What has no axis is the same at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from vestige.types import Array, Score

T = TypeVar("T")


class At(Mapping[str, T], Generic[T]):
    """A mapping whose values are made when asked."""

    def __init__(self, keys: Iterable[str], make: Callable[[str], T]) -> None:
        self.keys_ = dict.fromkeys(keys)
        self.make = make

    def __getitem__(self, key: str) -> T:
        if key not in self.keys_:
            raise KeyError(key)
        return self.make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


@dataclass(frozen=True)
class StepScores:
    """A metric's results along the steps of one trajectory: the fields of a Score with a leading axis of steps."""

    agg_value: Array  # (steps,) NaN where there is none
    value_by_index: Mapping[str, Mapping[str, Any]] | None
    reason: Array  # (steps,) texts; "" where there is a value
    notes: tuple[tuple[str, ...], ...]  # of each step
    with_rows: Array  # (steps,) whether a step has values by row at all: a missing parent leaves none
    extra: Mapping[str, Any] = field(default_factory=dict)  # arrays over steps, StepScores of parts

    @property
    def steps(self) -> int:
        return len(self.agg_value)

    def at(self, step: int) -> Score:
        """The Score of one step. Rows are read when asked for: most readers want only the value."""
        rows = self.value_by_index if self.with_rows[step] else None
        return Score(
            picked(self.agg_value, step),
            None if rows is None else At(rows, lambda index: picked(rows[index], step)),
            At(self.extra, lambda name: picked(self.extra[name], step)),
            str(self.reason[step]),
            self.notes[step],
        )

    @classmethod
    def of(cls, scores: Sequence[Score]) -> StepScores:
        """Scores of single steps as one record."""
        by_index: dict[str, Any] | None = None
        if any(score.value_by_index is not None for score in scores):
            rows = [score.value_by_index or {} for score in scores]
            indices = dict.fromkeys(index for step in rows for index in step)  # in order of first appearance
            by_index = {index: stacked([step.get(index, {}) for step in rows]) for index in indices}
        names = dict.fromkeys(name for score in scores for name in score.extra)
        return cls(
            agg_value=_numbers([score.agg_value for score in scores]),
            value_by_index=by_index,
            reason=np.array([score.reason for score in scores], dtype=object),
            notes=tuple(score.notes for score in scores),
            with_rows=np.array([score.value_by_index is not None for score in scores]),
            extra={name: _objects([score.extra.get(name) for score in scores]) for name in names},
        )

    @classmethod
    def constant(cls, score: Score, steps: int) -> StepScores:
        """A score that is the same at every step: most often one without a value, for one reason."""
        return cls(
            agg_value=np.full(steps, np.nan if score.agg_value is None else score.agg_value),
            value_by_index=score.value_by_index,
            reason=np.full(steps, score.reason, dtype=object),
            notes=(score.notes,) * steps,
            with_rows=np.full(steps, score.value_by_index is not None),
            extra=score.extra,
        )

    def without(self, missing: Array) -> StepScores:
        """The same with no value at steps that have a reason for it."""
        gone = missing != ""
        notes = list(self.notes)
        for step in np.flatnonzero(gone):
            notes[step] = ()
        return replace(
            self,
            agg_value=np.where(gone, np.nan, self.agg_value),
            reason=np.where(gone, missing, self.reason),
            notes=tuple(notes),
            with_rows=self.with_rows & ~gone,
        )


@dataclass(frozen=True)
class Columns:
    """Values of rows, (rows, steps); of one step, those that exist."""

    table: Array

    @property
    def steps(self) -> int:
        return int(self.table.shape[1])

    def at(self, step: int) -> list[float]:
        column = self.table[:, step]
        found: list[float] = column[~np.isnan(column)].tolist()
        return found


AnyScore = Score | StepScores


def steps_of(*things: Any) -> int | None:
    """How many steps the axis has; None when nothing among these has one."""
    for thing in things:
        if isinstance(thing, (StepScores, Columns)):
            return thing.steps
        if isinstance(thing, np.ndarray) and thing.ndim:
            return len(thing)
    return None


def at_each_step(function: Callable[..., Score], *things: Any) -> AnyScore:
    """A function of one state's scores, at each step. KS tests, AUCs and harmonic means need whole vectors: no formula
    of theirs lets an axis through.
    """
    steps = steps_of(*things)
    if steps is None:
        return function(*things)
    return StepScores.of([function(*_at_step(things, step)) for step in range(steps)])


def words_at_each_step(function: Callable[..., str], *things: Any) -> str | Array:
    """The same for a function that answers in words."""
    steps = steps_of(*things)
    if steps is None:
        return function(*things)
    return np.array([function(*_at_step(things, step)) for step in range(steps)], dtype=object)


def unless(missing: str | Array, make: Callable[[], AnyScore]) -> AnyScore:
    """What `make` gives, except where what it needs is missing: one reason, or one for each step."""
    if isinstance(missing, str):
        return Score(None, reason=missing) if missing else make()
    if all(missing):
        return StepScores.of([Score(None, reason=why) for why in missing])
    found = make()
    found = StepScores.constant(found, len(missing)) if isinstance(found, Score) else found
    return found.without(missing) if any(missing) else found


def _at_step(things: Sequence[Any], step: int) -> list[Any]:
    """Arguments of one step; what has no step axis is the same at every step."""
    return [thing.at(step) if isinstance(thing, (StepScores, Columns)) else thing for thing in things]


def picked(value: Any, step: int) -> Any:
    """One step of a value; what has no step axis is the same at every step.

    >>> picked({"score": np.array([0.5, np.nan]), "reason": np.array(["", "broken"], object)}, 0)
    {'score': 0.5}
    >>> picked([np.array([0.5, np.nan]), "text"], 1)
    [None, 'text']
    """
    if isinstance(value, StepScores):
        return value.at(step).to_json()
    if isinstance(value, Mapping):
        found = {k: picked(v, step) for k, v in value.items()}
        if not found.get("reason", True):  # this step has a value: its row has no reason, as in a plain Score
            del found["reason"]
        return found
    if isinstance(value, list):
        return [picked(v, step) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    one = value[step]
    if isinstance(one, (np.ndarray, np.generic)):
        one = one.tolist()
    return None if isinstance(one, float) and np.isnan(one) else one


def stacked(values: Sequence[Any]) -> Any:
    """Values of single steps as one value with a step axis: the other way round.

    >>> stacked([{"score": 1, "text": "a"}, {"score": None, "text": "a", "reason": "broken"}])
    {'score': array([ 1., nan]), 'text': 'a', 'reason': array(['', 'broken'], dtype=object)}
    """
    if all(isinstance(v, Mapping) for v in values):
        out = {}
        for key in dict.fromkeys(key for v in values for key in v):  # in order of first appearance
            absent = "" if key == "reason" else None
            out[key] = stacked([v.get(key, absent) for v in values])
        return out
    if all(isinstance(v, list) for v in values) and len({len(v) for v in values}) == 1:
        return [stacked(answer) for answer in zip(*values, strict=True)]
    if all(v is None or isinstance(v, (int, float)) for v in values):
        return _numbers(values)
    return values[0] if all(v == values[0] for v in values) else _objects(values)


def _numbers(values: Sequence[float | None]) -> Array:
    """Numbers of single steps, NaN where there is none."""
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _objects(values: Sequence[Any]) -> Array:
    """Anything else, one object for each step."""
    out = np.empty(len(values), dtype=object)
    for i, v in enumerate(values):  # numpy would make axes of lists
        out[i] = v
    return out


def first_reason(*reasons: str | Array) -> str | Array:
    """The first of several reasons that is one, at each step.

    >>> first_reason("", "broken"), first_reason(np.array(["", "a"], object), "b").tolist()
    ('broken', ['b', 'a'])
    """
    if not any(isinstance(r, np.ndarray) for r in reasons):
        return next((r for r in reasons if r), "")
    found: Array = np.array("", dtype=object)
    for reason in reasons:
        found = np.where(found == "", np.asarray(reason, dtype=object), found)
    return found
