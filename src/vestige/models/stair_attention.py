"""Attention of a staircase's rows: each looks at the clean prefix and at its own tokens, never at other rows.

As one dense attention every row would look at every row, masked, and the prefix would be copied in front of the rows in
every block. Here the scores of both parts are made apart, over keys that stay where they are, and share one softmax:

    scores = [rows x prefix | each row x itself]

With r rows of s tokens behind a prefix of p that is r s (p + s) cells instead of r s (p + r s), and no mask as large.

In: the clean prefix of collect/staircase.py. Out: nothing; while `rows_apart` is open, forwards of the model take rows.
Caller: collect/staircase.py, which compares this with the plain way before it is trusted, and joins keys where a model
does not use the library's attention interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.models.cache import Unfit
from vestige.models.calling import attending


class PrefixLayer(DynamicLayer):
    """One block's clean keys and values of the prefix. New ones are not kept."""

    keys: torch.Tensor
    values: torch.Tensor
    apart = False  # new keys are handed on alone, to an attention that knows where the prefix is

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        # Said here, because the library would otherwise make empty keys of its own at the first update.
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.apart:
            return key_states, value_states
        # Kept, the rows of this staircase would be seen by the next one over the same prefix.
        return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)

    def get_seq_length(self) -> int:
        return int(self.keys.shape[2])


def can_part(model: Any) -> bool:
    """Whether the model's attention can be exchanged."""
    return bool(getattr(model.config, "_attn_implementation", None) == "sdpa")


@contextmanager
def rows_apart(prefix: Cache, seen: torch.Tensor, span: int) -> Iterator[None]:
    """While open, attention takes rows of `span` tokens behind the prefix. seen (batch, columns): which are a row's."""
    layers = [layer for layer in prefix.layers if isinstance(layer, PrefixLayer)]
    for layer in layers:
        layer.apart = True
    try:
        with attending(lambda whole: _attend(layers, seen, span)):
            yield
    finally:
        for layer in layers:
            layer.apart = False


def _attend(layers: list[PrefixLayer], seen: torch.Tensor, span: int) -> Callable[..., Any]:
    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if any(options.get(name) is not None for name in ("position_bias", "softcap", "s_aux")):
            raise Unfit("attention of another kind than rows need")  # keys are joined then
        before = layers[module.layer_idx]
        batch, heads, tokens, size = query.shape
        kept = key.shape[1]  # heads that several query heads share
        own = span if tokens % span == 0 else 1  # a block below all rows gets one token, which nobody reads
        shape = (batch, kept, heads // kept, tokens // own, own)
        least = torch.finfo(torch.float32).min
        scale = options.get("scaling") or size**-0.5
        asked = query.reshape(batch, kept, -1, size)
        far = (asked @ before.keys.transpose(-1, -2)).float() * scale
        far = far.masked_fill(~seen.to(far.device)[:, None, None, :], least)
        rows = [t.reshape(batch, kept, 1, tokens // own, own, -1) for t in (key, value)]
        near = (query.reshape(*shape, size) @ rows[0].transpose(-1, -2)).float() * scale
        later = torch.ones((own, own), dtype=torch.bool, device=near.device).triu(1)
        both = torch.cat([far.view(*shape, -1), near.masked_fill(later, least)], dim=-1)
        weights = both.softmax(dim=-1).to(value.dtype)
        columns = before.keys.shape[2]
        out = (weights[..., :columns].reshape(batch, kept, -1, columns) @ before.values).view(*shape, -1)
        out = out + weights[..., columns:] @ rows[1]
        return out.reshape(batch, heads, tokens, -1).transpose(1, 2).contiguous(), None

    return attend
