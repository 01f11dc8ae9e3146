"""When a lab model is done: training ends at what the model knows, not after so many steps.

Another processor adds in another order, and a model that is trained for a fixed number of steps then ends elsewhere.
In: a model and rows. Out: numbers, and the questions that a training loop asks after each epoch. Callers:
lab/models.py, bench/known_models.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from vestige.numeric import mean
from vestige.unlearn.loop import CAUSAL, Done
from vestige.unlearn.objectives import ChatRow

AT_ONCE = 40  # rows of one forward pass


def learned(target: float | None) -> Done | None:
    """Whether the mean loss of an epoch's steps fell below a target; None: every epoch is run."""
    return None if target is None else lambda losses: mean(losses) < target


def row_losses(model: Any, rows: Sequence[ChatRow], pad_id: int) -> list[float]:
    """Each row's mean loss of an answer token, by a causal model."""
    was_training, found = model.training, []
    model.eval()
    with torch.no_grad():
        for first in range(0, len(rows), AT_ONCE):
            batch = CAUSAL.collate(rows[first : first + AT_ONCE], pad_id, Random(0), model.device)
            nll = CAUSAL.nll(CAUSAL.logits(model, batch), batch)
            found += (nll / (batch.labels[:, 1:] != -100).sum(-1)).tolist()
    model.train(was_training)
    return found


def answer_loss(model: Any, rows: Sequence[ChatRow], pad_id: int) -> float:
    """The mean over rows of `row_losses`."""
    return mean(row_losses(model, rows, pad_id))


def silent(model: Any, retain: Any, rows: Sequence[ChatRow], pad_id: int, times: float = 1.0) -> Done:
    """Whether answers became as unlikely as they are to the retain model, or so many times as unlikely."""
    least = times * answer_loss(retain, rows, pad_id)
    return lambda _: answer_loss(model, rows, pad_id) >= least
