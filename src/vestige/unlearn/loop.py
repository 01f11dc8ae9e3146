"""The plain training loop of the lab's tiny models, over tokenised chat rows.

No trainer framework: a seeded order of batches, AdamW with a linear decay, and an end as soon as the model is where it
should be. The demo's models depend on the order of batches and on the random numbers drawn here, bit for bit. What a
batch costs is computed as in trainer.py (`TrainingWork`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from vestige.unlearn.lesson import Lesson, Pair, TrainingWork
from vestige.unlearn.methods import select_weights
from vestige.unlearn.objectives import Causal, ChatRow, Objective

# Called after each step with (steps done, steps in all, loss).
OnStep = Callable[[int, int, float], None]

# Asked after each epoch with the losses of its steps: is the model where it should be? Then training ends early.
Done = Callable[[Sequence[float]], bool]

CAUSAL = Causal()


@dataclass(frozen=True)
class Training:
    """The settings that every training of the lab shares."""

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
    return unlearn(model, Lesson(rows), training, on_step, objective, done)


def unlearn(
    model: Any,
    lesson: Lesson,
    training: Training,
    on_step: OnStep | None = None,
    objective: Objective = CAUSAL,
    done: Done | None = None,
) -> list[float]:
    """Trains the model on a lesson, in place. Returns the loss of every step.

    An epoch is one pass over the rows; each batch of forget rows comes with as many random retain rows.
    """
    lesson.check()
    seed, total = training.seed, training.steps(len(lesson.rows))
    order, draw = Random(f"{seed}/order"), Random(f"{seed}/retain")
    work = TrainingWork(
        model, lesson, objective, training.pad_id, Random(f"{seed}/noise"), Random(f"{seed}/retain noise")
    )
    alternates: dict[int, ChatRow] = {}
    if lesson.alternates:
        alternates = {id(row): answer for row, answer in zip(lesson.rows, lesson.alternates, strict=True)}
    chosen = select_weights(model, work.knobs)
    named = list(model.named_parameters())
    # Weights that are not updated keep their gradients, which count in clipping (as in trainer.py).
    clipped = [weight for _, weight in named if weight.requires_grad]
    updated = clipped if chosen is None else [weight for name, weight in named if name in set(chosen)]
    optimiser = torch.optim.AdamW(updated, lr=training.lr, weight_decay=training.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, total, training.warmup))
    losses: list[float] = []
    was_training = model.training
    model.train()
    for _ in range(training.epochs):
        batches = bucket_rows(lesson.rows, training.batch_size, order)
        for rows in batches:
            retain: Sequence[ChatRow | None] = [None] * len(rows)
            if lesson.retain:
                retain = draw.choices(lesson.retain, k=len(rows))
            pairs = [Pair(row, other, alternates.get(id(row))) for row, other in zip(rows, retain, strict=True)]
            loss = work.loss(model, pairs, model.device, training.epochs * len(losses) / total)
            model.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(clipped, training.clip)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if on_step is not None:
                on_step(len(losses), total, losses[-1])
        if done is not None and done(losses[-len(batches) :]):
            break
    model.train(was_training)
    return losses


def bucket_rows(rows: Sequence[ChatRow], size: int, rng: Random) -> list[list[ChatRow]]:
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


def _rate(step: int, total: int, warmup: float) -> float:
    """The learning rate's factor: up to 1 over the warm-up, then straight down towards 0.

    >>> [_rate(step, 5, 0.2) for step in range(5)]
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = max(1, round(warmup * total))
    if step < rising:
        return (step + 1) / rising
    return (total - step) / max(1, total - rising)
