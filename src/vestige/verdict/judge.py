"""Did it forget? One of six words, from rules that can be read here, with its evidence and its limits.

Three questions are answered apart. *Knowledge*: where is the model between the retain model and the full one
(verdict/points.py)? *Damage*: did utility and fluency survive? *Testing*: what was looked at? Then, in this order:

    damaged          utility or fluency is damaged, or a measure is beyond the retain model (over-forgotten);
                     what still leaks is stated as well
    not_forgotten    of what it says, finds likely, holds in its layers or shows under attack, more than half of the way
                     to the full model is surely there
    partly           some measure is towards the full model
    forgotten        all six tests were made, and each of them, and every measure in it, is equivalent; abilities kept
    looks_forgotten  something it says or finds likely is equivalent, and nothing speaks against it
    cannot_tell      anything else

So a test that was not made can take "forgotten" away, and never give it. Thresholds are in verdict/rule.py. `word_of`
needs nothing but the evidence, so that a verdict can be checked from report.json alone (docs/report.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vestige.errors import UserError
from vestige.metrics.cards import direction_of, is_attack
from vestige.verdict.facts import AuditFacts, collect_facts, contrast_with_retain
from vestige.verdict.points import VerdictPoint, contrast_in_words, damage_points, knowledge_points, margin_of
from vestige.verdict.rule import DEEP, RULE, TESTS, TITLES, VerdictRule
from vestige.verdict.runs import JudgedRuns, of_forget_rows
from vestige.verdict.words import headline, limits, power_part, testing_text

OUTPUTS = ("says", "likely")
CONTENT = ("says", "likely", "layers", "teach", "disturb")  # what is known, as against that it was once trained on


def judge(runs: JudgedRuns, rule: VerdictRule = RULE) -> dict[str, Any]:
    """The verdict on one model: the word, three parts, the evidence, what could have been seen, and the limits."""
    return judge_facts(collect_facts(runs), rule)


def judge_facts(facts: AuditFacts, rule: VerdictRule = RULE) -> dict[str, Any]:
    """The same from facts alone."""
    known, harm = knowledge_points(facts, rule), damage_points(facts, rule)
    damage = _damage_part(harm)
    word = "not_forgotten" if _recites(facts, rule) else word_of(known, damage["state"], rule)
    leaks = any(p.state == "towards" for p in known)
    needed = [p.rows_needed for p in (*known, *harm) if p.rows_needed]
    margin = margin_of(facts, rule)
    return {
        "word": word,
        "title": TITLES[word],
        "also": "still leaks" if word == "damaged" and leaks else None,
        "headline": headline(word, known, harm, facts),
        "parts": {"knowledge": _knowledge_part(known), "damage": damage, "testing": _testing_part(facts, known)},
        "secrets": _secrets_part(facts),
        "evidence": [p.to_json() for p in (*known, *harm)],
        "power": power_part(facts, margin, rule),
        "rows_needed": max(needed) if needed and word in ("cannot_tell", "looks_forgotten") else None,
        "limits": limits(facts, rule),
        "margin": margin,
    }


def reading_against(runs: JudgedRuns, metric: str) -> str:
    """A number of the forget rows in words, against full and retain model; nothing where they do not tell."""
    holder = runs.model.holder(metric)
    handler = holder.handler(metric) if holder else ""
    if not handler or not (of_forget_rows(metric) or is_attack(handler)):
        return ""
    try:
        direction = direction_of(metric, handler)
    except UserError:
        return ""  # neither end of it means "knows"
    if direction.knows != "high" or not direction.unit:
        return ""
    found, _ = contrast_with_retain(runs, metric)
    return contrast_in_words(found, RULE) if found is not None else ""


def word_of(known: Sequence[VerdictPoint], damage: str, rule: VerdictRule = RULE) -> str:
    """The rules of the module's text, in order."""
    states = {point.state for point in known}
    if damage == "damaged" or "beyond" in states:
        return "damaged"
    for point in known:
        if point.state == "towards" and point.test in CONTENT:
            low = point.share if point.lo is None else point.lo
            if low is not None and low > rule.most:
                return "not_forgotten"
    if "towards" in states:
        return "partly"
    passed = [test for test in TESTS if _states(known, test) == {"equivalent"}]
    if len(passed) == len(TESTS) and damage == "kept":
        return "forgotten"
    if any("equivalent" in _states(known, test) for test in OUTPUTS):
        return "looks_forgotten"
    return "cannot_tell"


def _states(points: Sequence[VerdictPoint], test: str) -> set[str]:
    return {point.state for point in points if point.test == test}


def _recites(facts: AuditFacts, rule: VerdictRule) -> bool:
    """Says so much of the answers, or so many secrets, that no retain model is needed to see it."""
    if facts.has_retain:
        return False
    secrets = facts.secrets
    if secrets is not None and secrets.lo is not None and secrets.lo > rule.most:
        return True
    for measure in facts.measures:
        if measure.test == "says" and not measure.secrets:
            low = measure.value if measure.lo is None else measure.lo
            if low is not None and low >= rule.recites:
                return True
    return False


# ---- the three parts ----------------------------------------------------------------------------------------------


def _knowledge_state(known: Sequence[VerdictPoint]) -> str:
    """One word for all measures of knowledge. A difference from the retain model outweighs agreement."""
    states = {p.state for p in known}
    if not states:
        return "not_measured"
    if {"towards", "beyond"} <= states:
        return "mixed"
    if "towards" in states:
        return "towards"
    if "beyond" in states:
        return "beyond"
    # A single undecided measure keeps the whole from being called equivalent.
    return "equivalent" if states == {"equivalent"} else "undecided"


NOT_MEASURED = VerdictPoint("", "", "", "", "")  # its numbers are None
KNOWLEDGE_TEXT = {
    "equivalent": "Like a model that never knew, on every measure.",
    "towards": "Nearer to the model that knows than a model that never knew.",
    "beyond": "Over-forgotten: less than a model that never knew.",
    "mixed": "Over-forgotten on some measures, and still there on others.",
    "undecided": "These rows do not decide every measure.",
    "not_measured": "Nothing was measured on the forget rows.",
}


def _knowledge_part(known: Sequence[VerdictPoint]) -> dict[str, Any]:
    """What is left of the knowledge: one word and the measure that shows it best."""
    state = _knowledge_state(known)
    # Shown: of the measures that give the part its state, the one farthest from the retain model.
    telling = [p for p in known if p.state == state] or known
    with_share = [p for p in telling if p.share is not None]
    shown = max(with_share, key=lambda p: abs(p.share or 0.0), default=NOT_MEASURED)
    return {"state": state, "share": shown.share, "lo": shown.lo, "hi": shown.hi, "text": KNOWLEDGE_TEXT[state]}


def _damage_part(harm: Sequence[VerdictPoint]) -> dict[str, Any]:
    """Damaged if anything is; kept if utility is and no text speaks against it."""
    utility = next((point for point in harm if point.panel == "utility"), None)
    fluency = next((point for point in harm if point.panel == "fluency"), None)
    states = {point.state for point in harm}
    if "damaged" in states:
        state = "damaged"
    elif not harm:
        state = "not_measured"
    elif utility is not None and states == {"kept"}:
        state = "kept"
    else:
        state = "undecided"
    text = " ".join(point.text for point in harm if point.state == "damaged" or point is utility)
    if not text:
        text = "Its texts are as fluent as before." if harm else "Other abilities were not measured."
    shown = utility or NOT_MEASURED
    return {
        "state": state,
        "utility": shown.share,
        "lo": shown.lo,
        "hi": shown.hi,
        "fluency": fluency.value if fluency else None,
        "text": text,
    }


MISSING = {
    "says": "what it says was not compared",
    "likely": "what it finds likely was not compared",
    "membership": "no membership attack was tried: it needs holdout rows",
    "layers": "the layers were not looked into",
    "teach": "no attack that teaches, with a control, was tried",
    "disturb": "no attack that teaches nothing (quantising, pruning, other prompts) was tried",
}


def _testing_part(facts: AuditFacts, known: Sequence[VerdictPoint]) -> dict[str, Any]:
    """Which tests were made, and the command for each that was not."""
    # Without a control an attack that teaches is not a test: what comes back proves nothing.
    controlled = any(curve.teaches and curve.controlled for curve in facts.attacks)
    done, missing = [], []
    for test in TESTS:
        if _states(known, test) and (test != "teach" or controlled):
            done.append(test)
        else:
            missing.append({"test": test, "text": MISSING[test], "command": facts.commands.get(test, "")})
    state = "deep" if set(DEEP) <= set(done) else "shallow"
    return {"state": state, "done": done, "missing": missing, "text": testing_text(done, missing)}


def _secrets_part(facts: AuditFacts) -> dict[str, Any] | None:
    counts = facts.secrets
    if counts is None:
        return None
    verb = "Still says" if counts.said else "Says"
    return {**asdict(counts), "text": f"{verb} {counts.said} of {counts.with_secret} secrets"}
