"""Parents of metrics inside `trajectory_metrics`: what the user names is what is computed, at every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffusion_tools import save_lab_bert
from vestige.engine.config import make_config
from vestige.engine.evaluate import evaluate_config
from vestige.suites.spec import SuiteSpec

DATA = Path(__file__).parents[1] / "golden" / "lab" / "data"
KEY = "eval.tofu_trajectory.metrics.trajectory_metrics"
SAMPLER = f"{KEY}.trajectory_config.sampler_kwargs"
RATIO = "pre_compute:{retain_Q_A_PARA_Prob:{access_key:correct},retain_Q_A_PERT_Prob:{access_key:wrong}}"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=256)


def run(bert: Path, out: Path, metrics: str, *overrides: str, **more: Any) -> dict[str, Any]:
    said = [
        f"{SAMPLER}.steps=3", f"{SAMPLER}.max_new_tokens=6", f"{SAMPLER}.trajectory_sample_interval=1",
        f"{KEY}.metrics={metrics}", "stats.resamples=0", *overrides,
    ]  # fmt: skip
    ask = dict(
        suite="tofu_trajectory", model=str(bert), data=str(DATA), out=str(out), limit=3, progress=False,
        overrides=said, **more,
    )  # fmt: skip
    evaluate_config(make_config(**ask))
    found: dict[str, Any] = json.loads((out / "TOFU_EVAL.json").read_text())["trajectory_metrics"]
    return found


def spec(metrics: str, *overrides: str) -> SuiteSpec:
    ask = {"suite": "tofu_trajectory", "model": "m", "overrides": [f"{KEY}.metrics={metrics}", *overrides]}
    children = make_config(**ask).suite.metrics["trajectory_metrics"].children
    assert children is not None
    return children


def test_parents_named_from_the_suite_are_the_parents(bert: Path, tmp_path: Path) -> None:
    """Each aggregate is computed by hand from its parents' own curves."""
    metrics = (
        "{hm_aggregate:{pre_compute:{retain_Q_A_Prob:{},retain_Q_A_PARA_Prob:{}}},model_utility:{},"
        "retain_Q_A_Prob:{},retain_Q_A_PARA_Prob:{},"
        "truth_ratio:{aggregator:true_better," + RATIO + "},retain_Truth_Ratio:{},forget_truth_ratio:{}}"
    )
    found = run(bert, tmp_path, metrics)
    for view in found["agg_value"].values():
        for curves in view.values():
            a, b = np.array(curves["retain_Q_A_Prob"]), np.array(curves["retain_Q_A_PARA_Prob"])
            assert curves["hm_aggregate"] == pytest.approx((2 * a * b / (a + b)).tolist(), rel=1e-9)
            assert curves["hm_aggregate"] != curves["model_utility"]
            assert curves["truth_ratio"] == curves["retain_Truth_Ratio"]
            assert curves["truth_ratio"] != curves["forget_truth_ratio"]


def test_nested_parents_and_the_reference_follow(bert: Path, tmp_path: Path) -> None:
    """A KS test over another truth ratio is compared with the retain model's same one, named nowhere else."""
    metrics = "{ks_test:{pre_compute:{forget_truth_ratio:{access_key:forget," + RATIO + "}}},forget_quality:{}}"
    children = spec(metrics)
    ours = children.metrics[children.metrics["ks_test"].parents["forget"]]
    assert dict(ours.parents) == {"correct": "retain_Q_A_PARA_Prob", "wrong": "retain_Q_A_PERT_Prob"}
    assert dict(children.metrics["forget_truth_ratio"].parents)["correct"] == "forget_Q_A_PARA_Prob"
    include = [dict(r.include) for r in children.metrics["ks_test"].references]
    assert include == [{ours.name: "retain"}]
    first = run(bert, tmp_path / "retain", metrics)
    assert ours.name in first["reference_by_step"]["full"]["steps"]
    second = run(bert, tmp_path / "same", metrics, retain_logs=str(tmp_path / "retain"))
    assert second["agg_value"]["full"]["steps"]["ks_test"] == [1.0] * 3
    own, suites = (second["reference_by_step"]["full"]["steps"][m] for m in (ours.name, "forget_truth_ratio"))
    assert own != suites
