"""Unlearning methods by name: which forward passes a step needs, and the loss made of them.

A new method is one pure function in `losses` and one line in METHODS. A step runs a forward pass only when a
method asks for it, so a method never declares (or pays for) what it does not read. The step's objective says what a
forward pass and a loss are, so a method serves causal and masked models alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vestige.errors import unknown_name
from vestige.unlearn import losses
from vestige.unlearn.objectives import Batch, Causal, Objective


@dataclass
class Step:
    """One training step's batches, and what the models think of them (computed when first read)."""

    model: Any
    forget: Batch
    retain: Batch | None = None
    reference: Any = None
    objective: Objective = field(default_factory=Causal)

    @cached_property
    def forget_logits(self) -> Tensor:
        return self.objective.logits(self.model, self.forget)

    @cached_property
    def forget_loss(self) -> Tensor:
        return self.objective.loss(self.forget_logits, self.forget)

    @cached_property
    def forget_nll(self) -> Tensor:
        return self.objective.nll(self.forget_logits, self.forget)

    @cached_property
    def reference_nll(self) -> Tensor:
        with torch.no_grad():
            return self.objective.nll(self.objective.logits(self.reference, self.forget), self.forget)

    @cached_property
    def retain_loss(self) -> Tensor:
        if self.retain is None:
            raise ValueError("this method trains on retain rows too, but none were given")
        return self.objective.loss(self.objective.logits(self.model, self.retain), self.retain)


@dataclass(frozen=True)
class Method:
    """A loss of a step (and of the method's own knobs), with what must be prepared before the first step."""

    loss: Callable[..., Tensor]
    needs_reference: bool = False  # a frozen copy of the starting model


def _grad_ascent(step: Step) -> Tensor:
    return losses.grad_ascent(step.forget_loss)


def _grad_diff(step: Step, **knobs: float) -> Tensor:
    return losses.grad_diff(step.forget_loss, step.retain_loss, **knobs)


def _npo(step: Step, **knobs: float) -> Tensor:
    return losses.npo(step.forget_nll, step.reference_nll, step.retain_loss, **knobs)


METHODS: dict[str, Method] = {
    "grad_ascent": Method(_grad_ascent),
    "grad_diff": Method(_grad_diff),
    "npo": Method(_npo, needs_reference=True),
}


def method_named(name: str) -> Method:
    """The method, or an error that names the nearest one there is."""
    if name not in METHODS:
        raise unknown_name("unlearning method", name, METHODS)
    return METHODS[name]
