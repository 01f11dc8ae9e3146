"""What layers look like, without patching: states read off by the output layer, and Fisher information of each block.

Same examples and positions as patching. The states themselves (for CKA) are those of `source_states`.

In: a model and the PatchWants of a depth score. Out: token statistics per layer, or squared gradients per block.
Caller: depth/baselines.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vestige.collect.patch import States, decode_states
from vestige.errors import UserError
from vestige.models.attention import send
from vestige.models.blocks import find_blocks
from vestige.types import Array
from vestige.wants import PatchWant

LENS_ROWS = 512  # positions decoded at once


def lens_scores(model: Any, wants: Sequence[PatchWant], states: States) -> Array:
    """Mean log-probability of the labels by example and layer, when `model`'s final norm and head read the states."""
    out = []
    for want in wants:
        state = states[want.key]
        labels = want.target.labels
        layers, positions, width = state.shape
        if positions != len(labels):
            raise UserError("The logit lens needs patch_scope=span: every scored position must have its state.")
        flat = state.reshape(layers * positions, width)
        repeated = list(labels) * layers
        parts = [
            decode_states(model, flat[i : i + LENS_ROWS], repeated[i : i + LENS_ROWS])
            for i in range(0, len(flat), LENS_ROWS)
        ]
        out.append(np.concatenate(parts).reshape(layers, positions).astype(np.float64).mean(axis=-1))
    return np.stack(out)


def stacked_states(wants: Sequence[PatchWant], states: States) -> Array:
    """States of all examples, position after position: (layers, positions, width)."""
    return torch.cat([states[w.key].float() for w in wants], dim=1).cpu().numpy()


@contextmanager
def _gradients_on(model: Any, weights: Sequence[Any]) -> Iterator[None]:
    """Gradients for these weights alone; every setting and gradient is put back afterwards."""
    before = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    mine = {id(p) for p in weights}
    for p, _, _ in before:
        if p.is_floating_point():
            p.requires_grad_(id(p) in mine)
            p.grad = None
    try:
        yield
    finally:
        for p, wanted, grad in before:
            p.grad = grad
            if p.is_floating_point():
                p.requires_grad_(wanted)


def fisher(model: Any, wants: Sequence[PatchWant]) -> Iterator[list[Array]]:
    """The squared gradient of each example's mean entity loss, averaged over examples, block by block (flat arrays).

    Yields the running sums after each example, so that a caller can show progress; the last divided by the number of
    examples is the result.
    """
    weights = [list(block.parameters()) for block in find_blocks(model)]
    if not all(p.is_floating_point() for block in weights for p in block):
        raise UserError("Fisher information needs gradients, which quantised weights do not have.")
    sums = [np.zeros(sum(p.numel() for p in block), np.float32) for block in weights]
    for want in wants:
        with _gradients_on(model, [p for block in weights for p in block]), torch.enable_grad():
            _loss(model, want).backward()
            for total, block in zip(sums, weights, strict=True):
                parts = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in block]
                total += torch.cat(parts).float().square().cpu().numpy()
        yield sums


def _loss(model: Any, want: PatchWant) -> torch.Tensor:
    ids = send(torch.tensor([want.target.ids[:-1]]), model.device)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    labels = send(torch.tensor(want.target.labels), logits.device)
    return torch.nn.functional.cross_entropy(logits[0, want.target.start - 1 :].float(), labels)
