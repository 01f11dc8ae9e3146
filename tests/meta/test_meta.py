"""Meta-evaluation: published figures reproduced, every odd case defined, files read both ways."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import GOLDEN
from vestige.cli import main
from vestige.errors import UserError
from vestige.meta import files
from vestige.meta.axes import (
    AXES,
    PARTS,
    SOURCES,
    axes,
    erased,
    from_models,
    read_method_results,
    read_utility,
)
from vestige.meta.faithfulness import faithfulness, threshold
from vestige.meta.pools import ModelNumbers, read_run, same_protocol, without_settings
from vestige.meta.robustness import Filters, ModelState, keep, overall, robustness
from vestige.metrics.cards import KNOWN, METRICS, Direction, direction_of, metric, short
from vestige.runs.run import Number, protocol_of

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


def test_every_name_of_ours_exists() -> None:
    from vestige.configs.compose import PACKAGE_DIR
    from vestige.runs.explain import metric_configs

    ours = set(metric_configs([PACKAGE_DIR])["tofu"])
    assert {k.ours for k in KNOWN.values() if k.ours} <= ours
    assert {m for m in SOURCES.values() if m not in KNOWN} <= ours


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


# ---- files, pools, the command line ------------------------------------------------------------------------------


def test_protocols_are_not_mixed() -> None:
    with pytest.raises(UserError, match="em mixes protocols: a is 'chat', b is 'entity'"):
        same_protocol({"a": Number(0.1, "chat"), "b": Number(0.2, "entity")}, "em")
    with pytest.raises(UserError, match="different rows"):
        same_protocol({"a": Number(0.1, "chat", frozenset("x")), "b": Number(0.2, "chat", frozenset("y"))}, "em")
    with pytest.raises(UserError, match="one definition"):
        numbers = {n: Number(0.1, handler="mia_min_k", definition={"k": k}) for n, k in (("a", 0.4), ("b", 0.2))}
        same_protocol(numbers, "mia_min_k")
    assert same_protocol({"a": Number(0.1, "chat"), "b": Number(None, "entity")}, "em") == "chat"


def manifest_of(metric: dict[str, Any], prompt: str = "Q: {question}", **more: Any) -> dict[str, Any]:
    """A run of one metric, `m`, and its parent, as manifests have it."""
    asked = {"handler": "QADataset", "args": {"hf_args": {"path": "here"}, "question_key": "question", **more}}
    return {
        "template": {"apply_chat_template": True},
        "dialect": {"name": "open-unlearning"},
        "prompt": prompt,
        "data": {"k": {"fingerprint": "rows"}},
        "data_of": {"parent": {"data": "k"}},
        "config": {
            "metrics": {
                "m": {"handler": "truth_ratio", "pre_compute": {"parent": {"access_key": "correct"}}, **metric},
                "parent": {"handler": "probability", "datasets": {"forget": asked}},
            }
        },
    }


def number_of(place: Path, manifest: dict[str, Any], name: str = "m") -> Number:
    place.mkdir(parents=True, exist_ok=True)
    (place / "TOFU_EVAL.json").write_text(json.dumps({name: {"agg_value": 0.5}}))
    (place / "manifest.json").write_text(json.dumps(manifest))
    return read_run(place)[short(name)]


def test_what_makes_two_runs_unlike_is_refused_however_deep_it_is(tmp_path: Path) -> None:
    """The same rows asked otherwise, a parent's setting, a template that prints today's date: none passes silently."""
    plain = number_of(tmp_path / "a", manifest_of({"aggregator": "prob_mean"}))
    assert plain.rows == frozenset({"rows"})  # its parent's
    assert same_protocol({"a": plain, "b": plain}, "m") == "chat, dialect open-unlearning"
    other_rows = manifest_of({"aggregator": "prob_mean"})
    other_rows["data"]["k"]["fingerprint"] = "others"
    moved = manifest_of({"aggregator": "prob_mean"})
    moved["config"]["metrics"]["parent"]["datasets"]["forget"]["args"]["hf_args"]["path"] = "elsewhere"
    assert same_protocol({"a": plain, "b": number_of(tmp_path / "b", moved)}, "m")  # where rows lie does not matter
    for manifest, match in (
        (manifest_of({"aggregator": "prob_mean"}, answer_prefix="Sure"), "parent: rows of forget"),
        (manifest_of({"aggregator": "prob_mean"}, question_key="paraphrased_question"), "paraphrased_question"),
        (manifest_of({"aggregator": "true_better"}), "aggregator = prob_mean in a but true_better in b"),
        (manifest_of({"aggregator": "prob_mean", "generation_args": {"max_new_tokens": 9}}), "generation"),
        (manifest_of({"aggregator": "prob_mean"}, prompt="16 Nov 2026 Q: {question}"), "mixes prompts"),
        (other_rows, "different rows"),
    ):
        with pytest.raises(UserError, match=match):
            same_protocol({"a": plain, "b": number_of(tmp_path / "b", manifest)}, "m")


def test_a_depth_score_of_a_suite_is_no_chat_number(tmp_path: Path) -> None:
    manifest = manifest_of({})
    args = {"hf_args": {}, "tokenization": "separate"}
    manifest["config"]["metrics"]["uds"] = {
        "handler": "uds", "last_layer": "residual", "delta_threshold": 0.05, "full_model_path": "F",
        "datasets": {"TOFU_entities": {"handler": "EntityDataset", "args": args}},
    }  # fmt: skip
    found = number_of(tmp_path / "a", manifest, "uds")
    assert found.protocol.startswith("entity, ") and "last layer residual" in found.protocol and not found.prompt
    (tmp_path / "summary.json").write_text(json.dumps({"avg_uds": 0.5, "last_layer": "peer"}))
    with pytest.raises(UserError, match="uds mixes protocols"):
        same_protocol({"a": found, "b": read_run(tmp_path / "summary.json")["uds"]}, "uds")


def test_settings_unlike_the_published_are_named(tmp_path: Path) -> None:
    for k, said in ((0.4, "chat, dialect open-unlearning"), (0.2, "chat, dialect open-unlearning [k 0.2]")):
        manifest = manifest_of({})
        manifest["config"]["metrics"]["mia_min_k"] = {"handler": "mia_min_k", "k": k}
        found = number_of(tmp_path / str(k), manifest, "mia_min_k")
        assert found.protocol == said and without_settings(said) == "chat, dialect open-unlearning"


def test_raw_rows_name_their_tags() -> None:
    tags = {"user_start_tag": "Question: ", "asst_start_tag": "Answer:"}
    said = protocol_of({"template": {"apply_chat_template": False, **tags}})
    assert said == "raw, user start tag 'Question: ', asst start tag 'Answer:'"


def test_an_axis_has_one_protocol(tmp_path: Path) -> None:
    number = {"es": Number(0.2, "chat"), "em": Number(0.3, "chat")}
    model = ModelNumbers("a", {**number, "uds": Number(0.5, "entity"), "fluency": Number(0.9, "chat")})
    found = from_models([model], {}, None)
    assert found.protocols == dict.fromkeys(("one_minus_es", "one_minus_em", "fluency"), "chat") | {"uds": "entity"}
    mixed = ModelNumbers("a", {**number, "em": Number(0.3, "raw")})
    with pytest.raises(UserError, match="Mem would mix protocols: one_minus_es is 'chat', one_minus_em is 'raw'"):
        from_models([mixed], {}, None)
    odd = ModelNumbers("a", {"retain_Q_A_Prob": Number(0.9, "chat"), "fluency": Number(0.9, "raw")})
    with pytest.raises(UserError, match="Utility would mix"):
        from_models([odd], {}, None)


UTILITY_RUN = {
    f"{who}_{what}": 0.8
    for who in ("retain", "ra", "wf")
    for what in ("Q_A_Prob" if who == "retain" else "Q_A_Prob_normalised", "Q_A_ROUGE", "Truth_Ratio")
}


def test_thresholds_are_read_in_each_form(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    body = {
        "em": 0.6,
        "s_loss": 0.4,  # a plain number is a value of the metric
        "uds": {"threshold": 0.7724, "accuracy": 0.9167, "p_higher": False, "direction": "keep_above"},
        "logit_lens": {"threshold_space": "raw", "threshold": 0.675, "direction": "pass_if_ge"},
        "cka": {"threshold_space": "1-cka", "threshold": 0.9},
        "mine": {"threshold": 0.2, "direction": "keep_below"},
    }
    file.write_text(json.dumps(body))
    got = {name: cut.m for name, cut in files.read_thresholds(file).items()}
    expected = {"em": 0.6, "s_mia_loss": 0.6, "uds": 0.2276, "logit_lens": 0.325, "cka": 0.9, "mine": 0.2}
    assert got == pytest.approx(expected)
    file.write_text(json.dumps({"em": {"threshold": None}}))
    with pytest.raises(UserError, match="em has no threshold"):
        files.read_thresholds(file)


def shown_by_the_dashboard(body: dict[str, Any]) -> set[str]:
    """The rule of the depth score's page: references, and what its boxes of epochs and counted methods let through."""
    return {
        m["model"]
        for m in body["models"]
        if m["is_reference"] or (m["epoch"] in ("ep5", "ep10") and m["method"] in body["method_counts"])
    }


def test_the_dashboard_shows_our_models_or_we_ask_for_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        "{model: npo_lr2e5_b01_a5_ep10, values: {em: 0.5}}",  # the published form of a name
        "{model: mine, method: rmu, epoch: ep5, values: {em: 0.5}}",
        "{model: bare, values: {em: 0.5}}",
    ]
    (tmp_path / "m.yaml").write_text("protocol: chat\nmodels:\n" + "".join(f"  - {e}\n" for e in entries))
    assert main(["meta", "axes", str(tmp_path / "m.yaml"), "--out", str(tmp_path / "out")]) == 0
    body = json.loads((tmp_path / "out" / files.METHOD_RESULTS).read_text())
    assert shown_by_the_dashboard(body) == {"npo_lr2e5_b01_a5_ep10", "mine"}
    asked = [n for n in body["notes"] if "dashboard" in n]
    assert len(asked) == 1 and "bare would be hidden" in asked[0]
    assert asked[0] in capsys.readouterr().out


# ---- published files ---------------------------------------------------------------------------------------------

# Thresholds on m and counts of usable models, from runs/meta_eval/robustness/usable_models.json of
# gnueaj/unlearning-depth-score. The figure prints em as 0.62, which would keep 17.
USABLE_PUBLISHED = {
    "em": (0.6134081882983446, 16),
    "es": (0.06500715929355425, 14),
    "truth_ratio": (0.5854294496812391, 17),
    "paraprob": (0.05016018084890675, 40),
    "uds": (0.22759156561757582, 12),
    "logit_lens": (1 - 0.6753944625558712, 16),
}
COLUMN = {
    "em": "one_minus_em",
    "es": "one_minus_es",
    "truth_ratio": "one_minus_truth",
    "paraprob": "one_minus_paraprob",
}


@published
def test_the_published_filters() -> None:
    path = PUBLISHED / files.METHOD_RESULTS
    utility, made_of = read_utility(path)
    assert not made_of and len(utility) == GOLD["filters"]["of"] == 150
    models = [r for r in json.loads(path.read_text())["models"] if not r["is_reference"]]
    kept, _ = keep({r["model"]: ModelState(0.0) for r in models}, Filters(utility))
    assert len(kept) == GOLD["filters"]["utility_pass"] == 124
    sets = []
    for name, (cut, count) in USABLE_PUBLISHED.items():
        states = {r["model"]: ModelState(1 - r[COLUMN.get(name, name)]) for r in models}
        kept, _ = keep(states, Filters(utility, cut))
        assert len(kept) == count == GOLD["filters"]["n_published"][name], name
        sets.append(set(kept))
    assert len(set.intersection(*sets)) == 4


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
