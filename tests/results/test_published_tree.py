"""A result tree in the published layout: report, import and meta read all of it, and nothing of legacy/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from published_tree import KNOWS, metrics, published_tree, put
from vestige.cli import main
from vestige.meta.files import key_ages


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return published_tree(tmp_path)


def made_report(runs: Path, out: Path) -> dict[str, Any]:
    assert main(["report", str(runs), "--out", str(out)]) == 0
    return dict(json.loads((out / "report.json").read_text()))


def body(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


# ---- report ------------------------------------------------------------------------------------------------------


def test_every_kind_of_file_is_read(tree: Path) -> None:
    report = made_report(tree, Path("rep"))
    models = {m["name"]: m for m in report["models"]}
    mine = models["npo_lr1e5_b01_a1_ep5"]["values"]
    expected = metrics(KNOWS["npo_lr1e5_b01_a1_ep5"])
    for name in ("em", "es", "prob", "rouge", "para_rouge", "jailbreak_rouge", "mia_loss", "mia_min_kpp"):
        assert mine[name]["v"] == pytest.approx(expected[name]), name
    assert mine["one_minus_em"]["v"] == pytest.approx(1 - expected["em"])
    assert mine["uds"]["v"] == pytest.approx(expected["uds"])
    assert mine["utility_rel"]["v"] == pytest.approx(1) and mine["overall"]["v"] is not None
    assert models["retain"]["role"] == "retain" and models["full"]["role"] == "full"
    audit = next(a for a in report["audits"] if a["model"] == models["npo_lr1e5_b01_a1_ep5"]["id"])
    told = {e["metric"]: e["state"] for e in audit["verdict"]["evidence"]}
    assert told["prob"] == "towards" and "rouge" in told and any(k.startswith("mia_") for k in told)
    assert "model_utility" in told and audit["verdict"]["word"] == "not_forgotten"


def test_robustness_is_shown_where_robustness_is_shown(tree: Path) -> None:
    report = made_report(tree, Path("rep"))
    prob = next(m for m in report["meta"]["metrics"] if m["key"] == "prob")
    assert prob["q"] == pytest.approx(1) and 0 < prob["r"] < 1 and prob["auc"] == pytest.approx(1)
    name = "npo_lr5e5_b01_a1_ep10"
    mine = next(m["id"] for m in report["models"] if m["name"] == name)
    audit = next(a for a in report["audits"] if a["model"] == mine)
    curves = {(c["attack"], c["metric"], c["name"]): c for c in audit["attacks"]}
    after = body(tree / "meta_eval" / "robustness" / "relearn" / "results.json")[name]["metrics_after_relearn"]
    assert curves["relearn", "prob", name]["values"] == [after["prob"]]
    assert curves["relearn", "prob", "retain"]["is_control"] and ("quantise", "rouge", name) in curves


def test_a_finished_meta_eval_comes_before_the_trees_own_values(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tree), "--out", "imported"]) == 0
    capsys.readouterr()
    assert main(["report", str(tree), "imported", "--out", "rep"]) == 0
    assert "imported/meta_eval.json is shown" in capsys.readouterr().out
    report, fresh = body(Path("rep/report.json")), made_report(tree, Path("other"))
    assert [m["r"] for m in report["meta"]["metrics"]] == pytest.approx([m["r"] for m in fresh["meta"]["metrics"]])


# ---- import and meta ---------------------------------------------------------------------------------------------


def test_import_judges_metrics_by_the_trees_pools_and_attacks(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tree)]) == 0
    assert "meta_eval/robustness/quant/results.json" in capsys.readouterr().out
    assert main(["import", str(tree), "--out", "imported"]) == 0
    found = body(Path("imported/meta_eval.json"))
    kept = body(Path("imported/usable_models.json"))["usable_models_per_metric"]["prob"]
    assert kept == ["npo_lr5e5_b01_a1_ep5", "npo_lr5e5_b01_a1_ep10"]  # the other two look like models of pool P
    relearn = body(tree / "meta_eval" / "robustness" / "relearn" / "results.json")
    gains = {n: b["metrics_after_relearn"]["prob"] - b["metrics_before"]["prob"] for n, b in relearn.items()}
    each = [1 - abs(gains[n] - gains["retain"]) / (abs(gains[n]) + abs(gains["retain"])) for n in kept]
    assert found["robustness"]["prob"]["relearning"] == pytest.approx(sum(each) / 2)
    assert found["robustness"]["prob"]["quantization"] == pytest.approx(1)
    assert found["faithfulness"]["uds"]["auc_roc"] == 1 and found["overall"]["prob"] is not None


def test_meta_reads_the_files_of_the_attacks(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tree / "meta_eval" / "robustness"
    quant = body(place / "quant" / "results.json")
    quant["npo_lr1e5_b01_a1_ep5"] = {"model_id": "x", "error": "out of memory\nat layer 3"}
    del quant["npo_lr1e5_b01_a1_ep10"]["metrics_after_quant"]
    put(place / "quant" / "results.json", quant)
    for given in (place, tree, tree.parent):
        assert main(["meta", "robustness", str(given), "--out", "both"]) == 0
    shown = capsys.readouterr().out
    assert "npo_lr1e5_b01_a1_ep5 (quant) is left out: out of memory" in shown
    assert "npo_lr1e5_b01_a1_ep10 (quant) is left out" in shown
    assert main(["meta", "robustness", str(place / "relearn" / "results.json"), "--out", "one"]) == 0
    assert body(Path("one/meta_eval.json"))["robustness"]["uds"]["quantization"] is None
    quant["retain"]["metrics_before"]["em"] = 0.1
    put(place / "quant" / "results.json", quant)
    assert main(["meta", "robustness", str(place), "--out", "both"]) == 2
    assert "gives em twice" in capsys.readouterr().err
    assert main(["meta", "robustness", str(tree / "ep5"), "--out", "both"]) == 2
    assert "holds no {quant,relearn}/results.json" in capsys.readouterr().err


# ---- verify ------------------------------------------------------------------------------------------------------


@pytest.fixture
def imported(tree: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["import", str(tree), "--out", "imported"]) == 0
    capsys.readouterr()
    return Path("imported")


def verified(place: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["verify", str(place), *flags])
    return status, capsys.readouterr().out


def change(file: Path, *keys: str | int, to: Any) -> None:
    data: Any = json.loads(file.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("file", "keys", "to", "words"),
    [
        ("method_results.json", ("models", 2, "mem"), 0.9, "mem of"),
        ("method_results.json", ("models", 2, "uds"), 0.99, "its evidence gives"),
        ("method_results.json", ("method_counts", "npo"), 7, "method_counts is"),
        ("meta_eval.json", ("robustness", "em", "agg"), 0.99, "its formula gives"),
        ("meta_eval.json", ("faithfulness", "em", "auc_roc"), 0.5, "its evidence gives"),
        ("meta_eval.json", ("overall", "em"), 0.99, "overall of em is 0.99"),
        ("meta_eval.json", ("formulas", "robustness"), "R + Q", "formulas in words are not those that compute"),
        ("meta_eval.json", ("metrics", 0, "label"), "Depth", "its evidence gives"),
        ("meta_eval.json", ("robustness", "em", "rule_in_words"), "max(R)", "says it is by 'max(R)'"),
        ("optimal_thresholds.json", ("em", "threshold"), 0.1, "optimal_thresholds.json: em/threshold is 0.1"),
        ("usable_models.json", ("counts", "models"), 5, "usable_models.json: counts/models is 5"),
    ],
)
def test_numbers_and_labels_that_do_not_follow_are_found(
    imported: Path, file: str, keys: tuple[Any, ...], to: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(imported / file, *keys, to=to)
    status, shown = verified(imported, capsys)
    assert status == 1 and f"{file} is damaged" in shown  # by its checksum
    without_digests(imported)  # somebody who edits numbers does not keep the digests either
    status, shown = verified(imported, capsys)
    assert status == 1 and words in shown


def test_mixed_keys_are_found_and_an_alias_is_not_a_mixture(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key_ages({"avg_udr": 0.5, "avg_uds": 0.5}) == {"new"}  # as every published summary has it
    assert key_ages({"avg_udr": 0.4, "avg_uds": 0.5}) == {"old", "new"}
    file = tree / "ep10" / "uds" / "npo_lr1e5_b01_a1_ep10" / "summary.json"
    data = body(file)
    del data["avg_uds"]
    put(file, data)
    assert main(["import", str(tree), "--out", "imported"]) == 0
    status, shown = verified(Path("imported"), capsys)
    assert status == 1 and "uses the former keys (avg_udr)" in shown
    put(file, {**data, "avg_uds": 0.9})
    assert main(["import", str(tree), "--out", "imported"]) == 0
    status, shown = verified(Path("imported"), capsys)
    assert status == 1 and "uses former and present keys together" in shown


def pool_runs(place: Path) -> Path:
    for i, knows in enumerate((0.8, 1.0, 0.0, 0.1)):
        side = "knows" if i < 2 else "never"
        put(place / f"{side}{i}" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": metrics(knows)["es"]}})
    file = place / "pools.yaml"
    file.write_text("protocol: chat\npositive: [knows*]\nnegative: [never*]\n")
    return file


def test_pools_of_runs_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    pools = pool_runs(tmp_path / "saves")
    assert main(["meta", "faithfulness", str(pools), "--out", str(out)]) == 0
    status, shown = verified(out, capsys)
    assert status == 0 and "sources: 5 of 5 files behind faithfulness" in shown
    put(tmp_path / "saves" / "never9" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.2}})
    status, shown = verified(out, capsys)
    assert status == 1 and "has 2 negative (faithfulness), the run set 3 (not in the file: never9)" in shown
    put(tmp_path / "saves" / "knows0" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.99}})
    status, shown = verified(out, capsys)
    assert status == 1 and "knows0/TOFU_EVAL.json has changed since faithfulness" in shown


def without_digests(run: Path) -> None:
    about = body(run / "manifest.json")
    del about["sha256"], about["root"]
    (run / "manifest.json").write_text(json.dumps(about))
