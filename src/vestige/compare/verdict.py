"""Did it forget? An answer in words, from rules that can be read here, with its evidence and its limits.

Every measure is held against the model that never knew (retain, 0) and the model that does (full, 1):

    share = (value - retain) / (full - retain)       up to 0.25: forgot;  above: knows, if the interval agrees

The depth score and attacks look deeper than outputs. So the answer is

    yes      every measure says forgot, and at least one of them looks deeper than outputs
    partly   some say forgot, some say knows; or all say knows, but none above 0.75
    no       all say knows, or what it says or finds likely is nearly the full model's (above 0.75)
    unclear  no yardstick, nothing deeper was measured, the measures do not tell, or the model is ruined

In: measures with their intervals as plain numbers. Out: the answer, its evidence, its limits, as plain data. Caller:
report/audits.py. Pure: a verdict can be recomputed from report.json alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vestige.words import number, with_interval

FORGOT, STILL = 0.25, 0.75  # shares of the way from the retain model to the full one
SCALE = 0.05  # full and retain closer than this: the measure tells nothing
DEEP = 0.8  # a depth score from which on the layers count as empty
STRANGE = 0.15  # an AUC this far below the retain model's is conspicuous
KEPT, RUINED = 0.8, 0.3  # shares of the reference's utility
RECITES = 0.8  # says so much of the answers that no yardstick is needed
FEW = 100  # rows


@dataclass(frozen=True)
class Measure:
    """One metric of the audited model, and of the models it is held against. High means "knows"."""

    metric: str
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    n: int | None = None
    retain: float | None = None
    full: float | None = None


@dataclass(frozen=True)
class Recovery:
    """The strongest effect of one attack on one metric."""

    attack: str
    metric: str
    before: float
    after: float
    control_before: float | None = None
    control_after: float | None = None
    full: float | None = None
    teaches: bool = False  # the attack shows the model answers


@dataclass(frozen=True)
class AuditFacts:
    """What a verdict may look at; None: not measured."""

    says: Measure | None = None
    likely: Measure | None = None
    membership: Measure | None = None
    layers: Measure | None = None
    attacks: Sequence[Recovery] = ()
    utility: Measure | None = None
    has_retain: bool = False
    has_full: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)  # panel -> why there is nothing


@dataclass(frozen=True)
class VerdictPoint:
    """One piece of evidence."""

    panel: str
    points: str  # forgot | knows | unclear
    text: str
    metric: str
    share: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "metric": self.metric, "points": self.points, "panel": self.panel}


def verdict(facts: AuditFacts) -> dict[str, Any]:
    """The answer, one sentence, the evidence and the limits."""
    points = [p for p in (_says(facts), _likely(facts), _membership(facts), _layers(facts)) if p]
    points += [_recovery(r) for r in facts.attacks]
    kept = _utility(facts)
    answer, why = _answer(facts, points)
    return {
        "answer": answer,
        "headline": _headline(answer, why, points, kept),
        "evidence": [p.to_json() for p in (*points, *([kept[1]] if kept else []))],
        "limits": _limits(facts),
    }


# ---- one measure at a time ---------------------------------------------------------------------------------------


def share_of(x: float, m: Measure) -> float | None:
    """How far from the retain model (0) to the full model (1) a value lies; None where the two do not differ.

    >>> share_of(0.4, Measure("p", retain=0.2, full=1.0)), share_of(0.4, Measure("p", retain=0.2, full=0.22))
    (0.25, None)
    """
    if m.retain is None:
        return None
    scale = (1.0 if m.full is None else m.full) - m.retain  # without a full model up to 1, the most there is
    return (x - m.retain) / scale if scale > SCALE else None


def judge(m: Measure) -> tuple[str, float | None]:
    """What a measure says, and its share. An interval that reaches far into the other side makes it unclear."""
    if m.value is None or m.retain is None:
        return "unclear", None
    share = share_of(m.value, m)
    if share is None:
        return "unclear", None
    low, high = (share if x is None else share_of(x, m) or 0.0 for x in (m.lo, m.hi))
    if share <= FORGOT:
        return ("forgot" if high <= 2 * FORGOT else "unclear"), share
    return ("knows" if low > FORGOT / 2 else "unclear"), share


def _yardsticks(m: Measure) -> str:
    told = [f"the {who} model {number(v)}" for who, v in (("retain", m.retain), ("full", m.full)) if v is not None]
    return f"; {', '.join(told)}" if told else "; no yardstick"


def _says(facts: AuditFacts) -> VerdictPoint | None:
    return _output(facts.says, "says", "It says {} of the reference answers to the forget rows{}.")


def _likely(facts: AuditFacts) -> VerdictPoint | None:
    return _output(facts.likely, "likely", "It gives the forgotten answers a probability of {}{}.")


def _output(m: Measure | None, panel: str, words: str) -> VerdictPoint | None:
    if m is None or m.value is None:
        return None
    points, share = judge(m)
    text = words.format(with_interval(m.value, m.lo, m.hi), _yardsticks(m))
    if points == "unclear" and share is None and m.full is not None and m.retain is not None:
        text += " Full and retain model are too close here to tell anything."
    return VerdictPoint(panel, points, text, m.metric, share)


def _membership(facts: AuditFacts) -> VerdictPoint | None:
    m = facts.membership
    if m is None or m.value is None:
        return None
    head = f"The strongest attack ({m.metric}) tells forget rows from fresh ones with an AUC of "
    text = f"{head}{with_interval(m.value, m.lo, m.hi)}{_yardsticks(m)}; chance is 0.5."
    if m.retain is not None and m.retain - m.value > STRANGE:
        more = " They look stranger than to the retain model: it shows that something was removed."
        return VerdictPoint("roc", "unclear", text + more, m.metric)
    points, share = judge(m)
    return VerdictPoint("roc", points, text, m.metric, share)


def _layers(facts: AuditFacts) -> VerdictPoint | None:
    m = facts.layers
    if m is None or m.value is None:
        return None
    if m.value >= DEEP:
        points, words = "forgot", "its layers lack the knowledge nearly as the retain model's do"
    else:
        points = "knows" if m.hi is None or m.hi < DEEP else "unclear"
        words = "its layers still hold " + ("much" if m.value < 0.5 else "some") + " of it"
    text = f"Depth score {with_interval(m.value, m.lo, m.hi)}, 1 is gone: {words}."
    return VerdictPoint("layers", points, text, m.metric, 1 - m.value)


def _recovery(r: Recovery) -> VerdictPoint:
    """After an attack a model that forgot is where the attacked control is: then the attack taught it, not reminded it.

    Without a control only attacks that teach nothing (quantising, pruning, other prompts) can show that it knows.
    """
    text = f"Under {r.attack}, {r.metric} goes from {number(r.before)} to {number(r.after)}"
    if r.control_after is None:
        share = (r.after - r.before) / _room(r.full, r.before)
        points = "knows" if share > FORGOT and not r.teaches else "unclear"
        return VerdictPoint("attacks", points, f"{text}; without a control.", r.metric, share)
    text += f"; a model that never knew goes from {number(r.control_before)} to {number(r.control_after)}."
    share = (r.after - r.control_after) / _room(r.full, r.control_after)
    return VerdictPoint("attacks", "forgot" if share <= FORGOT else "knows", text, r.metric, share)


def _room(full: float | None, start: float) -> float:
    """How much there is to come back."""
    return 1.0 if full is None or full - start <= SCALE else full - start


def _utility(facts: AuditFacts) -> tuple[float, VerdictPoint] | None:
    """The share of abilities kept, and what to say of it. It does not speak for or against forgetting."""
    m = facts.utility
    reference = None if m is None else next((x for x in (m.full, m.retain) if x), None)
    if m is None or m.value is None or reference is None:
        return None
    kept = m.value / reference
    text = f"{m.metric} is {with_interval(m.value, m.lo, m.hi)}, {kept:.0%} of the reference's {number(reference)}."
    return kept, VerdictPoint("utility", "unclear", text, m.metric, None)


# ---- all together ------------------------------------------------------------------------------------------------


def _answer(facts: AuditFacts, points: Sequence[VerdictPoint]) -> tuple[str, str]:
    """The rules of the module's text, in order, and for `unclear` the reason."""
    sides = sides_of(points)
    told, kept = set(sides.values()), _utility(facts)
    if not points:
        return "unclear", "nothing was measured on the forget rows"
    strong = [p for p in points if p.points == "knows" and (p.share or 0) >= STILL]
    if _recites(facts) or any(p.panel in OUTPUTS for p in strong):
        return "no", ""
    if kept and kept[0] < RUINED and "knows" not in told:
        return "unclear", "its other abilities are ruined, and the silence of a broken model says little"
    if "knows" in told:
        return ("partly" if "forgot" in told or not strong else "no"), ""
    if not facts.has_retain:
        return "unclear", "without a retain model nothing can be compared"
    if "forgot" not in told:
        return "unclear", "the measures at hand do not tell"
    if not any(sides.get(panel) == "forgot" for panel in DEEPER):
        return "unclear", "its outputs look forgotten, but neither its layers nor attacks were found to agree"
    return "yes", ""


def sides_of(points: Sequence[VerdictPoint]) -> dict[str, str]:
    """What each panel says: one sign of knowing outweighs signs of having forgotten."""
    said = {panel: {p.points for p in points if p.panel == panel} for panel in dict.fromkeys(p.panel for p in points)}
    return {panel: next(s for s in ("knows", "forgot", "unclear") if s in there) for panel, there in said.items()}


OUTPUTS, DEEPER = ("says", "likely"), ("layers", "attacks")


def _recites(facts: AuditFacts) -> bool:
    """Says so much of the answers that no retain model is needed to see it."""
    m = facts.says
    return m is not None and m.value is not None and (m.value if m.lo is None else m.lo) >= RECITES


SHORT = {
    "says": ("no longer says the forgotten answers", "still says them"),
    "likely": ("no longer finds them likely", "still finds them likely"),
    "roc": (
        "looks to an attacker like a model that never saw them",
        "still shows an attacker that it was trained on them",
    ),
    "layers": ("has lost them from its layers", "still holds them in its layers"),
    "attacks": ("shows little more under attack than a model that never knew", "shows them under attack"),
}


def _headline(answer: str, why: str, points: Sequence[VerdictPoint], kept: tuple[float, VerdictPoint] | None) -> str:
    sides = sides_of(points)
    forgot, knows = (_joined(sides, side, i) for i, side in enumerate(("forgot", "knows")))
    tail = ""
    if kept is not None:
        tail = (
            "; its other abilities are kept" if kept[0] >= KEPT else f"; it kept {kept[0]:.0%} of its other abilities"
        )
    if answer == "yes":
        return f"As far as was measured it has forgotten: it {forgot}{tail}."
    if answer == "no":
        return f"It has not forgotten: it {knows or 'says nearly all of the forgotten answers'}{tail}."
    if answer == "partly":
        return f"It has forgotten in part: it {f'{forgot}, but {knows}' if forgot else knows}{tail}."
    return f"This cannot be decided: {why}{tail}."


def _joined(sides: Mapping[str, str], side: str, which: int) -> str:
    words = [SHORT[panel][which] for panel, said in sides.items() if said == side]
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def _limits(facts: AuditFacts) -> list[str]:
    out = []
    if not facts.has_retain:
        out.append("Without a retain model forgetting cannot be told from never having known: nothing to compare with.")
    if not facts.has_full:
        out.append("Without the full model it is not known how much there was to forget.")
    if facts.membership is None:
        out.append("No membership attack was tried (holdout rows are needed): traces of training are not ruled out.")
    if facts.layers is None:
        out.append("The layers were not looked into (vestige depth): knowledge the model does not show may be there.")
    tried = list(dict.fromkeys(r.attack for r in facts.attacks))
    if tried:
        were = "was" if len(tried) == 1 else "were"
        out.append(f"Only {', '.join(tried)} {were} tried; other attacks may bring more back.")
        if any(r.control_after is None for r in facts.attacks):
            out.append("Attacks without a control: what they teach cannot be told from what they bring back.")
    else:
        out.append("No attack was tried (vestige stress): whether it comes back is not known.")
    if facts.utility is None or facts.utility.value is None:
        out.append("Other abilities were not measured: a model that lost everything also forgets.")
    rows = [m.n for m in (facts.says, facts.likely) if m and m.n]
    if rows and max(rows) < FEW:
        out.append(f"There are only {max(rows)} forget rows: small differences cannot be seen.")
    out.append("Intervals speak of other rows, not of other training seeds.")
    return [*out, *(f"{panel}: {why}" for panel, why in facts.missing.items())]
