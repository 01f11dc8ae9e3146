"""A verdict in sentences: the headline, what could have been seen, and the limits.

In: evidence and facts. Out: sentences. Caller: verdict/judge.py. No threshold is in this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vestige.numeric import counted, percent
from vestige.verdict.facts import AuditFacts
from vestige.verdict.points import VerdictPoint, margin_at
from vestige.verdict.rule import TESTS, VerdictRule

EQUAL = {
    "says": "says no more of the forgotten answers",
    "likely": "finds them no more likely",
    "membership": "shows an attacker no more",
    "layers": "holds no more in its layers",
    "teach": "learns them no faster",
    "disturb": "gives no more away under attack",
}
KNOWS = {
    "says": "says the forgotten answers",
    "likely": "finds them likely",
    "membership": "shows an attacker that it was trained on them",
    "layers": "holds them in its layers",
    "teach": "learns them again too fast to have lost them",
    "disturb": "gives them away under attack",
}
BEYOND = {
    "says": "says less of the forgotten answers",
    "likely": "finds them less likely",
    "membership": "finds the rows stranger",
}


def headline(word: str, known: Sequence[VerdictPoint], harm: Sequence[VerdictPoint], facts: AuditFacts) -> str:
    """One sentence that gives the word its reason."""
    towards = _of(known, "towards", KNOWS)
    if word == "damaged":
        return _damaged(known, harm, towards)
    if word == "not_forgotten":
        return f"It has not forgotten: it still {towards or 'says nearly all of the forgotten answers'}."
    if word == "partly":
        held = {p.test for p in known if p.state == "towards"}
        equal = _of([p for p in known if p.test not in held], "equivalent", EQUAL)
        return f"It has forgotten in part: it still {towards}" + (f", though it {equal}." if equal else ".")
    if word == "forgotten":
        return "Every test finds what it finds in a model that never knew the rows, and its other abilities are kept."
    if word == "looks_forgotten":
        return _looks(known, harm)
    if not facts.has_retain:
        return "This cannot be decided: without a retain model forgetting cannot be told from never having known."
    return "This cannot be decided: " + ("these rows are too few." if known else "nothing was measured.")


def _damaged(known: Sequence[VerdictPoint], harm: Sequence[VerdictPoint], towards: str) -> str:
    broken = [p for p in harm if p.state == "damaged"]
    reasons = []
    if any(p.panel == "utility" for p in broken):
        kept = next(p.share for p in broken if p.panel == "utility")
        reasons.append(f"it kept {percent(kept or 0.0)} of its other abilities")
    if any(p.panel == "fluency" for p in broken):
        reasons.append("its texts are broken")
    beyond = _of(known, "beyond", BEYOND)
    if beyond:
        reasons.append(f"it {beyond} than a model that never knew")
    leaks = f"; and it still leaks: it {towards}" if towards else ""
    head = "It is damaged rather than forgetful" if broken else "It is over-forgotten, which itself is a trace"
    return f"{head}: {_joined(reasons)}{leaks}."


def _looks(known: Sequence[VerdictPoint], harm: Sequence[VerdictPoint]) -> str:
    equal = _of(known, "equivalent", EQUAL)
    open_ = [TESTS[t] for t in TESTS if any(p.test == t and p.state == "undecided" for p in known)]
    absent = [TESTS[t] for t in TESTS if not any(p.test == t for p in known)]
    tail = f"; not decided: {_joined(open_)}" if open_ else ""
    tail += f"; not tested: {_joined(absent)}" if absent else ""
    if not any(p.panel == "utility" for p in harm):
        tail += "; whether its other abilities survived was not measured"
    elif any(p.state == "undecided" for p in harm):
        tail += "; whether its other abilities survived is not decided"
    return f"It {equal} than a model that never knew{tail}."


def _of(points: Sequence[VerdictPoint], state: str, words: Mapping[str, str]) -> str:
    """The tests with that state, in words; a test counts as equal only if all of its measures are."""
    mine = {t: {p.state for p in points if p.test == t} for t in TESTS}
    found = [t for t, states in mine.items() if state in states and (state != "equivalent" or len(states) == 1)]
    if state == "equivalent" and not found:
        found = [t for t, states in mine.items() if state in states]
    return _joined([words[t] for t in found if t in words])


def _joined(words: Sequence[str]) -> str:
    """
    >>> _joined(["a"]), _joined(["a", "b"]), _joined(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def testing_text(done: Sequence[str], missing: Sequence[Mapping[str, str]]) -> str:
    if not missing:
        return "Tested: what it says and finds likely, membership, layers, and both kinds of attacks."
    lacking = _joined([TESTS[m["test"]] for m in missing])
    return f"Not tested: {lacking}." if done else "Nothing was tested against a retain model."


def power_part(facts: AuditFacts, margin: float, rule: VerdictRule) -> dict[str, Any]:
    """The smallest remaining knowledge that would have been found, by the most sensitive measure of outputs."""
    shares = [
        (x, m)
        for m in facts.measures
        if m.contrast and (x := m.contrast.detectable(margin_at(m.test, margin, rule), rule.tail, rule.power))
    ]
    best = min((x for x, m in shares if not m.secrets), default=None)
    secrets = next((x * (m.contrast.scale if m.contrast else 0.0) for x, m in shares if m.secrets), None)
    if secrets is not None and facts.secrets and facts.secrets.with_secret:
        # One text that says it must come up at all: 1 - (1 - share)^n.
        secrets = max(secrets, 1 - (1 - rule.power) ** (1 / facts.secrets.with_secret))
    told = [f"{percent(min(best, 1))} of the way to the full model"] if best is not None else []
    told += [f"{percent(min(secrets, 1))} of the secrets"] if secrets is not None else []
    text = "Without values for single rows it is not known what would have been seen."
    few = min((m.contrast.clusters for m in facts.measures if m.contrast and m.contrast.clusters), default=None)
    if few is not None and few < rule.fewest:
        text = f"With only {counted(few, 'cluster')} of rows it is not known what would have been seen."
    if told:
        text = (
            f"These rows would have shown {' or '.join(told)}, if still there, with {percent(rule.power)} probability."
        )
    return {"share": best, "secrets": secrets, "text": text}


def limits(facts: AuditFacts, known: Sequence[VerdictPoint], rule: VerdictRule) -> list[str]:
    out = []
    if not facts.has_retain:
        out.append("Without a retain model forgetting cannot be told from never having known: nothing to compare with.")
    if not facts.has_full:
        out.append("Without the full model it is not known how much there was to forget.")
    tried = list(dict.fromkeys(c.attack for c in facts.attacks))
    if tried:
        were = "was" if len(tried) == 1 else "were"
        out.append(f"Only {', '.join(tried)} {were} tried; other attacks may bring more back.")
    if any(c.teaches and not c.controlled for c in facts.attacks):
        out.append("Attacks without a control: what they teach cannot be told from what they bring back.")
    if any(m.contrast is not None and m.contrast.var_gap is None for m in facts.measures):
        out.append("Some numbers come without values for single rows: their uncertainty is not known.")
    elif any(m.contrast is not None and m.contrast.rows is None for m in facts.measures):
        out.append("Some numbers were compared by their intervals: without values for single rows nothing is paired.")
    few = min((m.contrast.clusters for m in facts.measures if m.contrast and m.contrast.clusters), default=None)
    if few is not None and few < rule.fewest:
        out.append(f"There are only {few} clusters: with fewer than {rule.fewest} equality is never concluded.")
    if facts.has_retain:
        one = "One retain model was given: how much training seeds alone change it is not known."
        many = f"{facts.retain_runs} retain models were given; the spread between them is part of the margin."
        out.append(one if facts.retain_runs < 2 else many)
    drawn = "clusters of rows" if facts.clustered else "rows"
    out.append(f"Intervals speak of other {drawn}, not of other training seeds.")
    return [*out, *facts.notes]
