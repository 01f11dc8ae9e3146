"""Unlearning methods by name: which forward passes a step needs, and the loss made of them.

A new method is one pure function in `losses` and one line in METHODS. A step runs a forward pass only when a
method asks for it, so a method never declares (or pays for) what it does not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vestige.errors import unknown_name
from vestige.unlearn import losses


@dataclass(frozen=True)
class Batch:
    """Right-padded token ids and the labels to train, IGNORE elsewhere."""

    ids: Tensor
    labels: Tensor


@dataclass
class Step:
    """One training step's batches, and what the models think of them (computed when first read)."""

    model: Any
    forget: Batch
    retain: Batch | None = None
    reference: Any = None

    @cached_property
    def forget_logits(self) -> Tensor:
        return logits_of(self.model, self.forget)

    @cached_property
    def forget_loss(self) -> Tensor:
        return losses.cross_entropy(self.forget_logits, self.forget.labels)

    @cached_property
    def forget_nll(self) -> Tensor:
        return losses.sequence_nll(self.forget_logits, self.forget.labels)

    @cached_property
    def reference_nll(self) -> Tensor:
        with torch.no_grad():
            return losses.sequence_nll(logits_of(self.reference, self.forget), self.forget.labels)

    @cached_property
    def retain_loss(self) -> Tensor:
        if self.retain is None:
            raise ValueError("this method trains on retain rows too, but none were given")
        return losses.cross_entropy(logits_of(self.model, self.retain), self.retain.labels)


def logits_of(model: Any, batch: Batch) -> Tensor:
    """A forward pass without an attention mask: padding is on the right, so a causal model never sees it."""
    logits: Tensor = model(input_ids=batch.ids, use_cache=False).logits
    return logits


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
