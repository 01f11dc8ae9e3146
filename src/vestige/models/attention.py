"""How a model is called here: attention without copies, masks by hand, logits of wanted positions only.

`attending` puts another function in the place of transformers' sdpa attention and takes it out again. `without_copies`
uses it for one thing: grouped-query models share each key head between several query heads, and transformers copies
the keys for every one of them as soon as there is a mask, because CUDA's kernels want it so. On a CPU torch reads the
shared keys where they are, with the same bits; the attention of a decoding step then takes a seventh of the time. The
plain ways that fast ones are checked against do not use it, so those checks cover it. (Two plain products per step,
with keys laid out for them, were measured too: not faster than torch's kernel.)

In: a model and what it is asked. Out: logits (positions, vocabulary), for reductions in collect; contexts in
which forwards cost less. Callers: whatever runs a model in collect, samplers and unlearn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from vestige.models.args import text_config
from vestige.types import Array

Attention = Callable[..., Any]


@contextmanager
def attending(make: Callable[[Attention], Attention]) -> Iterator[None]:
    """While open, models with sdpa attention call make(what they called before)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # The table has two levels. An assignment covers the library's entry and `del` uncovers it again, so an error inside
    # the forward cannot leave another model with this batch's plan. Blocks look the function up by name at each call.
    ALL_ATTENTION_FUNCTIONS["sdpa"] = make(ALL_ATTENTION_FUNCTIONS["sdpa"])
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def without_copies(model: Any) -> AbstractContextManager[None]:
    """While open, keys of grouped-query models are not copied, where that is known to give the same."""
    return attending(grouped) if shares_keys(model) else nullcontext()


def shares_keys(model: Any) -> bool:
    """Whether several query heads of this model share keys, on a CPU and in the library's sdpa attention."""
    if model.device.type != "cpu" or getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    config = text_config(model.config)
    heads = getattr(config, "num_attention_heads", None)
    key_heads = getattr(config, "num_key_value_heads", None)
    return bool(heads and key_heads and heads != key_heads and _reads_shared_keys(model.dtype))


def grouped(whole: Attention) -> Attention:
    """`whole`, less the copies: a masked call with fewer key heads than query heads goes to torch as it is."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        special = any(options.get(name) is not None for name in ("position_bias", "cache", "softcap"))
        copies = attention_mask is not None and key.shape[1] != query.shape[1]  # without a mask nothing is copied
        if special or not copies or torch.is_grad_enabled():
            return whole(module, query, key, value, attention_mask, **options)
        out = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=options.get("dropout", 0.0),
            scale=options.get("scaling"), enable_gqa=True,
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    return attend


@cache
def _reads_shared_keys(dtype: torch.dtype) -> bool:
    """Tried once: torch before 2.5 does not know the option, and another build may not give the same bits."""
    if "enable_gqa" not in (scaled_dot_product_attention.__doc__ or ""):
        return False
    noise = torch.Generator().manual_seed(0)
    query = torch.randn((2, 4, 5, 8), generator=noise).to(dtype)
    key, value = torch.randn((2, 2, 2, 5, 8), generator=noise).to(dtype)
    mask = torch.zeros((2, 1, 5, 5), dtype=dtype)
    mask[..., 3:] = torch.finfo(dtype).min
    keys, values = key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1)
    try:
        shared = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    except RuntimeError:  # no kernel for this dtype
        return False
    return torch.equal(shared, scaled_dot_product_attention(query, keys, values, attn_mask=mask))


# ---- what goes to a device, and what comes out of the output layer ----------------------------------------------


def send(values: Array | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host numbers on a device, without waiting for it. On a CPU they are what they were.

    A plain `.to` to a GPU waits until all work before it is done: torch synchronises the stream after such a copy.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type == "cpu" or tensor.device == device:
        return tensor.to(device)
    return tensor.to(device, non_blocking=True)


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
    # Some models name their input table when both share a weight; a hook there would narrow the input.
    layer = model.get_output_embeddings()
    narrows = layer is not None and not isinstance(layer, torch.nn.Embedding)
    with only_positions(model, index) if narrows else nullcontext():
        logits = model(**inputs).logits
    flat = logits.reshape(-1, logits.shape[-1])
    if len(flat) == len(index):
        return flat
    # No output layer, or a model that multiplies by its weight without calling it: all positions were paid for.
    return flat.index_select(0, send(index, flat.device))


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
