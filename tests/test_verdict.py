"""Did it forget? Every branch of the verdict, from numbers made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vestige.compare.verdict import AuditFacts, Measure, Recovery, judge, verdict

SAYS = Measure("rouge", 0.22, 0.2, 0.25, 400, retain=0.2, full=0.95)
LIKELY = Measure("prob", 0.12, 0.1, 0.14, 400, retain=0.1, full=0.98)
MEMBER = Measure("mia_min_k", 0.52, 0.48, 0.55, 800, retain=0.5, full=1.0)
DEEP = Measure("uds", 0.93, 0.9, 0.95, 400)
CALM = Recovery("relearn", "prob", 0.12, 0.2, 0.1, 0.19, 0.98)
UTILITY = Measure("model_utility", 0.58, 0.55, 0.6, 400, retain=0.6, full=0.6)
WHOLE = AuditFacts(SAYS, LIKELY, MEMBER, DEEP, [CALM], UTILITY, has_retain=True, has_full=True)


def answer(facts: AuditFacts) -> str:
    return str(verdict(facts)["answer"])


def test_everything_gone_is_yes_and_says_as_far_as_was_measured() -> None:
    out = verdict(WHOLE)
    assert out["answer"] == "yes"
    assert out["headline"].startswith("As far as was measured")
    assert "other abilities are kept" in out["headline"]
    assert {e["points"] for e in out["evidence"] if e["panel"] != "utility"} == {"forgot"}
    assert {e["panel"] for e in out["evidence"]} == {"says", "likely", "roc", "layers", "attacks", "utility"}


def test_silent_outputs_over_full_layers_is_partly() -> None:
    out = verdict(replace(WHOLE, layers=Measure("uds", 0.3, 0.25, 0.35, 400)))
    assert out["answer"] == "partly"
    assert "still holds them in its layers" in out["headline"]


def test_what_comes_back_under_attack_is_partly() -> None:
    back = Recovery("relearn", "prob", 0.12, 0.9, 0.1, 0.2, 0.98)
    out = verdict(replace(WHOLE, attacks=[CALM, back]))
    assert out["answer"] == "partly"  # one attack that brings it back outweighs one that does not
    assert "shows them under attack" in out["headline"]


def test_a_control_that_learns_as_fast_shows_that_the_attack_taught() -> None:
    taught = Recovery("relearn", "prob", 0.12, 0.9, 0.1, 0.88, 0.98)
    assert answer(replace(WHOLE, attacks=[taught])) == "yes"


def test_reciting_is_no() -> None:
    out = verdict(replace(WHOLE, says=Measure("rouge", 0.9, 0.87, 0.93, 400, retain=0.2, full=0.95)))
    assert out["answer"] == "no"
    assert "still says them" in out["headline"]


def test_every_measure_above_the_yardstick_is_no_if_one_is_strong_and_partly_if_none_is() -> None:
    half = replace(LIKELY, value=0.55, lo=0.5, hi=0.6)
    only = AuditFacts(likely=half, has_retain=True, has_full=True)
    assert answer(only) == "partly"
    assert answer(replace(only, layers=Measure("uds", 0.1, 0.05, 0.15, 400))) == "no"


def test_outputs_alone_never_give_yes() -> None:
    out = verdict(replace(WHOLE, layers=None, attacks=()))
    assert out["answer"] == "unclear"
    limits = " ".join(out["limits"])
    assert "vestige depth" in limits and "vestige stress" in limits


def test_without_a_retain_model_nothing_is_concluded_but_reciting_is_seen() -> None:
    alone = AuditFacts(says=replace(SAYS, retain=None, full=None), membership=replace(MEMBER, retain=None))
    out = verdict(alone)
    assert out["answer"] == "unclear"
    assert "retain model" in out["headline"]
    assert any("no yardstick" in e["text"] for e in out["evidence"])
    assert any("Without a retain model" in words for words in out["limits"])
    assert answer(AuditFacts(says=Measure("rouge", 0.95, 0.92, 0.97, 400))) == "no"


def test_nothing_measured_is_unclear() -> None:
    out = verdict(AuditFacts(has_retain=True))
    assert out["answer"] == "unclear"
    assert "nothing was measured" in out["headline"]
    assert len(out["limits"]) >= 5


def test_a_ruined_model_is_unclear() -> None:
    out = verdict(replace(WHOLE, utility=replace(UTILITY, value=0.1)))
    assert out["answer"] == "unclear"
    assert "ruined" in out["headline"]


def test_lost_abilities_are_told_beside_the_answer() -> None:
    out = verdict(replace(WHOLE, utility=replace(UTILITY, value=0.36)))
    assert out["answer"] == "yes"
    assert "60%" in out["headline"]


def test_stranger_than_fresh_rows_is_no_proof_either_way() -> None:
    out = verdict(replace(WHOLE, membership=replace(MEMBER, value=0.1, lo=0.05, hi=0.15)))
    told = next(e for e in out["evidence"] if e["panel"] == "roc")
    assert told["points"] == "unclear" and "something was removed" in told["text"]


def test_a_measure_on_which_full_and_retain_agree_tells_nothing() -> None:
    flat = Measure("rouge", 0.22, 0.1, 0.3, 32, retain=0.23, full=0.24)
    assert judge(flat) == ("unclear", None)
    out = verdict(AuditFacts(says=flat, has_retain=True, has_full=True))
    assert "do not tell" in out["headline"]
    assert "too close" in out["evidence"][0]["text"]
    assert any("only 32 forget rows" in words for words in out["limits"])


@pytest.mark.parametrize(
    ("value", "lo", "hi", "expected"),
    [(0.2, 0.15, 0.25, "forgot"), (0.2, 0.0, 0.7, "unclear"), (0.6, 0.5, 0.7, "knows"), (0.6, 0.05, 1.0, "unclear")],
)
def test_an_interval_that_reaches_across_makes_a_measure_unclear(
    value: float, lo: float, hi: float, expected: str
) -> None:
    assert judge(Measure("p", value, lo, hi, 10, retain=0.0, full=1.0))[0] == expected


def test_an_attack_without_control() -> None:
    back = Recovery("quantise", "prob", 0.1, 0.8)
    assert verdict(replace(WHOLE, attacks=[back]))["answer"] == "partly"  # quantising teaches nothing
    taught = Recovery("relearn", "prob", 0.1, 0.8, teaches=True)
    out = verdict(replace(WHOLE, attacks=[taught]))
    assert next(e for e in out["evidence"] if e["panel"] == "attacks")["points"] == "unclear"
    assert any("without a control" in words for words in out["limits"])
