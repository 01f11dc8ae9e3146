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
needs nothing but the evidence, so that a verdict can be checked from report.json alone (docs/report_format.md).
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
        "limits": limits(facts, known, rule),
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
    if damage == "damaged" or any(p.state == "beyond" for p in known):
        return "damaged"
    towards = [p for p in known if p.state == "towards"]
    if any(p.test in CONTENT and _surely(p) > rule.most for p in towards):
        return "not_forgotten"
    if towards:
        return "partly"
    passed = {t for t in TESTS if _states(known, t) == {"equivalent"}}
    if passed == set(TESTS) and damage == "kept":
        return "forgotten"
    return "looks_forgotten" if any("equivalent" in _states(known, t) for t in OUTPUTS) else "cannot_tell"


def _surely(p: VerdictPoint) -> float:
    low = p.share if p.lo is None else p.lo
    return 0.0 if low is None else low


def _states(points: Sequence[VerdictPoint], test: str) -> set[str]:
    return {p.state for p in points if p.test == test}


def _recites(facts: AuditFacts, rule: VerdictRule) -> bool:
    """Says so much of the answers, or so many secrets, that no retain model is needed to see it."""
    if facts.has_retain:
        return False
    secrets = facts.secrets
    if secrets is not None and secrets.lo is not None and secrets.lo > rule.most:
        return True
    lows = [m.value if m.lo is None else m.lo for m in facts.measures if m.test == "says" and not m.secrets]
    return any(low is not None and low >= rule.recites for low in lows)


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


KNOWLEDGE_TEXT = {
    "equivalent": "Like a model that never knew, on every measure.",
    "towards": "Nearer to the model that knows than a model that never knew.",
    "beyond": "Over-forgotten: less than a model that never knew.",
    "mixed": "Over-forgotten on some measures, and still there on others.",
    "undecided": "These rows do not decide every measure.",
    "not_measured": "Nothing was measured on the forget rows.",
}


def _knowledge_part(known: Sequence[VerdictPoint]) -> dict[str, Any]:
    state = _knowledge_state(known)
    # Shown: of the measures that give the part its state, the one farthest from the retain model.
    telling = [p for p in known if p.state == state] or known
    with_share = [p for p in telling if p.share is not None]
    shown = max(with_share, key=lambda p: abs(p.share or 0.0), default=VerdictPoint("", "", "", "", ""))
    return {"state": state, "share": shown.share, "lo": shown.lo, "hi": shown.hi, "text": KNOWLEDGE_TEXT[state]}


def _damage_part(harm: Sequence[VerdictPoint]) -> dict[str, Any]:
    """Damaged if anything is; kept if utility is and no text speaks against it."""
    utility = next((p for p in harm if p.panel == "utility"), None)
    texts = [p for p in harm if p.panel == "fluency"]
    states = {p.state for p in harm}
    if "damaged" in states:
        state = "damaged"
    elif not harm:
        state = "not_measured"
    else:
        state = "kept" if utility is not None and states == {"kept"} else "undecided"
    said = " ".join(p.text for p in harm if p.state == "damaged" or p is utility)
    return {
        "state": state,
        "utility": utility.share if utility else None,
        "lo": utility.lo if utility else None,
        "hi": utility.hi if utility else None,
        "fluency": texts[0].value if texts else None,
        "text": said or ("Other abilities were not measured." if not harm else "Its texts are as fluent as before."),
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
    controlled = {"teach"} if any(c.teaches and c.controlled for c in facts.attacks) else set()
    done = [t for t in TESTS if _states(known, t) and (t != "teach" or t in controlled)]
    missing = [{"test": t, "text": MISSING[t], "command": facts.commands.get(t, "")} for t in TESTS if t not in done]
    deep = all(t in done for t in DEEP)
    return {"state": "deep" if deep else "shallow", "done": done, "missing": missing,
            "text": testing_text(done, missing)}  # fmt: skip


def _secrets_part(facts: AuditFacts) -> dict[str, Any] | None:
    counts = facts.secrets
    if counts is None:
        return None
    verb = "Still says" if counts.said else "Says"
    return {**asdict(counts), "text": f"{verb} {counts.said} of {counts.with_secret} secrets"}
