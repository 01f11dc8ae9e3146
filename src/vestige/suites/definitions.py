"""What a dialect says of a handler, point by point, and where that is not what a short name means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vestige.errors import UserError
from vestige.metrics.cards import KNOWN, card_of, full_name, short, unlike_published
from vestige.metrics.dialects import DIALECTS, Dialect
from vestige.suites.registry import HANDLERS, no_wants

PUBLISHED = "depth-score"  # the dialect in which the short names were published


def dialect_points(handler: str, d: Dialect) -> dict[str, str]:
    """What a dialect says of a handler, by point. Read from the dialects' table, not written beside it."""
    card = card_of(handler)
    collects = HANDLERS[handler].wants is not no_wants
    answers = ANSWER_POINTS if collects and (card is None or card.answer_points) else ()
    names = [*answers, *(card.points if card else ()), *(["attention mask"] if collects else [])]
    return {name: POINTS[name](handler, d) for name in names}


def _empty(handler: str, d: Dialect) -> str:
    value = d.empty.get(handler)
    return "missing, with a reason" if value is None else f"counts as {value:g}"


ANSWER_POINTS = ("last label (end token)", "answer without tokens", "where labels begin")
# Cards name the points that concern them.
POINTS: dict[str, Callable[[str, Dialect], str]] = {
    "last label (end token)": lambda handler, d: "left out" if handler in d.drop_last else "counted",
    "answer without tokens": _empty,
    "where labels begin": lambda handler, d: BOUNDARY[d.boundary],
    "last token missed": lambda handler, d: "1/n" if d.extraction_floor else "0",
    "precision of the share": lambda handler, d: "float32" if d.float32_shares else "float64",
    "stemmer": lambda handler, d: "on" if d.rouge_stemmer else "off",
    "text of the answer": lambda handler, d: (
        "as written in the data" if d.written_answer else "as decoded from the labels"
    ),
    "mode of the model": lambda handler, d: "train (dropout live)" if d.gradnorm_train_mode else "eval",
    "without retain logs": lambda handler, d: (
        "MUSE's published retrain AUC, else ref_value" if d.published_references else "ref_value (0.5)"
    ),
    "attention mask": lambda handler, d: MASK.get(d.mask, d.mask),
}
MASK: dict[str, str] = {"length": "every real token is seen", "pad-id": "tokens equal to the pad token are hidden"}
BOUNDARY: dict[str, str] = {
    "offsets": "at the first token that reaches into the answer",
    "count": "after as many tokens as the prompt has",
}


# Points that change nearly every value. The others matter only to some rows: hidden tokens, answers without tokens.
ALWAYS = ("last label (end token)", "last token missed", "stemmer")


@dataclass(frozen=True)
class Departure:
    """Where a metric in some dialect is not the number its short name means."""

    always: tuple[str, ...]
    for_some_rows: tuple[str, ...]


def departure(key: str, handler: str, settings: Mapping[str, Any], dialect: str) -> Departure:
    """A metric with its settings, in a dialect, against the published number of that short name."""
    here, there = (dialect_points(handler, DIALECTS[d]) for d in (dialect, PUBLISHED))
    apart = {p: f"{p}: {here[p]}" for p in here if here[p] != there.get(p)}
    other = [f"{k} is {settings.get(k)}, not {v}" for k, v in unlike_published(key, settings).items()]
    return Departure(
        (*other, *(said for p, said in apart.items() if p in ALWAYS)),
        tuple(said for p, said in apart.items() if p not in ALWAYS),
    )


def refuse_other_number(name: str, handler: str, settings: Mapping[str, Any], dialect: str) -> None:
    """A short name means the published number. Where the metric is another one, its full name must be written."""
    key, full = short(name), full_name(name)
    if key not in KNOWN or name == full:
        return
    if found := departure(key, handler, settings, dialect).always:
        raise UserError(
            f"'{name}' is the published number, and {full} is another one here ({'; '.join(found)}; dialect "
            f"{dialect}); write {full} to have it, or dialect={PUBLISHED} and the suite's settings."
        )


def differs_for_some_rows(name: str, dialect: str, hidden: int, several: bool) -> str:
    """What to note about a short name's number on these rows (with hidden tokens, several answers), or nothing."""
    words = []
    if hidden and DIALECTS[dialect].mask != DIALECTS[PUBLISHED].mask:
        words.append(f"{MASK[DIALECTS[dialect].mask]} in {hidden} answers (dialect={PUBLISHED} shows them)")
    if short(name) == "paraprob" and several:
        words.append(KNOWN["paraprob"].note)
    return f"{name} is not quite the published number: {'; '.join(words)}" if words else ""
