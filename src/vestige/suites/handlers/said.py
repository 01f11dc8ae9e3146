"""Secrets a model says, and how fluently it speaks: metrics of texts that ROUGE has generated anyway.

In: rows with the columns that hold their facts, texts, and what a second model thinks of those texts. Out: Scores.
Callers: engine/scores.py, by the names of the handlers; report/rows_part.py for `secrets_in`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vestige.metrics.dialects import Dialect
from vestige.metrics.memorisation import probability
from vestige.suites.handlers.attacks import reference_path
from vestige.suites.handlers.common import Value, by_index, clean, mean_score
from vestige.suites.handlers.texts import decoding_of, wants_texts
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored
from vestige.types import BAD_LOGITS, Example, Rows, Score, Text
from vestige.wants import Request, Wants, spoken

if TYPE_CHECKING:
    from vestige.metrics.secrets_said import Secret  # it reads languages: imported where texts are scored
    from vestige.suites.spec import MetricSpec

NO_SECRET = "the row has no secret: no entity column, and none to be found in its answers"
NOTHING_SAID = "the model said nothing"


def secrets_in(rows: Rows) -> dict[str, Secret]:
    """The secret of each row, by its index; empty for rows without one."""
    from vestige.metrics.secrets_said import secret_of

    facts = rows.facts or ({},) * len(rows)
    return {row[0].index: secret_of(fact) for row, fact in zip(rows.examples, facts, strict=True)}


@handler("secrets_said", wants_texts, settings=())
def secrets_said(inputs: Inputs) -> Scored:
    """The share of rows whose secret the answer says."""
    from vestige.metrics.secrets_said import says

    secrets = secrets_in(inputs.rows)

    def value(example: Example) -> Value:
        secret = secrets[example.index]
        if not secret:
            return {"said": None, "secret": [], "reason": NO_SECRET}
        told = _of_text(inputs, example, "said", lambda request, text: (float(says(text.text, secret)), ""))
        return {**told, "secret": list(secret)}

    rows = by_index(inputs.rows, value)
    kept = {i: entry for i, entry in rows.items() if secrets[i]}
    if not kept:
        return Score(None, rows, {"with_secret": 0}, f"none of {len(rows)} rows has a secret")
    found = mean_score(kept, "said")
    count = {} if found.agg_value is None else {"count": sum(bool(entry["said"]) for entry in kept.values())}
    return replace(found, value_by_index=rows, extra={"with_secret": len(kept), **count})


@handler("repetition", wants_texts, settings=())
def repetition_of_texts(inputs: Inputs) -> Scored:
    """How much of what the model says it has said before."""
    from vestige.metrics.secrets_said import repetition

    def value(example: Example) -> Value:
        return _of_text(inputs, example, "score", lambda request, text: (repetition(text.text), NOTHING_SAID))

    return _where_it_spoke(by_index(inputs.rows, value))


def wants_said(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    wants, path = wants_texts(spec, data, dialect), reference_path(spec)
    return replace(wants, said={path: wants.texts}) if path else Wants()


@handler("said_likelihood", wants_said, settings=("reference_model_path",))
def said_likelihood(inputs: Inputs) -> Scored:
    """How likely the model before unlearning finds what this one says."""
    path = reference_path(inputs.spec)
    if path is None:
        return Score(None, reason="no model to read the texts with (full_model_path, the model before unlearning)")
    theirs = inputs.evidence.reference.get(path)
    if theirs is None:
        return Score(None, reason=f"{path} read none of this run's texts; evaluate the model again with it")

    def read(request: Request, text: Text) -> tuple[float | None, str]:
        target = spoken(request, text)
        if target is None:
            return None, NOTHING_SAID
        return clean(probability(theirs[target.key])), BAD_LOGITS

    return _where_it_spoke(by_index(inputs.rows, lambda example: _of_text(inputs, example, "score", read)))


def _of_text(
    inputs: Inputs, example: Example, field: str, read: Callable[[Request, Text], tuple[float | None, str]]
) -> Value:
    """One number of what the model wrote, or why there is none (the second part of what `read` returns)."""
    request = Request(example.prompt, decoding_of(inputs.spec))
    text = inputs.evidence.texts[request.key]
    assert isinstance(text, Text)  # these handlers are asked for one state of a model at a time
    number, why = (None, BAD_LOGITS) if text.broken else read(request, text)
    return {field: number} if number is not None else {field: None, "reason": why}


def _where_it_spoke(rows: Mapping[str, Value]) -> Scored:
    """The mean over rows with a text; how many there were without."""
    spoke = {i: entry for i, entry in rows.items() if entry.get("reason") != NOTHING_SAID}
    if not spoke:
        return Score(None, rows, {"silent": len(rows)}, f"{NOTHING_SAID} on any of {len(rows)} rows")
    return replace(mean_score(spoke, "score"), value_by_index=rows, extra={"silent": len(rows) - len(spoke)})
