"""Config trees of others as --config-dir: short suites as guides print them, trees in open-unlearning's shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import LAB
from golden_tools import eval_args
from loops import one_test
from vestige.cli import main
from vestige.engine.config import compose_runs
from vestige.errors import UserError

FULL = LAB / "models" / "full"

# The keys a guide's short suite has: no holdout split, no retain logs, no folder layout.
SHORT = """# @package eval.tofu
defaults:
  - tofu_metrics:
    - forget_quality
    - forget_Q_A_Prob
    - model_utility
handler: TOFUEvaluator
metrics: {}
output_dir: ${paths.output_dir}
forget_split: forget10
"""
# A `hydra` group that asks for a logging plug-in which is not installed, and a root that names it.
HYDRA = """defaults:
  - override hydra_logging: colorlog
  - override job_logging: colorlog
run:
  dir: ${paths.output_dir}
"""
ROOT = """# @package _global_
defaults:
  - _self_
  - model: local
  - eval: tofu
  - paths: default
  - hydra: eval
  - experiment: null
model:
  model_args:
    device_map: cuda
mode: eval
task_name: ???
seed: 0
"""
# Their model files say nothing of the device, so that what the root says holds.
THEIRS = """model_args:
  pretrained_model_name_or_path: x
tokenizer_args: {}
template_args: {apply_chat_template: true, system_prompt: null}
"""


def write(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


def tree(place: Path) -> Path:
    return write(
        place,
        {
            "eval.yaml": ROOT,
            "hydra/default.yaml": HYDRA,
            "model/theirs.yaml": THEIRS,
            "hydra/eval.yaml": "defaults:\n  - default\n",
        },
    )


def words(*more: object) -> list[str]:
    return [str(w) for w in more]


def test_a_guides_short_suite_takes_what_it_leaves_out_from_ours(tmp_path: Path) -> None:
    place = write(tmp_path / "configs", {"eval/tofu.yaml": SHORT})
    out = tmp_path / "out"
    assert main(words(*eval_args(FULL, out, "--limit", "2", "--config-dir", str(place)))) == 0
    summary = json.loads((out / "TOFU_SUMMARY.json").read_text())
    assert {"forget_Q_A_Prob", "model_utility"} <= set(summary) and "privleak" not in summary
    with_key = write(tmp_path / "other", {"eval/tofu.yaml": SHORT + "question_key: paraphrased_question\n"})
    run = compose_runs(["eval=tofu", "model=local", "model.model_args.pretrained_model_name_or_path=x", "task_name=t"],
                       config_dir=with_key)[0]  # fmt: skip
    assert run.settings["question_key"] == "paraphrased_question" and run.settings["holdout_split"] == "holdout10"


def test_a_key_that_nobody_defines_is_named(tmp_path: Path) -> None:
    place = write(tmp_path, {"eval/tofu.yaml": SHORT + "extra: ${eval.tofu.nowhere}\n"})
    said = ["eval=tofu", "model=local", "model.model_args.pretrained_model_name_or_path=x", "task_name=t"]
    with pytest.raises(UserError, match=r"'eval.tofu.nowhere'.*\+eval.tofu"):
        compose_runs(said, config_dir=place)


def test_a_trees_own_hydra_group_is_not_asked(tmp_path: Path) -> None:
    """It was: Unknown hydra 'job_logging/colorlog'."""
    place = tree(tmp_path / "configs")
    said = ["model.model_args.pretrained_model_name_or_path=x", "task_name=t"]
    assert compose_runs(said, config_dir=place)[0].task_name == "t"
    assert (place / "hydra" / "eval.yaml").read_text().startswith("defaults")


def test_a_trees_device_map_falls_back_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    place, out = tree(tmp_path / "configs"), tmp_path / "out"
    assert main(words(*eval_args(FULL, out, "--limit", "2", "--config-dir", str(place), "model=theirs"))) == 0
    notes = json.dumps(json.loads((out / "manifest.json").read_text()))
    assert "device_map=cuda" in notes


# Trainer files in their shape: method_args that ours do not list, and one that must be given.
TRAINER = """handler: FinetuneTrainer
args:
  num_train_epochs: 1
  learning_rate: 1e-3
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  ddp_find_unused_parameters: null
  gradient_checkpointing: false
  optim: paged_adamw_32bit
  bf16: true
  report_to: tensorboard
  eval_strategy: "no"
  seed: 0
method_args: {}
"""
RMU = """defaults:
  - finetune
handler: RMU
method_args:
  gamma: 1.0
  steering_coeff: 2
  retain_loss_type: EMBED_DIFF
  alpha: 1
  module_regex: model\\.layers\\.1
  trainable_params_regex:
    - model\\.layers\\.(0|1)\\.mlp\\.down_proj\\.weight
"""
PDU = """defaults:
  - finetune
handler: PDU
method_args:
  retain_loss_eps: ???
  primal_dual: True
  dual_warmup_epochs: 5
  loss_names: ["forget_loss", "retain_loss"]
"""


def unlearn_words(place: Path, out: Path, method: str, *more: str) -> list[str]:
    data = LAB / "data"
    rows = ("--forget", data / "forget.jsonl", "--retain", data / "retain.jsonl", "--limit", "4")
    return words("unlearn", "--method", method, "--model", FULL, *rows, "--out", out, "--config-dir", place, *more)


@pytest.fixture
def trainers(tmp_path: Path) -> Path:
    files = {"trainer/finetune.yaml": TRAINER, "trainer/RMU.yaml": RMU, "trainer/PDU.yaml": PDU}
    return write(tmp_path / "configs", files)


def test_rmu_updates_only_the_weights_it_is_told(trainers: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    out = tmp_path / "out"
    assert main(unlearn_words(trainers, out, "RMU", "--epochs", "3")) == 0
    before, after = load_file(FULL / "model.safetensors"), load_file(out / "model.safetensors")
    moved = {name for name, was in before.items() if not after[name].float().equal(was.float())}
    assert moved == {f"model.layers.{n}.mlp.down_proj.weight" for n in (0, 1)}
    knobs = json.loads((out / "training.json").read_text())["settings"]["knobs"]
    assert "down_proj" in knobs["trainable_params_regex"][0]


def test_patterns_that_match_nothing_are_said(
    trainers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "trainer.method_args.trainable_params_regex=[nothing]"
    assert main(unlearn_words(trainers, tmp_path / "out", "RMU", said)) == 2
    assert "no parameter" in capsys.readouterr().err


def test_pdu_takes_loss_names_and_wants_its_bound(
    trainers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ((), ("--cfg",)):
        assert main(unlearn_words(trainers, tmp_path / "out", "PDU", *more)) == 2
        assert "retain_loss_eps' must be given" in capsys.readouterr().err
    assert main(unlearn_words(trainers, tmp_path / "out", "PDU", "--knob", "retain_loss_eps=0.5")) == 0


def test_cfg_refuses_what_the_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, needle in (("--knob=bata=0.3", "bata"), ("--lr=-1", "must be more than 0")):
        rows = ("--forget", LAB / "data" / "forget.jsonl", "--retain", LAB / "data" / "retain.jsonl")
        assert main(words("unlearn", "--method", "NPO", "--model", FULL, *rows, wrong, "--cfg")) == 2
        assert needle in capsys.readouterr().err


MUSE = ["data_split=Books", "retain_logs_path=r.json", "trainer.args.ddp_find_unused_parameters=true"]


@one_test(
    "call",
    [
        ["unlearn", "experiment=unlearn/muse/default.yaml", "trainer=SimNPO", "task_name=x", *MUSE],
        ["unlearn", "experiment=unlearn/muse/scalability.yaml", "forget_split=forget_2", "task_name=x", *MUSE],
        ["unlearn", "experiment=unlearn/muse/sustainabilty.yaml", "trainer=NPO", "task_name=x", *MUSE],
        ["unlearn", "experiment=unlearn/wmdp/default", "data_split=bio", "task_name=x"],
        ["unlearn", "experiment=examples/muse_unlearn"],
        ["train", "experiment=finetune/muse/default", "data_sub_set=retain"],
        ["train", "experiment=finetune/tofu/default.yaml", "task_name=x", "data/datasets@data.train=TOFU_QA_retain",
         "data.train.TOFU_QA_retain.args.hf_args.name=retain90"],
        ["eval", "experiment=examples/tofu_eval"],
    ],
)  # fmt: skip
def test_experiments_of_open_unlearning_compose(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*call, "--cfg"]) == 0
    out = capsys.readouterr().out
    assert "Books" in out or MUSE[0] not in call
