"""From facts to evidence: what each measure, attack and ability says, with its share, its interval and a sentence.

    towards     the low end of the interval is above the margin: nearer to the full model than a retain model is
    beyond      the high end is below minus the margin: less than a model that never knew (over-forgotten)
    equivalent  all of the interval is within the margin: two one-sided tests
    undecided   anything else

An attack is judged over all of its budgets. To be equivalent it must be so at each of them, which needs no correction;
to be towards, one budget is enough, so each is tested at a level divided by their number: the strongest budget is
picked after looking, and this allows for it. Damage has the states kept, damaged, undecided.

In: AuditFacts and a VerdictRule. Out: VerdictPoints. Caller: verdict/judge.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vestige.numeric import counted, number, percent, with_interval
from vestige.stats.contrast import NORMAL_95, Contrast
from vestige.verdict.facts import AttackCurve, AttackPoint, AuditFacts, Measure
from vestige.verdict.rule import RULE, VerdictRule


@dataclass(frozen=True)
class VerdictPoint:
    """One piece of evidence."""

    panel: str
    test: str
    metric: str
    state: str
    text: str
    value: float | None = None
    share: float | None = None
    lo: float | None = None
    hi: float | None = None
    rows_needed: int | None = None

    def to_json(self) -> dict[str, Any]:
        keys = ("panel", "test", "metric", "state", "value", "share", "lo", "hi", "text")
        return {key: getattr(self, key) for key in keys}


def knowledge_points(facts: AuditFacts, rule: VerdictRule) -> list[VerdictPoint]:
    """Of every measure and attack that says something about the forgotten rows."""
    margin = margin_of(facts, rule)
    out = [_measured(m, margin_at(m.test, margin, rule), rule) for m in facts.measures if m.value is not None]
    out += [_attacked(c, margin, rule) for c in facts.attacks if c.points]
    # Without a full model the way goes to 1, the most there is; the layers' way has its own ends.
    return out if facts.has_full else [p if p.test == "layers" else replace(p, text=_to_certainty(p.text)) for p in out]


def _to_certainty(text: str) -> str:
    return text.replace("of the way to the full model", "of the way to certainty")


def margin_of(facts: AuditFacts, rule: VerdictRule) -> float:
    """Retain runs that differ among themselves widen it by their spread, at most to twice its width."""
    return min(rule.margin + facts.retain_spread, 2 * rule.margin)


# ---- one measure --------------------------------------------------------------------------------------------------

SUBJECT = {
    "says": "It says {} of the reference answers to the forget rows{}",
    "likely": "It gives the forgotten answers a probability of {}{}",
    "membership": "The attack {metric} tells forget rows from fresh ones with an AUC of {}{}; chance is 0.5",
    "layers": "Depth score {}, 1 is gone{}",
}
MEANING = {
    "equivalent": "like a model that never knew",
    "towards": "still towards the model that knows",
    "beyond": "less than a model that never knew, which itself shows that something was removed",
    "undecided": "these rows do not decide",
}
PANEL = {"membership": "roc"}


def margin_at(test: str, margin: float, rule: VerdictRule) -> float:
    """The depth score has a margin of its own: models retrained with other seeds are not at 0, but above it."""
    return max(margin, rule.layers) if test == "layers" else margin


def state_of(contrast: Contrast | None, margin: float, rule: VerdictRule) -> str:
    """Where a share lies. Numbers without an error can only be far away: equality needs an interval."""
    share = contrast.share if contrast else None
    if contrast is None or share is None or contrast.scale < rule.scale:
        return "undecided"
    ends = contrast.ends(rule.tail)
    if ends is None and contrast.var_gap is not None:
        return "undecided"  # full and retain model cannot be told apart
    lo, hi = ends or (share, share)
    if lo > margin:
        return "towards"
    if hi < -margin:
        return "beyond"
    sure = ends is not None and (contrast.clusters is None or contrast.clusters >= rule.fewest)
    return "equivalent" if sure and lo > -margin and hi < margin else "undecided"


def _measured(m: Measure, margin: float, rule: VerdictRule) -> VerdictPoint:
    state = state_of(m.contrast, margin, rule)
    subject = "It says the secret in {} of the forget rows that have one{}" if m.secrets else SUBJECT[m.test]
    text = subject.format(with_interval(m.value, m.lo, m.hi), _yardsticks(m), metric=m.metric)
    panel = "secrets" if m.secrets else PANEL.get(m.test, m.test)
    share, lo, hi = _numbers(m.contrast, rule.tail)
    return VerdictPoint(
        panel, m.test, m.metric, state, f"{text}: {_meaning(m, state, rule)}.",
        m.value, share, lo, hi, _rows_needed(m.contrast, state, margin, rule),
    )  # fmt: skip


def _meaning(m: Measure, state: str, rule: VerdictRule) -> str:
    """What a state means, and for an undecided one why it is."""
    if m.contrast is None:
        return m.why or "without a retain model there is nothing to compare it with"
    if m.contrast.scale < rule.scale or (m.contrast.var_gap is not None and m.contrast.ends(rule.tail) is None):
        return "full and retain model are too close here to tell anything"
    if state == "undecided" and m.contrast.var_gap is None:
        few = m.contrast.clusters
        told = few is not None and few < rule.fewest
        lacking = f"with only {counted(few or 0, 'cluster')}" if told else "without values for single rows"
        return f"{way(m.contrast, rule.tail)}; {lacking} equality cannot be tested"
    return f"{way(m.contrast, rule.tail)}, {MEANING[state]}"


def way(contrast: Contrast, tail: float) -> str:
    """How much of the way to the full model, in words.

    >>> way(Contrast(0.1, 1.0, 0.0001), 0.05), way(Contrast(-0.1, 1.0), 0.05)
    ('10 % of the way to the full model (8 to 12 %)', '-10 % of the way to the full model')
    """
    ends = contrast.ends(tail)
    told = f" ({100 * ends[0]:.0f} to {percent(ends[1])})" if ends else ""
    return f"{percent(contrast.share or 0.0)} of the way to the full model{told}"


def in_words(contrast: Contrast, rule: VerdictRule) -> str:
    """What a contrast says, judged as the verdict judges it; nothing where full and retain model are too close."""
    if contrast.scale < rule.scale or (contrast.var_gap is not None and contrast.ends(rule.tail) is None):
        return ""
    meaning = MEANING[state_of(contrast, rule.margin, rule)].partition(",")[0]
    return f"{meaning}: {way(contrast, rule.tail)}"


def layers_in_words(uds: float | None, interval: Sequence[float] | None, rule: VerdictRule = RULE) -> str:
    """What a depth score says, judged as the verdict judges it.

    >>> layers_in_words(0.98, (0.95, 1.0)), layers_in_words(None, None)
    ('like a model that never knew: 2 % of the way to the full model (-0 to 4 %)', '')
    """
    if uds is None:
        return ""
    variance = None if not interval else ((interval[1] - interval[0]) / 2 / NORMAL_95) ** 2
    return in_words(Contrast(1 - uds, 1.0, variance), rule)


def _yardsticks(m: Measure) -> str:
    if m.test == "layers":
        return ""
    told = [f"the {who} model {number(v)}" for who, v in (("retain", m.retain), ("full", m.full)) if v is not None]
    return f"; {', '.join(told)}" if told else "; no yardstick"


def _numbers(contrast: Contrast | None, tail: float) -> tuple[float | None, float | None, float | None]:
    ends = contrast.ends(tail) if contrast else None
    return (contrast.share if contrast else None, *(ends or (None, None)))


def _rows_needed(contrast: Contrast | None, state: str, margin: float, rule: VerdictRule) -> int | None:
    if contrast is None or state != "undecided":
        return None
    return contrast.rows_to_decide(margin, rule.tail, rule.power)


# ---- an attack, over its budgets ----------------------------------------------------------------------------------


def _attacked(c: AttackCurve, margin: float, rule: VerdictRule) -> VerdictPoint:
    test = "teach" if c.teaches else "disturb"
    if c.teaches and not c.controlled:
        text = f"{_story(c, c.points[-1])}; without a control, what it teaches cannot be told from what it brings back."
        return VerdictPoint("attacks", test, c.metric, "undecided", text, c.points[-1].value)
    each = [p for p in c.points if p.contrast is not None and p.contrast.scale >= rule.scale]
    if not each:
        text = f"{_story(c, c.points[-1])}: there is nothing to compare it with."
        return VerdictPoint("attacks", test, c.metric, "undecided", text, c.points[-1].value)
    state, strongest = _over_budgets(each, margin, rule)
    tail = rule.tail / len(each)
    contrast = strongest.contrast
    assert contrast is not None
    many = f" at the strongest of {len(each)} budgets (corrected for the choice)" if len(each) > 1 else ""
    seeds = f", mean of {c.seeds} seeds" if c.seeds > 1 else ""
    found = {
        "equivalent": "not more than comes to a model that never knew",
        "towards": "more than comes to a model that never knew",
        "undecided": "these rows do not decide whether that is more than comes to a model that never knew",
    }[state]
    text = f"{_story(c, strongest)}{many}{seeds}: an excess of {way(contrast, tail)}, {found}."
    needed = _rows_needed(contrast, state, margin, rule)
    share, lo, hi = _numbers(contrast, tail)
    return VerdictPoint("attacks", test, c.metric, state, text, strongest.value, share, lo, hi, needed)


def _over_budgets(each: Sequence[AttackPoint], margin: float, rule: VerdictRule) -> tuple[str, AttackPoint]:
    """The state of a whole curve, and the budget that shows it best. Less than the control is not a finding: a model
    that learns more slowly than one that never knew is judged by what it says before any attack.
    """
    corrected = replace(rule, tail=rule.tail / len(each))
    strongest = max(each, key=lambda p: _low(p, corrected))
    if state_of(strongest.contrast, margin, corrected) == "towards":
        return "towards", strongest
    calm = all(state_of(p.contrast, margin, rule) in ("equivalent", "beyond") or _below(p, margin, rule) for p in each)
    return ("equivalent", strongest) if calm else ("undecided", max(each, key=lambda p: _high(p, rule)))


def _below(p: AttackPoint, margin: float, rule: VerdictRule) -> bool:
    """Not above the margin, however far below: one of the two one-sided tests."""
    c = p.contrast
    ends = c.ends(rule.tail) if c else None
    return ends is not None and ends[1] < margin and (c is None or c.clusters is None or c.clusters >= rule.fewest)


def _low(p: AttackPoint, rule: VerdictRule) -> float:
    assert p.contrast is not None
    ends = p.contrast.ends(rule.tail)
    return ends[0] if ends else (p.contrast.share or 0.0)


def _high(p: AttackPoint, rule: VerdictRule) -> float:
    assert p.contrast is not None
    ends = p.contrast.ends(rule.tail)
    return ends[1] if ends else (p.contrast.share or 0.0)


def _story(c: AttackCurve, p: AttackPoint) -> str:
    """
    >>> _story(AttackCurve("relearn", "prob", True, (), True, 0.1, "steps"), AttackPoint(8, 0.5, 0.3))
    'Under relearn (8 steps), prob goes from 0.1000 to 0.5000; a model that never knew shows 0.3000'
    """
    size = f" ({p.budget:g} {c.unit})" if c.unit and p.budget is not None else ""
    size = f" ({c.zero})" if p.budget == 0 and c.zero else size
    what = "the share of secrets it says" if c.secrets else c.metric
    start = f"goes from {number(c.before)} to" if c.before is not None else "is"
    text = f"Under {c.attack}{size}, {what} {start} {number(p.value)}"
    if p.control is None:
        return text
    return f"{text}; a model that never knew shows {number(p.control)}{'' if c.controlled else ' without the attack'}"


# ---- damage -------------------------------------------------------------------------------------------------------


def damage_points(facts: AuditFacts, rule: VerdictRule) -> list[VerdictPoint]:
    """Abilities and texts, against the full model. They say nothing about forgetting."""
    out = [_abilities(facts.utility, rule)] if facts.utility and facts.utility.value is not None else []
    return out + [_fluent(m, rule) for m in facts.fluency if m.value is not None]


def _abilities(m: Measure, rule: VerdictRule) -> VerdictPoint:
    """gap = model - full, scale = full: kept above (1 - kept) of a loss."""
    c = m.contrast
    if c is None or c.share is None:
        text = f"{m.metric} is {with_interval(m.value, m.lo, m.hi)}; {m.why or 'the full model was not measured'}."
        return VerdictPoint("utility", "utility", m.metric, "undecided", text, m.value)
    kept, (_, lo, hi) = 1 + c.share, _numbers(c, rule.tail)
    low, high = (None if x is None else 1 + x for x in (lo, hi))
    state = _side(kept, low, high, rule.kept)
    ends = "" if low is None or high is None else f" ({100 * low:.0f} to {percent(high)})"
    whose = "full" if m.full is not None else "retain"
    reference = m.full if m.full is not None else m.retain
    text = f"{m.metric} is {number(m.value)}, {percent(kept)}{ends} of the {whose} model's {number(reference)}."
    needed = c.rows_to_decide(1 - rule.kept, rule.tail, rule.power) if state == "undecided" else None
    return VerdictPoint("utility", "utility", m.metric, state, text, m.value, kept, low, high, needed)


def _side(value: float, low: float | None, high: float | None, limit: float) -> str:
    """kept, damaged or undecided: all of the interval on one side; without one only what is clearly below."""
    if low is None or high is None:
        return "damaged" if value < limit else "undecided"
    return "kept" if low >= limit else "damaged" if high < limit else "undecided"


FLUENT = {
    "repetition": "Repeated words make up {} of its texts{}",
    "said_likelihood": "The full model gives its texts a probability of {} per token{}",
}


def _fluent(m: Measure, rule: VerdictRule) -> VerdictPoint:
    """share = how much worse than the reference's own texts about the same rows."""
    c = m.contrast
    text = FLUENT[m.test].format(with_interval(m.value, m.lo, m.hi), _yardsticks(m))
    if c is None or c.share is None:
        return VerdictPoint("fluency", m.test, m.metric, "undecided", f"{text}.", m.value)
    limit = rule.repetition if m.test == "repetition" else rule.likelihood
    share, lo, hi = _numbers(c, rule.tail)
    state = _side(-c.share, None if hi is None else -hi, None if lo is None else -lo, -limit)
    more = {"damaged": ": worse than it may be", "kept": "", "undecided": ": these rows do not decide"}[state]
    return VerdictPoint("fluency", m.test, m.metric, state, f"{text}{more}.", m.value, share, lo, hi)
