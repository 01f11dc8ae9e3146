"""Intervals of whole runs, and runs compared: on the golden lab."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from golden_tools import eval_args
from vestige.cli import main
from vestige.engine.references import load_references
from vestige.engine.scores import Run, intervals
from vestige.engine.stored import suite_from_manifest
from vestige.runs.run import read_manifest
from vestige.types import Score

METRICS = (
    "forget_Q_A_Prob", "forget_truth_ratio", "forget_quality", "privleak", "mia_min_k", "model_utility",
    "retain_Q_A_Prob", "forget_Q_A_PERT_Prob", "rel_diff_extraction_strength", "forget_Q_A_ROUGE",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    chosen = ("--metrics", ",".join(METRICS))
    out = {name: place / name for name in ("retain", "full", "unlearned")}
    for name, directory in out.items():
        more = () if name == "retain" else ("--retain-logs", str(out["retain"]))
        # Four authors are too few for intervals over clusters (test_cluster_runs.py); here rows are the unit.
        assert main(eval_args(LAB / "models" / name, directory, *chosen, *more, "--cluster", "none")) == 0
    return out


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def stored(directory: Path) -> Run:
    manifest = read_manifest(directory)
    suite = suite_from_manifest(manifest)
    scores = {m: Score.from_json(v) for m, v in read(directory / "TOFU_EVAL.json").items()}
    return Run(suite, scores, manifest, load_references(suite, manifest["dialect"]["name"]))


def test_every_metric_has_an_interval_around_its_value(runs: dict[str, Path]) -> None:
    values, stats = (read(runs["unlearned"] / f"TOFU_{kind}.json") for kind in ("EVAL", "STATS"))
    assert set(stats) == set(values)
    for name, stat in stats.items():
        low, high = stat["interval"]
        value = values[name]["ks_statistic"] if name == "forget_quality" else values[name]["agg_value"]
        assert low <= value <= high, name
        assert (stat["level"], stat["resamples"]) == (0.95, 2000)
    assert stats["forget_Q_A_Prob"]["n"] == 32
    assert stats["mia_min_k"]["n"] == 64
    assert stats["forget_quality"]["of"] == "ks_statistic"
    assert values["forget_quality"]["smallest_detectable"] == 0.34375


def test_the_same_run_gives_the_same_bytes(runs: dict[str, Path], tmp_path: Path) -> None:
    """From evidence, in another directory, or computed from the stored scores."""
    before = (runs["unlearned"] / "TOFU_STATS.json").read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(runs["unlearned"], copy)
    (copy / "TOFU_STATS.json").unlink()
    assert main(["score", str(copy)]) == 0
    assert (copy / "TOFU_STATS.json").read_bytes() == before
    assert intervals(stored(runs["unlearned"]), 2000) == json.loads(before)


def test_composed_metrics_follow_their_parents_rows(runs: dict[str, Path]) -> None:
    """Model utility from the same draws as its nine parts; privleak against the retain model on the same rows."""
    run = stored(runs["unlearned"])
    utility, leak = run.estimate("model_utility"), run.estimate("privleak")
    assert len({s.group for s in utility.samples}) == 3  # retain, real authors, world facts: nine parts
    assert len(utility.samples) == 9
    assert len({s.group for s in leak.samples}) == 2  # forget and holdout, shared with the retain model
    assert len(leak.samples) == 4


def test_a_reference_on_other_rows_is_drawn_by_itself(runs: dict[str, Path], tmp_path: Path) -> None:
    args = ("--metrics", "privleak", "--limit", "20", "--retain-logs", str(runs["retain"]), "--accept-mixture")
    assert main(eval_args(LAB / "models" / "unlearned", tmp_path, *args)) == 0
    assert len({s.group for s in stored(tmp_path).estimate("privleak").samples}) == 4


def test_without_a_retain_model_the_reference_is_exact(runs: dict[str, Path]) -> None:
    stats = read(runs["retain"] / "TOFU_STATS.json")
    assert "taken as exact" in stats["privleak"]["method"]
    assert stats["forget_quality"] == {"interval": None, "reason": "it has no value"}


def test_a_number_that_is_no_function_of_its_rows_has_no_interval(runs: dict[str, Path]) -> None:
    run = stored(runs["unlearned"])
    score = run.scores["forget_Q_A_Prob"]
    run.scores = {**run.scores, "forget_Q_A_Prob": Score(0.123, score.value_by_index)}
    assert "not the mean" in intervals(run, 100)["forget_Q_A_Prob"]["reason"]
