"""Logits of wanted positions only, and attention masks by hand: what running any model here begins with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


@contextmanager
def only_positions(model: Any, index: torch.Tensor) -> Iterator[None]:
    """While open, the output layer sees positions `index` of the flattened (batch x time) hidden states.

    What follows the output layer (soft-capping, scaling) is elementwise, so the model's own code still applies.
    """

    def narrow(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = args[0]
        flat = hidden.reshape(-1, hidden.shape[-1])
        return (flat.index_select(0, index.to(flat.device)).unsqueeze(0), *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


def logits_at(model: Any, index: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """The logits (positions, vocabulary) at flat positions `index` (ascending) of one forward."""
    with only_positions(model, index) if _has_output_layer(model) else nullcontext():
        logits = model(**inputs).logits
    flat = logits.reshape(-1, logits.shape[-1])
    if len(flat) == len(index):
        return flat
    # No output layer, or a model that multiplies by its weight without calling it: all positions were paid for.
    return flat.index_select(0, index.to(flat.device))


def _has_output_layer(model: Any) -> bool:
    """Some models name their input table when both share a weight; a hook there would narrow the input."""
    layer = model.get_output_embeddings()
    return layer is not None and not isinstance(layer, torch.nn.Embedding)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean (batch, query, key) mask as the additive 4-D tensor every attention implementation takes."""
    out = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    out.masked_fill_(~allowed, torch.finfo(dtype).min)
    return out[:, None]
