"""What handlers share: wants, per-row values, means that say what they left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.metrics.dialects import Dialect
from vestige.suites.registry import Inputs
from vestige.sums import mean
from vestige.types import BAD_LOGITS, Example, Rows, Score, Target, TokenStats, stats
from vestige.wants import Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

Value = dict[str, Any]
NO_TOKENS = "the answer leaves no target tokens"


def targets(data: Mapping[str, Rows]) -> list[Target]:
    return [e.target for rows in data.values() for row in rows.examples for e in row if e.target]


def wants_answers(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
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
    return None if math.isnan(number) else number


def by_index(rows: Rows, value: Callable[[Example], Value]) -> dict[str, Value]:
    """One entry per row; with several answers per row, each field is the list over answers."""
    out: dict[str, Value] = {}
    for row in rows.examples:
        values = [value(e) for e in row]
        if rows.many:
            fields = dict.fromkeys(k for v in values for k in v if k != "reason")
            entry: Value = {k: [v.get(k) for v in values] for k in fields}
            reasons = [v["reason"] for v in values if v.get("reason")]
            if reasons:
                entry["reason"] = reasons[0]
        else:
            entry = values[0]
        out[row[0].index] = entry
    return out


def row_mean(entry: Value | Mapping[str, Any], field: str) -> float | None:
    """One row's value: the mean over those of its answers that have one."""
    good = [v for v in as_list(entry[field]) if v is not None]
    return mean(good) if good else None


def mean_score(by_index: Mapping[str, Value], field: str, **extra: Any) -> Score:
    """The mean over rows (of the mean over a row's answers).

    Rows without target tokens are left out, counted and named. A row the model answered with NaN makes the whole
    mean missing: leaving it out would flatter a broken model.
    """
    rows: list[float] = []
    left_out: list[str] = []
    broken: list[str] = []
    for index, entry in by_index.items():
        value = row_mean(entry, field)
        if entry.get("reason") == BAD_LOGITS:
            broken.append(index)
        elif value is not None:
            rows.append(value)
        if None in as_list(entry[field]) and entry.get("reason") != BAD_LOGITS:
            left_out.append(index)
    notes = (f"{len(left_out)} row(s) with {NO_TOKENS}: {', '.join(left_out[:10])}",) if left_out else ()
    if broken:
        reason = f"{BAD_LOGITS} on {len(broken)} of {len(by_index)} rows (first: {broken[0]})"
        return Score(None, by_index, extra, reason, notes)
    if not rows:
        return Score(None, by_index, extra, "no row could be scored", notes)
    return Score(mean(rows), by_index, extra, "", notes)


def one_stat(inputs: Inputs, compute: Callable[[TokenStats], Mapping[str, Any]]) -> Callable[[Example], Value]:
    """A per-example value from TokenStats; missing values carry their reason, or the dialect's stand-in."""
    fields = list(compute(stats(hit=[1])))

    def value(example: Example) -> Value:
        t = stats_of(inputs, example)
        if t is None:
            stand_in = inputs.dialect.empty.get(inputs.spec.handler)
            return {**dict.fromkeys(fields, stand_in), **({} if stand_in is not None else {"reason": NO_TOKENS})}
        if np.isnan(t.logprob).any():
            return {**dict.fromkeys(fields), "reason": BAD_LOGITS}
        return {k: (v.tolist() if np.ndim(v) else float(v)) for k, v in compute(t).items()}

    return value


def as_list(x: Any) -> list[Any]:
    """A row's values, one or several, as a list."""
    return x if isinstance(x, list) else [x]


def scores_of(score: Score) -> list[float]:
    """The per-row scores that exist."""
    found = (row.get("score") for row in (score.value_by_index or {}).values())  # other tools' rows may have none
    return [v for v in found if v is not None]
