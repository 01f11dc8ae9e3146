"""The collapse callback in real TRL trainers: GRPO with text and chat prompts, reuse, evaluation, resume; SFT."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from collapse_tools import TINY
from vestige.collapse.callback import CollapseCallback
from vestige.collapse.detector import CollapseSettings
from vestige.collapse.reasoning import Reasoning

pytest.importorskip("trl", reason="TRL is not installed (pip install 'vestige[trl]')")
pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore")]

FIRST = "collapse_first_turn_sample"
WORDS = ("the box", "a wall", "the door", "a key", "the player", "a goal", "the lamp", "a cup")


def parts() -> tuple[Any, Any]:
    """A fresh tiny model, without dropout, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), tokenizer


def rows_of(chat: bool, words: tuple[str, ...] = WORDS) -> Any:
    from datasets import Dataset

    asked = [f"Where is {w}?" for w in words]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": a}] if chat else a} for a in asked])


class Witness:
    """Reward functions that score what they are shown themselves, with a plain forward of the weights at hand."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.train: dict[int, list[float]] = {}  # step that generated -> mean log-probability of each completion
        self.evaluated = 0

    def lengths(self, prompts: Any, completions: Any, completion_ids: Any, **rest: Any) -> list[float]:
        if self.trainer.model.training:
            step = int(self.trainer.state.global_step) + 1
            self.train.setdefault(step, []).extend(map(self.score, prompts, completion_ids))
        else:
            self.evaluated += len(prompts)
        return [float(len(set(ids))) for ids in completion_ids]

    async def letters(self, prompts: Any, completions: Any, **rest: Any) -> list[float]:
        """TRL awaits this one."""
        return [float(len(str(c))) % 7 for c in completions]

    def score(self, prompt: Any, ids: Any) -> float:
        tokenizer, model = self.trainer.processing_class, self.trainer.model
        if isinstance(prompt, str):
            before = tokenizer(prompt)["input_ids"]
        else:
            before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([before + list(ids)])).logits[0, len(before) - 1 : -1]
        return float(logits.float().log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].mean())


def grpo(out: Path, chat: bool, freq: int = 1, **more: Any) -> tuple[Any, Any, Witness]:
    """A GRPO trainer with the callback in it; the whole completion counts as reasoning."""
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = parts()
    settings = CollapseSettings(compute_freq=freq, num_samples="all", resamples=5, on_error="raise")
    callback = CollapseCallback(tokenizer, settings, Reasoning(mode="whole"))
    witness = Witness()
    config = {
        "per_device_train_batch_size": 8, "num_generations": 2, "max_completion_length": 6, "learning_rate": 0.02,
        "logging_steps": 1, "save_strategy": "no", "optim": "sgd", "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0, "max_steps": 4, "seed": 3,
    }  # fmt: skip
    args = GRPOConfig(
        output_dir=str(out), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, **{**config, **more}
    )
    trainer = GRPOTrainer(
        model=model, args=args, train_dataset=rows_of(chat), eval_dataset=rows_of(chat, WORDS[:2]),
        processing_class=tokenizer, reward_funcs=[callback.listen(f) for f in (witness.lengths, witness.letters)],
    )  # fmt: skip
    witness.trainer = trainer
    callback.install(trainer)
    return trainer, callback, witness


def logged(trainer: Any) -> list[dict[str, Any]]:
    return [e for e in trainer.state.log_history if f"{FIRST}/mi_estimate" in e]


def agree(entries: list[dict[str, Any]], witness: Witness) -> None:
    """Every logged number is of the rollouts of the step it names, scored by the weights that wrote them."""
    for entry in entries:
        seen = witness.train[entry["collapse/rollout_step"]]
        assert entry["collapse/updates_since_rollout"] == 0
        assert entry[f"{FIRST}/n_rows"] == len(seen)
        assert entry[f"{FIRST}/matched_log_prob_mean"] == pytest.approx(sum(seen) / len(seen), abs=1e-3)


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_several_iterations_per_generation_and_evaluations(chat: bool, tmp_path: Path) -> None:
    """Rollouts serve two steps each; the weights move far at every step; evaluations come in between."""
    trainer, _, witness = grpo(
        tmp_path, chat, freq=2, num_iterations=2, max_steps=6, learning_rate=0.5, logging_steps=2,
        eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4, num_generations_eval=2,
    )  # fmt: skip
    trainer.train()
    entries = logged(trainer)
    assert [e["step"] for e in entries] == [1, 2, 4, 6]
    assert [e["collapse/rollout_step"] for e in entries] == [1, 1, 3, 5]
    assert sorted(witness.train) == [1, 3, 5] and witness.evaluated >= 6 * 4
    agree(entries, witness)
    # What the trainer itself logs at those steps is all there, its own means included.
    losses = [e for e in trainer.state.log_history if "loss" in e]
    assert [e["step"] for e in losses] == [2, 4, 6] and all("reward" in e and "entropy" in e for e in losses)
    assert not any("reward" in e for e in entries)
    # Rollouts that were logged twice count once in the running means.
    first, second = (e[f"{FIRST}/marginal_std_ema"] for e in entries[1:3])
    assert second == pytest.approx(0.9 * first + 0.1 * entries[2][f"{FIRST}/marginal_std"])
    assert entries[0][f"{FIRST}/marginal_std_ema"] == first


def test_several_generations_per_step_and_accumulation(tmp_path: Path) -> None:
    """Two generation batches for each step of the optimiser: both are measured, each row once."""
    trainer, _, witness = grpo(
        tmp_path, False, max_steps=2, gradient_accumulation_steps=2, steps_per_generation=1, learning_rate=0.5
    )
    trainer.train()
    entries = logged(trainer)
    assert [e["step"] for e in entries] == [1, 2] and [len(witness.train[s]) for s in (1, 2)] == [16, 16]
    agree(entries, witness)


def test_the_callback_does_not_change_training(tmp_path: Path) -> None:
    """Measured at every step or not at all: the same samples, the same weights."""
    ends = []
    for freq in (1, 1000):
        trainer, callback, witness = grpo(tmp_path, True, freq=freq, max_steps=3, learning_rate=0.5)
        if freq > 1:
            trainer.remove_callback(callback)
        trainer.train()
        ends.append((witness.train, [p.detach().clone() for p in trainer.model.parameters()]))
    (seen, weights), (others, others_weights) = ends
    assert seen == others
    assert all(torch.equal(a, b) for a, b in zip(weights, others_weights, strict=True))


def test_the_trainers_own_temperature_is_used(tmp_path: Path) -> None:
    trainer, callback, _ = grpo(tmp_path, False, max_steps=1, temperature=0.5)
    trainer.train()
    assert callback.detector.scorer.temperature == 0.5


def test_resuming_restores_the_running_means(tmp_path: Path) -> None:
    """From a checkpoint that is not the last: what was logged after it does not count."""
    trainer, _, _ = grpo(tmp_path, True, save_strategy="steps", save_steps=2)
    trainer.train()
    before = logged(trainer)[1]
    resumed, _, witness = grpo(tmp_path, True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    entries = logged(resumed)
    assert [e["step"] for e in entries] == [1, 2, 3, 4] and entries[1] == before
    for last, entry in pairwise(entries[1:]):
        for kind in ("", "_seq"):
            mean, old, new = (
                e[f"{FIRST}/{n}{kind}"] for e, n in
                ((entry, "marginal_std_ema"), (last, "marginal_std_ema"), (entry, "marginal_std"))
            )  # fmt: skip
            assert mean == pytest.approx(0.9 * old + 0.1 * new, rel=1e-9)
    agree(entries[2:], witness)


def test_completions_that_trl_wrote_are_read(tmp_path: Path) -> None:
    """Its table of a chat: prompts and completions are messages."""
    from vestige.collapse.rollouts import load_rollouts

    trainer, _, witness = grpo(tmp_path, True, max_steps=2, log_completions=True)
    trainer.train()
    # One table for each log of the trainer's; ours do not write any.
    tables = sorted((tmp_path / "completions").glob("*.parquet"))
    assert [t.name for t in tables] == ["completions_00001.parquet", "completions_00002.parquet"]
    loaded = load_rollouts(tables[1])
    assert loaded.format == "trl" and {r.step for r in loaded.rollouts} == {2}
    assert len(loaded.rollouts) == len(witness.train[2]) and all(r.messages for r in loaded.rollouts)


def test_a_failure_leaves_grpo_alive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, callback, _ = grpo(tmp_path, False, max_steps=2)
    callback.settings = CollapseCallback(parts()[1], CollapseSettings()).settings  # settings of the user's own

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no room on this GPU")

    callback.extractor.trajectories = broken
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 2 and "no room on this GPU" in caplog.text


def sft(out: Path, callback: CollapseCallback, **more: Any) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = parts()
    data = Dataset.from_list([{"text": f"Where is {w}? Up and left."} for w in WORDS])
    args = SFTConfig(
        output_dir=str(out), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, max_steps=3,
        logging_steps=1, save_strategy="no", per_device_train_batch_size=2, max_length=32, learning_rate=0.1,
        optim="sgd", **more,
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    callback.install(trainer)
    return trainer


def test_sft_with_rollouts_of_its_own(tmp_path: Path) -> None:
    """Supervised training has no rollouts: a user's callback writes some and hands them over."""
    from transformers import TrainerCallback

    callback = CollapseCallback(parts()[1], CollapseSettings(compute_freq=1, resamples=5, on_error="raise"))

    class Sampler(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            callback.record(
                [{"prompt": f"Where is {w}?", "response": f"<think>{w} is up</think>Up"} for w in WORDS[:3]] * 2
            )

    trainer = sft(tmp_path, callback)
    trainer.add_callback(Sampler())
    trainer.train()
    entries = logged(trainer)
    assert [e["step"] for e in entries] == [1, 2, 3] and all(e[f"{FIRST}/n_rows"] == 6 for e in entries)
    losses = [e for e in trainer.state.log_history if "loss" in e]
    assert [e["step"] for e in losses] == [1, 2, 3] and all(math.isfinite(e["loss"]) for e in losses)
    assert all("mean_token_accuracy" in e for e in losses)  # TRL's own


def test_sft_without_rollouts_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = CollapseCallback(parts()[1])
    with caplog.at_level(logging.WARNING):
        trainer = sft(tmp_path, callback)
        trainer.train()
    assert trainer.state.global_step == 3 and not logged(trainer)
    assert caplog.text.count("no rollouts were recorded") == 1
