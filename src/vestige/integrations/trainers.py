"""The one way into somebody else's trainer: what every callback of ours shares.

    TrainerGuest   a TrainerCallback that knows its trainer, logs through the trainer's own loggers, goes on after a
                   failure (or raises, if asked to) and says a thing once
    logged_before  what a resumed run had logged up to its checkpoint: state that needs no file of ours
    log_metrics    numbers through the trainer's loggers;  log_table  rows, where a logger has tables

Callers: collapse/callback.py and unlearn/watch.py.
"""

from __future__ import annotations

import inspect
import logging
import math
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
        """The trainer that is calling: transformers hands callbacks the model, but not whose it is."""
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


def log_table(trainer: Any, name: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Rows as a table in W&B, MLflow and Comet, as text in TensorBoard. Returns the loggers that took it."""
    if not isinstance(trainer, Trainer) or not trainer.state.is_world_process_zero:
        return []
    body = [list(row) for row in rows]
    step, took = trainer.state.global_step, []
    for logger in trainer.callback_handler.callbacks:
        send = TABLES.get(type(logger).__name__)
        if send is not None and send(logger, name, list(columns), body, step):
            took.append(type(logger).__name__)
    return took


def _to_wandb(logger: Any, name: str, columns: list[str], rows: list[list[Cell]], step: int) -> bool:
    wandb = getattr(logger, "_wandb", None)
    if wandb is None or wandb.run is None:
        return False
    # A column of W&B has one type: missing numbers are None, and texts stay in columns of their own.
    wandb.log({name: wandb.Table(columns=columns, data=rows), "train/global_step": step})
    return True


def _to_mlflow(logger: Any, name: str, columns: list[str], rows: list[list[Cell]], step: int) -> bool:
    mlflow = getattr(logger, "_ml_flow", None)
    if mlflow is None or not getattr(logger, "_initialized", False):
        return False
    data = {column: [row[i] for row in rows] for i, column in enumerate(columns)}
    mlflow.log_table(data, artifact_file=f"{name}/step-{step}.json")
    return True


def _to_comet(logger: Any, name: str, columns: list[str], rows: list[list[Cell]], step: int) -> bool:
    experiment = getattr(logger, "_experiment", None)
    if experiment is None:
        return False
    experiment.log_table(f"{name}-step-{step}.csv", tabular_data=rows, headers=columns)
    return True


def _to_tensorboard(logger: Any, name: str, columns: list[str], rows: list[list[Cell]], step: int) -> bool:
    writer = getattr(logger, "tb_writer", None)
    if writer is None:
        return False
    writer.add_text(name, markdown(columns, rows[:SHOWN]), step)
    writer.flush()
    return True


TABLES = {
    "WandbCallback": _to_wandb,
    "MLflowCallback": _to_mlflow,
    "CometCallback": _to_comet,
    "TensorBoardCallback": _to_tensorboard,
}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """
    >>> print(markdown(["index", "text"], [[0, "a|b"], [1, None]]))
    | index | text |
    |---|---|
    | 0 | a\\|b |
    | 1 | - |
    """

    def cell(value: Cell) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "-"
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        return " ".join(text.replace("|", "\\|").split())

    lines = ["| " + " | ".join(map(cell, columns)) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])
