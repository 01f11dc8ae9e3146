"""Collapse numbers: matrices small enough to work out by hand (chance dealt by the tests), and what always holds."""

from __future__ import annotations

import numpy as np
import pytest

from collapse_tools import random_cross
from vestige.metrics.collapse import (
    Cross,
    Ema,
    cross_of,
    exact_chance,
    extras,
    information,
    intervals,
    label_metrics,
    marginal,
    matched,
    permutation_null,
)

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
