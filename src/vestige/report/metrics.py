"""Every metric in words, for people who meet its number: from the metrics' own explanations, never retyped."""

from __future__ import annotations

from vestige.errors import UserError
from vestige.meta.axes import AXIS_TABLE, FLOOR, LABELS, MEM, MIA, PART_LABELS, SOURCES, WAYS, formula
from vestige.meta.pools import ELSEWHERE, similarity
from vestige.metrics.cards import CARDS, FORGOTTEN, HIGH, KNOWN, Card, card_of, direction_of, facts_of, short
from vestige.report.gather import Json

LIKENESS = (similarity.__doc__ or "").strip().splitlines()[0]
AXES_OF = "axes of the Unlearning Depth Score's tables"
HIGH_IS_GOOD = " High: good in every part."
LIKENESS_FORMULA = "clip(1 - |AUC - AUC_retain| / AUC_retain, 0, 1)"
NARROW = 16  # letters of a column head
ANSWERS = {  # what a metric's name says of the rows it reads; the first that fits
    "pert": "wrong answers",
    "retain": "the answers to keep",
    "ra": "answers about real people",
    "wf": "answers about the world",
}


def describe_metric(key: str, handler: str = "", aggregator: str = "") -> Json:
    """One metric's facts, by its name and (for a run's metric) its handler."""
    if not handler:
        for axis in AXIS_TABLE:
            if key == axis.key:
                return _described(axis.label, WAYS[axis.way] + HIGH_IS_GOOD, formula(axis), "axis", source=AXES_OF)
            if key == f"{axis.key}_floored":
                words = f"{WAYS[axis.way]} A part below {FLOOR:g} counts as {FLOOR:g}.{HIGH_IS_GOOD}"
                return _described(f"{axis.label} (floored)", words, formula(axis), "axis", source=AXES_OF)
        if key in MIA:
            return _described(PART_LABELS[key], LIKENESS, LIKENESS_FORMULA, "part", knows="low")
        if key in PART_LABELS and key != "uds":
            return _describe_part(key)
    name = short(key)
    known = KNOWN.get(name)
    label = known.label if known and key == name else key
    used = handler or (known.handler if known else "")
    card = CARDS.get(used)
    if card is None and name.startswith("s_mia_"):
        return _described(label, LIKENESS, LIKENESS_FORMULA, "membership", knows="low")
    facts = facts_of(used)
    definition = facts.doc if facts else ""
    if card:
        lines = [f"High: {card.high}.", f"Low: {card.low}.", f"Reads: {card.tokens}.", card.note]
        definition = "\n".join(line for line in lines if line)
    about_kept_rows = key.startswith(ELSEWHERE)
    knows = None if about_kept_rows else _knows(key, used, aggregator)
    return {
        **_described(label, definition, card.formula if card else "", group(key, used), knows=knows),
        "title": plain_title(key, card),
        "source": facts.source if facts else "",
        "better": _better(card_of(used), about_kept_rows, knows),
        "range": [0, 1] if used and (card is None or card.unit) else None,
    }


def _described(
    label: str, definition: str, formula: str, group: str, *, source: str = "", knows: str | None = None
) -> Json:
    """The facts of an axis or a part of one, of which 1 is the good end."""
    return {
        "label": label,
        "short": label if len(label) <= NARROW else f"{label[: NARROW - 3].rstrip()}...",
        "definition": definition,
        "formula": formula,
        "source": source,
        "knows": knows,
        "better": "high",
        "range": [0, 1],
        "group": group,
    }


def _describe_part(key: str) -> Json:
    source = SOURCES.get(key, key)
    known = KNOWN.get(source)
    words = f"1 - {known.label}" if key in MEM and known else source
    definition = f"{words}. High is good."
    card = CARDS.get(known.handler) if known else None
    if known and card:
        definition += f"\nOf {known.label}: {card.formula}."
    return _described(LABELS[key], definition, words, "part", knows="low" if key in MEM else None)


def plain_title(key: str, card: Card | None) -> str:
    """What a number tells, without its name.

    >>> plain_title("retain_Q_A_PARA_Prob", CARDS["probability"]), plain_title("mine", None)
    ('How likely it finds the answers to keep in other words', '')
    """
    parts = key.lower().split("_")
    answers = next((words for part, words in ANSWERS.items() if part in parts), "the forgotten answers")
    answers += " in other words" if "para" in parts else ""
    return card.title.format(answers=answers) if card else ""


def group(key: str, handler: str) -> str:
    """The panel a metric belongs to."""
    if key.startswith(ELSEWHERE):
        return "utility"
    card = card_of(handler)
    known = KNOWN.get(short(key))
    looks_inside = known is not None and known.category == "representation"
    if looks_inside and (card is None or card.group in ("likely", "trajectory")):
        return "layers"
    return card.group if card else "other"


def _knows(key: str, handler: str, aggregator: str) -> str | None:
    try:
        return direction_of(key, handler, aggregator).knows
    except UserError:
        return None


def _better(card: Card | None, about_kept_rows: bool, knows: str | None) -> str | None:
    """The good end. An attack's aim is the retain model's value, so neither end is good."""
    if about_kept_rows:
        return card.better_kept if card else HIGH
    if card is not None and card.better != FORGOTTEN:
        return card.better or None
    return {"high": "low", "low": "high"}.get(knows or "")
