"""Collapse numbers on matrices small enough to work out by hand; chance is dealt by the tests themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vestige.metrics.collapse import Ema, cross_of, first_turn_coverage, marginal, row_table
from vestige.metrics.collapse_extras import _tail, balance, intervals, permutation_null


class Dealer:
    """A generator whose draws are known."""

    def __init__(self, drawn: Any) -> None:
        self.drawn = np.asarray(drawn)

    def multinomial(self, n: int, shares: Any, size: int) -> Any:
        assert n == len(shares) and shares == pytest.approx(np.full(n, 1 / n)) and size == len(self.drawn)
        return self.drawn

    def permuted(self, rows: Any, axis: int) -> Any:
        assert axis == 1 and rows.shape == self.drawn.shape
        return self.drawn


def test_an_empty_reasoning_counts_as_one_token() -> None:
    cross = cross_of([[-6.0]] * 3, [0, 1, 2], [0, 0, 0], "a")
    assert cross.means[:, 0].tolist() == [-6.0, -6.0, -3.0]


def test_far_apart_log_probabilities_do_not_overflow() -> None:
    assert marginal(np.array([[0.0, -2000.0], [-2000.0, -2000.0]])).tolist() == [-math.log(2), -2000.0]


def test_running_means_have_their_decay_unless_stored() -> None:
    assert Ema.from_json({"per_token": {}, "per_seq": {}}).decay == Ema().decay == 0.9


def test_first_turns_by_hand() -> None:
    rate, total, valid = (f"collapse/first_turn_{n}" for n in ("valid_rate", "num_total", "num_valid"))
    assert first_turn_coverage([0, 1, 2]) == {total: 3, valid: 2, rate: 2 / 3}
    assert first_turn_coverage([]) == {total: 0, valid: 0, rate: 0.0}


def test_rows_by_hand() -> None:
    """Two tokens written for the first of three prompts, one for the third, which the first finds likelier."""
    first, second = row_table(cross_of([[-2.0, -4.0, -6.0], [-1.0, -3.0, -2.0]], [2, 1], [0, 2], "abc"))
    mix = math.log((math.exp(-2) + math.exp(-4) + math.exp(-6)) / 3)
    mix_per_token = math.log((math.exp(-1) + math.exp(-2) + math.exp(-3)) / 3)
    assert first == pytest.approx(
        {
            "prompt": 0, "tokens": 2, "matched": -2.0, "marginal": mix, "pointwise_mi_seq": -2 - mix,
            "pointwise_mi": -1 - mix_per_token, "rank_of_own_prompt": 0, "best_other_prompt": 1, "best_other": -4.0,
        }
    )  # fmt: skip
    assert (second["prompt"], second["rank_of_own_prompt"]) == (2, 1)
    assert (second["best_other_prompt"], second["best_other"]) == (0, -1.0)
    [two] = row_table(cross_of([[-2.0, -3.0]], [1], [0], "ab"))
    assert (two["best_other_prompt"], two["best_other"]) == (1, -3.0)
    [alone] = row_table(cross_of([[-2.0]], [1], [0], "a"))
    assert (alone["best_other_prompt"], alone["best_other"]) == (None, None)


def test_every_prompt_weighs_the_same() -> None:
    cross = cross_of(np.zeros((4, 2)), [1] * 4, [0, 0, 0, 1], "ab")
    assert balance(cross) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_intervals_by_hand() -> None:
    """Rows of loss 0 and 1, mixed in 41 even steps: 2.5 % lie below the second of them."""
    cross = cross_of([[0.0, -9.0], [-9.0, -1.0]], [1, 1], [0, 1], "ab")
    mixed: Any = Dealer([[40 - i, i] for i in range(41)])
    found = intervals(cross, mixed, 41)
    assert found["conditional_entropy_est"] == pytest.approx((0.025, 0.975))
    assert found["retrieval_accuracy"] == (1.0, 1.0)
    wrong = cross_of([[-9.0, 0.0], [-1.0, -9.0]], [1, 1], [0, 1], "ab")
    assert intervals(wrong, mixed, 41)["retrieval_accuracy"] == (0.0, 0.0)


def test_how_little_is_enough_for_chance() -> None:
    """Two prompts and two rows, resampled once, are the least there can be."""
    rng = np.random.default_rng(0)
    two = cross_of([[0.0, -1.0], [-1.0, 0.0]], [1, 1], [0, 1], "ab")
    assert intervals(two, rng, 1) and permutation_null(two, rng, 1)
    assert intervals(two, rng, 0) == permutation_null(two, rng, 0) == {}
    one_prompt = cross_of([[0.0], [-1.0], [-2.0]], [1] * 3, [0] * 3, "a")
    one_row = cross_of([[0.0, -1.0, -2.0]], [1], [0], "abc")
    for few in (one_prompt, one_row):
        assert intervals(few, rng, 5) == permutation_null(few, rng, 5) == {}


def test_the_null_by_hand() -> None:
    """Two rows can be dealt as they are, or the other way round; each was dealt once."""
    cross = cross_of([[-1.0, -3.0], [-5.0, -1.0]], [1, 1], [0, 1], "ab")
    mix = math.log((math.exp(-1) + math.exp(-3)) / 2) + math.log((math.exp(-5) + math.exp(-1)) / 2)
    dealt: Any = Dealer([[0, 1], [1, 0]])
    assert permutation_null(cross, dealt, 2) == pytest.approx(
        {
            "mi_seq_null_mean": (-2 + -8) / 4 - mix / 2,
            "mi_seq_null_p": (1 + 1) / (1 + 2),
            "retrieval_null_mean": 1 / 2,
            "retrieval_null_p": (1 + 1) / (1 + 2),
            "null_p_smallest": 1 / 2,
        }
    )


def test_the_tail_counts_what_rounding_moved() -> None:
    assert _tail(np.array([0.0, 1.0, 2.0, 3.0]), 2.0) == (1 + 2) / (1 + 4)
    assert _tail(np.array([1000 - 5e-10]), 1000.0) == 1.0  # the slack grows with the number: 1e-9 here
    assert _tail(np.array([-5e-13]), 0.0) == _tail(np.array([-1e-12]), 0.0) == 1.0
    assert _tail(np.array([-1.5e-12]), 0.0) == 0.5
