"""The library's attention, exchanged for a while.

`attending` puts another function in the place of transformers' sdpa attention and takes it out again. `without_copies`
uses it for one thing: grouped-query models share each key head between several query heads, and transformers copies
the keys for every one of them as soon as there is a mask, because CUDA's kernels want it so. On a CPU torch reads the
shared keys where they are, with the same bits; the attention of a decoding step then takes a seventh of the time.
`decoding` goes further for rows of one token.

In: a model. Out: nothing; while a context is open, forwards cost less. Callers: sparse.py, prompts.py, texts.py,
staircase.py and denoise.py of this room. The plain ways that fast ones are checked against do not use it, so those
checks cover it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

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
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    heads, kept = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    on_cpu = model.device.type == "cpu" and getattr(model.config, "_attn_implementation", None) == "sdpa"
    return bool(on_cpu and heads and kept and heads != kept and _reads_shared_keys(model.dtype))


def grouped(whole: Attention) -> Attention:
    """`whole`, less the copies: a masked call with fewer key heads than query heads goes to torch as it is."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        special = any(options.get(name) is not None for name in ("position_bias", "cache", "softcap"))
        if attention_mask is None or special or key.shape[1] == query.shape[1] or torch.is_grad_enabled():
            # Without a mask transformers does not copy either. A bias, a paged cache, gradients: its own way is right.
            return whole(module, query, key, value, attention_mask, **options)
        out = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=options.get("dropout", 0.0),
            scale=options.get("scaling"), enable_gqa=True,
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    return attend


def across(model: Any) -> bool:
    """Whether decoding attends with `one_token`, which wants keys with their columns last (see `SlotLayer`)."""
    on_cpu = model.device.type == "cpu" and getattr(model.config, "_attn_implementation", None) == "sdpa"
    return on_cpu and model.dtype == torch.float32


def decoding(model: Any) -> AbstractContextManager[None]:
    """While open, forwards of one token per row attend as `one_token` does, where that is faster."""
    return attending(one_token) if across(model) else without_copies(model)


def one_token(whole: Attention) -> Attention:
    """`whole`, except for one query per row: two plain products, all heads that share keys in one of them.

    The kernel behind sdpa is made for many queries; with one, two plain products read the keys once and are not slower
    (bench/decoding.py compares both in one run).
    """
    whole = grouped(whole)

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        special = any(options.get(name) is not None for name in ("position_bias", "cache", "softcap", "s_aux"))
        if query.shape[2] != 1 or attention_mask is None or special or options.get("dropout"):
            return whole(module, query, key, value, attention_mask, **options)
        rows, heads, _, width = query.shape
        scale = options.get("scaling")
        together = query.reshape(rows, key.shape[1], -1, width) * (width**-0.5 if scale is None else scale)
        scores = torch.matmul(together, key.transpose(2, 3))
        if attention_mask.dtype == torch.bool:
            scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores += attention_mask
        out = torch.matmul(scores.softmax(dim=-1), value)
        return out.reshape(rows, 1, heads, value.shape[-1]), None

    return attend


@cache
def _reads_shared_keys(dtype: torch.dtype) -> bool:
    """Tried once: torch before 2.5 does not know the option, and another build may not give the same bits."""
    if "enable_gqa" not in (scaled_dot_product_attention.__doc__ or ""):
        return False
    noise = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn((2, n, 5, 8), generator=noise).to(dtype) for n in (4, 2, 2))
    mask = torch.zeros((2, 1, 5, 5), dtype=dtype)
    mask[..., 3:] = torch.finfo(dtype).min
    keys, values = (t.repeat_interleave(2, dim=1) for t in (key, value))
    try:
        shared = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    except RuntimeError:  # no kernel for this dtype
        return False
    return torch.equal(shared, scaled_dot_product_attention(query, keys, values, attn_mask=mask))
