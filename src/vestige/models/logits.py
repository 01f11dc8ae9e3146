"""Logits of wanted positions only, and attention masks by hand: what running any model here begins with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from vestige.types import Array

# Page-locked memory for what goes to a GPU: the copy then overlaps with work. Never run yet, so off (docs/gpu.md).
PINNED = False


def send(values: Array | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host numbers on a device, without waiting for it. On a CPU they are what they were.

    A plain `.to` to a GPU waits until all work before it is done: torch synchronises the stream after such a copy.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type == "cpu" or tensor.device == device:
        return tensor.to(device)
    return (tensor.pin_memory() if PINNED and tensor.device.type == "cpu" else tensor).to(device, non_blocking=True)


@contextmanager
def only_positions(model: Any, index: torch.Tensor) -> Iterator[None]:
    """While open, the output layer sees positions `index` of the flattened (batch x time) hidden states.

    What follows the output layer (soft-capping, scaling) is elementwise, so the model's own code still applies.
    """

    def narrow(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = args[0]
        flat = hidden.reshape(-1, hidden.shape[-1])
        return (flat.index_select(0, send(index, flat.device)).unsqueeze(0), *args[1:])

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
    return flat.index_select(0, send(index, flat.device))


def _has_output_layer(model: Any) -> bool:
    """Some models name their input table when both share a weight; a hook there would narrow the input."""
    layer = model.get_output_embeddings()
    return layer is not None and not isinstance(layer, torch.nn.Embedding)


def is_local(config: Any) -> bool:
    """Whether some layers look only so far: their masks are the library's matter, and a mask by hand would override
    them."""
    return any(getattr(config, name, None) for name in ("sliding_window", "local_attention", "attention_window"))


def padding_mask(keep: torch.Tensor, model: Any) -> torch.Tensor:
    """Which tokens of each row may be seen (rows, columns), in the form that costs least.

    transformers asks of a row of 0/1 whether it is all ones, which makes a GPU wait in every step; a whole mask is
    taken as it is. The two mean the same for one query per row, and for mask predictors, whose queries see alike.
    """
    library = getattr(model.config, "_attn_implementation", None) == "sdpa"  # others may make more of a mask than this
    if keep.device.type == "cpu" or is_local(model.config) or not library:
        return keep.long()
    return additive(keep.bool()[:, None, :], model.dtype)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean (batch, query, key) mask as the additive 4-D tensor every attention implementation takes."""
    out = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    out.masked_fill_(~allowed, torch.finfo(dtype).min)
    return out[:, None]
