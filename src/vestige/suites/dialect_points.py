"""What a dialect says of a handler, point by point, and where that is not what a short name means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vestige.errors import UserError
from vestige.metrics.cards import KNOWN, card_of, full_name, short, unlike_published
from vestige.metrics.dialects import DIALECTS, Dialect
from vestige.suites.registry import HANDLERS, no_wants

PUBLISHED = "depth-score"  # the dialect in which the short names were published


MASK: dict[str, str] = {"length": "every real token is seen", "pad-id": "tokens equal to the pad token are hidden"}
BOUNDARY: dict[str, str] = {
    "offsets": "at the first token that reaches into the answer",
    "count": "after as many tokens as the prompt has",
}
ANSWER_POINTS = ("last label (end token)", "answer without tokens", "where labels begin")


def dialect_points(handler: str, d: Dialect) -> dict[str, str]:
    """What a dialect says of a handler, by point. Read from the dialects' table, so that the two cannot disagree."""
    card = card_of(handler)
    collects = HANDLERS[handler].wants is not no_wants
    names: list[str] = []
    if collects and (card is None or card.answer_points):
        names += ANSWER_POINTS
    if card is not None:
        names += card.points  # cards name the points that concern them
    if collects:
        names.append("attention mask")
    every = _all_points(handler, d)
    return {name: every[name] for name in names}


def _all_points(handler: str, d: Dialect) -> dict[str, str]:
    """Every point on which dialects differ."""
    empty = d.empty.get(handler)
    reference = "MUSE's published retrain AUC, else ref_value" if d.published_references else "ref_value (0.5)"
    return {
        "last label (end token)": "left out" if handler in d.drop_last else "counted",
        "answer without tokens": "missing, with a reason" if empty is None else f"counts as {empty:g}",
        "where labels begin": BOUNDARY[d.boundary],
        "last token missed": "1/n" if d.extraction_floor else "0",
        "precision of the share": "float32" if d.float32_shares else "float64",
        "stemmer": "on" if d.rouge_stemmer else "off",
        "text of the answer": "as written in the data" if d.written_answer else "as decoded from the labels",
        "mode of the model": "train (dropout live)" if d.gradnorm_train_mode else "eval",
        "without retain logs": reference,
        "attention mask": MASK[d.mask],
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
    here, there = dialect_points(handler, DIALECTS[dialect]), dialect_points(handler, DIALECTS[PUBLISHED])
    always = [f"{k} is {settings.get(k)}, not {v}" for k, v in unlike_published(key, settings).items()]
    for_some_rows: list[str] = []
    for point, value in here.items():
        if value != there.get(point):
            (always if point in ALWAYS else for_some_rows).append(f"{point}: {value}")
    return Departure(tuple(always), tuple(for_some_rows))


def refuse_other_number(name: str, handler: str, settings: Mapping[str, Any], dialect: str) -> None:
    """A short name means the published number. Where the metric is another one, its full name must be written."""
    key, full = short(name), full_name(name)
    if key not in KNOWN or name == full:
        return
    found = departure(key, handler, settings, dialect).always
    if found:
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
