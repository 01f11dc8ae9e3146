"""Any suite on the live model while it trains: `vestige.Callback` for trainers, `vestige.Watch` for loops.

    callback = vestige.Callback("tofu", data="DIR", metrics=["forget_Q_A_Prob"], retain_logs="saves/eval/retain")
    trainer = SFTTrainer(..., callbacks=[callback])       # of transformers, or built on it

    watch = vestige.Watch(model, tokenizer, "tofu", data="DIR", retain_logs="saves/eval/retain", every=100)
    for batch in loader:
        ...
        optimizer.step()
        if watch.step(tokens=batch["input_ids"].numel()) and watch.is_best:
            model.save_pretrained("best")

In: the trainer's events, or the loop's own calls. Out: `vestige/...` numbers and tables in the loggers, run directories
below OUT, decisions (best checkpoint, early stopping). `vestige train` and `unlearn` use the callback, too. Training
takes the same course with and without it (tests/unlearn/test_watch.py compares weights bit for bit).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vestige.adapters.trainers import TrainerGuest, log_metrics, log_table, logged_before
from vestige.engine.config import RunConfig, make_config
from vestige.errors import UserError, is_ours
from vestige.in_memory import (
    AcceleratorLike,
    Place,
    RowTables,
    TokenizerLike,
    TorchModel,
    load_plugin_files,
    rows_or_folder,
)
from vestige.internal import in_short
from vestige.io import decode_data
from vestige.unlearn.live import LiveEvaluator, WatchSettings, evaluate_together, path_list
from vestige.unlearn.looks import PREFIX, Look
from vestige.verdict.best import Rank, RunMoment, rule_named

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger("vestige.watch")
# A rule may give a plain number, too: `ranked` makes a Rank of it.
BestRule = str | Mapping[str, float] | Callable[[RunMoment], Rank | float | None] | None
Logger = Callable[[dict[str, float], int], object]  # numbers and the step, as `wandb.log` takes them
SCORE = f"{PREFIX}score"


def live_run(
    suite: str,
    folder: str | None,
    metrics: Sequence[str] | str | None,
    retain_logs: Place | Sequence[Place] | None,
    plugins: Sequence[str],
    **more: Any,
) -> RunConfig:
    """The evaluation of a live model, composed before training starts, so that a mistake costs nothing."""
    files = load_plugin_files(plugins)
    run = make_config(
        suite=suite,
        model="live",
        data=folder,
        retain_logs=path_list(retain_logs) or None,
        metrics=metrics.split(",") if isinstance(metrics, str) else metrics,
        progress=False,
        plugins=tuple(files),
        **more,
    )
    if not isinstance(run, RunConfig):
        raise UserError(f"'{suite}' is a harness of tasks; a model is watched with a suite of metrics (tofu, muse).")
    return run


class Callback(TrainerGuest):
    """Evaluates the live model while it trains, logs what it finds, and knows the best checkpoint.

        callback = vestige.Callback("tofu", data="DIR", retain_logs="saves/eval/retain", every=100, patience=3)
        trainer = Trainer(..., callbacks=[callback])
        trainer.train()
        print(callback.best, callback.looks[-1].values)

    `every` is a number of steps, "epoch", or "eval" (whenever the trainer evaluates); `at_tokens` adds moments by
    tokens seen. The first look, before the first step, is the yardstick for what there was to forget (`full_logs`
    gives another).
    `retain_logs` is the run of the model that never knew. `best` is "closest", weights of metrics, or a function of a
    `RunMoment`; `load_best=True` (or `metric_for_best_model="vestige/score"` in the trainer's arguments) ends with the
    weights of that checkpoint, `patience` stops early. Run directories go to `out` (default: OUTPUT_DIR/vestige) and
    are kept by `keep`: "all", "best", "none" or a number. A failed look is logged, and training continues
    (`on_error="raise"` ends it). `rows` of each metric are logged as a table where the logger has tables.
    """

    log = log

    def __init__(
        self,
        suite: str = "tofu",
        *,
        data: Place | RowTables | None = None,
        metrics: Sequence[str] | str | None = None,
        retain_logs: Place | Sequence[Place] | None = None,
        full_logs: Place | Sequence[Place] | None = None,
        every: int | str = "epoch",
        at_tokens: Sequence[int] = (),
        at_start: bool = True,
        out: Place | None = None,
        keep: str | int = "all",
        best: BestRule = "closest",
        load_best: bool = False,
        patience: int | None = None,
        rows: int = 0,
        share: bool = False,
        limit: int | None = None,
        dialect: str | None = None,
        system_prompt: str | None = None,
        cluster: str | None = None,
        tokenizer: TokenizerLike | None = None,
        overrides: Sequence[str] = (),
        plugins: Sequence[str] = (),
        bare_keys: bool = False,
        on_error: str = "log",
    ) -> None:
        folder, self._rows = rows_or_folder(data)  # rows in memory live as long as this callback
        run = live_run(
            suite,
            folder,
            metrics,
            retain_logs,
            plugins,
            limit=limit,
            dialect=dialect,
            system_prompt=system_prompt,
            cluster=cluster,
            overrides=tuple(overrides),
        )
        settings = WatchSettings(
            path_list(retain_logs),
            path_list(full_logs),
            rule_named(cast(Any, best)),
            keep,
            every,
            at_tokens,
            at_start,
            load_best,
            patience,
            rows,
            share,
            bare_keys,
            on_error,
        )
        self._set_up(run, None if out is None else Path(out).expanduser(), settings, tokenizer)

    @classmethod
    def of(cls, run: RunConfig, out: Path, settings: WatchSettings, tokenizer: TokenizerLike) -> Callback:
        """From parts that are composed already (`vestige train` and `unlearn`)."""
        callback = cls.__new__(cls)
        callback._set_up(run, out, settings, tokenizer)
        return callback

    def _set_up(
        self, run: RunConfig, out: Path | None, settings: WatchSettings, tokenizer: TokenizerLike | None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.on_best: Callable[[TorchModel], object] | None = None  # called with the model at every new best look
        self._evaluator = LiveEvaluator(run, out, settings)
        self._tokenizer: Any = tokenizer
        self._tokens = 0  # seen so far
        self._training = False

    # ---- what was found

    @property
    def looks(self) -> list[Look]:
        """Every evaluation so far, in the order of steps."""
        return list(self._evaluator.looks)

    @property
    def best(self) -> Look | None:
        """The best look so far; None while none has a score."""
        return self._evaluator.best

    def raises(self) -> bool:
        return self.settings.on_error == "raise"

    # ---- the trainer's events

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        **kwargs: object,
    ) -> None:
        trainer, evaluator = self.find_trainer(), self._evaluator
        processing: Any = kwargs.get("processing_class")
        self._tokenizer = self._tokenizer or getattr(processing, "tokenizer", processing)
        if self._tokenizer is None:
            raise UserError("The trainer has no tokenizer; give one: vestige.Callback(..., tokenizer=tokenizer).")
        evaluator.out = evaluator.out or Path(str(args.output_dir)) / "vestige"
        evaluator.looks = []
        evaluator.remember(evaluator.logged_looks(logged_before(state)))
        self._training = True
        if self.settings.load_best:
            if args.metric_for_best_model is not None and not self._native(args):
                raise UserError(
                    f"load_best=True and metric_for_best_model='{args.metric_for_best_model}' ask for two best "
                    f"checkpoints; leave one of them out, or set metric_for_best_model='{SCORE}'."
                )
            args.load_best_model_at_end = True
        if self.settings.at_start and state.global_step == 0:
            self._look(trainer, args, state, control, model)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        **kwargs: object,
    ) -> None:
        step, every = int(state.global_step), self.settings.every
        due = isinstance(every, int) and (step % every == 0 or step >= state.max_steps)
        if due or self._at_tokens(args, state):
            self._look(self._trainer, args, state, control, model)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        **kwargs: object,
    ) -> None:
        if self.settings.every == "epoch":
            self._look(self._trainer, args, state, control, model)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """The trainer evaluated by itself: our score is put among its metrics, by which it may choose its best."""
        if not self._training or not (self.settings.every == "eval" or self._native(args)):
            return
        look = self._look(self._trainer, args, state, control, model)
        if isinstance(metrics, dict):
            score = look.score if look else None
            metrics[f"eval_{SCORE}"] = -math.inf if score is None else score  # never the best, nor an early stop's gain

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        best = self.best
        if self.settings.load_best and not self._native(args) and best is not None and best.step == state.global_step:
            state.best_model_checkpoint = str(Path(str(args.output_dir)) / f"checkpoint-{best.step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        log.info("%d looks took %.1f s", len(self.looks), sum(look.seconds for look in self.looks))
        if self.looks and self.best is None and self.settings.rule is not None:
            self.say_once(f"no checkpoint is the best one: {self.looks[-1].why or 'none has a score'}")

    # ---- looking

    def _native(self, args: Any) -> bool:
        """The trainer itself chooses its best checkpoint, by our score."""
        return str(args.metric_for_best_model or "").removeprefix("eval_") == SCORE

    def _at_tokens(self, args: Any, state: Any) -> bool:
        if not self.settings.at_tokens:
            return False
        seen = int(getattr(state, "num_input_tokens_seen", 0) or 0)
        if seen == 0:
            self.say_once("at_tokens needs include_num_input_tokens_seen=True in the trainer's arguments.")
        before, self._tokens = self._tokens, seen
        return any(before < goal <= seen for goal in self.settings.at_tokens)

    def _look(self, trainer: Any, args: Any, state: Any, control: Any, model: Any) -> Look | None:
        evaluator, step = self._evaluator, int(state.global_step)
        for earlier in evaluator.looks:
            if earlier.step == step:
                return earlier
        epoch = None if state.epoch is None else float(state.epoch)
        wrapped = getattr(trainer, "model_wrapped", None)
        accelerator = getattr(trainer, "accelerator", None)
        trained = model if wrapped is None else wrapped
        try:
            look = evaluate_together(
                evaluator, accelerator, trained, self._tokenizer, (step, epoch), self.settings.share
            )
        except Exception as error:  # of the model, the memory or the disk; a bug of ours is called one
            self.failed(f"no evaluation at step {step}", error, is_ours(error))
            return None
        log.info("%s", look)
        log_metrics(trainer, look.flat(), control, self.settings.bare_keys)
        if self.settings.rows:
            columns, rows = evaluator.rows(self.settings.rows)
            log_table(trainer, f"{PREFIX}rows", columns, rows)
        is_best = evaluator.best is look
        if is_best and self.settings.load_best and not self._native(args):
            state.best_metric, state.best_global_step = look.score, look.step
            control.should_save = True
        if self.settings.patience is not None and evaluator.looks_since_best >= self.settings.patience:
            log.warning("stopped at step %d: %d looks brought nothing better", look.step, self.settings.patience)
            control.should_training_stop = True
        if is_best and self.on_best is not None:
            self.on_best(model)
        return look


class Watch:
    """Counts steps, evaluates the live model when it is due, and knows the best look.

        watch = vestige.Watch(model, tokenizer, "tofu", data="DIR", every=100, log=run.log)
        look = watch.step()        # after optimizer.step(); a Look when one was due, else None
        watch.look()               # now, whatever the schedule says

    `accelerator` is the one that prepared the model: its processes look together, and its trackers get the numbers.
    Without one, the processes of torch.distributed (DDP, FSDP) look together; every process calls `step` or `look`.
    Other keywords are those of `vestige.Callback`. Without `out` nothing is kept on disk.
    `state_dict` and `load_state_dict` carry what was seen through a checkpoint of the loop's own.
    """

    def __init__(
        self,
        model: TorchModel,
        tokenizer: TokenizerLike,
        suite: str = "tofu",
        *,
        data: Place | RowTables | None = None,
        metrics: Sequence[str] | str | None = None,
        retain_logs: Place | Sequence[Place] | None = None,
        full_logs: Place | Sequence[Place] | None = None,
        every: int | str = "never",
        at_tokens: Sequence[int] = (),
        at_start: bool = True,
        out: Place | None = None,
        keep: str | int = "all",
        best: BestRule = "closest",
        patience: int | None = None,
        share: bool = False,
        limit: int | None = None,
        dialect: str | None = None,
        system_prompt: str | None = None,
        cluster: str | None = None,
        overrides: Sequence[str] = (),
        plugins: Sequence[str] = (),
        accelerator: AcceleratorLike | None = None,
        log: Logger | None = None,
        on_error: str = "log",
    ) -> None:
        if every == "eval":
            raise UserError("every='eval' is for trainers that evaluate; a loop of your own calls watch.look().")
        folder, self._rows = rows_or_folder(data)  # rows in memory live as long as this watch
        run = live_run(
            suite,
            folder,
            metrics,
            retain_logs,
            plugins,
            limit=limit,
            dialect=dialect,
            system_prompt=system_prompt,
            cluster=cluster,
            overrides=tuple(overrides),
        )
        place = Path(out).expanduser() if out is not None else None
        self.model, self.tokenizer, self.accelerator, self._log = model, tokenizer, accelerator, log
        self.settings = WatchSettings(
            path_list(retain_logs),
            path_list(full_logs),
            rule_named(cast(Any, best)),
            keep,
            every,
            at_tokens,
            at_start,
            patience=patience,
            share=share,
            on_error=on_error,
        )
        self._evaluator = LiveEvaluator(run, place, self.settings)
        self.steps = self.tokens = 0
        if at_start:
            self.look()

    @property
    def looks(self) -> list[Look]:
        return list(self._evaluator.looks)

    @property
    def best(self) -> Look | None:
        return self._evaluator.best

    @property
    def is_best(self) -> bool:
        """Whether the newest look is the best one so far."""
        return bool(self._evaluator.looks) and self.best is self._evaluator.looks[-1]

    @property
    def should_stop(self) -> bool:
        """Whether `patience` looks in a row brought nothing better."""
        return self.settings.patience is not None and self._evaluator.looks_since_best >= self.settings.patience

    def step(self, tokens: int = 0) -> Look | None:
        """Counts one step of the optimiser, and looks if it is due."""
        before, every = self.tokens, self.settings.every
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens
        due = isinstance(every, int) and self.steps % every == 0
        due = due or any(before < goal <= self.tokens for goal in self.settings.at_tokens)
        return self.look() if due else None

    def epoch_end(self, epoch: float | None = None) -> Look | None:
        """Looks if looks are due at the ends of epochs."""
        return self.look(epoch) if self.settings.every == "epoch" else None

    def look(self, epoch: float | None = None) -> Look | None:
        """Evaluates now. None: it failed, which is logged."""
        moment = (self.steps, epoch)
        try:
            look = evaluate_together(
                self._evaluator, self.accelerator, self.model, self.tokenizer, moment, self.settings.share
            )
        except Exception as error:  # of the model, the memory or the disk; a bug of ours is called one
            if self.settings.on_error == "raise":
                raise
            log.warning("no evaluation at step %d: %s", self.steps, in_short(error) if is_ours(error) else error)
            return None
        log.info("%s", look)
        if self._log is not None:
            self._log(look.flat(), self.steps)
        accelerator: Any = self.accelerator
        if accelerator is not None and accelerator.trackers:
            accelerator.log(look.flat(), step=self.steps)
        return look

    def state_dict(self) -> dict[str, object]:
        """Plain data for a checkpoint of the loop's own."""
        looks = [look.to_json() for look in self._evaluator.looks]
        return {"steps": self.steps, "tokens": self.tokens, "looks": looks}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        saved: Mapping[str, Any] = state
        self.steps, self.tokens = int(saved["steps"]), int(saved["tokens"])
        self._evaluator.looks = []
        self._evaluator.remember(decode_data(saved["looks"], list[Look], "The state of vestige.Watch"))
