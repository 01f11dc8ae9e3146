"""A verdict in sentences: the headline, what could have been seen, and the limits.

No threshold is in this file.
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
    towards = _tests_in_words(known, "towards", KNOWS)
    if word == "damaged":
        return _damaged(known, harm, towards)
    if word == "not_forgotten":
        return f"It has not forgotten: it still {towards or 'says nearly all of the forgotten answers'}."
    if word == "partly":
        # A test with one measure towards the full model is not called equal because of another measure.
        held = {point.test for point in known if point.state == "towards"}
        equal = _tests_in_words([point for point in known if point.test not in held], "equivalent", EQUAL)
        though = f", though it {equal}" if equal else ""
        return f"It has forgotten in part: it still {towards}{though}."
    if word == "forgotten":
        return "Every test finds what it finds in a model that never knew the rows, and its other abilities are kept."
    if word == "looks_forgotten":
        return _looks_forgotten(known, harm)
    if not facts.has_retain:
        return "This cannot be decided: without a retain model forgetting cannot be told from never having known."
    return "This cannot be decided: " + ("these rows are too few." if known else "nothing was measured.")


def _damaged(known: Sequence[VerdictPoint], harm: Sequence[VerdictPoint], towards: str) -> str:
    """Why it is damaged: what broke, and whether it leaks all the same."""
    broken = {point.panel: point for point in reversed(harm) if point.state == "damaged"}  # the first of each panel
    reasons = []
    if "utility" in broken:
        reasons.append(f"it kept {percent(broken['utility'].share or 0.0)} of its other abilities")
    if "fluency" in broken:
        reasons.append("its texts are broken")
    beyond = _tests_in_words(known, "beyond", BEYOND)
    if beyond:
        reasons.append(f"it {beyond} than a model that never knew")
    leaks = f"; and it still leaks: it {towards}" if towards else ""
    head = "It is damaged rather than forgetful" if broken else "It is over-forgotten, which itself is a trace"
    return f"{head}: {_joined(reasons)}{leaks}."


def _looks_forgotten(known: Sequence[VerdictPoint], harm: Sequence[VerdictPoint]) -> str:
    """What speaks for forgetting, and what was not decided or not tested."""
    undecided, untested = [], []
    for test, words in TESTS.items():
        states = {point.state for point in known if point.test == test}
        if not states:
            untested.append(words)
        elif "undecided" in states:
            undecided.append(words)
    parts = [f"It {_tests_in_words(known, 'equivalent', EQUAL)} than a model that never knew"]
    if undecided:
        parts.append(f"not decided: {_joined(undecided)}")
    if untested:
        parts.append(f"not tested: {_joined(untested)}")
    if "utility" not in {point.panel for point in harm}:
        parts.append("whether its other abilities survived was not measured")
    elif "undecided" in {point.state for point in harm}:
        parts.append("whether its other abilities survived is not decided")
    return "; ".join(parts) + "."


def _tests_in_words(points: Sequence[VerdictPoint], state: str, words: Mapping[str, str]) -> str:
    """The tests with that state. A test counts as equal only if all of its measures are, unless no test is so."""
    some, wholly = [], []
    for test in TESTS:
        states = {point.state for point in points if point.test == test}
        if state in states:
            some.append(test)
        if states == {state}:
            wholly.append(test)
    chosen = wholly if state == "equivalent" and wholly else some
    return _joined([words[test] for test in chosen if test in words])


def _joined(words: Sequence[str]) -> str:
    """
    >>> _joined(["a"]), _joined(["a", "b"]), _joined(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def testing_text(done: Sequence[str], missing: Sequence[Mapping[str, str]]) -> str:
    """Which tests were not made, in one sentence."""
    if not missing:
        return "Tested: what it says and finds likely, membership, layers, and both kinds of attacks."
    lacking = _joined([TESTS[m["test"]] for m in missing])
    return f"Not tested: {lacking}." if done else "Nothing was tested against a retain model."


def power_part(facts: AuditFacts, margin: float, rule: VerdictRule) -> dict[str, Any]:
    """The smallest remaining knowledge that would have been found, by the most sensitive measure of outputs."""
    best: float | None = None  # share of the way to the full model
    secrets: float | None = None  # share of the secrets
    for measure in facts.measures:
        contrast = measure.contrast
        if contrast is None:
            continue
        share = contrast.detectable(margin_at(measure.test, margin, rule), rule.tail, rule.power)
        if not share:
            continue
        if not measure.secrets:
            best = share if best is None else min(best, share)
        elif secrets is None:
            secrets = share * contrast.scale
    if secrets is not None and facts.secrets and facts.secrets.with_secret:
        # One text that says it must come up at all: 1 - (1 - share)^n.
        secrets = max(secrets, 1 - (1 - rule.power) ** (1 / facts.secrets.with_secret))
    detectable = []
    if best is not None:
        detectable.append(f"{percent(min(best, 1))} of the way to the full model")
    if secrets is not None:
        detectable.append(f"{percent(min(secrets, 1))} of the secrets")
    few = _fewest_clusters(facts)
    if detectable:
        shown = " or ".join(detectable)
        text = f"These rows would have shown {shown}, if still there, with {percent(rule.power)} probability."
    elif few is not None and few < rule.fewest:
        text = f"With only {counted(few, 'cluster')} of rows it is not known what would have been seen."
    else:
        text = "Without values for single rows it is not known what would have been seen."
    return {"share": best, "secrets": secrets, "text": text}


def _fewest_clusters(facts: AuditFacts) -> int | None:
    """The smallest number of clusters that a measure rests on; None where rows are independent."""
    contrasts = [m.contrast for m in facts.measures if m.contrast is not None]
    return min((c.clusters for c in contrasts if c.clusters), default=None)


def limits(facts: AuditFacts, rule: VerdictRule) -> list[str]:
    """What a reader must not conclude, as sentences."""
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
    contrasts = [m.contrast for m in facts.measures if m.contrast is not None]
    if any(c.var_gap is None for c in contrasts):
        out.append("Some numbers come without values for single rows: their uncertainty is not known.")
    elif any(c.rows is None for c in contrasts):
        out.append("Some numbers were compared by their intervals: without values for single rows nothing is paired.")
    few = _fewest_clusters(facts)
    if few is not None and few < rule.fewest:
        out.append(f"There are only {few} clusters: with fewer than {rule.fewest} equality is never concluded.")
    if facts.has_retain and facts.retain_runs < 2:
        out.append("One retain model was given: how much training seeds alone change it is not known.")
    elif facts.has_retain:
        out.append(f"{facts.retain_runs} retain models were given; the spread between them is part of the margin.")
    drawn = "clusters of rows" if facts.clustered else "rows"
    out.append(f"Intervals cover sampling of {drawn}, not of training seeds.")
    return [*out, *facts.notes]
