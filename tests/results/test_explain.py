"""`vestige explain`: every handler has words."""

from __future__ import annotations

import re

import pytest

import vestige.suites  # noqa: F401 - registers the handlers
from loops import one_test
from vestige.cli import main
from vestige.metrics.cards import CARDS
from vestige.metrics.dialects import DIALECTS
from vestige.runs.explain import explain
from vestige.suites.postprocess import FROM_CODE
from vestige.suites.registry import HANDLERS

# FROM_CODE is what numbers of a user's code are filed under, not a metric.
BUILT_IN = sorted(n for n, h in HANDLERS.items() if h.score.__module__.startswith("vestige.") and n != FROM_CODE)


@one_test("name", BUILT_IN)
def test_every_handler_is_explained_in_full(name: str) -> None:
    words = CARDS[name]
    for text in (words.formula, words.high, words.low, words.tokens):
        assert len(text) > 5
    out = explain(name)
    for head in ("formula", "high", "low", "tokens", "source"):
        assert re.search(rf"^{head} +\S", out, re.M), head


@one_test(
    ("name", "needles"),
    [
        ("forget_quality", ["in tofu: handler ks_test", "parents forget_truth_ratio"]),
        ("model_utility", ["Harmonic", "retain_Q_A_Prob"]),
        ("strict", ["dialect, version", "extraction floor"]),
        ("open-unlearning", ["tokens equal to the pad token are hidden"]),
        ("forget_Q_A_ROUGE", ["as written in the data"]),
    ],
)
def test_names_of_every_kind(name: str, needles: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert [n for n in needles if n not in out] == []


def test_alone_it_lists_and_a_wrong_name_gets_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert [n for n in (*BUILT_IN, *DIALECTS, "forget_quality") if n not in out] == []
    assert main(["explain", "forget_qualty"]) == 2
    assert "Did you mean 'forget_quality'" in capsys.readouterr().err
