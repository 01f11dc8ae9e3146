"""The callback in real TRL trainers (SFT, DPO, GRPO): the same weights after 20 steps with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vestige
from watch_tools import PROB, QUICK, fresh, same, texts, tokenizer, weights

pytest.importorskip("trl", reason="TRL is not installed (pip install 'vestige[trl]')")
pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore")]
SETTINGS: dict[str, Any] = {
    "report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "max_steps": 20, "logging_steps": 10,
    "save_strategy": "no", "per_device_train_batch_size": 2, "learning_rate": 1e-3, "seed": 3,
}  # fmt: skip


def words() -> Any:
    tok = tokenizer()
    if tok.pad_token is None:
        tok.pad_token = tok.eos_token
    return tok


def sft(out: Path, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_list([{"text": text} for text in texts()])
    args = SFTConfig(str(out), max_length=24, **SETTINGS)
    return SFTTrainer(model=fresh(), args=args, train_dataset=data, processing_class=words(), callbacks=callbacks)


def dpo(out: Path, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    data = Dataset.from_list([{"prompt": t[:20], "chosen": " I don't know.", "rejected": t[20:40]} for t in texts()])
    args = DPOConfig(str(out), max_length=24, **SETTINGS)
    more = {"processing_class": words(), "callbacks": callbacks}
    return DPOTrainer(model=fresh(), ref_model=fresh(), args=args, train_dataset=data, **more)


def grpo(out: Path, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: Any, **rest: Any) -> list[float]:
        return [float(len(set(text))) for text in completions]

    data = Dataset.from_list([{"prompt": text[:30]} for text in texts()])
    args = GRPOConfig(str(out), num_generations=2, max_completion_length=4, **SETTINGS)
    more = {"processing_class": words(), "callbacks": callbacks}
    return GRPOTrainer(model=fresh(), args=args, train_dataset=data, reward_funcs=[reward], **more)


@pytest.mark.parametrize("make", [sft, dpo, grpo])
def test_twenty_steps_end_in_the_same_weights(make: Any, tmp_path: Path) -> None:
    ends = []
    callback = vestige.Callback("tofu", every=10, **QUICK)
    for callbacks in ([], [callback]):
        trainer = make(tmp_path, callbacks)
        trainer.train()
        ends.append(weights(trainer.model))
    assert same(*ends) and not same(ends[0], weights(fresh()))
    assert [look.step for look in callback.looks] == [0, 10, 20]
    logged = [entry for entry in trainer.state.log_history if f"vestige/{PROB}" in entry]
    assert [entry["step"] for entry in logged] == [0, 10, 20]
    # What the trainer itself logs at those steps is all there, and nothing of it among ours.
    own = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in own] == [10, 20]
    assert not any("reward" in entry or "mean_token_accuracy" in entry for entry in logged)
