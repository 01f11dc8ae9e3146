"""Did it forget? Every word of the verdict, from facts made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vestige.stats.contrast import Contrast
from vestige.verdict.facts import AttackCurve, AttackPoint, AuditFacts, Measure, SecretCounts
from vestige.verdict.judge import judge_facts as verdict
from vestige.verdict.points import knowledge_points, state_of
from vestige.verdict.rule import DEEP, RULE, TESTS, TITLES


def on_way(share: float, scale: float = 0.7, se: float = 0.05, **more: float) -> Contrast:
    """A gap of that share of the way, known to a standard error of that share."""
    return Contrast(share * scale, scale, (se * scale) ** 2, rows=400, clusters=20, df=19, **more)


def measure(test: str, share: float, se: float = 0.05, **more: bool) -> Measure:
    scale = 1.0 if test == "layers" else 0.7
    value = 1 - share if test == "layers" else 0.2 + 0.7 * share
    retain, full = (1.0, 0.0) if test == "layers" else (0.2, 0.9)
    return Measure(f"{test}_metric", test, value, None, None, retain, full, on_way(share, scale, se), **more)


def curve(share: float | Sequence[float], teaches: bool, se: float = 0.05, controlled: bool = True) -> AttackCurve:
    each = [share] if isinstance(share, float) else share
    points = [AttackPoint(float(2 * i + 2), 0.4 + 0.7 * x, 0.4, on_way(x, 0.7, se)) for i, x in enumerate(each)]
    name, unit = ("relearn", "steps") if teaches else ("quantise", "bits")
    return AttackCurve(name, "prob", teaches, points, controlled, 0.2, unit)


def utility(kept: float, se: float = 0.03) -> Measure:
    return Measure(
        "model_utility", "utility", 0.6 * kept, full=0.6, contrast=Contrast(0.6 * (kept - 1), 0.6, (0.6 * se) ** 2)
    )


WHOLE = AuditFacts(
    measures=[measure(test, 0.02) for test in ("says", "likely", "membership", "layers")],
    attacks=[curve(0.02, True), curve(0.02, False)],
    utility=utility(1.0),
    has_retain=True,
    has_full=True,
)


def changed(facts: AuditFacts, test: str, share: float | None, se: float = 0.05) -> AuditFacts:
    """The same facts with another result of one test; None: the test was not made."""
    if test in ("teach", "disturb"):
        others = [c for c in facts.attacks if c.teaches != (test == "teach")]
        return replace(facts, attacks=[*others, *([] if share is None else [curve(share, test == "teach", se)])])
    others_ = [m for m in facts.measures if m.test != test]
    return replace(facts, measures=[*others_, *([] if share is None else [measure(test, share, se)])])


def word(facts: AuditFacts) -> str:
    found = verdict(facts)
    assert found["title"] == TITLES[found["word"]] and found["headline"].endswith(".")
    return str(found["word"])


# ---- every word ---------------------------------------------------------------------------------------------------


def test_everything_like_the_retain_model_and_tested_deeply_is_forgotten() -> None:
    found = verdict(WHOLE)
    assert found["word"] == "forgotten" and found["also"] is None and found["rows_needed"] is None
    assert {e["state"] for e in found["evidence"]} == {"equivalent", "kept"}
    assert found["parts"]["testing"] == {
        "state": "deep", "done": list(TESTS), "missing": [], "text": found["parts"]["testing"]["text"]
    }  # fmt: skip
    assert found["parts"]["knowledge"]["state"] == "equivalent" and found["parts"]["damage"]["state"] == "kept"


@pytest.mark.parametrize("test", TESTS)
def test_without_a_test_it_is_never_forgotten_and_the_command_is_told(test: str) -> None:
    facts = replace(changed(WHOLE, test, None), commands={test: "vestige something"})
    found = verdict(facts)
    assert found["word"] == "looks_forgotten"
    assert [(m["test"], m["command"]) for m in found["parts"]["testing"]["missing"]] == [(test, "vestige something")]
    assert found["parts"]["testing"]["state"] == ("shallow" if test in DEEP else "deep")
    assert "not tested" in found["headline"]


@pytest.mark.parametrize("test", TESTS)
def test_a_test_that_does_not_decide_is_not_one_that_was_passed(test: str) -> None:
    found = verdict(changed(WHOLE, test, 0.1, se=0.2))
    assert found["word"] == "looks_forgotten" and "not decided" in found["headline"]
    assert found["rows_needed"] > 400


@pytest.mark.parametrize("test", TESTS)
def test_towards_the_full_model_on_one_measure_is_partly(test: str) -> None:
    found = verdict(changed(WHOLE, test, 0.45))
    assert found["word"] == "partly" and found["parts"]["knowledge"]["state"] == "towards"
    assert found["parts"]["knowledge"]["share"] == pytest.approx(0.45)


@pytest.mark.parametrize("test", [t for t in TESTS if t != "membership"])
def test_more_than_half_of_it_still_there_is_not_forgotten(test: str) -> None:
    """Whatever shows it: knowledge that an attack brings back, or that layers hold, was not forgotten."""
    assert word(changed(WHOLE, test, 0.9)) == "not_forgotten"


def test_traces_of_training_alone_are_partly() -> None:
    assert word(changed(WHOLE, "membership", 0.9)) == "partly"


@pytest.mark.parametrize("test", ["says", "likely", "membership"])
def test_less_than_a_model_that_never_knew_is_damaged(test: str) -> None:
    found = verdict(changed(WHOLE, test, -0.6))
    assert found["word"] == "damaged" and found["parts"]["knowledge"]["state"] == "beyond" and found["also"] is None


def test_a_ruined_model_is_damaged_and_what_it_leaks_is_stated() -> None:
    ruined = replace(WHOLE, utility=utility(0.62))
    assert word(ruined) == "damaged"
    found = verdict(changed(ruined, "teach", 0.9))
    assert found["word"] == "damaged" and found["also"] == "still leaks" and "still leaks" in found["headline"]


def test_texts_in_circles_are_damage_whatever_utility_says() -> None:
    rep = Measure("repetition", "repetition", 0.7, retain=0.05, full=0.04, contrast=Contrast(0.65, 1.0, 0.05**2))
    calm = replace(rep, value=0.06, contrast=Contrast(0.01, 1.0, 0.02**2))
    odd = Measure("said", "said_likelihood", 0.05, retain=0.4, contrast=Contrast(0.35, 0.4, 0.02**2))
    assert word(replace(WHOLE, fluency=[rep])) == "damaged" == word(replace(WHOLE, fluency=[odd]))
    assert word(replace(WHOLE, fluency=[calm])) == "forgotten"
    assert verdict(replace(WHOLE, fluency=[rep]))["parts"]["damage"]["fluency"] == 0.7


def test_too_few_rows_cannot_tell_and_say_how_many_would() -> None:
    facts = AuditFacts([measure("says", 0.05, 0.3), measure("likely", 0.1, 0.3)], has_retain=True, has_full=True)
    found = verdict(facts)
    assert found["word"] == "cannot_tell" and found["rows_needed"] > 2000
    again = [measure(t, x, 0.3 * np.sqrt(400 / found["rows_needed"])) for t, x in (("says", 0.05), ("likely", 0.1))]
    assert word(replace(facts, measures=again)) == "looks_forgotten"  # so many would have been enough


def test_without_a_retain_model_only_reciting_can_be_told() -> None:
    def says(value: float) -> AuditFacts:
        return AuditFacts([Measure("rouge", "says", value, value - 0.02, value + 0.02, full=0.97)], has_full=True)

    assert word(says(0.3)) == "cannot_tell" and word(says(0.95)) == "not_forgotten"
    assert "retain model" in verdict(says(0.3))["headline"]
    assert word(replace(says(0.3), secrets=SecretCounts(40, 38, 36, 0.85, 0.99))) == "not_forgotten"
    assert word(AuditFacts()) == "cannot_tell"


# ---- attacks over their budgets -----------------------------------------------------------------------------------


def test_an_attack_is_judged_over_all_budgets_with_a_correction_for_the_choice() -> None:
    """One budget of three at a share that a single test would just call towards."""
    just = 0.2 + 1.8 * 0.05
    assert word(replace(WHOLE, attacks=[curve(just, True), curve(0.02, False)])) == "partly"
    (point,) = knowledge_points(AuditFacts(attacks=[curve([0.0, just, 0.0], True)], has_retain=True), RULE)
    assert point.state == "undecided" and "3 budgets" in point.text
    strong = verdict(replace(WHOLE, attacks=[curve([0.0, 0.5, 0.01], True), curve(0.02, False)]))
    assert strong["word"] in ("partly", "not_forgotten")
    told = next(e for e in strong["evidence"] if e["state"] == "towards")
    assert told["share"] == pytest.approx(0.5) and "4 steps" in told["text"] and "strongest of 3" in told["text"]


def test_one_open_budget_keeps_an_attack_from_being_passed() -> None:
    wide = replace(curve([0.0, 0.15], True), points=[*curve([0.0], True).points, *curve([0.15], True, se=0.1).points])
    assert word(replace(WHOLE, attacks=[wide, curve(0.02, False)])) == "looks_forgotten"


def test_teaching_without_a_control_proves_nothing() -> None:
    lone = replace(WHOLE, attacks=[curve(0.9, True, controlled=False), curve(0.02, False)])
    found = verdict(lone)
    assert found["word"] == "looks_forgotten"
    assert [m["test"] for m in found["parts"]["testing"]["missing"]] == ["teach"]
    assert word(replace(WHOLE, attacks=[curve(0.02, True), curve(0.9, False, controlled=False)])) == "not_forgotten"


# ---- statistics ---------------------------------------------------------------------------------------------------


def test_numbers_without_rows_can_be_far_away_and_never_equal() -> None:
    bare = [state_of(Contrast(0.7 * x, 0.7), 0.2, RULE) for x in (-0.6, 0.0, 0.6)]
    assert bare == ["beyond", "undecided", "towards"]
    numbers = [replace(m, contrast=Contrast(m.contrast.gap, m.contrast.scale)) for m in WHOLE.measures if m.contrast]
    found = verdict(replace(WHOLE, measures=numbers))
    assert found["word"] == "cannot_tell" and any("single rows" in x for x in found["limits"])


def test_few_clusters_never_conclude_equality() -> None:
    few = replace(on_way(0.0, se=0.001), clusters=4, df=3)
    assert state_of(few, 0.2, RULE) == "undecided"
    assert state_of(replace(few, clusters=5, df=4), 0.2, RULE) == "equivalent"


def test_the_interval_is_fiellers_and_its_ends_are_the_tests() -> None:
    """Against a simulation: gap and scale of the same rows, so that the error of the scale is in the interval."""
    rng = np.random.default_rng(0)
    truth, hits, n, runs = 0.3, 0, 60, 400
    for _ in range(runs):
        retain = rng.normal(0.2, 0.1, n)
        full, model = retain + rng.normal(0.6, 0.2, n), retain + rng.normal(0.6 * truth, 0.15, n)
        gap, scale = model - retain, full - retain
        cov = np.cov(gap, scale) / n
        found = Contrast(gap.mean(), scale.mean(), cov[0, 0], cov[1, 1], cov[0, 1], n - 1)
        lo, hi = found.ends(0.05) or (np.nan, np.nan)
        hits += lo <= truth <= hi
        if lo > -np.inf:
            y = gap - lo * scale  # at an end, the test is just at its level
            assert y.mean() / (y.std(ddof=1) / np.sqrt(n)) == pytest.approx(1.671, abs=0.002)
    assert 0.85 < hits / runs < 0.95


def test_what_would_have_been_detected_is_detected_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    share = on_way(0.0).detectable(RULE.margin, RULE.tail, RULE.power)
    assert share is not None
    noise = rng.normal(0, 0.05 * 0.7, 2000)
    seen = [state_of(replace(on_way(share), gap=0.7 * share + e), RULE.margin, RULE) == "towards" for e in noise]
    assert 0.76 < np.mean(seen) < 0.84
    power = verdict(WHOLE)["power"]
    assert power["share"] == pytest.approx(share) and power["secrets"] is None and "80 %" in power["text"]


def test_several_retain_runs_widen_the_margin_and_one_is_a_limit() -> None:
    near = changed(WHOLE, "likely", 0.15)
    assert word(near) == "looks_forgotten"
    several = replace(near, retain_runs=3, retain_spread=0.06)
    found = verdict(several)
    assert found["word"] == "forgotten" and found["margin"] == pytest.approx(0.26)
    assert any("3 retain models" in x for x in found["limits"])
    assert any("One retain model" in x for x in verdict(WHOLE)["limits"])
    assert verdict(replace(several, retain_spread=5.0))["margin"] == pytest.approx(2 * RULE.margin)


# ---- fewer tests never give a better verdict ----------------------------------------------------------------------

shares = st.sampled_from([0.0, 0.02, 0.1, 0.19, 0.25, 0.35, 0.9, -0.1, -0.3, -0.6])
results = st.fixed_dictionaries({t: st.none() | st.tuples(shares, st.sampled_from([0.02, 0.05, 0.2])) for t in TESTS})


@settings(max_examples=300, deadline=None)
@given(results, st.sampled_from([None, 0.62, 0.82, 1.0]), st.sampled_from(list(TESTS)))
def test_leaving_a_test_out_never_makes_it_forgotten(found: dict, kept: float | None, test: str) -> None:  # type: ignore[type-arg]
    facts = replace(WHOLE, utility=None if kept is None else utility(kept))
    for name, result in found.items():
        facts = changed(facts, name, *(result or (None,)))
    before, after = word(facts), word(changed(facts, test, None))
    assert after != "forgotten"
    states = {p.state for p in knowledge_points(facts, RULE) if p.test == test}
    if states <= {"equivalent", "undecided"}:  # evidence that speaks against it may go, and then it looks better
        order = ["not_forgotten", "damaged", "partly", "cannot_tell", "looks_forgotten", "forgotten"]
        assert order.index(after) <= order.index(before)


@settings(max_examples=100, deadline=None)
@given(results, st.sampled_from([0.62, 1.0]))
def test_forgotten_takes_every_test_and_nothing_against_it(found: dict, kept: float) -> None:  # type: ignore[type-arg]
    facts = replace(WHOLE, utility=utility(kept))
    for name, result in found.items():
        facts = changed(facts, name, *(result or (None,)))
    if word(facts) == "forgotten":
        assert all(found.values()) and kept == 1.0
        assert {p.state for p in knowledge_points(facts, RULE)} == {"equivalent"}
