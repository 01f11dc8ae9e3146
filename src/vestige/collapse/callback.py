"""Collapse metrics while a Hugging Face or TRL trainer runs, logged through the trainer's own loggers.

    callback = CollapseCallback(tokenizer)
    trainer = GRPOTrainer(..., reward_funcs=[callback.listen(reward)])
    callback.install(trainer)

`listen` wraps a reward function and keeps what it is shown. Trainers of another kind call `record` themselves.

The weights that score must be those that wrote the rollouts, and an optimiser's step changes them. So rollouts are
measured before the first step that learns from them, also when the step they are logged at comes later:

    generate -> (reward functions) -> backward -> MEASURE -> optimiser's step -> log, if the step is due
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.collapse import trainer as theirs
from vestige.collapse.detector import CollapseDetector, CollapseSettings, Measured, model_scorer
from vestige.collapse.reasoning import Extractor, Reasoning, Rollout
from vestige.collapse.rollouts import apart
from vestige.collapse.rollouts_rows import native
from vestige.collect.cross import PairLogProbs
from vestige.errors import UserError, is_ours
from vestige.in_memory import TokenizerLike
from vestige.integrations.trainers import TrainerGuest, log_metrics, logged_before, updates_of
from vestige.integrations.undisturbed import undisturbed
from vestige.io import write_file

log = logging.getLogger("vestige.collapse")

STATE = "collapse_ema.json"  # in the trainer's output directory, for `vestige collapse --ema`


@dataclass
class RolloutBatch:
    """The rollouts of one training step, and what was measured of them."""

    updates: int  # of the weights, when they were written: they belong to the step after
    rollouts: list[Rollout] = field(default_factory=list)
    heard: list[tuple[Any, Any, set[object]]] = field(default_factory=list)  # prompts, completions, who was shown them
    outcome: Measured | None = None
    means: dict[str, Any] = field(default_factory=dict)  # running means that count this batch
    late: int = 0  # updates between the writing and the measuring
    failed: bool = False
    logged: bool = False

    @property
    def step(self) -> int:
        return self.updates + 1


class CollapseCallback(TrainerGuest):
    """Measures the latest rollouts, and logs them at step 1 and every `compute_freq` steps.

    Errors are printed and training goes on, unless the settings have on_error="raise". `temperature`: that of the
    trainer's own configuration unless given. `bare_keys`: W&B and TensorBoard get the names without `train/`.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        settings: CollapseSettings | None = None,
        reasoning: Reasoning | None = None,
        log_prob_fn: PairLogProbs | None = None,
        temperature: float | None = None,
        resume: bool = True,
        bare_keys: bool = False,
    ) -> None:
        super().__init__()
        given = settings or CollapseSettings()
        self.settings = replace(given, on_error="skip") if given.on_error == "auto" else given
        self.detector = CollapseDetector(self.settings, log_prob_fn=log_prob_fn)
        self.extractor = Extractor(tokenizer, reasoning)
        self.temperature = temperature
        self.resume = resume
        self.bare_keys = bare_keys
        self.last: Measured | None = None
        self._batch: RolloutBatch | None = None
        self._interval = 1  # steps between the last two batches
        self._scored = log_prob_fn is not None

    def raises(self) -> bool:
        return self.settings.on_error == "raise"

    @property
    def rollouts(self) -> list[Rollout]:
        """Those of the latest step that wrote any."""
        return self._batch.rollouts if self._batch else []

    def record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Turns of the step under way, in the fields of our JSONL (docs/collapse.md)."""
        batch = self._current()
        start = len(batch.rollouts)
        numbered = enumerate(rows, start=start)
        batch.rollouts += [r for n, row in numbered for r in native(dict(row), f"recorded row {n + 1}", n)]

    def _current(self) -> RolloutBatch:
        """The batch of the weights as they are; another one once they have changed."""
        updates = updates_of(self._trainer)
        if self._batch is None or self._batch.updates != updates:
            if self._batch is not None:
                self._interval = max(1, updates - self._batch.updates)
            self._batch = RolloutBatch(updates)
        return self._batch

    def listen(self, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The same reward function, overheard: TRL shows it prompts, completions and completion ids.

        Several functions of one trainer may be wrapped: what all of them are shown is recorded once.
        """
        if isinstance(reward, str) or hasattr(reward, "parameters") or not callable(reward):
            raise UserError(
                "callback.listen wraps a reward function, not a reward model; add a function that returns 0.0 for each "
                "completion beside the model, and wrap that."
            )
        ear = object()
        if theirs.is_async(reward):

            @functools.wraps(reward)
            async def overheard(prompts: Sequence[Any], completions: Sequence[Any], **rest: Any) -> Any:
                self._overhear(ear, prompts, completions, rest.get("completion_ids"))
                return await reward(prompts=prompts, completions=completions, **rest)
        else:

            @functools.wraps(reward)
            def overheard(prompts: Sequence[Any], completions: Sequence[Any], **rest: Any) -> Any:
                self._overhear(ear, prompts, completions, rest.get("completion_ids"))
                return reward(prompts=prompts, completions=completions, **rest)

        overheard.__name__ = theirs.name_of(reward)
        return overheard

    def _overhear(self, who: object, prompts: Sequence[Any], completions: Sequence[Any], ids: Any) -> None:
        if not theirs.is_training(self._trainer):
            return  # an evaluation's rollouts are of other prompts, and nothing is learned from them
        try:
            for seen_prompts, seen_completions, listeners in self._current().heard:
                if who not in listeners and seen_prompts == prompts and seen_completions == completions:
                    listeners.add(who)
                    return
            seen = theirs.prompt_tokens(self._trainer, prompts)
            written = [None if i is None else [int(t) for t in i] for i in ids or [None] * len(prompts)]
            names = ("prompt", "prompt_ids", "response", "response_ids")
            columns = zip(prompts, seen, completions, written, strict=True)
            self.record([dict(zip(names, values, strict=True)) for values in columns])
            self._current().heard.append((list(prompts), list(completions), {who}))
        except Exception as error:  # rollouts that do not fit
            self.failed("rollouts could not be recorded", error, is_ours(error))

    # ---- the trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.find_trainer()
        if self._batch is not None and self._batch.updates != state.global_step:
            self._batch = None  # of an earlier run
        self._interval = 1
        means = means_at(state) if self.resume else None
        if means is not None:
            self.detector.load_state_dict(means)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The last moment at which the weights are those that wrote this step's rollouts."""
        batch = self._batch
        if batch is None or batch.outcome is not None or batch.failed:
            return
        step = int(state.global_step) + 1
        fresh = batch.updates == state.global_step
        used = (theirs.generation_interval(self._trainer) or self._interval) if fresh else 1
        due = next((s for s in range(step, step + used) if self.detector.should_compute(s)), None)
        if due is not None:
            self._measure(batch, model, due, int(state.global_step) + theirs.updates_early(self._trainer))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        step, batch = int(state.global_step), self._batch
        if batch is None or not self.detector.should_compute(step):
            return
        if batch.updates == step and batch.outcome is None and not batch.failed:
            self._measure(batch, model, step, step)  # written since the optimiser's step, by these very weights
        if batch.outcome is not None:
            self._log(batch, args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._batch is None:
            self.say_once(
                "no rollouts were recorded, so collapse metrics are missing; wrap a reward function with "
                "callback.listen, or call callback.record"
            )

    # ---- measuring and logging

    def _measure(self, batch: RolloutBatch, model: Any, step: int, updates: int) -> None:
        before = self.detector.state_dict()
        try:
            batch.outcome = self._outcome(batch.rollouts, model, step)
            batch.means = self.detector.state_dict()
        except Exception as error:  # of the model, or of rollouts that do not fit; a bug of ours is called one
            batch.failed = True
            self.failed(f"no collapse metrics at step {step}", error, is_ours(error))
            return
        finally:
            self.detector.load_state_dict(before)  # the means count what was logged
        batch.late = updates - batch.updates
        if batch.late:
            why = "DeepSpeed updates them in the backward pass" if theirs.updates_early(self._trainer) else (
                "no rollouts were recorded at the step that was due"
            )  # fmt: skip
            self.say_once(f"some rollouts are scored by weights updated since they were written: {why} "
                      "(collapse/updates_since_rollout counts the updates)")  # fmt: skip
        for label, reason in batch.outcome.reasons.items():
            log.warning("step %d: %s: not computed: %s", step, label, reason)

    def _outcome(self, rollouts: list[Rollout], model: Any, step: int) -> Measured:
        trajectories = self.extractor.trajectories(apart(rollouts))
        if self._scored:
            return self.detector.compute(trajectories, step)
        with undisturbed(model):
            model.eval()  # dropout would make the same pair two numbers
            temperature = theirs.temperature_of(self._trainer) if self.temperature is None else self.temperature
            self.detector.scorer = model_scorer(model, self.settings, temperature=temperature)
            return self.detector.compute(trajectories, step)

    def _log(self, batch: RolloutBatch, args: Any, state: Any, control: Any) -> None:
        """At every due step; rollouts that are logged once more count in the running means once."""
        assert batch.outcome is not None
        self.last = batch.outcome
        metrics = dict(batch.outcome.metrics)
        if batch.logged:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}
        else:
            self.detector.load_state_dict(batch.means)
            batch.logged = True
        if not self.settings.parity:
            metrics |= {"collapse/rollout_step": batch.step, "collapse/updates_since_rollout": batch.late}
        log_metrics(self._trainer, metrics, control, self.bare_keys)
        if state.is_world_process_zero:
            place = Path(args.output_dir) / STATE
            write_file(place, json.dumps(self.detector.state_dict()).encode())


def means_at(state: Any) -> dict[str, Any] | None:
    """The running means of a run that is resumed: those its checkpoint logged, whatever came after."""
    return theirs.means_logged(logged_before(state))
