"""The collapse callback in transformers' Trainer: which weights score, when it logs, what a resume finds."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from collapse_tools import TINY, tokenizer
from vestige.collapse.callback import CollapseCallback
from vestige.collapse.detector import CollapseSettings
from vestige.collect.cross import CrossScorer
from vestige.errors import UserError

FIRST = "collapse_first_turn_sample"


def rows(step: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"State {p}", "response": f"<think>look at {p} and {step}</think>Up"} for p in range(3) for _ in "ab"
    ]


def train(
    out: Path, steps: int, report_to: str, feed: Any, callback: Any, resume: str | None = None, **more: Any
) -> Any:
    """transformers' own Trainer; `feed` is told of each step that begins."""
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    class Feed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            feed(state.global_step + 1)

    settings = {"logging_steps": 100, "save_strategy": "no", "learning_rate": 0.0, **more}
    args = TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=1, report_to=report_to, disable_tqdm=True,
        use_cpu=True, optim="sgd", lr_scheduler_type="constant", **settings,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(TINY)
    data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * steps
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[Feed()])  # type: ignore[arg-type]
    callback.install(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer: Any) -> list[dict[str, Any]]:
    return [e for e in trainer.state.log_history if f"{FIRST}/mi_estimate" in e]


def callback_of(freq: int = 1, **more: Any) -> CollapseCallback:
    settings = {"compute_freq": freq, "resamples": 10, "num_samples": "all", "on_error": "raise"}
    return CollapseCallback(tokenizer(), CollapseSettings(**settings), **more)


def matched_by(model: Any, step: int) -> float:
    """What the model itself says of a step's rows: the mean log-probability per token, row by row."""
    found = []
    made = callback_of()
    made.record(rows(step))
    for rollout in made.rollouts:
        turn = made.extractor.turn(rollout)
        found.append(float(CrossScorer(model)([turn.x], [turn.z]).tokens[0][0].mean()))
    return sum(found) / len(found)


def test_rollouts_written_at_the_end_of_a_step_are_of_the_new_weights(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    callback = callback_of(2)

    class Late(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            callback.record(rows(state.global_step))

    install = callback.install
    callback.install = lambda trainer: (trainer.add_callback(Late()), install(trainer))[1]  # type: ignore[method-assign]
    trainer = train(tmp_path, 2, "none", lambda s: None, callback, learning_rate=1.0)
    assert [e["step"] for e in logged(trainer)] == [1, 2]
    last = logged(trainer)[-1]
    assert last[f"{FIRST}/matched_log_prob_mean"] == pytest.approx(matched_by(trainer.model.eval(), 2), abs=1e-3)


def test_rollouts_that_serve_several_steps_are_logged_at_each_that_is_due(tmp_path: Path) -> None:
    callback = callback_of(2)
    feed = lambda s: callback.record(rows(s)) if s % 2 else None  # noqa: E731
    entries = logged(train(tmp_path, 6, "none", feed, callback))
    assert [e["step"] for e in entries] == [1, 2, 4, 6]
    assert [e["collapse/rollout_step"] for e in entries] == [1, 1, 3, 5]
    # Once two batches have come, the time between them is known: each is measured before the weights change.
    assert [e["collapse/updates_since_rollout"] for e in entries] == [0, 0, 0, 0]
    assert "timing_s/collapse_first_turn_step" in entries[0] and "timing_s/collapse_first_turn_step" not in entries[1]


def test_late_measurements_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = callback_of(5)
    with caplog.at_level(logging.WARNING):
        trainer = train(tmp_path, 5, "none", lambda s: callback.record(rows(s)) if s == 2 else None, callback)
    [entry] = logged(trainer)
    assert (entry["step"], entry["collapse/rollout_step"], entry["collapse/updates_since_rollout"]) == (5, 2, 3)
    assert caplog.text.count("weights updated since") == 1


def test_weights_that_deepspeed_has_updated_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vestige.collapse.trainer.updates_early", lambda trainer: True)
    callback = callback_of()
    with caplog.at_level(logging.WARNING):
        [entry] = logged(train(tmp_path, 1, "none", lambda s: callback.record(rows(s)), callback))
    assert entry["collapse/updates_since_rollout"] == 1 and "DeepSpeed updates them" in caplog.text


def test_the_trainers_own_log_is_not_lost(tmp_path: Path) -> None:
    callback = callback_of(5)
    trainer = train(tmp_path, 10, "none", lambda s: callback.record(rows(s)), callback, logging_steps=5)
    assert [e["step"] for e in trainer.state.log_history if "loss" in e] == [5, 10]
    assert [e["step"] for e in logged(trainer)] == [1, 5, 10]


def test_modes_of_single_modules_survive() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY).train()
    model.lm_head.eval()  # part of a model may be frozen
    callback = callback_of()
    callback.record(rows(1))
    assert callback._outcome(callback.rollouts, model, 1).samples
    assert model.training and not model.lm_head.training


def test_reward_functions_of_every_kind(tmp_path: Path) -> None:
    """Two of them see the same rows, which are recorded once; async ones stay async; names are kept."""
    import asyncio
    import inspect

    class Judge:
        async def __call__(self, prompts: Any, completions: Any, **rest: Any) -> list[float]:
            return [2.0] * len(prompts)

    def reward(prompts: Any, completions: Any, weight: float = 1.0, **rest: Any) -> list[float]:
        return [weight] * len(prompts)

    callback = callback_of()
    plain, judged, part = (callback.listen(f) for f in (reward, Judge(), functools.partial(reward, weight=3.0)))
    assert [f.__name__ for f in (plain, judged, part)] == ["reward", "Judge", "reward"]
    assert inspect.iscoroutinefunction(judged) and not inspect.iscoroutinefunction(part)
    asked = {"prompts": ["Q", "R"], "completions": ["<think>a</think>", "<think>b</think>"]}
    assert plain(**asked) == [1.0, 1.0] and asyncio.run(judged(**asked)) == [2.0, 2.0] and part(**asked) == [3.0, 3.0]
    assert len(callback.rollouts) == 2
    plain(**asked)  # the same function again: another generation that happens to be equal
    assert len(callback.rollouts) == 4
    part(prompts=["S"], completions=["<think>c</think>"])  # rows that only this one is shown
    assert len(callback.rollouts) == 5
    for model in ("some/reward-model", torch.nn.Linear(2, 2)):
        with pytest.raises(UserError, match="reward function"):
            callback.listen(model)  # type: ignore[arg-type]


def test_settings_of_ones_own_keep_training_alive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompts: Any, zs: Any) -> Any:
        raise RuntimeError("no GPU today")

    callback = CollapseCallback(tokenizer(), CollapseSettings(compute_freq=1), log_prob_fn=broken)
    with caplog.at_level(logging.WARNING):
        trainer = train(tmp_path, 2, "none", lambda s: callback.record(rows(s)), callback)
    assert trainer.state.global_step == 2 and "no GPU today" in caplog.text
    strict = CollapseCallback(tokenizer(), CollapseSettings(compute_freq=1, on_error="raise"), log_prob_fn=broken)
    with pytest.raises(RuntimeError, match="no GPU today"):
        train(tmp_path, 2, "none", lambda s: strict.record(rows(s)), strict)


def test_rows_that_cannot_be_recorded_leave_the_reward_alone(caplog: pytest.LogCaptureFixture) -> None:
    callback = CollapseCallback(tokenizer(), CollapseSettings())
    heard = callback.listen(lambda prompts, completions, **rest: [1.0])
    with caplog.at_level(logging.WARNING):
        assert heard(prompts=[3], completions=["x"]) == [1.0]
    assert "row 1: prompt" in caplog.text


def test_the_callback_logs_at_its_rhythm(tmp_path: Path) -> None:
    callback = CollapseCallback(tokenizer(), CollapseSettings(compute_freq=2, resamples=10))
    trainer = train(tmp_path, 5, "none", lambda step: callback.record(rows(step)), callback)
    logged = [e for e in trainer.state.log_history if f"{FIRST}/mi_estimate" in e]
    assert [e["step"] for e in logged] == [1, 2, 4]
    assert "timing_s/collapse_first_turn_step" in logged[0]
    assert trainer.model.training
    state = json.loads((tmp_path / "collapse_ema.json").read_text())
    assert state["per_token"][FIRST] == pytest.approx(logged[-1][f"{FIRST}/marginal_std_ema"])


def test_the_callback_overhears_rewards() -> None:
    callback = CollapseCallback(tokenizer())

    def reward(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        """Counts."""
        return [float(len(c)) for c in completions]

    heard = callback.listen(reward)
    assert heard.__name__ == "reward"
    ids = tokenizer().encode("<think>a b</think>", add_special_tokens=False)
    talk = [{"role": "user", "content": "Q"}]
    out = heard(prompts=["Q", talk], completions=["<think>a</think>", [{"role": "assistant", "content": "x"}]],
                completion_ids=[ids, ids])  # fmt: skip
    assert out == [16.0, 1.0]
    first, second = callback.rollouts
    assert first.response_ids == tuple(ids) and second.messages == tuple(talk)


def test_the_callback_must_be_installed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="install"):
        CollapseCallback(tokenizer()).on_train_begin(None, None, None)


def test_a_failing_measurement_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompts: Any, zs: Any) -> Any:
        raise RuntimeError("no GPU today")

    callback = CollapseCallback(tokenizer(), log_prob_fn=broken)
    with caplog.at_level(logging.WARNING):
        trainer = train(tmp_path, 2, "none", lambda step: callback.record(rows(step)), callback)
    assert trainer.state.global_step == 2 and "no GPU today" in caplog.text
