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

So a test that was not made can take "forgotten" away, and never give it. Thresholds are in verdict/rule.py.

In: AuditFacts. Out: plain data (docs/report_format.md). Callers: the room judging. Pure: `word_of` needs nothing but
the evidence, so that a verdict can be checked from report.json alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.metrics.cards import direction_of, is_attack
from vestige.verdict.facts import AuditFacts, FactFinder, facts_of
from vestige.verdict.points import VerdictPoint, damage_points, in_words, knowledge_points, margin_of
from vestige.verdict.rule import DEEP, RULE, TESTS, TITLES, VerdictRule
from vestige.verdict.runs import (
    SIDE,
    AttackedRun,
    ModelRuns,
    References,
    attacked_runs,
    depth_records,
    depth_value,
    handlers,
    model_runs,
    split_of,
)
from vestige.verdict.words import headline, limits, power_part, testing_text

OUTPUTS = ("says", "likely")
CONTENT = ("says", "likely", "layers", "teach", "disturb")  # what is known, as against that it was once trained on


def verdict(facts: AuditFacts, rule: VerdictRule = RULE) -> dict[str, Any]:
    """The word, three parts, the evidence, what could have been seen, and the limits."""
    known, harm = knowledge_points(facts, rule), damage_points(facts, rule)
    knowledge, damage = _knowledge(known), _damage(harm)
    testing = _testing(facts, known)
    word = "not_forgotten" if _recites(facts, rule) else word_of(known, damage["state"], rule)
    leaks = any(p.state == "towards" for p in known)
    needed = [p.rows_needed for p in (*known, *harm) if p.rows_needed]
    return {
        "word": word,
        "title": TITLES[word],
        "also": "still leaks" if word == "damaged" and leaks else None,
        "headline": headline(word, known, harm, facts),
        "parts": {"knowledge": knowledge, "damage": damage, "testing": testing},
        "secrets": _secrets(facts),
        "evidence": [p.to_json() for p in (*known, *harm)],
        "power": power_part(facts, margin_of(facts, rule), rule),
        "rows_needed": max(needed) if needed and word in ("cannot_tell", "looks_forgotten") else None,
        "limits": limits(facts, known, rule),
        "margin": margin_of(facts, rule),
    }


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


def _knowledge(known: Sequence[VerdictPoint]) -> dict[str, Any]:
    states = {p.state for p in known}
    ahead, behind = "towards" in states, "beyond" in states
    state = "mixed" if ahead and behind else "towards" if ahead else "beyond" if behind else ""
    state = state or ("not_measured" if not known else "equivalent" if states == {"equivalent"} else "undecided")
    # The one farthest from the retain model among those that give the part its state.
    telling = [p for p in known if p.state == state] or list(known)
    far = max((p for p in telling if p.share is not None), key=lambda p: abs(p.share or 0.0), default=None)
    text = {
        "equivalent": "Like a model that never knew, on every measure.",
        "towards": "Nearer to the model that knows than a model that never knew.",
        "beyond": "Over-forgotten: less than a model that never knew.",
        "mixed": "Over-forgotten on some measures, and still there on others.",
        "undecided": "These rows do not decide every measure.",
        "not_measured": "Nothing was measured on the forget rows.",
    }[state]
    share, lo, hi = (None, None, None) if far is None else (far.share, far.lo, far.hi)
    return {"state": state, "share": share, "lo": lo, "hi": hi, "text": text}


def _damage(harm: Sequence[VerdictPoint]) -> dict[str, Any]:
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


def _testing(facts: AuditFacts, known: Sequence[VerdictPoint]) -> dict[str, Any]:
    controlled = {"teach"} if any(c.teaches and c.controlled for c in facts.attacks) else set()
    done = [t for t in TESTS if _states(known, t) and (t != "teach" or t in controlled)]
    missing = [{"test": t, "text": MISSING[t], "command": facts.commands.get(t, "")} for t in TESTS if t not in done]
    deep = all(t in done for t in DEEP)
    return {"state": "deep" if deep else "shallow", "done": done, "missing": missing,
            "text": testing_text(done, missing)}  # fmt: skip


def _secrets(facts: AuditFacts) -> dict[str, Any] | None:
    s = facts.secrets
    if s is None:
        return None
    text = f"{'Still says' if s.said else 'Says'} {s.said} of {s.with_secret} secrets"
    keys = ("rows", "with_secret", "said", "lo", "hi", "retain", "full")
    out: Mapping[str, Any] = {key: getattr(s, key) for key in keys}
    return {**out, "text": text}


# ---- from finished runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeAsk:
    """Directories of finished runs. Several retain runs are models of other training seeds."""

    model: Sequence[Path]  # its evaluations
    full: Sequence[Path] = ()
    retain: Sequence[Path] = ()
    depth: Path | None = None  # of the model: the directory with its summary.json
    stress: Sequence[Path] = ()  # its attacks, with the retain model's as the control


def judge_runs(ask: JudgeAsk, rule: VerdictRule = RULE) -> dict[str, Any]:
    """The verdict on one model from directories alone."""
    return verdict(facts_in(ask), rule)


def facts_in(ask: JudgeAsk) -> AuditFacts:
    """The facts of a verdict from directories alone."""
    model = model_runs(ask.model)
    outputs = handlers(model.values)
    if ask.depth:
        model = replace(model, depth=depth_records(ask.depth), values={**model.values, "uds": depth_value(ask.depth)})
    controls: list[AttackedRun] = []
    for place in ask.stress:
        by_model = attacked_runs(place)
        model = replace(model, attacks=[*model.attacks, *by_model.get("model", ())])
        controls += by_model.get("retain", ())
    retain = [model_runs([p]) for p in ask.retain]
    if retain:
        retain[0] = replace(retain[0], attacks=controls)
    full = model_runs(ask.full) if ask.full else None
    return facts_of(model, References(full, retain), outputs)


def reading_against(model: ModelRuns, references: References, metric: str) -> str:
    """A number of the forget rows in words, against full and retain model; nothing where they do not tell."""
    holder = model.holder(metric)
    handler = holder.handler(metric) if holder else ""
    about = (split_of(metric) == "forget" and not any(word in metric for word in SIDE)) or is_attack(handler)
    if not handler or not about:
        return ""
    try:
        direction = direction_of(metric, handler)
    except UserError:
        return ""  # neither end of it means "knows"
    if direction.knows != "high" or not direction.unit:
        return ""
    found, _ = FactFinder(model, references, {}).against_retain(metric)
    return in_words(found, RULE) if found is not None else ""
