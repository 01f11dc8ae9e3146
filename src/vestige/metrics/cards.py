"""What is known about each metric besides its formula. A registry is a dict.

    METRICS   formula -> MetricFacts, which `@metric(knows=, source=)` records of a function
    CARDS     handler -> Card: formula, ends, reading, dialect points, panel; `vestige explain`, result tables,
              the report's glossary and meta-evaluation read it
    reading(handler, value)   the value in words: what it says about whether the model still knows

A handler of ours has its card in explanations.py, a plug-in's hands one to `handler(..., card=Card(...))`. What a
formula's function records of itself is not repeated on the card.

Notation: an answer has tokens y_1..y_n; lp_t is the log-probability of y_t, a_t the model's first choice there.
"""

from __future__ import annotations

import math
import pkgutil
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import itemgetter
from typing import Any, TypeVar

Reading = Callable[[float], str]  # a value in words: one short clause
# The good end of a metric.
FORGOTTEN = "forgotten"  # the one that does not mean "knows"
HIGH = "high"
NEITHER = ""  # the aim is the retain model's value


@dataclass(frozen=True)
class Bands:
    """The words of the first band whose upper end is not below the value."""

    bands: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> str:
        return self.bands[self.place(value)][1]

    def place(self, value: float) -> int:
        return bisect_left(self.bands, value, key=itemgetter(0))


def bands(*bands: tuple[float, str]) -> Bands:
    return Bands(bands)


END = math.inf  # of the last band


@dataclass(frozen=True)
class Variant:
    """What changes with a setting: the same handler says different things by how it aggregates."""

    knows: str
    reading: Reading


@dataclass(frozen=True)
class Card:
    """One handler in words, and the facts that follow from what it measures."""

    formula: str
    high: str
    low: str
    tokens: str  # which tokens (or rows, or numbers) enter
    note: str = ""
    source: str = ""  # where no function of the handler's name records it
    knows: str = ""  # the end that means "knows", where the number is not what such a function returns
    no_end: str = ""  # why neither end means "knows"
    unit: bool = True  # values lie in 0..1
    reading: Reading | None = None
    aggregators: Mapping[str, Variant] = field(default_factory=dict)
    group: str = "likely"  # the report's panel: likely, says, membership, layers, trajectory, utility
    better: str = FORGOTTEN
    better_kept: str | None = HIGH  # the good end on rows that are to be kept
    attack: bool = False  # an AUC of forget rows against fresh ones
    answer_points: bool = True  # dialects may treat the answer's tokens differently
    points: tuple[str, ...] = ()  # further points on which dialects may differ (suites/definitions.py)
    title: str = ""  # what the number tells, for people who do not know its name; {answers}: those of the rows it reads


CARDS: dict[str, Card] = {}


def card_of(handler: str) -> Card | None:
    """The card of a handler. One without a card that is called mia_... is an attack like ours."""
    card = CARDS.get(handler)
    return ATTACK if card is None and handler.startswith("mia_") else card


def is_attack(handler: str) -> bool:
    card = card_of(handler)
    return card is not None and card.attack


AUC_READING = bands(
    (0.35, "forget rows look stranger than fresh ones (over-forgotten)"),
    (0.45, "forget rows look slightly stranger than fresh ones"),
    (0.55, "an attacker cannot tell forget rows from fresh ones"),
    (0.75, "an attacker has some success in telling forget rows"),
    (0.95, "an attacker usually recognises forget rows"),
    (END, "an attacker recognises forget rows: still known"),
)
ATTACK = Card(
    "AUC of a score, forget rows (0) against holdout rows (1)",
    "AUC near 1: forget rows are far more familiar than fresh ones, still known",
    "AUC near 0.5: not to be told apart; well below 0.5: stranger than fresh rows, over-forgotten",
    "every token of the answer after the prompt",
    knows="high",
    title="Whether an attacker recognises the forget rows",
    reading=AUC_READING,
    group="membership",
    better=NEITHER,
    attack=True,
)


def attack_card(score: str, tokens: str, note: str = "", points: tuple[str, ...] = ()) -> Card:
    """The card of an attack: how its score is made; everything else is the same for all of them."""
    return replace(ATTACK, formula=score, tokens=tokens, note=note, points=points)


def reading(
    handler: str,
    value: float | None,
    aggregator: str = "",
    against_reference: bool = True,
    interval: tuple[float, float] | None = None,
) -> str:
    """A value in words. Words that the interval does not bear out are not given.

    >>> reading("mia_loss", 0.99)
    'an attacker recognises forget rows: still known'
    >>> reading("mia_loss", None)
    ''
    >>> reading("privleak", 1.0, interval=(-100.0, 100.0)).startswith("not decided")
    True
    """
    card = card_of(handler)
    if value is None or math.isnan(value):
        return ""
    if card is not None and (card.attack or card.aggregators):  # these are never against a stand-in for a reference
        against_reference = True
    variant = card.aggregators.get(aggregator) if card else None
    read = variant.reading if variant else card.reading if card else None
    words = read(value) if read else ""
    if isinstance(read, Bands) and interval is not None:
        words = _between(read, *interval)
    return words if against_reference else f"{words} (against 0.5, no retain model)"


def _between(read: Bands, low: float, high: float) -> str:
    """The words of both ends: one band, two that touch, or so many that these rows do not decide."""
    first, last = read.place(low), read.place(high)
    words = read.bands[first][1], read.bands[last][1]
    if last - first < 2:
        return words[0] if first == last else f"{words[0]}, or {words[1]}"
    return f"not decided by these rows: from '{words[0]}' to '{words[1]}'"


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class MetricFacts:
    name: str
    knows: str  # which end means "the model still knows": high, low, one (near 1) or half (away from 0.5)
    source: str
    doc: str  # the first line of the docstring


METRICS: dict[str, MetricFacts] = {}  # of the modules imported so far


def facts_of(name: str) -> MetricFacts | None:
    """What a formula's function records of itself. A run imports the formulas it uses, so others are imported now."""
    if name not in METRICS:
        package = import_module("vestige.metrics")
        for module in pkgutil.iter_modules(package.__path__, "vestige.metrics."):
            import_module(module.name)
    return METRICS.get(name)


def metric(knows: str, source: str) -> Callable[[F], F]:
    """Records facts about a metric; the function stays a plain function."""

    def record(function: F) -> F:
        first, _, _ = (function.__doc__ or "").strip().partition("\n")
        METRICS[function.__name__] = MetricFacts(function.__name__, knows, source, first)
        return function

    return record
