"""`vestige explain`: every handler has words, and the numbers shown are those of the real functions."""

from __future__ import annotations

import re

import pytest

import vestige.suites  # noqa: F401 - registers the handlers
from loops import one_test
from vestige.cli import main
from vestige.metrics.cards import CARDS
from vestige.metrics.dialects import DIALECTS
from vestige.results.explain import explain
from vestige.results.worked import worked
from vestige.suites.handlers.from_code import FROM_CODE
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
    example = worked(name, {})
    assert example is not None
    for line, compute in example.lines:
        for dialect in DIALECTS.values():
            assert compute(dialect) is not None, line


def values(name: str, line: str) -> list[float]:
    """The numbers in one line of the printed example, a column a dialect."""
    found = re.search(rf"^  {re.escape(line)} +([-\d. e]+)$", explain(name), re.M)
    assert found, line
    return [float(x) for x in found[1].split()]


def test_extraction_strength_shows_the_floor_and_the_end_token() -> None:
    assert list(DIALECTS)[:2] == ["open-unlearning", "strict"]
    assert values("extraction_strength", "A")[:2] == [0.3333, 0.0]  # hits 1 1 0 0: the floor
    assert values("extraction_strength", "B")[:2] == [0.3333, 0.25]  # hits 1 1 0 1: the end counts, or does not
    assert values("extraction_strength", "C")[:2] == [1.0, 0.5]  # one wrong word and a right end


def test_min_k_counts_other_tokens_by_dialect() -> None:
    # Lowest two fifths: of four tokens one (-0.4), of five two (-3.2 and -0.4).
    assert values("mia_min_k", "score of forget 0")[:2] == [0.4, 1.8]


@one_test(
    ("name", "needles"),
    [
        ("forget_quality", ["in tofu: handler ks_test", "parents forget_truth_ratio", "D "]),
        ("model_utility", ["Harmonic", "retain_Q_A_Prob"]),
        ("strict", ["dialect, version", "extraction_strength"]),
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
