"""Readers of other people's files, with inputs drawn by hypothesis: each works or says one sentence. See fuzz_targets.

The profile is derandomised, so that CI draws the same inputs every time.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz_targets import TARGETS
from fuzz_tools import Finding, Target, attempt, bad_sentence, strategy, warm
from vestige.errors import UserError, one_line, unknown_name

# Composing a configuration takes a tenth of a second, reading rows a thousandth.
SLOW = {"overrides", "user_config", "training_words", "plan", "meta.numbers", "cli", "import"}
SLOW |= {name for name in TARGETS if name.startswith("stored.")}


def quiet(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_works_or_is_refused_in_one_sentence(name: str) -> None:
    target = TARGETS[name]
    assert warm(target), "a target whose seeds are refused would only ever test the refusal"

    @quiet(5 if name in SLOW else 40)
    @given(strategy(target))
    def check(data: bytes) -> None:
        found = attempt(target, data)
        assert found is None, f"{found.what} ({found.where})\n{found.trace}" if found else ""

    check()


@quiet(200)
@given(st.text())
def test_messages_stay_on_one_line(text: str) -> None:
    for error in (UserError(text), unknown_name("metric", text, ["rouge", "loss"])):
        if text.strip() or error.__class__ is not UserError:
            assert not bad_sentence(str(error)) or not one_line(text).strip()


def test_the_harness_sees_what_it_should_see() -> None:
    """Each kind of failure is a finding; a fuzzer that finds nothing must not be one that cannot."""

    def run(data: bytes, place: object) -> None:
        if data == b"bug":
            raise KeyError("x")
        if data == b"long":
            raise UserError("ok.")
        if data == b"loop":
            while True:
                pass

    target = Target("t", "bytes", run, lambda: [b"fine"])
    assert attempt(target, b"fine") is None and attempt(target, b"long") is None
    found = attempt(target, b"bug")
    assert isinstance(found, Finding) and found.what.startswith("KeyError")
    assert bad_sentence("a\nb") and bad_sentence(" ") and bad_sentence("x" * 2000) and not bad_sentence("All is well.")
