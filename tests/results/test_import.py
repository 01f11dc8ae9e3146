"""`vestige import`: other tools' files, checked against the definitions written out here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from conftest import GOLDEN, LAB
from vestige.adapters.importers import TOFU_LOGS
from vestige.cli import main
from vestige.runs.imports import import_file

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "tofu" / "published_logs"
FORGET = "eval_log_forget.json"
GUARD = 1e-6  # our ratios have the 1e-10 in the denominator that the published code has; the definition has none


@pytest.fixture
def extract(tmp_path: Path) -> dict[str, Path]:
    """The first rows of two published logs (numbers only), as files of their own."""
    both = json.loads((GOLDEN / "published_extract.json").read_text())
    out = {name: tmp_path / name / "eval_log_aggregated.json" for name in ("full", "retain90")}
    for name, path in out.items():
        path.parent.mkdir()
        path.write_text(json.dumps(both[name]))
    return out


def ratios(log: dict[str, Any]) -> dict[str, float]:
    """The definition: geometric mean probability of the wrong answers over that of the paraphrase."""
    wrong, right = log["average_perturb_loss"], log["avg_paraphrased_loss"]
    return {i: float(np.exp(-np.mean(wrong[i])) / np.exp(-right[i])) for i in right}


def check_against_the_definition(full: Path, retain: Path) -> None:
    logs = [json.loads(p.read_text()) for p in (full, retain)]
    scores = import_file(full, retain_logs=retain).imported.scores
    mine, theirs = (ratios(log[FORGET]) for log in logs)
    got = {i: v["score"] for i, v in (scores["forget_truth_ratio"].value_by_index or {}).items()}
    assert got == pytest.approx(mine, rel=GUARD)
    assert got == pytest.approx(logs[0][FORGET]["truth_ratio"], rel=1e-5)  # theirs, in float32
    expected = ks_2samp(list(mine.values()), list(theirs.values()))
    assert scores["forget_quality"].agg_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert scores["forget_quality"].extra["ks_statistic"] == pytest.approx(expected.statistic)
    r = np.array(list(mine.values()))
    assert scores["forget_truth_ratio"].agg_value == pytest.approx(np.minimum(r, 1 / r).mean(), rel=GUARD)
    parts = list(_utility_parts(logs[0]))
    assert scores["model_utility"].agg_value == pytest.approx(len(parts) / sum(1 / p for p in parts), rel=GUARD)


def _utility_parts(logs: dict[str, Any]) -> Any:
    """TOFU's nine abilities: probability, ROUGE and truth ratio on retain rows, real authors, world facts."""
    for file, short in TOFU_LOGS.items():
        if short == "forget":
            continue
        log = logs[file]
        p = {i: np.exp(-x) for i, x in log["avg_gt_loss"].items()}
        if short != "retain":
            p = {i: x / (x + np.exp(-np.array(log["average_perturb_loss"][i])).sum()) for i, x in p.items()}
        yield np.mean(list(p.values()))
        yield np.mean(list(log["rougeL_recall"].values()))
        yield np.mean([max(0, 1 - x) for x in ratios(log).values()])


def test_extract_of_published_logs(extract: dict[str, Path]) -> None:
    check_against_the_definition(extract["full"], extract["retain90"])


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published logs are not on this machine")
def test_published_logs_whole() -> None:
    full, retain = (next(PUBLISHED.glob(f"*_{n}_*")) / "eval_log_aggregated.json" for n in ("full", "retain90"))
    check_against_the_definition(full, retain)
    scores = import_file(full, retain_logs=retain).imported.scores
    assert scores["forget_quality"].extra["n"] == 300


def test_imported_logs_serve_as_retain_logs(extract: dict[str, Path], tmp_path: Path) -> None:
    retain, out = tmp_path / "ours", tmp_path / "out"
    assert main(["import", str(extract["retain90"]), "--out", str(retain)]) == 0
    assert main(["import", str(extract["full"]), "--out", str(out), "--retain-logs", str(retain)]) == 0
    direct = import_file(extract["full"], retain_logs=extract["retain90"]).imported.scores
    summary = json.loads((out / "TOFU_SUMMARY.json").read_text())
    assert summary["forget_quality"] == direct["forget_quality"].agg_value
    assert "forget_quality" not in json.loads((retain / "TOFU_SUMMARY.json").read_text())
    model, data = LAB / "models" / "full", LAB / "data"
    words = ["eval", "tofu", "--model", str(model), "--data", str(data), "--out", str(tmp_path / "run"), "--limit", "4"]
    assert main([*words, "--quiet", "--metrics", "forget_quality", "--retain-logs", str(retain)]) == 0
    quality = json.loads((tmp_path / "run" / "TOFU_EVAL.json").read_text())["forget_quality"]
    assert (quality["n"], quality["m"]) == (4, 24)


def test_open_unlearnings_file_comes_back_as_it_says(tmp_path: Path) -> None:
    """Every mean taken again from the rows is the one in the file, and so is what is made of them."""
    file, retain = (LAB / "expected" / n / "TOFU_EVAL.json" for n in ("full", "retain_noref"))
    result = import_file(file, retain_logs=retain)
    assert result.imported.notes == []
    for name, body in json.loads(file.read_text()).items():
        if body["agg_value"] is not None and not np.isnan(body["agg_value"]):
            assert result.imported.scores[name].agg_value == pytest.approx(body["agg_value"], rel=1e-6), name


def test_a_file_that_contradicts_its_rows_is_found_out(tmp_path: Path) -> None:
    data = json.loads((LAB / "expected" / "full" / "TOFU_EVAL.json").read_text())
    data["forget_Q_A_Prob"]["agg_value"] = 0.5
    data["forget_Q_A_ROUGE"]["value_by_index"]["0"]["rougeL_recall"] = float("nan")
    (tmp_path / "TOFU_EVAL.json").write_text(json.dumps(data))
    result = import_file(tmp_path / "TOFU_EVAL.json", tmp_path / "out")
    assert any(n.startswith("forget_Q_A_Prob: the file says 0.5, its rows give 0.95") for n in result.imported.notes)
    assert "NaN" not in (tmp_path / "out" / "TOFU_EVAL.json").read_text()


def test_a_part_of_the_logs_gives_a_part_of_the_metrics(extract: dict[str, Path]) -> None:
    logs = json.loads(extract["full"].read_text())
    extract["full"].write_text(json.dumps({FORGET: logs[FORGET]}))
    scores = import_file(extract["full"]).imported.scores
    assert scores["forget_truth_ratio"].agg_value is not None
    assert scores["model_utility"].agg_value is None
    assert "holds no retain_Q_A_Prob" in scores["model_utility"].reason
    assert "no retain logs" in scores["forget_quality"].reason


def test_published_figures_beside_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    file = LAB / "expected" / "full" / "TOFU_EVAL.json"
    assert main(["compare", str(file), "published"]) == 0
    out = capsys.readouterr().out
    table = next(block for block in out.split("\n\n") if "Llama-3.2-1B" in block and "forget10" in block)
    line = next(x for x in table.splitlines() if x.startswith("this run")).split()
    assert line[-1] == f"{json.loads(file.read_text())['forget_truth_ratio']['agg_value']:.4f}"
    assert "no manifest" in out and "source: locuslab/open-unlearning" in out
