"""Every number open-unlearning produced on the golden lab, reproduced through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import LAB
from golden_tools import check, eval_args, reference_args, variant_model
from vestige.cli import main

MODELS = ("full", "retain", "unlearned")
# Rows are packed trees, so that a batch size is a token budget: about 1, 7 and 32 sequences of 60 tokens.
BUDGETS = (1, 420, 1920)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_metric(name: str, budget: int, tmp_path: Path) -> None:
    args = eval_args(LAB / "models" / name, tmp_path, "--metrics", "all", "--batch-tokens", str(budget))
    assert main([*args, *reference_args()]) == 0
    check(LAB / "expected" / name / "TOFU_EVAL.json", tmp_path / "TOFU_EVAL.json", least=4000)
    check(LAB / "expected" / name / "TOFU_SUMMARY.json", tmp_path / "TOFU_SUMMARY.json", least=40)


def test_without_reference_logs(tmp_path: Path) -> None:
    args = eval_args(LAB / "models" / "retain", tmp_path, "--metrics", "all")
    assert main([*args, "--reference-model", str(LAB / "models" / "retain")]) == 0
    check(LAB / "expected" / "retain_noref" / "TOFU_EVAL.json", tmp_path / "TOFU_EVAL.json", least=4000)


@pytest.mark.parametrize("name", ["full", "retain"])
@pytest.mark.parametrize("variant", ["padeos", "tmpleos", "tmpleos_padeos"])
def test_variants_where_the_mask_quirk_bites(variant: str, name: str, tmp_path: Path) -> None:
    model = variant_model(tmp_path, variant, name)
    expected = LAB / "expected_variants" / variant / name
    args = eval_args(model, tmp_path / "run", "--metrics", "all")
    if name == "full":  # the variant's own retain run was the reference
        logs = LAB / "expected_variants" / variant / "retain" / "TOFU_EVAL.json"
        args += ["--retain-logs", str(logs)]
    assert main([*args, "--reference-model", str(LAB / "models" / "retain")]) == 0
    check(expected / "TOFU_EVAL.json", tmp_path / "run" / "TOFU_EVAL.json", least=3000)


@pytest.mark.parametrize("name", MODELS)
def test_default_set_through_hydra(name: str, tmp_path: Path) -> None:
    """The guide's own command, with the hub data set read from a directory."""
    place = (
        '{locuslab/TOFU: {path: "%s", names: {forget10_perturbed: forget, forget10: forget, holdout10: holdout, '
        % (LAB / "data")
    )
    place += "retain_perturbed: retain, real_authors_perturbed: real_authors, world_facts_perturbed: world_facts}}}"
    words = [
        "--config-name=eval.yaml", "experiment=eval/tofu/llama2", "model=local",
        f"model.model_args.pretrained_model_name_or_path={LAB / 'models' / name}",
        "model.template_args.system_prompt=You are a helpful assistant.", f"data.local={place}",
        f"retain_logs_path={LAB / 'expected' / 'retain_noref' / 'TOFU_EVAL.json'}",
        f"paths.output_dir={tmp_path}", "task_name=SAMPLE_EVAL",
    ]  # fmt: skip
    assert main(["eval", *words]) == 0
    check(LAB / "expected_default" / name / "TOFU_EVAL.json", tmp_path / "TOFU_EVAL.json", least=1500)
    check(LAB / "expected_default" / name / "TOFU_SUMMARY.json", tmp_path / "TOFU_SUMMARY.json", least=7)
