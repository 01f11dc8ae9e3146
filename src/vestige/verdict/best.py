"""Which checkpoint of an unlearning run is best: the one closest to the retain model that is still able.

Every metric of the forget rows is placed between the model before unlearning and the model that never knew:

    share    1: as before unlearning    0: as the retain model    -1: the far end of the scale

A positive share is what is left to forget, a negative one is over-forgetting: the model avoids what it should not know,
which an observer can see. Each side has a scale of its own, because a retain model that finds answers unlikely leaves
little room below it. The default rule, `closest`:

    closeness = 1 - mean |share|        kept = utility now / utility before, at most 1
    score     = harmonic mean of both   (closeness alone where utility was not measured)

A checkpoint has no score, and is never the best one, if a share is below -RULE.margin (over-forgotten), if less
than RUINED of the utility is left (the silence of a broken model says little), or if nothing tells both models apart.

In: numbers of one moment. Out: a Rank. Callers: watch/looking.py for every evaluation of a training run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vestige.errors import UserError, unknown_name
from vestige.numeric import mean, percent
from vestige.verdict.rule import RULE

RUINED = 0.3  # of the utility; far below what the verdict calls damaged, for a damaged model may still be the best one
ROOM = (
    4 * RULE.scale
)  # below a retain model whose value is near the end of the scale nothing smaller counts as a distance


@dataclass(frozen=True)
class Gauge:
    """One metric of the forget rows at one moment, with the values of both models it lies between."""

    metric: str
    value: float | None
    before: float | None = None  # of the model before unlearning
    retain: float | None = None  # of the model that never knew
    high_knows: bool = True
    unit: bool = True  # values lie in 0..1


@dataclass(frozen=True)
class RunMoment:
    """What a rule may look at: the forget rows, the utility now and before, and every value by its name."""

    gauges: Sequence[Gauge] = ()
    utility: float | None = None
    utility_before: float | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Rank:
    """A moment's score, high is good; None: it is never the best, and `why` says for what reason."""

    score: float | None
    why: str = ""
    share: float | None = None  # mean over metrics, signed
    kept: float | None = None


Rule = Callable[[RunMoment], Rank]


def share_left(gauge: Gauge) -> float | None:
    """Where a metric lies between both models; None where they do not differ or a value is missing.

    >>> share_left(Gauge("p", 0.5, before=1.0, retain=0.0)), share_left(Gauge("p", 0.125, before=0.875, retain=0.5))
    (0.5, -0.75)
    >>> share_left(Gauge("p", 0.5, before=0.42, retain=0.4)) is None
    True
    """
    x, before, retain = gauge.value, gauge.before, gauge.retain
    if x is None or before is None or retain is None or not all(map(math.isfinite, (x, before, retain))):
        return None
    sign = 1.0 if gauge.high_knows else -1.0
    scale = sign * (before - retain)
    if scale <= RULE.scale * (1.0 if gauge.unit else max(abs(before), abs(retain))):
        return None
    gap = sign * (x - retain)
    if gap >= 0:
        return gap / scale
    if not gauge.unit:
        return gap / scale  # a scale without an end: the same distance on both sides
    return gap / max(retain if gauge.high_knows else 1.0 - retain, ROOM)


def closest(moment: RunMoment) -> Rank:
    """The default rule.

    >>> found = closest(RunMoment([Gauge("p", 0.5, before=1.0, retain=0.0)], utility=0.3, utility_before=0.6))
    >>> found.share, found.kept, found.score
    (0.5, 0.5, 0.5)
    >>> closest(RunMoment([Gauge("p", 0.1, before=0.9, retain=0.4)])).why
    'over-forgotten: p is 0.1, the retain model has 0.4'
    """
    shares = {g.metric: s for g in moment.gauges if (s := share_left(g)) is not None}
    if not shares:
        return Rank(None, _nothing(moment))
    share = mean(list(shares.values()))
    kept = _kept(moment)
    for gauge in moment.gauges:
        if shares.get(gauge.metric, 0.0) < -RULE.margin:
            words = f"over-forgotten: {gauge.metric} is {gauge.value:.3g}, the retain model has {gauge.retain:.3g}"
            return Rank(None, words, share, kept)
    if kept is not None and kept < RUINED:
        return Rank(None, f"ruined: {percent(kept)} of the utility is left", share, kept)
    closeness = max(0.0, 1.0 - mean([abs(s) for s in shares.values()]))
    if kept is None:
        return Rank(closeness, "utility was not measured", share, None)
    both = closeness + kept
    return Rank(2 * closeness * kept / both if both else 0.0, "", share, kept)


def _kept(moment: RunMoment) -> float | None:
    now, before = moment.utility, moment.utility_before
    if now is None or not before or not math.isfinite(now):
        return None
    return min(1.0, max(0.0, now / before))


def _nothing(moment: RunMoment) -> str:
    if not moment.gauges:
        return "no metric of the forget rows was evaluated"
    if all(g.retain is None for g in moment.gauges):
        return "no retain logs were given to be close to"
    if all(g.before is None for g in moment.gauges):
        return "the model before unlearning was not evaluated"
    return "no metric of the forget rows tells the model before unlearning from the retain model"


def weighted(weights: Mapping[str, float]) -> Rule:
    """The weighted sum of metrics as a rule; where one of them has no value, the sum has none.

    >>> weighted({"forget_Q_A_Prob": -1, "model_utility": 1})(
    ...     RunMoment(values={"forget_Q_A_Prob": 0.25, "model_utility": 0.5})).score
    0.25
    """

    def rule(moment: RunMoment) -> Rank:
        total = 0.0
        for name, weight in weights.items():
            value = moment.values.get(name)
            if value is None or math.isnan(value):
                return Rank(None, f"{name} has no value", kept=_kept(moment))
            total += weight * value
        return Rank(total, kept=_kept(moment))

    return rule


RULES: dict[str, Rule] = {"closest": closest}


def rule_named(best: str | Rule | Mapping[str, float] | None) -> Rule | None:
    """A rule by its name, as a mapping of weights, or as a function of a RunMoment; None: no rule."""
    if best is None or callable(best):
        return best
    if isinstance(best, Mapping):
        return weighted(best)
    if best not in RULES:
        raise unknown_name("rule for the best checkpoint", best, RULES, "(or weights of metrics, or a function)")
    return RULES[best]


def ranked(rule: Rule, moment: RunMoment) -> Rank:
    """A rule's answer. A user's function may return a plain number, or None for "never the best"."""
    found: object = rule(moment)
    if isinstance(found, Rank):
        return found
    if found is None:
        return Rank(None, "the rule gives it no score", kept=_kept(moment))
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        number = float(found)
        return Rank(number if math.isfinite(number) else None, "", kept=_kept(moment))
    raise UserError(f"The rule for the best checkpoint returned {type(found).__name__}; it returns a number or None.")


def better(score: float | None, than: float | None) -> bool:
    """Whether a score is a new best: the first of two equal ones stays.

    >>> better(0.5, None), better(None, None), better(0.5, 0.5)
    (True, False, False)
    """
    return score is not None and (than is None or score > than)
