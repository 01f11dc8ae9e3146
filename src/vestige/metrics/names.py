"""The names metrics go by, what a metric is measured on, and which end of it means "the model still knows".

Short names (em, es, uds, ...) are those of the published tables, and each means the number that is published there: a
metric of the TOFU suite with certain settings, in the dialect `depth-score`. A metric of your own needs no entry here:
its end is what `@metric(knows=...)` recorded, or what the pool file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vestige.errors import UserError
from vestige.metrics.cards import card_of, facts_of

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
