"""Collapse metrics while a Hugging Face or TRL trainer runs, logged through the trainer's own loggers.

    callback = CollapseCallback(tokenizer)
    trainer = GRPOTrainer(..., reward_funcs=[callback.listen(reward)])
    callback.install(trainer)

`listen` wraps a reward function and keeps what it is shown. Trainers of another kind call `record` themselves.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from vestige.data.reasoning import Extractor, Reasoning, Rollout
from vestige.errors import UserError, is_ours
from vestige.integrations.collapse_detector import CollapseDetector, CollapseSettings, Outcome, model_scorer
from vestige.integrations.rollouts import apart
from vestige.integrations.rollouts_rows import native
from vestige.internal import in_short
from vestige.journal import adopt_file
from vestige.metrics.collapse import Ema
from vestige.writing import write_bytes

log = logging.getLogger("vestige.collapse")

STATE = "collapse_ema.json"  # in the trainer's output directory


class CollapseCallback(TrainerCallback):
    """Measures the rollouts recorded since the last step, at step 1 and every `compute_freq` steps.

    Errors are said and training goes on, unless the settings have on_error="raise".
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: CollapseSettings | None = None,
        reasoning: Reasoning | None = None,
        log_prob_fn: Callable[..., Any] | None = None,
        temperature: float = 1.0,
        resume: bool = True,
    ) -> None:
        self.settings = settings or replace(CollapseSettings(), on_error="skip")
        self.detector = CollapseDetector(self.settings, log_prob_fn=log_prob_fn)
        self.extractor = Extractor(tokenizer, reasoning)
        self.temperature = temperature
        self.resume = resume
        self.rollouts: list[Rollout] = []
        self.last: Outcome | None = None
        self._trainer: Any = None
        self._scored = log_prob_fn is not None

    def install(self, trainer: Any) -> CollapseCallback:
        """Adds the callback to a trainer; its `log` is how the numbers leave."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Turns of the step under way, in the fields of our JSONL (docs/collapse.md)."""
        start = len(self.rollouts)
        for n, row in enumerate(rows):
            self.rollouts += native(dict(row), f"recorded row {start + n + 1}", start + n)

    def listen(self, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The same reward function, overheard: TRL shows it prompts, completions and completion ids."""

        @functools.wraps(reward)
        def overheard(prompts: Sequence[Any], completions: Sequence[Any], **rest: Any) -> Any:
            ids = rest.get("completion_ids") or [None] * len(prompts)
            self.record(
                [
                    {"prompt": p, "response": c, "response_ids": None if i is None else [int(t) for t in i]}
                    for p, c, i in zip(prompts, completions, ids, strict=True)
                ]
            )
            return reward(prompts=prompts, completions=completions, **rest)

        return overheard

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer is None:
            raise UserError("The collapse callback cannot log yet; call callback.install(trainer) before training.")
        saved = Path(args.output_dir) / STATE
        if self.resume and state.global_step > 0 and saved.is_file():
            self.detector.load_state_dict(json.loads(saved.read_text(encoding="utf-8")))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        step = int(state.global_step)
        rollouts, self.rollouts = self.rollouts, []
        if not self.detector.should_compute(step) or not rollouts:
            return
        try:
            self.last = self._measure(rollouts, model, step)
        except Exception as error:  # of the model, or of rollouts that do not fit; a bug of ours is called one
            if self.settings.on_error == "raise":
                raise
            log.warning("no collapse metrics at step %d: %s", step, in_short(error) if is_ours(error) else error)
            return
        for label, why in self.last.reasons.items():
            log.warning("step %d: %s: not computed: %s", step, label, why)
        self._trainer.log(dict(self.last.metrics))
        if state.is_world_process_zero:
            place = Path(args.output_dir) / STATE
            self._adopt(place)
            write_bytes(place, json.dumps(self.detector.state_dict()).encode())

    def _adopt(self, place: Path) -> None:
        """A file of a version that kept no journal: it reads as one."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            Ema.from_json(json.loads(place.read_text(encoding="utf-8")))
            adopt_file(place)

    def _measure(self, rollouts: list[Rollout], model: Any, step: int) -> Outcome:
        trajectories = self.extractor.trajectories(apart(rollouts))
        if self._scored:
            return self.detector.compute(trajectories, step)
        training = model.training
        model.eval()  # dropout would make the same pair two numbers
        try:
            self.detector.scorer = model_scorer(model, self.settings, temperature=self.temperature)
            return self.detector.compute(trajectories, step)
        finally:
            model.train(training)
