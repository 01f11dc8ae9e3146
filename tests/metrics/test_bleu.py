"""BLEU on sentences small enough to count by hand."""

from __future__ import annotations

import math

import pytest

from vestige.metrics.text import bleu

FOUR = "Anna wrote two novels"


@pytest.mark.parametrize(
    ("reference", "prediction", "precisions"),
    [
        (FOUR, FOUR, (1, 1, 1, 1)),
        (FOUR, "Anna wrote three novels", (3 / 4, 2 / 4, 1 / 3, 1 / 2)),
        (FOUR, "Anna wrote two novels and more", (4 / 6, 4 / 6, 3 / 5, 2 / 4)),  # longer: no penalty, and no gain
        ("the cat", "the the the the", (1 / 4, 1 / 4, 1 / 3, 1 / 2)),  # one `the` is wanted, one counts
        ("a b a b a b", "a b a b a x", (5 / 6, 5 / 6, 4 / 5, 3 / 4)),  # `a b` counts twice: it stands there twice
        ("Books flying", "books FLY x", (1 / 3, 1 / 3, 1 / 2, 1)),  # words are not stemmed; case does not count
    ],
)
def test_precisions_by_hand(reference: str, prediction: str, precisions: tuple[float, ...]) -> None:
    """Counts of two and more words have one added to both sides of the fraction."""
    assert bleu(reference, prediction) == pytest.approx(math.prod(precisions) ** (1 / 4), rel=1e-12)


@pytest.mark.parametrize(("prediction", "given"), [("Anna", 1), ("Anna wrote", 2), ("Anna wrote two", 3)])
def test_short_texts_pay_for_what_they_leave_out(prediction: str, given: int) -> None:
    """All that is said is right, so that only the penalty exp(1 - wanted / given) is left."""
    assert bleu(FOUR, prediction) == pytest.approx(math.exp(1 - 4 / given), rel=1e-12)


@pytest.mark.parametrize(
    ("reference", "prediction"), [("", ""), ("", "Anna"), ("Anna", ""), ("Anna", "Two novels"), ("é", "é")]
)
def test_nothing_in_common_is_zero(reference: str, prediction: str) -> None:
    assert bleu(reference, prediction) == 0.0
