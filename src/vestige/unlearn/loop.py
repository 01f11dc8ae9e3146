"""Two plain training loops, fine-tuning and unlearning, over tokenised chat rows.

No trainer framework: a seeded order, AdamW with a linear decay, and a callback for those who want to watch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from vestige.unlearn.lesson import Lesson
from vestige.unlearn.methods import Step, chosen_weights, method_named, split_knobs
from vestige.unlearn.objectives import Causal, ChatRow, Objective, TrainingBatch

# Called after each step with (steps done, steps in all, loss).
OnStep = Callable[[int, int, float], None]

# Asked after each epoch with the losses of its steps: is the model where it should be? Then training ends early.
Done = Callable[[Sequence[float]], bool]

CAUSAL = Causal()


@dataclass(frozen=True)
class Training:
    """The settings that every loop shares."""

    epochs: int
    lr: float
    batch_size: int = 16
    warmup: float = 0.1  # the share of all steps in which the rate rises to `lr`; then it falls to 0
    weight_decay: float = 0.0
    clip: float = 1.0
    pad_id: int = 0
    seed: int = 0

    def steps(self, rows: int) -> int:
        return self.epochs * math.ceil(rows / self.batch_size)


def finetune(
    model: Any,
    rows: Sequence[ChatRow],
    training: Training,
    on_step: OnStep | None = None,
    objective: Objective = CAUSAL,
    done: Done | None = None,
) -> list[float]:
    """Trains the model in place to give each row's answer. Returns the loss of every step."""
    seen: list[float] = []

    def batch_losses() -> Iterator[Tensor]:
        for _, batch in _epochs(rows, training, model, objective, seen, done):
            yield objective.loss(objective.logits(model, batch), batch)

    return _descend(model, batch_losses(), training, training.steps(len(rows)), on_step, seen)


def unlearn(
    model: Any,
    lesson: Lesson,
    training: Training,
    on_step: OnStep | None = None,
    objective: Objective = CAUSAL,
    done: Done | None = None,
) -> list[float]:
    """Makes the model forget a lesson's rows by its method, in place. Returns the loss of every step.

    An epoch is one pass over the forget rows; each forget batch comes with as many random retain rows.
    """
    assert lesson.method is not None
    chosen = method_named(lesson.method)
    own, kind = split_knobs(lesson.method, lesson.knobs)
    forget, alternates = lesson.rows, lesson.alternates
    forgetting = chosen.forgetting(objective, own)
    reference = copy.deepcopy(model).eval().requires_grad_(False) if chosen.reads_reference(kind) else None
    draw, noise = Random(f"{training.seed}/retain"), Random(f"{training.seed}/retain noise")
    other = {id(row): answer for row, answer in zip(forget, alternates, strict=True)} if alternates else {}
    memory: dict[str, Any] = {}
    total = training.steps(len(forget))
    seen: list[float] = []

    def step(number: int, rows: Sequence[ChatRow], batch: TrainingBatch) -> Step:
        def collate(chosen_rows: Sequence[ChatRow]) -> Any:
            return objective.collate(chosen_rows, training.pad_id, noise, model.device) if chosen_rows else None

        beside = collate(draw.choices(lesson.retain, k=len(rows)) if lesson.retain else [])
        preferred = collate([other[id(row)] for row in rows] if other else [])
        epoch = training.epochs * number / total
        return Step(model, batch, beside, reference, objective, preferred, kind, epoch, memory)

    def batch_losses() -> Iterator[Tensor]:
        for number, (rows, batch) in enumerate(_epochs(forget, training, model, forgetting, seen, done)):
            yield chosen.loss(step(number, rows, batch), **own)

    return _descend(model, batch_losses(), training, total, on_step, seen, chosen_weights(model, own))


def bucketed(rows: Sequence[ChatRow], size: int, rng: Random) -> list[list[ChatRow]]:
    """Batches of rows of like length, in random order: little padding, and no fixed neighbours.

    Sorting is within random groups of eight batches, so an epoch's batches differ from the last one's.
    """
    order = rng.sample(range(len(rows)), len(rows))
    group = 8 * size
    batches = []
    for first in range(0, len(order), group):
        near = sorted(order[first : first + group], key=lambda i: len(rows[i].ids))
        batches += [[rows[i] for i in near[k : k + size]] for k in range(0, len(near), size)]
    rng.shuffle(batches)
    return batches


def _epochs(
    rows: Sequence[ChatRow],
    training: Training,
    model: Any,
    objective: Objective,
    seen: Sequence[float],
    done: Done | None,
) -> Iterator[tuple[list[ChatRow], TrainingBatch]]:
    """The batches of every epoch. `seen` grows by the loss of each; `done` is asked when an epoch's last is in it."""
    order, noise = Random(f"{training.seed}/order"), Random(f"{training.seed}/noise")
    for _ in range(training.epochs):
        before = len(seen)
        for batch in bucketed(rows, training.batch_size, order):
            yield batch, objective.collate(batch, training.pad_id, noise, model.device)
        if done is not None and done(seen[before:]):
            return


def _rate(step: int, total: int, warmup: float) -> float:
    """The learning rate's factor: up to 1 over the warm-up, then straight down towards 0.

    >>> [_rate(step, 5, 0.2) for step in range(5)]
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = max(1, round(warmup * total))
    if step < rising:
        return (step + 1) / rising
    return (total - step) / max(1, total - rising)


def _descend(
    model: Any,
    batch_losses: Iterator[Tensor],
    training: Training,
    total: int,
    on_step: OnStep | None,
    seen: list[float],
    only: Sequence[str] | None = None,
) -> list[float]:
    """One optimiser step for each loss. The losses are lazy: each is computed after the step before it.

    `seen` is filled with them. `only`: names of the weights to update; all of them count in clipping.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    moved = params if only is None else [p for n, p in model.named_parameters() if n in set(only)]
    optimiser = torch.optim.AdamW(moved, lr=training.lr, weight_decay=training.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: _rate(k, total, training.warmup))
    was_training = model.training
    model.train()
    for loss in batch_losses:
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(params, training.clip)
        optimiser.step()
        schedule.step()
        seen.append(float(loss.detach()))
        if on_step is not None:
            on_step(len(seen), total, seen[-1])
    model.train(was_training)
    return seen
