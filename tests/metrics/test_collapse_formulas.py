"""Collapse numbers: matrices small enough to work out by hand (chance dealt by the tests), and what always holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from collapse_tools import random_cross
from vestige.metrics.collapse import (
    Cross,
    Ema,
    _tail,
    balance,
    coverage,
    cross_of,
    exact_chance,
    extras,
    first_turn_coverage,
    information,
    intervals,
    label_metrics,
    marginal,
    matched,
    permutation_null,
    retrieval,
    row_table,
)


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


def test_running_means_by_hand() -> None:
    """The first value stands for itself; the second moves the mean by a quarter of the way."""
    ema = Ema(decay=0.75)
    assert ema.update("l", 4.0, 8.0) == (4.0, 8.0)
    assert ema.update("l", 8.0, 0.0) == (5.0, 6.0)
    assert ema.update("other", 1.0, 2.0) == (1.0, 2.0)


def test_one_row_is_divided_by_the_epsilon_alone() -> None:
    gain = -3 - math.log((math.exp(-3) + math.exp(-5)) / 2)
    found = label_metrics(cross_of([[-3.0, -5.0]], [1], [0], "ab"), "l", Ema())
    assert found["mi_zscore"] == pytest.approx(gain / 1e-3)


def test_turns_with_reasoning() -> None:
    assert coverage([1, 2], [3, 5]) == {"collapse/valid_thinking_rate": 3 / 8}
    assert coverage([], []) == {}


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
    """Two rows can be dealt as they are, or the other way round; the latter was dealt twice."""
    cross = cross_of([[-1.0, -3.0], [-5.0, -1.0]], [1, 1], [0, 1], "ab")
    mix = math.log((math.exp(-1) + math.exp(-3)) / 2) + math.log((math.exp(-5) + math.exp(-1)) / 2)
    dealt: Any = Dealer([[0, 1], [1, 0], [1, 0]])
    assert permutation_null(cross, dealt, 3) == pytest.approx(
        {
            "mi_seq_null_mean": (-2 + -8 + -8) / 6 - mix / 2,
            "mi_seq_null_p": (1 + 1) / (1 + 3),
            "retrieval_null_mean": 1 / 3,
            "retrieval_null_p": (1 + 1) / (1 + 3),
            "null_p_smallest": 1 / 2,
        }
    )


def test_the_tail_counts_what_rounding_moved() -> None:
    assert _tail(np.array([0.0, 1.0, 2.0, 3.0]), 2.0) == (1 + 2) / (1 + 4)
    assert _tail(np.array([1000 - 5e-10]), 1000.0) == 1.0  # the slack grows with the number: 1e-9 here
    assert _tail(np.array([-5e-13]), 0.0) == _tail(np.array([-1e-12]), 0.0) == 1.0
    assert _tail(np.array([-1.5e-12]), 0.0) == 0.5


# ---- properties ---------------------------------------------------------------------------------------------------


def test_information_is_the_difference_of_entropies() -> None:
    m = information(random_cross())
    assert m["mi_estimate"] == pytest.approx(m["reasoning_entropy_est"] - m["conditional_entropy_est"])
    assert m["mi_seq_estimate"] == pytest.approx(m["reasoning_entropy_seq_est"] - m["conditional_entropy_seq_est"])


def test_no_row_gains_more_than_its_bound() -> None:
    cross = random_cross(signal=500.0)
    doubled = Cross(np.hstack([cross.sums, cross.sums]), cross.lengths, cross.own, np.tile(cross.prompts, 2))
    for c in (cross, doubled):
        gain = matched(c.sums, c.own) - marginal(c.sums)
        assert (gain <= np.log(c.sums.shape[1] / c.copies) + 1e-9).all()
        assert gain.mean() == pytest.approx(extras(c)["mi_bound_attainable"])
    assert extras(doubled)["mi_seq_distinct_columns"] == pytest.approx(extras(cross)["mi_seq_distinct_columns"])


def test_columns_in_another_order_change_nothing() -> None:
    cross = random_cross()
    turned = np.asarray([2, 0, 3, 1])
    own = np.argsort(turned)[cross.own]
    other = Cross(cross.sums[:, turned], cross.lengths, own, cross.prompts[turned])
    assert label_metrics(other, "l", Ema()) == pytest.approx(label_metrics(cross, "l", Ema()))


def test_exact_chance_is_what_guessing_gives() -> None:
    rng = np.random.default_rng(0)
    cross = cross_of(np.zeros((3, 6)), [1, 1, 1], [0, 2, 5], [1, 1, 2, 2, 2, 3])
    for k in (1, 2, 4):
        hits = 0
        for _ in range(4000):
            picked = rng.permutation(6)[:k]
            hits += sum(any(cross.prompts[j] == p for j in picked) for p in cross.own_prompt)
        assert exact_chance(cross, k) == pytest.approx(hits / 12000, abs=0.02)
    assert exact_chance(cross, 8) == 1.0


def test_minus_infinity_is_survived() -> None:
    assert marginal(np.asarray([[-np.inf, 0.0], [-np.inf, -np.inf]])).tolist() == [-np.log(2), -np.inf]


def test_the_permutation_null_tells_signal_from_none() -> None:
    rng = np.random.default_rng(0)
    strong = permutation_null(random_cross(24, 4, signal=6.0), rng)
    assert strong["mi_seq_null_p"] < 0.01 and strong["retrieval_null_p"] < 0.01
    ps = [permutation_null(random_cross(24, 4, 0.0, seed), rng, 200)["mi_seq_null_p"] for seed in range(60)]
    assert 0.3 < float(np.mean(ps)) < 0.7 and sum(p < 0.05 for p in ps) <= 9


def test_intervals_widen_when_rows_of_a_prompt_agree() -> None:
    """48 rows of 4 prompts that merely repeat are no more evidence than 4 rows."""
    few = random_cross(4, 4, 1.0)
    many = Cross(np.repeat(few.sums, 12, axis=0), np.repeat(few.lengths, 12), np.repeat(few.own, 12), few.prompts)
    a, b = (intervals(c, np.random.default_rng(1))["mi_seq_distinct_columns"] for c in (few, many))
    assert a == pytest.approx(b) and a[1] > a[0]
    assert intervals(cross_of([[0.0, -1.0]], [3], [0], "ab"), np.random.default_rng(0)) == {}


def test_each_interval_belongs_to_the_number_of_its_name() -> None:
    """Columns that repeat prompts move information far from that with every prompt once; each has its own interval."""
    cross = random_cross(24, 4, 6.0)
    many = Cross(np.hstack([cross.sums] * 5), cross.lengths, cross.own, np.tile(cross.prompts, 5))
    picked = [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0]
    uneven = Cross(cross.sums[:, picked], cross.lengths, cross.own, cross.prompts[picked])
    for c in (cross, many, uneven):
        numbers = {**information(c), **retrieval(c), **extras(c)}
        found = intervals(c, np.random.default_rng(0))
        assert {"mi_estimate", "mi_seq_estimate", "mi_seq_distinct_columns", "retrieval_accuracy"} <= set(found)
        for name, (low, high) in found.items():
            assert low <= numbers[name] + 1e-9 and numbers[name] - 1e-9 <= high, name
    apart = intervals(uneven, np.random.default_rng(0))
    number = information(uneven)["mi_seq_estimate"]
    assert not apart["mi_seq_distinct_columns"][0] <= number <= apart["mi_seq_distinct_columns"][1]
