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

from vestige.errors import UserError

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


# ---- The names metrics go by, what a metric is measured on, and which end of it means "the model still knows" -----
#
# Short names (em, es, uds, ...) are those of the published tables, and each means the number that is published there: a
# metric of the TOFU suite with certain settings, in the dialect `depth-score`. A metric of your own needs no entry
# here: its end is what `@metric(knows=...)` recorded, or what the pool file says.

CHAT = "chat"  # rows as turns of a chat template
ENTITY = "entity"  # raw "Question: ... Answer: ..." rows, of which the entity's tokens count


@dataclass(frozen=True)
class Known:
    """A metric of the published tables."""

    key: str
    label: str
    category: str
    tags: str  # O: reads outputs, R: needs a retain model, I: looks inside
    knows: str = "high"
    protocol: str = CHAT
    ours: str = ""  # its name in a run's result files, where that is another
    filtered_by: str = ""  # the metric whose threshold chooses its models, where that is another
    settings: Mapping[str, object] = field(default_factory=dict)  # of the metric, as published
    note: str = ""  # what the short name leaves unsaid
    handler: str = ""  # whose card explains it; published files do not name one

    @property
    def metric(self) -> str:
        """Its name in the TOFU suite."""
        return self.ours or self.key


def _attack(short: str, label: str, ours: str = "", **settings: object) -> tuple[Known, Known]:
    """An attack and its likeness to the retain model. The published tables filter both by the attack's threshold."""
    raw = f"mia_{short}"
    return (
        Known(raw, f"MIA-{label}", "mia", "O", ours=ours, settings=settings, handler=ours or raw),
        Known(f"s_{raw}", f"s_{label}", "mia", "OR", "low", filtered_by=raw),
    )


_ATTACKS = (
    _attack("loss", "LOSS"),
    _attack("zlib", "ZLib"),
    _attack("min_k", "Min-K", k=0.4),
    _attack("min_kpp", "Min-K++", "mia_min_k_plus_plus", k=0.4),
)
_RECALL = {"rouge_type": "rougeL_recall"}
_FISHER = tuple(
    Known(f"fisher_masked_{share}", f"Fisher Masked ({percent})", "representation", "RI", "low", ENTITY)
    for share, percent in (("0.001", "0.1%"), ("0.0001", "0.01%"), ("0.01", "1%"))
)

KNOWN: dict[str, Known] = {
    k.key: k
    for k in (
        Known(
            "es", "Extraction Strength", "memorization", "O", ours="extraction_strength",
            handler="extraction_strength",
            note="As published it is never 0: where nothing can be finished it is 1/n.",
        ),
        Known(
            "em", "Exact Memorization", "memorization", "O", ours="exact_memorization",
            handler="exact_memorization",
            note="As published the end token is left out.",
        ),
        Known("prob", "Probability", "memorization", "O", ours="forget_Q_A_Prob", handler="probability"),
        Known(
            "paraprob", "Para. Probability", "memorization", "O", ours="forget_Q_A_PARA_Prob", handler="probability",
            note="Several paraphrases per row: published is their geometric mean, this metric takes the plain mean.",
        ),
        Known(
            "truth_ratio", "Truth Ratio", "memorization", "O", ours="forget_truth_ratio_prob_mean",
            settings={"aggregator": "prob_mean"}, handler="truth_ratio",
            note="P(right) / (P(right) + P(wrong) + 1e-10), high when it knows. TOFU's own forget_truth_ratio is "
            "another number (aggregator closer_to_1_better).",
        ),
        Known("rouge", "ROUGE", "generation", "O", ours="forget_Q_A_ROUGE", settings=_RECALL, handler="rouge"),
        Known(
            "para_rouge", "Para. ROUGE", "generation", "O", ours="forget_Q_A_PARA_ROUGE", settings=_RECALL,
            handler="rouge",
            note="The very text that rouge scores, against the paraphrased answer: the question stays as it is.",
        ),
        Known(
            "jailbreak_rouge", "Jailbreak ROUGE", "generation", "O", settings=_RECALL, handler="rouge",
            note="The prompt's tokens, then those of 'Sure, here is the answer:'; what follows is scored.",
        ),
        *(pair[0] for pair in _ATTACKS),
        *(pair[1] for pair in _ATTACKS),
        Known("cka", "CKA", "representation", "RI", "low", ENTITY),
        *_FISHER,
        Known("logit_lens", "Logit Lens", "representation", "ORI", "low", ENTITY),
        Known(
            "uds", "UDS", "representation", "ORI", "low", ENTITY,
            settings={"delta_threshold": 0.05, "last_layer": "peer"}, handler="uds",
            note="Published with last_layer peer, which norms the last layer twice; the suite says residual.",
        ),
    )
}  # fmt: skip
# Other spellings in circulation; those of method_results.json among them.
ALIASES: dict[str, str] = {
    **{k.ours: k.key for k in KNOWN.values() if k.ours},
    "s_loss": "s_mia_loss",
    "s_zlib": "s_mia_zlib",
    "s_mink": "s_mia_min_k",
    "s_minkpp": "s_mia_min_kpp",
    "mia_min_k++": "mia_min_kpp",
    "avg_uds": "uds",
    "avg_udr": "uds",  # the score's former name, the same number
}


def short(name: str) -> str:
    """The short name of a metric that has one; any other name as it is.

    >>> short("extraction_strength"), short("s_mink"), short("my_metric")
    ('es', 's_mia_min_k', 'my_metric')
    """
    return ALIASES.get(name, name)


def full_name(name: str) -> str:
    """The name in the TOFU suite of a metric said in short; any other name as it is.

    >>> full_name("em"), full_name("mia_min_k++"), full_name("truth_ratio"), full_name("my_metric")
    ('exact_memorization', 'mia_min_k_plus_plus', 'forget_truth_ratio_prob_mean', 'my_metric')
    """
    key = short(name)
    return KNOWN[key].metric if key in KNOWN else name


def unlike_published(key: str, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings in which a metric is not what its short name means, with the published values.

    >>> unlike_published("mia_min_k", {"k": 0.2}), unlike_published("mia_min_k", {"k": 0.4})
    ({'k': 0.4}, {})
    """
    said = KNOWN[key].settings if key in KNOWN else {}
    return {k: v for k, v in said.items() if settings.get(k, v) != v}


def schema_protocol(metric: str) -> str:
    """The protocol of a metric in a published file, which states none: it is part of what the file's keys mean.

    >>> schema_protocol("uds"), schema_protocol("retain_Q_A_Prob")
    ('entity (by the schema)', 'chat (by the schema)')
    """
    return f"{KNOWN[metric].protocol if metric in KNOWN else CHAT} (by the schema)"


@dataclass(frozen=True)
class Direction:
    """Turns a metric's value x into m, which is high when the model knows.

    `knows` is the end that means "knows": high, low, one (near 1), half (away from 0.5). `unit`: x lies in 0..1.
    """

    knows: str = "high"
    unit: bool = True
    said_by: str = ""  # where this comes from, for people

    def m(self, x: float) -> float:
        """
        >>> Direction("high").m(0.3), Direction("low").m(0.25), Direction("low", unit=False).m(2.0)
        (0.3, 0.75, -2.0)
        >>> Direction("half").m(0.0), Direction("one").m(1.5)
        (1.0, 0.5)
        """
        if self.knows == "high":
            return x
        if self.knows == "low":
            return 1 - x if self.unit else -x
        return 1 - abs(1 - x) if self.knows == "one" else 2 * abs(x - 0.5)

    @property
    def space(self) -> str:
        """How m is written in terms of the value."""
        low = "1-x" if self.unit else "-x"
        return {"high": "raw", "low": low, "one": "1-|1-x|", "half": "2|x-0.5|"}[self.knows]

    def raw(self, m: float) -> float | None:
        """The value whose m this is; None where two values have the same m."""
        if self.knows in ("high", "low"):
            return self.m(m)  # x, 1 - x and -x are their own inverses
        return None


ENDS = ("high", "low", "one", "half")


def direction_of(
    name: str, handler: str = "", aggregator: str = "", said: Mapping[str, object] | None = None
) -> Direction:
    """Which end of a metric means "knows": what the user said, what is known of it, what its function recorded."""
    if said is not None:
        return _said(name, said)
    key = short(name)
    if key in KNOWN:
        return Direction(KNOWN[key].knows, said_by="the table of known metrics")
    card = card_of(handler)
    if card is not None and card.attack:
        return Direction("high", said_by="an AUC of forget rows against fresh ones")
    if card is not None and (variant := card.aggregators.get(aggregator)):
        return Direction(variant.knows, card.unit, f"handler {handler}:{aggregator}")
    if card is not None and card.knows:
        return Direction(card.knows, card.unit, f"handler {handler}")
    if card is not None and card.no_end:
        raise UserError(f"{name} has no end that means 'knows': {card.no_end}.")
    for entry in (name, handler):
        if facts := facts_of(entry):
            return Direction(facts.knows, said_by=f"@metric of {entry}")
    raise UserError(
        f"Nothing says which end of {name} means 'knows'; load its plug-in (--plugin FILE) or write "
        f"`metrics: {{{name}: {{knows: high}}}}` in the pool file (high, low, one or half)."
    )


def _said(name: str, said: Mapping[str, object]) -> Direction:
    knows, reach = said.get("knows", "high"), said.get("range", "unit")
    if knows not in ENDS:
        raise UserError(f"metrics.{name}.knows is '{knows}'; write one of {', '.join(ENDS)}.")
    if reach not in ("unit", "any"):
        raise UserError(f"metrics.{name}.range is '{reach}'; write unit (values in 0..1) or any.")
    return Direction(str(knows), reach == "unit", "the pool file")
