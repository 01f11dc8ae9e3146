"""The trajectory guide's YAML, saved by a reader into a folder of configs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vestige.engine.config import compose_runs
from vestige.errors import UserError
from vestige.suites.spec import MetricSpec

FULL = """# @package _global_.eval.metrics.trajectory_metrics
defaults:
  - ../../data/datasets@datasets: MUSE_forget_knowmem
  - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
handler: trajectory_metrics
batch_size: 1
metrics:
  - probability
trajectory_config:
  return_logits: true
  include_views: [full, eos]
  sampler_kwargs: {steps: 32, temperature: 0.0, max_new_tokens: 64}
datasets:
  MUSE_forget_knowmem:
    args:
      hf_args: {path: muse-bench/MUSE-News}
      predict_with_generate: True
"""
SHORT = "handler: trajectory_metrics\nmetrics:\n  - probability\ntrajectory_config:\n  return_logits: true\n"
TWICE = """handler: trajectory_metrics
metrics:
  truth_ratio:
    pre_compute:
      probability:
        access_key: correct
      probability:
        access_key: wrong
"""


def read(place: Path, text: str, suite: str = "tofu") -> MetricSpec:
    file = place / "eval" / f"{suite}_metrics" / "trajectory_metrics.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    said = [f"eval={suite}", "model=LLaDA-8B-Instruct", "task_name=x"]
    run = compose_runs(said, config_dir=place, only=["trajectory_metrics"])[0]
    return run.suite.metrics["trajectory_metrics"]  # type: ignore[union-attr]


def data_of(spec: MetricSpec) -> dict[str, list[str]]:
    assert spec.children is not None
    return {name: [d.name for d in child.datasets] for name, child in spec.children.metrics.items()}


def test_the_full_configuration_in_its_global_package(tmp_path: Path) -> None:
    assert data_of(read(tmp_path, FULL, "muse")) == {"probability": ["MUSE_forget_knowmem"]}


@pytest.mark.parametrize("text", [SHORT, "trajectory_metrics:\n  " + SHORT.replace("\n", "\n  ").rstrip() + "\n"])
def test_a_short_one_reads_the_suites_rows(text: str, tmp_path: Path) -> None:
    assert data_of(read(tmp_path, text)) == {"probability": ["TOFU_QA_forget"]}


def test_a_key_said_twice_gets_the_form_that_works(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 7: .*'probability'.*access_key: correct"):
        read(tmp_path, TWICE)


def test_a_metric_without_a_handler_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'trajectory_metrics'.*handler"):
        read(tmp_path, "metrics: [probability]\n")


def test_a_mapping_replaces_a_suites_list() -> None:
    key = "eval.tofu_trajectory.metrics.trajectory_metrics.metrics"
    said = ["eval=tofu_trajectory", "model=LLaDA-8B-Instruct", "task_name=x", f"{key}={{loss:{{}}}}"]
    spec = compose_runs(said)[0].suite.metrics["trajectory_metrics"]  # type: ignore[union-attr]
    assert data_of(spec) == {"loss": ["TOFU_QA_forget"]}
    with pytest.raises(UserError, match="Key 'trajectory_metrics' is not in struct"):
        compose_runs(["eval=tofu", "task_name=x", "eval.tofu.metrics.trajectory_metrics.metrics={loss:{}}"])


@pytest.mark.parametrize("as_list", [True, False])
def test_parents_named_by_their_handler_keep_their_own_rows(as_list: bool) -> None:
    """`probability` on the forget rows stands beside them and must not be taken for one of them."""
    entries = {
        key: f"{{metric:probability,access_key:{key},datasets:{{TOFU_QA_forget_{rows}:{{}}}}}}"
        for key, rows in (("correct", "para"), ("wrong", "pert"))
    }
    right = entries["correct"].replace("metric:probability,", "")
    wrong = entries["wrong"].replace("metric:", "handler:")
    parents = f"[{','.join(entries.values())}]" if as_list else f"{{probability:{right},w:{wrong}}}"
    key = "eval.tofu_trajectory.metrics.trajectory_metrics.metrics"
    ratio = f"{key}={{probability:{{}},tr:{{handler:truth_ratio,aggregator:true_better,pre_compute:{parents}}}}}"
    said = ["eval=tofu_trajectory", "model=LLaDA-8B-Instruct", "task_name=x", ratio]
    spec = compose_runs(said)[0].suite.metrics["trajectory_metrics"]  # type: ignore[union-attr]
    assert spec.children is not None
    tr = spec.children.metrics["tr"].parents
    rows = data_of(spec)
    assert rows[tr["correct"]] == ["TOFU_QA_forget_para"] and rows[tr["wrong"]] == ["TOFU_QA_forget_pert"]
    assert rows["probability"] == ["TOFU_QA_forget"]
