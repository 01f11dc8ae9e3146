"""Meta-evaluation: published figures reproduced, every odd case defined, files read both ways."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import GOLDEN
from vestige.errors import UserError
from vestige.meta import files
from vestige.meta.axes import (
    AXES,
    PARTS,
    axes,
    erased,
    read_method_results,
)
from vestige.meta.faithfulness import faithfulness, threshold
from vestige.meta.robustness import Filters, ModelState, keep, overall, robustness
from vestige.metrics.cards import KNOWN, METRICS, Direction, direction_of, metric, short

GOLD = json.loads((GOLDEN / "meta_eval.json").read_text())
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "uds" / "published"
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published results are not on this machine")


def golden_rows() -> list[tuple[dict[str, float], dict[str, float], str]]:
    out = []
    for row in GOLD["models"]:
        parts = dict(zip(GOLD["in_order"], row[4], strict=True))
        expected = {**dict(zip(GOLD["out_order"], row[5], strict=True)), "overall_no_uds": row[6]}
        out.append((parts, expected, row[1]))
    return out


# ---- axes --------------------------------------------------------------------------------------------------------


def test_axes_are_the_published_ones() -> None:
    assert len(golden_rows()) == 102
    for parts, expected, epoch in golden_rows():
        got = axes(parts, GOLD["constants"]["full_utility"][epoch]).values()
        assert set(got) == set(expected) == set(AXES)
        for axis, value in expected.items():
            assert got[axis] == pytest.approx(value, rel=1e-12, abs=1e-15), axis


def test_a_floor_changes_only_models_with_a_part_below_it() -> None:
    rows = [(axes(p, GOLD["constants"]["full_utility"][e]), axes(p, GOLD["constants"]["full_utility"][e], 0.05), p)
            for p, _, e in golden_rows()]  # fmt: skip
    assert erased([a for a, _, _ in rows]) > 50
    assert erased([b for _, b, _ in rows]) == 0
    for plain, floored, parts in rows:
        below = tuple(name for name in PARTS if parts[name] < 0.05)
        assert floored.floored == below
        assert floored.overall is not None and floored.overall >= 0.05 * 0.999
        if not below:
            assert floored.values() == plain.values()


def test_a_floor_keeps_the_order_that_one_zero_erases() -> None:
    good = dict.fromkeys(PARTS, 0.9)
    worse = {**good, "uds": 0.3}
    one_zero, one_zero_worse = ({**p, "s_loss": 0.0} for p in (good, worse))
    plain = [axes(p, 0.9).overall for p in (one_zero, one_zero_worse)]
    floored = [axes(p, 0.9, floor=0.05).overall for p in (one_zero, one_zero_worse)]
    assert max(plain) < 1e-10  # both are "0"
    assert floored[0] > floored[1] > 0.05


def test_missing_parts_are_missing_with_a_reason_and_spare_the_other_axes() -> None:
    parts = {**dict.fromkeys(PARTS, 0.5), "uds": None}
    a = axes(parts, 0.5)
    assert a.privacy is None and a.overall is None and a.reasons["privacy"] == "no uds"
    assert a.privacy_mia == pytest.approx(0.5) and a.overall_no_uds is not None
    b = axes(dict.fromkeys(PARTS, 0.5))
    assert b.utility_rel is None and "full model" in b.reasons["utility_rel"]
    c = axes({**dict.fromkeys(PARTS, 0.5), "one_minus_em": 0.0}, 0.5)
    assert c.mem is None and "one_minus_em" in c.reasons["mem"]
    assert axes({**dict.fromkeys(PARTS, 0.5), "one_minus_em": 0.0}, 0.5, floor=0.05).mem is not None


def test_utility_is_cut_at_the_full_models() -> None:
    assert axes(dict.fromkeys(PARTS, 0.9), 0.5).utility_rel == 1.0
    assert sum(1 for row in GOLD["models"] if row[5][5] == 1.0) > 5  # rows that the cut decides, tested above


# ---- names and directions ----------------------------------------------------------------------------------------


def test_known_metrics_are_those_of_the_published_table() -> None:
    assert set(KNOWN) == set(GOLD["meta"])
    inverted = {k for k, v in GOLD["meta"].items() if v["p_mean"] < v["n_mean"]}
    assert {k for k, v in KNOWN.items() if v.knows == "low"} == inverted
    assert short("forget_Q_A_PARA_ROUGE") == "para_rouge" and short("mia_min_k_plus_plus") == "mia_min_kpp"


def test_the_end_that_means_knows() -> None:
    assert direction_of("uds").m(0.25) == 0.75
    assert direction_of("mia_reference", "mia_reference").knows == "high"  # an AUC, though the score is low for members
    assert direction_of("x", "truth_ratio", "closer_to_1_better").knows == "low"
    assert direction_of("x", "truth_ratio", "prob_mean").knows == "high"
    assert direction_of("privleak", "privleak") == Direction("low", False, "handler privleak")
    with pytest.raises(UserError, match="ability"):
        direction_of("model_utility", "hm_aggregate")
    with pytest.raises(UserError, match="--plugin"):
        direction_of("mine", "mine")
    with pytest.raises(UserError, match="high, low, one, half"):
        direction_of("mine", said={"knows": "up"})
    with pytest.raises(UserError, match="unit"):
        direction_of("mine", said={"range": "wide"})
    assert direction_of("mine", said={"knows": "low", "range": "any"}) == Direction("low", False, "the pool file")
    assert direction_of("mine", said={}) == Direction("high", True, "the pool file")


def test_how_far_from_the_end_that_means_unknown() -> None:
    """Near 1, from either side; away from a half, to either side."""
    assert [Direction("one").m(x) for x in (0.25, 1.0, 1.25)] == [0.25, 1.0, 0.75]
    assert [Direction("half").m(x) for x in (0.25, 0.5, 0.875)] == [0.5, 0.0, 0.75]
    assert [Direction("low", unit).space for unit in (True, False)] == ["1-x", "-x"]


def test_a_metric_of_ones_own_brings_its_end_along() -> None:
    before = dict(METRICS)
    try:

        @metric(knows="low", source="me")
        def surprise(x: float) -> float:
            """How surprised the model is."""
            return x

        assert direction_of("surprise", "surprise") == Direction("low", True, "@metric of surprise")
    finally:
        METRICS.clear()
        METRICS.update(before)


@pytest.mark.parametrize("d", [Direction("high"), Direction("low"), Direction("low", unit=False)])
def test_raw_undoes_m(d: Direction) -> None:
    assert d.raw(d.m(0.3)) == pytest.approx(0.3)


# ---- faithfulness ------------------------------------------------------------------------------------------------


def pool(values: Any) -> dict[str, float | None]:
    return {str(i): v for i, v in enumerate(values)}


def test_auc_counts_ties_half_and_is_the_share_of_pairs() -> None:
    p, n = [0.3, 0.5, 0.5], [0.5, 0.1, 0.4]
    pairs = [(a > b) + 0.5 * (a == b) for a in p for b in n]
    assert faithfulness(pool(p), pool(n)).auc == pytest.approx(np.mean(pairs))


def test_intervals_hold_the_estimate_and_shrink_with_the_pools() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for size in (10, 80):
        f = faithfulness(pool(rng.normal(1, 1, size)), pool(rng.normal(0, 1, size)))
        assert f.interval is not None and f.threshold is not None and f.threshold.interval is not None
        assert f.interval[0] < f.auc < f.interval[1]  # type: ignore[operator]
        assert f.threshold.interval[0] <= f.threshold.m <= f.threshold.interval[1]
        widths.append(f.interval[1] - f.interval[0])
    assert widths[1] < widths[0]
    again = faithfulness(pool([1.0, 2.0, 3.0]), pool([0.0, 2.5]), seed=1)
    assert again == faithfulness(pool([1.0, 2.0, 3.0]), pool([0.0, 2.5]), seed=1)


def test_empty_pools_and_missing_values_are_said() -> None:
    f = faithfulness({}, pool([0.1]))
    assert f.auc is None and f.reason == "no model of pool P has a value"
    f = faithfulness({"a": None, "b": float("nan")}, {"c": None})
    assert f.auc is None and f.missing == ("a", "b", "c") and "P and N" in f.reason
    one = faithfulness({"a": 0.9}, {"b": 0.1})
    assert one.auc == 1.0 and one.interval is None  # one model a side: no interval


def test_all_alike_and_the_wrong_way_round() -> None:
    f = faithfulness(pool([0.5, 0.5]), pool([0.5]))
    assert f.auc == 0.5 and f.threshold is None and "same value" in f.notes[0]
    f = faithfulness(pool([0.1, 0.2]), pool([0.8, 0.9]))
    assert f.auc == 0.0 and "wrong way" in f.notes[0]
    assert f.threshold is not None and "larger pool" in f.threshold.note


def test_the_threshold_is_the_best_of_all_cuts_and_the_lowest_of_equals() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        p, n = [int(x) + 2 for x in rng.integers(0, 12, 9)], [int(x) for x in rng.integers(0, 12, 7)]
        values = sorted({*p, *n})
        right = {}
        for low, high in itertools.pairwise(values):
            cut = (low + high) / 2
            right[cut] = sum(x > cut for x in p) + sum(x <= cut for x in n)
        best = max(right.values())
        t = threshold(p, n)
        assert t is not None and t.accuracy == pytest.approx(best / 16)
        assert t.m == min(c for c, r in right.items() if r == best)


# ---- robustness --------------------------------------------------------------------------------------------------


def test_published_aggregates() -> None:
    assert len(GOLD["meta"]) == 22
    for name, row in GOLD["meta"].items():
        r, q, agg = row["relearning"], row["quantization"], row["agg"]
        # One model whose R and Q are exactly these, under the symmetric rule.
        model = ModelState(1.0, 1.0 + r / (2 - r), q / (2 - q))
        got = robustness({"x": model}, ModelState(0.0, 1.0, 0.0), resamples=0)
        assert (got.relearning, got.quantization) == pytest.approx((r, q), abs=1e-9)
        assert got.agg == pytest.approx(agg, abs=GOLD["meta_tolerance"]["agg"]), name
        assert overall(row["auc_roc"], agg) == pytest.approx(row["overall"], abs=1e-12)


def scatter() -> tuple[dict[str, ModelState], ModelState]:
    s = GOLD["uds_scatter_digitised"]
    rows = zip(s["model"], s["before"], s["after_relearn"], s["after_quant"], strict=True)
    return {m: ModelState(b, r, q) for m, b, r, q in rows}, ModelState(0.0, s["delta_retain"])


def test_the_published_scatter_of_the_depth_score() -> None:
    s = GOLD["uds_scatter_digitised"]
    models, retain = scatter()
    got = robustness(models, retain)
    assert got.quantization == pytest.approx(s["Q_sym"], abs=1e-9)
    assert got.relearning == pytest.approx(s["R_sym"], abs=1e-9)
    assert got.quantization == pytest.approx(s["Q_published"], abs=s["tolerance"])
    assert got.relearning == pytest.approx(s["R_published"], abs=s["tolerance"])
    low, high = got.intervals["agg"]  # type: ignore[misc]
    assert low < 0.9325 < high
    other = robustness(models, retain, "one-sided")  # the rule of the paper gives other numbers than those published
    assert abs(other.quantization - s["Q_published"]) > s["tolerance"]  # type: ignore[operator]
    assert abs(other.relearning - s["R_published"]) > 0.05  # type: ignore[operator]


def test_one_sided_cases() -> None:
    retain = ModelState(0.0, 0.2)
    states = {
        "recovers": ModelState(0.1, 0.5, 0.2),  # D 0.4, twice the retain model's; quantised to twice its m
        "fades": ModelState(0.5, 0.3, 0.4),
        "learns less": ModelState(0.1, 0.2, 0.1),
        "zero": ModelState(0.0, 0.0, 0.1),
    }
    got = robustness(states, retain, "one-sided").per_model
    assert [got[m]["relearning"] for m in states] == pytest.approx([0.5, 1, 1, 1])
    assert [got[m]["quantization"] for m in states] == pytest.approx([0.5, 1, 1, 0])
    backwards = robustness(states, ModelState(0.2, 0.1), "one-sided").per_model
    assert backwards["recovers"]["relearning"] == 0.0 and backwards["fades"]["relearning"] == 1.0
    negative = robustness({"x": ModelState(-2.0, -1.0, -1.0)}, ModelState(-2.0, -1.0), "one-sided")
    assert negative.quantization is None and negative.relearning == 1.0 and negative.agg is None
    assert negative.reasons["agg"] == "no quantization"


def test_symmetric_zeros() -> None:
    got = robustness({"x": ModelState(0.0, 0.0, 0.0)}, ModelState(0.0, 0.0, 0.0))
    assert (got.relearning, got.quantization, got.agg) == (1.0, 1.0, 1.0)


def test_filters_name_their_reasons() -> None:
    states = {
        name: ModelState(m) for name, m in (("a", 0.1), ("b", 0.3), ("c", 0.1), ("d", None), ("e", 0.2), ("f", 0.1))
    }
    utility = {"a": 0.8, "b": 0.9, "c": 0.79, "d": 0.9, "e": 1.0}
    kept, out = keep(states, Filters(utility, threshold=0.2))
    assert kept == ["a", "e"]  # both filters let their border pass
    assert out["f"] == "no utility_rel" and "0.8" in out["c"] and "threshold" in out["b"] and "no value" in out["d"]
    assert keep(states, Filters())[0] == ["a", "b", "c", "e", "f"]


def test_nothing_kept_or_nothing_measured_is_null_with_a_reason() -> None:
    got = robustness({"x": ModelState(0.9, 0.9, 0.9)}, ModelState(0.0, 0.1), filters=Filters(threshold=0.1))
    assert got.agg is None and got.reasons["relearning"] == "no model passes the filters"
    got = robustness({"x": ModelState(0.1, 0.2, None)}, ModelState(None, None))
    assert "retain model" in got.reasons["relearning"] and "quantization" in got.reasons["quantization"]


# ---- published files ---------------------------------------------------------------------------------------------


@published
def test_all_published_rows_and_the_published_verdicts() -> None:
    methods = read_method_results(PUBLISHED / files.METHOD_RESULTS)
    assert len(methods.rows) == 152 and methods.notes == ()
    assert erased([r.published for r in methods.rows if not r.facts["is_reference"]]) == 99
    assert erased([r.floored for r in methods.rows]) == 0
    theirs = files.read_meta_eval(PUBLISHED / files.META_EVAL)
    assert {m["key"] for m in theirs["metrics"]} == set(KNOWN)
    assert [m["key"] for m in theirs["metrics"]] and all(
        KNOWN[m["key"]].category == m["category"] and list(KNOWN[m["key"]].tags) == m["tags"] for m in theirs["metrics"]
    )
