"""`vestige.Callback`: any suite on the live model while a transformers Trainer, or one built on it, trains.

    callback = vestige.Callback("tofu", data="DIR", metrics=["forget_Q_A_Prob"], retain_logs="saves/eval/retain")
    trainer = SFTTrainer(..., callbacks=[callback])

In: the trainer's events. Out: `vestige/...` numbers and tables in the trainer's own loggers, run directories below OUT,
decisions (best checkpoint, early stopping). Callers: users, and unlearn/run.py for `vestige train` and `unlearn`.
Training takes the same course with and without it (tests/watch/test_watch.py compares weights bit for bit).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.data.rows import as_given
from vestige.engine.config import RunConfig
from vestige.engine.flags import EvalAsk, to_run
from vestige.errors import UserError, is_ours
from vestige.in_memory import Place, RowTables, TokenizerLike, TorchModel
from vestige.integrations.trainers import TrainerGuest, log_metrics, log_table, logged_before
from vestige.verdict.best import Rank, RunMoment
from vestige.watch.looking import PREFIX, Look, Looking, LookSettings, look_settings
from vestige.watch.processes import look_together

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

BestRule = str | Mapping[str, float] | Callable[[RunMoment], Rank | float | None] | None
SCORE = f"{PREFIX}score"


@dataclass(frozen=True)
class WatchPlan:
    """When to look, and what follows from a look."""

    every: int | str = "epoch"  # steps, or epoch, or eval (whenever the trainer itself evaluates), or never
    at_tokens: tuple[int, ...] = ()
    at_start: bool = True
    load_best: bool = False
    patience: int | None = None  # looks in a row without a better score
    rows: int = 0  # of each metric, as a table
    share: bool = False  # all processes collect, in place of the first alone
    bare_keys: bool = False
    raises: bool = False

    def __post_init__(self) -> None:
        steps = isinstance(self.every, int) and not isinstance(self.every, bool) and self.every > 0
        if not steps and self.every not in ("epoch", "eval", "never"):
            raise UserError(f"every is {self.every!r}; it is a number of steps, 'epoch', 'eval' or 'never'.")
        if self.patience is not None and self.patience < 1:
            raise UserError(f"patience is {self.patience}; it counts looks, at least 1.")


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
    are kept by `keep`: "all", "best", "none" or a number. A failed look is logged, and training goes on
    (`on_error="raise"` ends it). `rows` of each metric are logged as a table where the logger has tables.
    """

    log = logging.getLogger("vestige.watch")

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
        super().__init__()
        if on_error not in ("log", "raise"):
            raise UserError(f"on_error is {on_error!r}; it is 'log' or 'raise'.")
        self._rows = as_given(data)  # rows in memory live as long as this callback
        asked = live_ask(suite, self._rows.path if self._rows else data, metrics, retain_logs, limit)
        more = {"dialect": dialect, "system_prompt": system_prompt, "cluster": cluster, "overrides": tuple(overrides)}
        self.plan = WatchPlan(
            every, tuple(at_tokens), at_start, load_best, patience, rows, share, bare_keys, on_error == "raise"
        )
        self._run = live_run(asked, more, plugins)
        self._settings = look_settings(retain_logs, full_logs, best, keep)
        self._out = Path(out).expanduser() if out is not None else None
        self._tokenizer: Any = tokenizer
        self._looking: Looking | None = None
        self.on_best: Callable[[TorchModel], object] | None = None  # called with the model at every new best look

    @classmethod
    def of(
        cls, run: RunConfig, out: Path, settings: LookSettings, plan: WatchPlan, tokenizer: TokenizerLike
    ) -> Callback:
        """From parts that are composed already (`vestige train` and `unlearn`)."""
        callback = cls.__new__(cls)
        TrainerGuest.__init__(callback)
        callback.plan, callback._run, callback._settings, callback._out = plan, run, settings, out
        callback._tokenizer, callback._looking, callback.on_best = tokenizer, None, None
        return callback

    # ---- what was found

    @property
    def looks(self) -> list[Look]:
        """Every evaluation so far, in the order of steps."""
        return list(self._looking.looks) if self._looking else []

    @property
    def best(self) -> Look | None:
        """The best look so far; None while none has a score."""
        return self._looking.best if self._looking else None

    def raises(self) -> bool:
        return self.plan.raises

    # ---- the trainer's events

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        **kwargs: object,
    ) -> None:
        trainer = self.find_trainer()
        self._prepare(args, kwargs.get("processing_class"))
        assert self._looking is not None
        self._looking.looks = []
        self._looking.remember(self._looking.logged_looks(logged_before(state)))
        if self.plan.load_best:
            if args.metric_for_best_model is not None and not self._native(args):
                raise UserError(
                    f"load_best=True and metric_for_best_model='{args.metric_for_best_model}' ask for two best "
                    f"checkpoints; leave one of them out, or set metric_for_best_model='{SCORE}'."
                )
            args.load_best_model_at_end = True
        if self.plan.at_start and state.global_step == 0:
            self._look(trainer, args, state, control, model)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: TorchModel | None = None,
        **kwargs: object,
    ) -> None:
        step, every = int(state.global_step), self.plan.every
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
        if self.plan.every == "epoch":
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
        if self._looking is None or not (self.plan.every == "eval" or self._native(args)):
            return
        look = self._look(self._trainer, args, state, control, model)
        if isinstance(metrics, dict):
            score = look.rank.score if look else None
            metrics[f"eval_{SCORE}"] = -math.inf if score is None else score  # never the best, nor an early stop's gain

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        best = self.best
        if self.plan.load_best and not self._native(args) and best is not None and best.step == state.global_step:
            state.best_model_checkpoint = str(Path(str(args.output_dir)) / f"checkpoint-{best.step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.log.info("%d looks took %.1f s", len(self.looks), sum(look.seconds for look in self.looks))
        if self.looks and self.best is None and self._settings.rule is not None:
            self.say_once(f"no checkpoint is the best one: {self.looks[-1].rank.why or 'none has a score'}")

    # ---- looking

    def _prepare(self, args: Any, tokenizer: Any) -> None:
        self._tokenizer = self._tokenizer or getattr(tokenizer, "tokenizer", tokenizer)
        if self._tokenizer is None:
            raise UserError("The trainer has no tokenizer; give one: vestige.Callback(..., tokenizer=tokenizer).")
        if self._looking is None:
            self._looking = Looking(self._run, self._out or Path(args.output_dir) / "vestige", self._settings)

    def _native(self, args: Any) -> bool:
        """The trainer itself chooses its best checkpoint, by our score."""
        return str(args.metric_for_best_model or "").removeprefix("eval_") == SCORE

    def _at_tokens(self, args: Any, state: Any) -> bool:
        if not self.plan.at_tokens:
            return False
        seen = int(getattr(state, "num_input_tokens_seen", 0) or 0)
        if seen == 0:
            self.say_once("at_tokens needs include_num_input_tokens_seen=True in the trainer's arguments.")
        before, self._tokens = getattr(self, "_tokens", 0), seen
        return any(before < goal <= seen for goal in self.plan.at_tokens)

    def _look(self, trainer: Any, args: Any, state: Any, control: Any, model: Any) -> Look | None:
        assert self._looking is not None
        step = int(state.global_step)
        before = next((look for look in self._looking.looks if look.step == step), None)
        if before is not None:
            return before
        epoch = None if state.epoch is None else float(state.epoch)
        wrapped = getattr(trainer, "model_wrapped", model)
        try:
            look = look_together(
                self._looking,
                getattr(trainer, "accelerator", None),
                model if wrapped is None else wrapped,
                self._tokenizer,
                (step, epoch),
                self.plan.share,
            )
        except Exception as error:  # of the model, the memory or the disk; a bug of ours is called one
            self.failed(f"no evaluation at step {step}", error, is_ours(error))
            return None
        self.log.info("%s", look)
        log_metrics(trainer, look.flat(), control, self.plan.bare_keys)
        if self.plan.rows:
            columns, rows = self._looking.rows(self.plan.rows)
            log_table(trainer, f"{PREFIX}rows", columns, rows)
        self._decide(look, args, state, control)
        if self.on_best is not None and self._looking.best is look:
            self.on_best(model)
        return look

    def _decide(self, look: Look, args: Any, state: Any, control: Any) -> None:
        assert self._looking is not None
        if self.plan.load_best and not self._native(args) and self._looking.best is look:
            state.best_metric, state.best_global_step = look.rank.score, look.step
            control.should_save = True
        if self.plan.patience is not None and self._looking.looks_since_best >= self.plan.patience:
            self.log.warning("stopped at step %d: %d looks brought nothing better", look.step, self.plan.patience)
            control.should_training_stop = True


def live_ask(
    suite: str,
    data: Place | RowTables | None,
    metrics: Sequence[str] | str | None,
    retain_logs: Place | Sequence[Place] | None,
    limit: int | None,
) -> EvalAsk:
    """What is asked of a live model, in the words of `vestige eval`."""
    logs: str | list[str] | None = None
    if retain_logs is not None:
        logs = str(retain_logs) if isinstance(retain_logs, (str, Path)) else [str(path) for path in retain_logs]
    names = metrics.split(",") if isinstance(metrics, str) else metrics
    folder = None if data is None else str(data)
    return EvalAsk(suite, "live", folder, logs, metrics=names, limit=limit, progress=False)


def live_run(ask: EvalAsk, more: Mapping[str, Any], plugins: Sequence[str]) -> RunConfig:
    """Composed before training starts, so that a mistake costs nothing."""
    from vestige.integrations.plugins import load_plugins

    load_plugins([str(file) for file in plugins])
    run = to_run(replace(ask, plugins=tuple(map(str, plugins)), **more))
    if not isinstance(run, RunConfig):
        raise UserError(
            f"'{ask.suite}' is a harness of tasks; a model is watched with a suite of metrics (tofu, muse)."
        )
    return run
