"""Every metric in words, for people who meet its number: from the metrics' own explanations, never retyped."""

from __future__ import annotations

from typing import Any

from vestige.errors import UserError
from vestige.meta.axes import AXIS_TABLE, FLOOR, LABELS, MEM, MIA, PART_LABELS, SOURCES, WAYS, Axis, formula
from vestige.meta.pools import ELSEWHERE, similarity
from vestige.metrics.cards import CARDS, FORGOTTEN, HIGH, KNOWN, Card, card_of, direction_of, facts_of, short

LIKENESS = (similarity.__doc__ or "").strip().splitlines()[0]
NARROW = 16


def entry(key: str, handler: str = "", aggregator: str = "") -> dict[str, Any]:
    """One metric's facts, by its name and (for a run's metric) its handler."""
    for axis in AXIS_TABLE:
        if key in (axis.key, f"{axis.key}_floored") and not handler:
            return _axis(axis, key)
    if key in PART_LABELS and key != "uds" and not handler:
        return _part(key)
    name = short(key)
    used = handler or (KNOWN[name].handler if name in KNOWN else "")
    words = CARDS.get(used)
    label = KNOWN[name].label if name in KNOWN and key == name else key
    facts = facts_of(used)
    if words is None and name.startswith("s_mia_"):
        return _likeness(key, label)
    return {
        "label": label,
        "title": plain_title(key, words),
        "short": _short(label),
        "definition": definition(words) if words else (facts.doc if facts else ""),
        "formula": words.formula if words else "",
        "source": facts.source if facts else "",
        "knows": _knows(key, used, aggregator),
        "better": _better(key, used, aggregator),
        "range": None if not used or (words and not words.unit) else [0, 1],
        "group": group(key, used),
    }


ANSWERS = {  # what a metric's name says of the rows it reads; the first that fits
    "pert": "wrong answers",
    "retain": "the answers to keep",
    "ra": "answers about real people",
    "wf": "answers about the world",
}


def plain_title(key: str, card: Card | None) -> str:
    """What a number tells, without its name.

    >>> plain_title("retain_Q_A_PARA_Prob", CARDS["probability"]), plain_title("mine", None)
    ('How likely it finds the answers to keep in other words', '')
    """
    parts = key.lower().split("_")
    answers = next((words for part, words in ANSWERS.items() if part in parts), "the forgotten answers")
    answers += " in other words" if "para" in parts else ""
    return card.title.format(answers=answers) if card else ""


def definition(words: Card) -> str:
    """An explanation in lines."""
    lines = [f"High: {words.high}.", f"Low: {words.low}.", f"Reads: {words.tokens}."]
    return "\n".join([*lines, *([words.note] if words.note else [])])


def _axis(axis: Axis, key: str) -> dict[str, Any]:
    floored = key != axis.key
    label = f"{axis.label} (floored)" if floored else axis.label
    floor = f" A part below {FLOOR:g} counts as {FLOOR:g}." if floored else ""
    return {
        "label": label,
        "short": _short(label),
        "definition": f"{WAYS[axis.way]}{floor} High: good in every part.",
        "formula": formula(axis),
        "source": "axes of the Unlearning Depth Score's tables",
        "knows": None,
        "better": "high",
        "range": [0, 1],
        "group": "axis",
    }


def _part(key: str) -> dict[str, Any]:
    """A part of an axis: 1 is good."""
    source = SOURCES.get(key, key)
    known = KNOWN.get(source)
    if key in MIA:
        return _likeness(key, PART_LABELS[key])
    words = f"1 - {known.label}" if key in MEM and known else source
    inner = CARDS.get(known.handler) if known else None
    return {
        "label": LABELS[key],
        "short": _short(LABELS[key]),
        "definition": f"{words}. High is good." + (f"\nOf {known.label}: {inner.formula}." if known and inner else ""),
        "formula": words,
        "source": "",
        "knows": "low" if key in MEM else None,
        "better": "high",
        "range": [0, 1],
        "group": "part",
    }


def _likeness(key: str, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "short": _short(label),
        "definition": LIKENESS,
        "formula": "clip(1 - |AUC - AUC_retain| / AUC_retain, 0, 1)",
        "source": "",
        "knows": "low",
        "better": "high",
        "range": [0, 1],
        "group": "part" if key in MIA else "membership",
    }


def _short(label: str) -> str:
    return label if len(label) <= NARROW else f"{label[: NARROW - 3].rstrip()}..."


def elsewhere(key: str) -> bool:
    """Is it about rows that are to be kept?"""
    return key.startswith(ELSEWHERE)


def group(key: str, handler: str) -> str:
    """The panel a metric belongs to."""
    if elsewhere(key):
        return "utility"
    card = card_of(handler)
    looks_inside = short(key) in KNOWN and KNOWN[short(key)].category == "representation"
    if looks_inside and (card is None or card.group in ("likely", "trajectory")):
        return "layers"
    return card.group if card else "other"


def _knows(key: str, handler: str, aggregator: str) -> str | None:
    if elsewhere(key):
        return None
    try:
        return direction_of(key, handler, aggregator).knows
    except UserError:
        return None


def _better(key: str, handler: str, aggregator: str) -> str | None:
    """The good end. An attack's aim is the retain model's value, so neither end is good."""
    card = card_of(handler)
    if elsewhere(key):
        return card.better_kept if card else HIGH
    if card is not None and card.better != FORGOTTEN:
        return card.better or None
    return {"high": "low", "low": "high"}.get(_knows(key, handler, aggregator) or "")
