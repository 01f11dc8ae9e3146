"""`vestige meta` and `vestige import`: metrics and methods judged from finished runs, plain numbers and others' files.

Expected numbers are those that the unlearning-depth-score project published (golden/uds_published.json, meta_eval.json)
or come from definitions written out here: pairs of models, all cuts, two rules of robustness, harmonic means.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from harness import GOLDEN, Outcome, read_json, refused, vestige
from scipy.stats import ks_2samp

from published_tree import KNOWS, metrics, published_tree, put

GOLD = read_json(GOLDEN / "meta_eval.json")
PUBLISHED = read_json(GOLDEN / "uds_published.json")
METHODS = [dict(zip(PUBLISHED["columns"], row, strict=True)) for row in PUBLISHED["models"]]
PARTS = GOLD["in_order"][:-1]  # the last one, logit_lens, is in no axis
AXES = [*GOLD["out_order"], "overall_no_uds"]
LOW = {name for name, row in GOLD["meta"].items() if row["p_mean"] < row["n_mean"]}  # their low end means "knows"
QUICK = ("--resamples", 0)


def meta(what: str, file: Path, out: Path, *more: object, status: int = 0) -> Outcome:
    return vestige("meta", what, file, "--out", out, "--quiet", *more, status=status)


def save(path: Path, body: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(body) if path.suffix == ".yaml" else json.dumps(body))
    return path


def harmonic(values: Iterable[float], floor: float = 1e-12) -> float:
    found = [max(value, floor) for value in values]
    return len(found) / sum(1 / value for value in found)


# ---- axes ------------------------------------------------------------------------------------------------------------


def axes_of(row: dict[str, Any], floor: float = 1e-12) -> dict[str, float]:
    """The dashboard's formulas, each part at least `floor`."""
    values = [row[name] for name in PARTS]
    found = {"mem": harmonic(values[:4], floor), "privacy_mia": harmonic(values[4:8], floor)}
    found["privacy"] = harmonic([found["privacy_mia"], max(row["uds"], floor)])
    found["utility"] = harmonic([harmonic(values[8:17], floor), max(row["fluency"], floor)])
    full = PUBLISHED["full_utility"][row["epoch"]]
    found["utility_rel"] = min(1.0, found["utility"] / full)
    found["overall"] = harmonic([found["mem"], found["privacy"], found["utility_rel"]])
    return found


@pytest.fixture(scope="module")
def axes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All published models, from their parts alone."""
    place = tmp_path_factory.mktemp("axes")
    bare = [{key: value for key, value in row.items() if key not in AXES} for row in METHODS]
    body = {"models": bare, "full_utility": PUBLISHED["full_utility"], "method_counts": {}}
    meta("axes", save(place / "theirs.json", body), place / "out")
    return place / "out"


def test_every_published_axis_and_its_floored_form(axes_run: Path) -> None:
    """99 of the 150 unlearned models have an Overall of 0.000000; floored ones never have, and name what was raised."""
    found = {row["model"]: row for row in read_json(axes_run / "method_results.json")["models"]}
    assert len(found) == len(METHODS) == 152
    for row in METHODS:
        mine = found[row["model"]]
        for axis in GOLD["out_order"]:
            assert mine[axis] == pytest.approx(row[axis], rel=1e-12, abs=1e-15), (row["model"], axis)
        assert mine["floored_parts"] == [name for name in PARTS if row[name] < 0.05]
        for axis, value in axes_of(row, 0.05).items():
            assert mine["floored"][axis] == pytest.approx(value, rel=1e-9), (row["model"], axis)
            if not mine["floored_parts"]:
                assert mine["floored"][axis] == pytest.approx(mine[axis], rel=1e-9)
    for row in GOLD["models"]:
        assert found[row[0]]["overall_no_uds"] == pytest.approx(row[6], rel=1e-12)
    unlearned = [row for row in METHODS if not row["is_reference"]]
    assert sum(found[row["model"]]["overall"] < 5e-7 for row in unlearned) == 99


def test_axes_read_again_and_changed(axes_run: Path, tmp_path: Path) -> None:
    """Our own file gives itself, another floor changes floored axes only, and an axis that does not follow is noted."""
    first = read_json(axes_run / "method_results.json")
    meta("axes", axes_run / "method_results.json", tmp_path / "same")
    meta("axes", axes_run / "method_results.json", tmp_path / "floor", "--floor", 0.2)
    same, floored = (read_json(tmp_path / name / "method_results.json") for name in ("same", "floor"))
    assert same["models"] == first["models"]
    for before, row, now in zip(first["models"], METHODS, floored["models"], strict=True):
        assert {axis: before[axis] for axis in AXES} == {axis: now[axis] for axis in AXES}
        assert now["floored"]["overall"] == pytest.approx(axes_of(row, 0.2)["overall"], rel=1e-9)
    changed = {**first, "models": [*first["models"][:5], {**first["models"][5], "overall": 0.123}]}
    notes = meta("axes", save(tmp_path / "x.json", changed), tmp_path / "x").out
    assert first["models"][5]["model"] in notes and "0.123" in notes
    assert read_json(tmp_path / "x" / "method_results.json")["notes"]


# ---- faithfulness ----------------------------------------------------------------------------------------------------


def test_auc_and_threshold_of_every_direction(tmp_path: Path) -> None:
    """Pairs counted one by one, ties half; the threshold is the lowest of the best cuts between neighbours."""
    draw = random.Random(0)
    ends = {"em": "high", "uds": "low", "mine": "low", "free": "high", "tied": "high"}
    pools: dict[str, list[dict[str, Any]]] = {"positive": [], "negative": []}
    for side, size in (("positive", 9), ("negative", 7)):
        for number in range(size):
            values: dict[str, Any] = {}
            for name, end in ends.items():
                knows = draw.randrange(8) / 10 + 0.2 * (side == "positive")
                values[name] = knows if end == "high" else 1 - knows
            values["free"] = 10 * values["free"] - 20
            values["tied"] = 0.4 if number == 0 else 0.8 if side == "positive" else 0.2  # two cuts are equally good
            pools[side].append({"model": f"{side}{number}", "values": values})
    pools["negative"][3]["values"]["em"] = None
    about = {"mine": {"knows": "low"}, "free": {"knows": "high", "range": "any"}, "tied": {"knows": "high"}}
    file = save(tmp_path / "p.yaml", {"protocol": "chat", "metrics": about, **pools})
    out = meta("faithfulness", file, tmp_path / "out", "--resamples", 200).out
    assert "negative3" in out
    found = read_json(tmp_path / "out" / "meta_eval.json")["faithfulness"]
    thresholds = read_json(tmp_path / "out" / "optimal_thresholds.json")
    for name, end in ends.items():
        sides = []
        for side in ("positive", "negative"):
            raw = [entry["values"][name] for entry in pools[side] if entry["values"][name] is not None]
            sides.append([value if end == "high" else 1 - value for value in raw])
        high, low = sides
        pairs = [(a > b) + 0.5 * (a == b) for a in high for b in low]
        entry = found[name]
        assert entry["auc_roc"] == pytest.approx(np.mean(pairs), abs=1e-12)
        assert entry["knows"] == end
        best: tuple[int, float] = (-1, 0.0)
        for one, other in itertools.pairwise(sorted({*high, *low})):
            cut = (one + other) / 2
            best = max(best, (sum(a > cut for a in high) + sum(b <= cut for b in low), -cut))
        raw_cut = -best[1] if end == "high" else 1 + best[1]
        assert thresholds[name]["accuracy"] == pytest.approx(best[0] / (len(high) + len(low)))
        assert thresholds[name]["threshold"] == pytest.approx(raw_cut, abs=1e-12)
        assert entry["p_mean"] == pytest.approx(np.mean([entry["values"][name] for entry in pools["positive"]]))


def test_pools_of_finished_runs(full_run: Path, unlearned_run: Path, retain_run: Path, tmp_path: Path) -> None:
    """Metrics have short names and the direction that belongs to them; values are those of the runs."""
    body = {"positive": [str(full_run), str(unlearned_run)], "negative": [str(retain_run)], "retain": str(retain_run)}
    names = {"es": "extraction_strength", "em": "exact_memorization", "mia_loss": "mia_loss", "prob": "forget_Q_A_Prob"}
    words = ("--metrics", ",".join([*names, "s_mia_loss"]), *QUICK)
    meta("faithfulness", save(tmp_path / "p.yaml", body), tmp_path / "out", *words)
    found = read_json(tmp_path / "out" / "meta_eval.json")["faithfulness"]
    runs = [read_json(run / "TOFU_EVAL.json") for run in (full_run, unlearned_run, retain_run)]
    assert set(found) == {*names, "s_mia_loss"}
    for name, ours in names.items():
        full, unlearned, retain = (run[ours]["agg_value"] for run in runs)
        assert found[name]["p_mean"] == pytest.approx((full + unlearned) / 2)
        assert found[name]["auc_roc"] == np.mean([full > retain, unlearned > retain])
    full, unlearned, retain = (run["mia_loss"]["agg_value"] for run in runs)
    similar = [max(0.0, 1 - abs(auc - retain) / retain) for auc in (full, unlearned)]
    assert found["s_mia_loss"]["p_mean"] == pytest.approx(np.mean(similar))
    assert (found["s_mia_loss"]["n_mean"], found["s_mia_loss"]["knows"]) == (1, "low")


# ---- robustness ------------------------------------------------------------------------------------------------------


def rules(model: Sequence[float], retain: Sequence[float]) -> dict[str, tuple[float, float]]:
    """(R, Q) of m before, after relearning and after quantisation."""
    before, relearnt, quantised = model
    gain, control = relearnt - before, retain[1] - retain[0]

    def likeness(a: float, b: float) -> float:
        return 1 - abs(a - b) / (abs(a) + abs(b)) if a or b else 1.0

    one_sided_r = 1.0 if gain <= 0 else max(0.0, min(control / gain, 1.0))
    one_sided_q = 1.0 if quantised <= before else min(before / quantised, 1.0)
    return {
        "symmetric": (likeness(gain, control), likeness(before, quantised)),
        "one-sided": (one_sided_r, one_sided_q),
    }


def attacks_file(path: Path, states: dict[str, Sequence[float]], metric: str = "uds") -> Path:
    """Models and the retain model from m, which is high when a model knows."""
    entries = {}
    for name, values in states.items():
        raw = [1 - value if metric in LOW else value for value in values]
        keys = ("before", "relearning", "quantization")
        entries[name] = {key: {metric: value} for key, value in zip(keys, raw, strict=True)}
    retain = entries.pop("retain")
    models = [{"model": name, **entry} for name, entry in entries.items()]
    return save(path, {"protocol": "chat", "retain": retain, "models": models})


@pytest.mark.parametrize("rule", ["symmetric", "one-sided"])
def test_both_rules(rule: str, tmp_path: Path) -> None:
    """The digitised scatter of the depth score, and every case that the paper leaves open."""
    scatter = GOLD["uds_scatter_digitised"]
    columns = (scatter[key] for key in ("before", "after_relearn", "after_quant"))
    published = dict(zip(scatter["model"], zip(*columns, strict=True), strict=True))
    odd = {"recovers": (0.1, 0.5, 0.2), "fades": (0.5, 0.3, 0.4), "zero": (0.0, 0.0, 0.1), "still": (0.4, 0.4, 0.4)}
    for number, (states, control) in enumerate(((published, scatter["delta_retain"]), (odd, 0.2), (odd, -0.1))):
        retain = (0.1, 0.1 + control, 0.1) if control < 0 else (0.0, control, 0.0)
        out = tmp_path / str(number)
        meta("robustness", attacks_file(tmp_path / "a.yaml", {"retain": retain, **states}), out, "--robustness", rule)
        entry = read_json(out / "meta_eval.json")["robustness"]["uds"]
        (other,) = {"symmetric", "one-sided"} - {rule}
        for name, mine in ((rule, entry), (other, entry["other_rules"][other])):
            each = [rules(values, retain)[name] for values in states.values()]
            relearning, quantization = (float(np.mean(column)) for column in zip(*each, strict=True))
            assert mine["relearning"] == pytest.approx(relearning, abs=1e-9)
            assert mine["quantization"] == pytest.approx(quantization, abs=1e-9)
            assert mine["agg"] == pytest.approx(harmonic([relearning, quantization]), abs=1e-9)
            if states is published and name == "symmetric":
                assert relearning == pytest.approx(scatter["R_published"], abs=scatter["tolerance"])
                assert quantization == pytest.approx(scatter["Q_published"], abs=scatter["tolerance"])
        assert entry["n_models"] == len(states)


def test_the_plot_of_an_attack_names_its_sides(tmp_path: Path) -> None:
    states = {"retain": (0.1, 0.2, 0.1), "a": (0.2, 0.6, 0.3), "b": (0.3, 0.3, 0.3)}
    meta("robustness", attacks_file(tmp_path / "a.yaml", states), tmp_path / "run")
    vestige("plot", tmp_path / "run", "before-after", "-o", tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()  # matplotlib draws letters and notes their text beside them
    assert "knowledge returned" in drawn and "robust" in drawn


def test_published_aggregates_of_all_metrics(tmp_path: Path) -> None:
    """Pools whose AUC, and a model whose R and Q, are the published ones: HM and overall follow, metric by metric."""
    pools: dict[str, Any] = {"p": {"pool": "P", "metrics": {}}}
    pools |= {f"n{i}": {"pool": "N", "metrics": {}} for i in range(1000)}
    states: dict[str, dict[str, dict[str, float]]] = {"retain": {}, "x": {}}
    assert len(GOLD["meta"]) == 22
    for name, row in GOLD["meta"].items():

        def raw(m: float, name: str = name) -> float:
            return 1 - m if name in LOW else m

        pools["p"]["metrics"][name] = raw(0.5)
        for i in range(1000):
            pools[f"n{i}"]["metrics"][name] = raw(0.4 if i < round(1000 * row["auc_roc"]) else 0.6)
        r, q = row["relearning"], row["quantization"]
        values = {"retain": (0.1, 0.5, 0.1), "x": (0.3, 0.3 + 0.4 * r / (2 - r), 0.3 * q / (2 - q))}
        for model, three in values.items():
            for key, m in zip(("metrics_before", "metrics_after_relearn", "metrics_after_quant"), three, strict=True):
                states[model].setdefault(key, {})[name] = raw(m)
    root = tmp_path / "runs" / "meta_eval"
    file = save(root / "faithfulness" / "results.json", pools)
    for mode in ("relearn", "quant"):
        body = {}
        for model, entry in states.items():
            body[model] = {key: entry[key] for key in ("metrics_before", f"metrics_after_{mode}")}
        save(root / "robustness" / mode / "results.json", body)
    meta("faithfulness", file, tmp_path / "out", *QUICK)
    meta("robustness", tmp_path / "runs", tmp_path / "out", *QUICK)
    found = read_json(tmp_path / "out" / "meta_eval.json")
    for name, row in GOLD["meta"].items():
        mine = found["robustness"][name]
        assert found["faithfulness"][name]["auc_roc"] == pytest.approx(row["auc_roc"], abs=1e-12)
        assert mine["relearning"] == pytest.approx(row["relearning"], abs=1e-9), name
        assert mine["quantization"] == pytest.approx(row["quantization"], abs=1e-9), name
        assert mine["agg"] == pytest.approx(row["agg"], abs=GOLD["meta_tolerance"]["agg"]), name
        assert found["overall"][name] == pytest.approx(row["overall"], abs=GOLD["meta_tolerance"]["agg"]), name


def test_published_filters(axes_run: Path, tmp_path: Path) -> None:
    """124 of 150 models are useful; of these, so many look unlearned to each metric; four look so to all."""
    columns = {"em": "one_minus_em", "es": "one_minus_es", "truth_ratio": "one_minus_truth"}
    columns |= {"paraprob": "one_minus_paraprob", "uds": "uds", "logit_lens": "logit_lens"}
    models = []
    for row in METHODS:
        values = {name: row[key] if name in LOW else 1 - row[key] for name, key in columns.items()}
        if not row["is_reference"]:
            models.append({"model": row["model"], "before": values, "quantization": values})
    retain = {key: dict.fromkeys(columns, 0.5) for key in ("before", "quantization")}
    file = save(tmp_path / "a.yaml", {"protocol": "chat", "retain": retain, "models": models})
    windows = {name: GOLD["filters"]["checkable"][name]["threshold_window_for_n"] for name in columns}
    thresholds = {}
    for name, window in windows.items():
        m = sum(window) / 2
        thresholds[name] = {"threshold": 1 - m if name in LOW else m, "protocol": "chat"}
    words = ("--thresholds", save(tmp_path / "t.json", thresholds), "--utility", axes_run / "method_results.json")
    meta("robustness", file, tmp_path / "out", *words, *QUICK)
    usable = read_json(tmp_path / "out" / "usable_models.json")
    counts = usable["counts"]
    assert (counts["models"], counts["utility_pass_only"]) == (150, GOLD["filters"]["utility_pass"])
    assert counts["usable_per_metric"] == {name: GOLD["filters"]["n_published"][name] for name in columns}
    assert counts["intersection_all_metrics"] == 4
    assert len(set.intersection(*map(set, usable["usable_models_per_metric"].values()))) == 4
    stricter = meta("robustness", file, tmp_path / "out", *words, *QUICK, "--least-utility", 0.95).out
    useful = sum(row["utility_rel"] >= 0.95 for row in METHODS if not row["is_reference"])
    assert read_json(tmp_path / "out" / "usable_models.json")["counts"]["utility_pass_only"] == useful
    assert str(useful) in stricter


def test_similarities_are_filtered_by_their_attack(tmp_path: Path) -> None:
    states: dict[str, Any] = {"retain": {"before": {"mia_loss": 0.4}, "quantization": {"mia_loss": 0.4}}, "models": []}
    for number in range(6):
        values = {"mia_loss": 0.3 + number / 50}
        states["models"].append({"model": f"m{number}", "before": values, "quantization": values})
    file = save(tmp_path / "a.yaml", {"protocol": "chat", **states})
    given = {"mia_loss": {"threshold": 0.35}, "s_mia_loss": {"threshold": 0.87}}
    words = (file, tmp_path / "out", "--thresholds", save(tmp_path / "t.json", given), *QUICK)
    for flags, expected in (((), ["m0", "m1", "m2"]), (("--own-thresholds",), ["m3", "m4", "m5"])):
        meta("robustness", *words, *flags)
        kept = read_json(tmp_path / "out" / "usable_models.json")["usable_models_per_metric"]
        assert kept == {"mia_loss": ["m0", "m1", "m2"], "s_mia_loss": expected}


# ---- protocols, missing values and mistakes --------------------------------------------------------------------------


def test_a_mixture_of_protocols_is_refused_or_named(tmp_path: Path, full_run: Path) -> None:
    """Thresholds of another protocol serve only with --accept-mixture, one command at a time; R and Q never mix."""
    rows = {}
    for number, (pool, value) in enumerate((("P", 0.8), ("P", 0.82), ("N", 0.4), ("N", 0.42))):
        rows[f"m{number}"] = {"pool": pool, "metrics": {"em": value}}
    out, file = tmp_path / "out", save(tmp_path / "results.json", rows)
    meta("faithfulness", file, out, *QUICK)
    states = {"retain": (0.40, 0.50, 0.41), "npo": (0.45, 0.60, 0.47), "simnpo": (0.90, 0.95, 0.91)}
    attacks = attacks_file(tmp_path / "a.yaml", states, "em")
    assert "--accept-mixture" in meta("robustness", attacks, out, *QUICK, status=2).error
    assert "em" in meta("robustness", attacks, out, *QUICK, "--accept-mixture").out
    body = read_json(out / "meta_eval.json")
    entry = body["robustness"]["em"]
    assert entry["threshold_protocol"] != entry["protocol"] == "chat"
    assert (entry["n_models"], body["overall"]["em"] is None) == (1, False)
    assert {"mixed threshold: em", "mixed overall: em"} <= set(body["notes"])
    meta("faithfulness", file, out, *QUICK)
    assert read_json(out / "meta_eval.json")["overall"]["em"] is None
    one = {"positive": [str(full_run)], "negative": [{"model": "b", "values": {"em": 0.1}}]}
    words = ("--metrics", "em", *QUICK, "--accept-mixture")
    assert "em" in meta("faithfulness", save(tmp_path / "p.yaml", one), out, *words, status=2).error


A, B = {"model": "a", "values": {"em": 0.5}}, {"model": "b", "values": {"em": 0.1}}
STATES = {"retain": {"before": {"em": 0.1}}, "models": [{"model": "a", "before": {"em": 0.1}}]}
WRONG: list[tuple[str, Any, str, str]] = [  # command, file, further words, what the sentence names
    ("faithfulness", {"positive": [A]}, "", "negative"),
    ("faithfulness", {"positive": [A], "negative": [A]}, "", "a"),
    ("faithfulness", {"positive": [{"model": "a", "values": {"em": 3}}], "negative": [B]}, "", "em|0..1"),
    ("faithfulness", {"positive": [{"values": {"em": 0.1}}], "negative": [B]}, "", "name"),
    ("faithfulness", {"positive": [{"model": "a", "values": {"em": "x"}}], "negative": [B]}, "", "positive[0]|em"),
    ("faithfulness", {"positive": [A], "negative": [B], "metrics": {"em": {"knows": "up"}}}, "", "up|high"),
    ("faithfulness", {"positive": [A], "negative": [B]}, "--metrics emm", "emm|em"),
    ("robustness", {"retain": {"before": {"em": 0.1}}, "models": []}, "", "model"),
    ("robustness", STATES, "--robustness both", "both|symmetric"),
    ("axes", {"models": [A]}, "--floor 2", "--floor"),
    ("faithfullness", {"positive": [A], "negative": [B]}, "", "faithfullness|'faithfulness'"),
]


@pytest.mark.parametrize(("what", "body", "words", "names"), WRONG)
def test_mistakes_are_one_sentence(what: str, body: Any, words: str, names: str, tmp_path: Path) -> None:
    refused(names, "meta", what, save(tmp_path / "x.yaml", body), "--out", tmp_path / "out", *words.split())
    assert not (tmp_path / "out" / "meta_eval.json").exists()


# ---- result trees ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return published_tree(tmp_path)


def test_a_result_tree_is_imported(tree: Path, tmp_path: Path) -> None:
    """Both epochs, the attacks and the pools; depth scores by their former name; nothing of legacy folders."""
    name = "npo_lr1e5_b01_a1_ep10"
    file = tree / "ep10" / "uds" / name / "summary.json"
    summary = read_json(file)
    put(file, {"avg_udr": 0.7, **{key: summary[key] for key in summary if key not in ("avg_uds", "avg_udr")}})
    quant = tree / "meta_eval" / "robustness" / "quant" / "results.json"
    failed = "npo_lr5e5_b01_a1_ep5"
    put(quant, {**read_json(quant), failed: {"model_id": "x", "error": "out of memory"}})
    shown = vestige("import", tree, "--out", tmp_path / "out", "--quiet").out
    assert f"{failed} (quant)" in shown and "legacy" in shown
    rows = {row["model"]: row for row in read_json(tmp_path / "out" / "method_results.json")["models"]}
    assert set(rows) == set(KNOWS)
    for model, knows in KNOWS.items():
        expected, low = metrics(knows), metrics(0.0)
        assert rows[model]["one_minus_em"] == pytest.approx(1 - expected["em"])
        similar = max(0.0, 1 - (expected["mia_min_kpp"] - low["mia_min_kpp"]) / low["mia_min_kpp"])
        assert rows[model]["s_minkpp"] == pytest.approx(similar)
        assert rows[model]["utility_rel"] == pytest.approx(1)
        if model not in ("full", "retain"):
            assert rows[model]["uds"] == pytest.approx(0.7 if model == name else expected["uds"])
    assert [rows[name][key] for key in ("epoch", "method", "alpha", "lr")] == ["ep10", "npo", 1, 1e-5]
    found = read_json(tmp_path / "out" / "meta_eval.json")
    relearn = read_json(tree / "meta_eval" / "robustness" / "relearn" / "results.json")
    kept = read_json(tmp_path / "out" / "usable_models.json")["usable_models_per_metric"]["prob"]
    assert sorted(kept) == ["npo_lr5e5_b01_a1_ep10", failed]  # the others look like models that know

    def around(model: str) -> list[float]:
        return [relearn[model][key]["prob"] for key in ("metrics_before", "metrics_after_relearn")]

    each = [rules((*around(model), 0), around("retain"))["symmetric"][0] for model in kept]
    assert found["robustness"]["prob"]["relearning"] == pytest.approx(np.mean(each))
    assert found["robustness"]["prob"]["quantization"] == pytest.approx(1)
    assert found["overall"]["prob"] == pytest.approx(harmonic([1, found["robustness"]["prob"]["agg"]]))
    assert "ep10" in vestige("import", tree, "--baseline", "ep5", "--out", tmp_path / "no", status=2).error
    outcome = vestige("verify", tmp_path / "out", status=1)
    assert "avg_udr" in outcome.printed


def test_verify_finds_what_changed_behind_an_import(tree: Path, tmp_path: Path) -> None:
    vestige("import", tree, "--out", tmp_path / "out", "--quiet")
    vestige("verify", tmp_path / "out")
    changes = ("meta_eval/robustness/quant/results.json", "ep10/utility/full/summary.json")
    for name in changes:
        original = (tree / name).read_text()
        (tree / name).write_text(original.replace("0.6", "0.61", 1) + "\n")
        assert name in vestige("verify", tmp_path / "out", "--hashes-only", status=1).printed
        (tree / name).write_text(original)
    put(tree / "ep5" / "memorization" / "rmu_lr1e5_l5_s10_ep5" / "summary.json", {"avg_em": 0.5})
    assert "rmu_lr1e5_l5_s10_ep5" in vestige("verify", tmp_path / "out", status=1).printed


def test_runs_of_two_epochs_in_folders(tmp_path: Path) -> None:
    """saves/ep5 and saves/ep10: patterns, several runs of one model, the epoch of each, names that occur twice."""
    for epoch, em in (("ep5", 0.8), ("ep10", 0.4)):
        for number in (0, 1):
            place = tmp_path / "saves" / epoch / f"npo{number}_{epoch}"
            save(place / "TOFU_EVAL.json", {"exact_memorization": {"agg_value": em + number / 10}})
            save(place / "depth" / "summary.json", {"avg_udr": 1 - em})
    body: dict[str, Any] = {"protocol": {"uds": "entity", "default": "chat"}, "negative": ["saves/ep10/*"]}
    body["positive"] = [["saves/ep5/npo0_ep5", "saves/ep5/npo0_ep5/depth"], "saves/ep5/npo1*"]
    meta("faithfulness", save(tmp_path / "p.yaml", body), tmp_path / "out", *QUICK)
    found = read_json(tmp_path / "out" / "meta_eval.json")["faithfulness"]
    assert (found["em"]["auc_roc"], found["em"]["p_mean"], found["em"]["n_mean"]) == pytest.approx((1, 0.85, 0.45))
    assert found["uds"]["p_mean"] == pytest.approx(0.2)
    models = [{"model": "npo", "epoch": epoch, "run": f"saves/{epoch}/npo0_{epoch}"} for epoch in ("ep5", "ep10")]
    assert "npo" in meta("axes", save(tmp_path / "m.yaml", {"models": models}), tmp_path / "out", status=2).error
    models[1]["model"] = "npo_late"
    meta("axes", save(tmp_path / "m.yaml", {"protocol": "chat", "models": models}), tmp_path / "out")
    rows = read_json(tmp_path / "out" / "method_results.json")["models"]
    assert [(row["model"], row["epoch"]) for row in rows] == [("npo", "ep5"), ("npo_late", "ep10")]
    assert [row["one_minus_em"] for row in rows] == pytest.approx([0.2, 0.6])
    assert rows[0]["overall"] is None and rows[0]["reasons"]["overall"]


# ---- import of single files ------------------------------------------------------------------------------------------


def ratios(log: dict[str, Any]) -> dict[str, float]:
    """Geometric mean probability of the wrong answers over that of the paraphrase."""
    wrong, right = log["average_perturb_loss"], log["avg_paraphrased_loss"]
    return {index: float(np.exp(right[index] - np.mean(wrong[index]))) for index in right}


def test_published_logs_of_tofu(tmp_path: Path) -> None:
    """The first rows of two published logs: truth ratio, forget quality, and TOFU's nine abilities."""
    both = read_json(GOLDEN / "published_extract.json")
    full, retain = (save(tmp_path / name / "eval_log_aggregated.json", both[name]) for name in ("full", "retain90"))
    vestige("import", retain, "--out", tmp_path / "retain")
    for number, given in enumerate((retain, tmp_path / "retain")):  # their own file, or ours made of it
        vestige("import", full, "--retain-logs", given, "--out", tmp_path / str(number))
    found = read_json(tmp_path / "0" / "TOFU_EVAL.json")
    assert found["forget_quality"] == read_json(tmp_path / "1" / "TOFU_EVAL.json")["forget_quality"]
    mine, theirs = (ratios(both[name]["eval_log_forget.json"]) for name in ("full", "retain90"))
    rows = {index: row["score"] for index, row in found["forget_truth_ratio"]["value_by_index"].items()}
    assert rows == pytest.approx(mine, rel=1e-6)
    expected = ks_2samp(list(mine.values()), list(theirs.values()))
    quality = [found["forget_quality"][key] for key in ("agg_value", "ks_statistic", "n", "m")]
    assert quality == pytest.approx([expected.pvalue, expected.statistic, 24, 24], rel=1e-12)
    parts = []
    for name, log in both["full"].items():
        if name == "eval_log_forget.json":
            continue
        shares = []
        for index, loss in log["avg_gt_loss"].items():
            wrong = 0 if name == "eval_log.json" else np.exp(-np.array(log["average_perturb_loss"][index])).sum()
            shares.append(np.exp(-loss) / (np.exp(-loss) + wrong if name != "eval_log.json" else 1))
        truth = [max(0.0, 1 - ratio) for ratio in ratios(log).values()]
        parts += [np.mean(shares), np.mean(list(log["rougeL_recall"].values())), np.mean(truth)]
    assert len(parts) == 9
    assert found["model_utility"]["agg_value"] == pytest.approx(harmonic(parts), rel=1e-6)


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    for content in ("[1]", '{"a": {"b": 1}}', "{oops"):
        (tmp_path / "x.json").write_text(content)
        refused("x.json", "import", tmp_path / "x.json", "--out", tmp_path / "out")
