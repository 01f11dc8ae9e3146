"""What every callback of ours shares that runs inside somebody else's trainer.

    TrainerGuest   a TrainerCallback that knows its trainer, logs through the trainer's own loggers, lets training go on
                   after a failure (or raises, if asked to) and gives each warning once
    logged_before  what a resumed run had logged up to its checkpoint, so that callbacks keep no file of their own
    log_metrics    numbers through the trainer's loggers
    log_table      rows, where a logger has tables

Callers: collapse/callback.py and unlearn/watch.py.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from transformers import Trainer, TrainerCallback

from vestige.errors import UserError
from vestige.internal import in_short

Cell = str | int | float | None
SHOWN = 20  # rows of a table in loggers that show text only


class TrainerGuest(TrainerCallback):
    """A callback in a trainer that is not ours."""

    log = logging.getLogger("vestige.trainers")

    def __init__(self) -> None:
        self._trainer: Any = None
        self._told: set[str] = set()

    def install(self, trainer: Trainer) -> Self:
        """Adds the callback to a trainer. The same as `callbacks=[callback]` where a trainer takes those."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def find_trainer(self) -> Trainer:
        """The trainer that is calling. transformers passes callbacks the model but not the trainer."""
        frame = inspect.currentframe()
        while frame is not None:
            found = frame.f_locals.get("self")
            if isinstance(found, Trainer) and self in found.callback_handler.callbacks:
                self._trainer = found
                break
            frame = frame.f_back
        if self._trainer is None:
            name = type(self).__name__
            raise UserError(f"{name} cannot log yet; call callback.install(trainer) before training.")
        return self._trainer

    def raises(self) -> bool:
        """Whether errors end the training."""
        return False

    def failed(self, what: str, error: Exception, bug: bool) -> None:
        """Training goes on without this number, unless errors are to be raised. A bug of ours is called one."""
        if self.raises():
            raise error
        self.log.warning("%s: %s", what, in_short(error) if bug else error)

    def say_once(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self.log.warning("%s", words)


def updates_of(trainer: Any) -> int:
    """How often the optimiser has changed the weights so far."""
    return int(getattr(getattr(trainer, "state", None), "global_step", 0) or 0)


def logged_before(state: Any) -> list[Mapping[str, Any]]:
    """What was logged up to the checkpoint that a run is resumed from, and no further; nothing for a new run."""
    return list(state.log_history) if state.global_step > 0 else []


# ---- numbers -----------------------------------------------------------------------------------------------------


def log_metrics(trainer: Any, metrics: Mapping[str, float], control: Any, bare: bool = False) -> None:
    """Through the trainer's loggers, without a trace in what the trainer itself has to log at this step.

    `Trainer.log` and not the log of a subclass: TRL's empties its own running means into whatever is logged first. And
    logging clears `should_log`, which would cost the step its loss. `bare`: W&B and TensorBoard get the names as they
    are.
    """
    asked = control.should_log
    if not isinstance(trainer, Trainer):
        trainer.log(dict(metrics))
    elif bare:
        _log_bare(trainer, metrics)
    else:
        Trainer.log(trainer, dict(metrics))
    control.should_log = asked


def _log_bare(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """W&B and TensorBoard get the names as they are; transformers would put `train/` in front of them."""
    from transformers.integrations import TensorBoardCallback, WandbCallback

    handler, step = trainer.callback_handler, trainer.state.global_step
    everybody = handler.callbacks
    direct = [c for c in everybody if isinstance(c, (TensorBoardCallback, WandbCallback))]
    handler.callbacks = [c for c in everybody if c not in direct]
    try:
        Trainer.log(trainer, dict(metrics))
    finally:
        handler.callbacks = everybody
    for logger in direct if trainer.state.is_world_process_zero else ():
        writer, wandb = getattr(logger, "tb_writer", None), getattr(logger, "_wandb", None)
        if writer is not None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            writer.flush()
        if wandb is not None and wandb.run is not None:
            wandb.log({**metrics, "train/global_step": step})


# ---- rows --------------------------------------------------------------------------------------------------------


def log_table(trainer: Any, name: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Rows as a table in W&B, MLflow and Comet, as text in TensorBoard. Loggers are told apart by their attributes."""
    if not isinstance(trainer, Trainer) or not trainer.state.is_world_process_zero:
        return
    body = [list(row) for row in rows]
    step = trainer.state.global_step
    for logger in trainer.callback_handler.callbacks:
        kind = type(logger).__name__
        if kind == "WandbCallback" and getattr(logger, "_wandb", None) is not None and logger._wandb.run is not None:
            # A column of W&B has one type: missing numbers are None, and texts stay in columns of their own.
            table = logger._wandb.Table(columns=list(columns), data=body)
            logger._wandb.log({name: table, "train/global_step": step})
        elif kind == "MLflowCallback" and getattr(logger, "_initialized", False):
            data = {column: [row[i] for row in body] for i, column in enumerate(columns)}
            logger._ml_flow.log_table(data, artifact_file=f"{name}/step-{step}.json")
        elif kind == "CometCallback" and getattr(logger, "_experiment", None) is not None:
            logger._experiment.log_table(f"{name}-step-{step}.csv", tabular_data=body, headers=list(columns))
        elif kind == "TensorBoardCallback" and getattr(logger, "tb_writer", None) is not None:
            logger.tb_writer.add_text(name, markdown(columns, body[:SHOWN]), step)
            logger.tb_writer.flush()


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """
    >>> print(markdown(["index", "text"], [[0, "a|b"], [1, None]]))
    | index | text |
    |---|---|
    | 0 | a\\|b |
    | 1 | - |
    """
    lines = []
    for row in [columns, *rows]:
        cells = []
        for value in row:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            if value is None or text == "nan":
                text = "-"
            cells.append(" ".join(text.replace("|", "\\|").split()))
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, f"|{'---|' * len(columns)}")
    return "\n".join(lines)
