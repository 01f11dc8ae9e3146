"""The trajectory guide's YAML, saved by a reader into a folder of configs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vestige.errors import UserError
from vestige.run.config import compose_runs
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
    with pytest.raises(UserError, match=r"line 7: the key 'probability' stands there twice.*access_key: correct"):
        read(tmp_path, TWICE)


def test_a_metric_without_a_handler_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'trajectory_metrics' does not say its handler"):
        read(tmp_path, "metrics: [probability]\n")


def test_a_mapping_replaces_a_suites_list() -> None:
    key = "eval.tofu_trajectory.metrics.trajectory_metrics.metrics"
    said = ["eval=tofu_trajectory", "model=LLaDA-8B-Instruct", "task_name=x", f"{key}={{loss:{{}}}}"]
    spec = compose_runs(said)[0].suite.metrics["trajectory_metrics"]  # type: ignore[union-attr]
    assert data_of(spec) == {"loss": ["TOFU_QA_forget"]}
    with pytest.raises(UserError, match="Key 'trajectory_metrics' is not in struct"):
        compose_runs(["eval=tofu", "task_name=x", "eval.tofu.metrics.trajectory_metrics.metrics={loss:{}}"])
