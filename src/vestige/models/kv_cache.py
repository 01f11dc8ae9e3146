"""A key/value cache whose rows can leave.

`DynamicCache` copies all keys at every step and can only drop rows by copying the rest. Here new keys are written in
place, and a finished row's slot is taken by the last active row. Buffers have room for some steps; after those they are
made again for the rows and columns that are left, so memory is what is needed and not what might be.

In: the keys and values of a forward. Out: those of the active rows, as views. Callers: collect/texts.py, which decodes
rows of unequal length, and collect/layered_patching.py, which reads one layer's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.models.attention import attending, send
from vestige.types import Array


class UnsupportedArchitecture(ValueError):  # noqa: N818 - a finding about an architecture, not a failure of ours
    """An architecture does not do what a fast way takes for granted; the plain way is there."""


def layer_keys(layer: object) -> tuple[torch.Tensor, torch.Tensor]:
    """A prefilled layer's keys and values. Recurrent layers have states instead, and some keep nothing."""
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        raise UnsupportedArchitecture(f"a layer of its cache ({type(layer).__name__}) holds no keys and values")
    return layer.keys, layer.values


class SlotLayer(DynamicLayer):
    """One layer's keys and values in buffers (rows, heads, columns, width) that are written in place.

    Rows are right-aligned: all of them end at column `length`, padding is on the left.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, capacity: tuple[int, int]) -> None:
        super().__init__()
        self.capacity = capacity
        self.rows = 0
        self.length = 0

    def admit(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor, length: int) -> None:
        """Adds prefilled rows, their last token in column `length` - 1: `places` says where their tokens are."""
        if not self.is_initialized:
            self.dtype, self.device = keys.dtype, keys.device
            self.keys, self.values = self._buffer(keys), self._buffer(values)
            self.is_initialized = True
        count, time = places.shape
        for buffer, new in ((self.keys, keys), (self.values, values)):
            taken = new.transpose(1, 2).flatten(0, 1)[places]  # (rows, time, heads, width)
            buffer[self.rows : self.rows + count, :, length - time : length] = taken.transpose(1, 2)
        self.rows += count
        self.length = length

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: masked columns are multiplied by weight 0, and 0 x NaN would be NaN.
        (rows, columns), heads, width = self.capacity, like.shape[1], like.shape[3]
        return like.new_zeros((rows, heads, columns, width))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[2]
        self.keys[: self.rows, :, self.length : end] = key_states
        self.values[: self.rows, :, self.length : end] = value_states
        self.length = end
        return self.keys[: self.rows, :, :end], self.values[: self.rows, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def drop(self, row: int) -> None:
        """Frees a row; the last active row moves into its place."""
        self.rows -= 1
        if row != self.rows:
            self.keys[row].copy_(self.keys[self.rows])
            self.values[row].copy_(self.values[self.rows])

    def resize(self, first: int, columns: int) -> None:
        """New buffers for the rows that are left: columns from `first` on, `columns` of them."""
        self.capacity = (self.rows, columns)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old)
            new[:, :, : self.length - first] = old[: self.rows, :, first : self.length]
            setattr(self, name, new)
        self.length -= first


class SlotCache(Cache):
    """SlotLayers for a whole model, filled from ordinary prefill caches."""

    def __init__(self, layers: int, rows: int, columns: int) -> None:
        if not layers:
            raise UnsupportedArchitecture("its prefill stores no keys")
        self.slots = [SlotLayer((rows, columns)) for _ in range(layers)]
        super().__init__(layers=list(self.slots))

    def admit(self, prefilled: Cache, places: Sequence[Array], length: int) -> None:
        """Rows of a prefill, each given by where its tokens are in the flattened keys."""
        # A row's own first token fills the columns before it: masked, and never another row's NaN.
        at = np.stack([np.pad(p, (max(map(len, places)) - len(p), 0), mode="edge") for p in places])
        for slot, layer in zip(self.slots, prefilled.layers, strict=True):
            keys, values = layer_keys(layer)
            slot.admit(keys, values, send(at, keys.device), length)

    def drop(self, row: int) -> None:
        for slot in self.slots:
            slot.drop(row)

    @property
    def full(self) -> bool:
        return self.slots[0].length >= self.slots[0].capacity[1]

    def resize(self, first: int, columns: int) -> None:
        for slot in self.slots:  # layer by layer: at any time one of them is held twice
            slot.resize(first, columns)


# ---- Attention of layered patching's rows: each looks at the clean prefix and at its own tokens, not at other rows --
# As one dense attention every row would look at every row, masked, and the prefix would be copied in front of the
# rows in every block. Here the scores of both parts are made apart, over keys that stay where they are, and share one
# softmax:
#
#     scores = [rows x prefix | each row x itself]
#
# With r rows of s tokens after a prefix of p that is r s (p + s) cells instead of r s (p + r s), and no mask as large.


class PrefixLayer(DynamicLayer):
    """One block's clean keys and values of the prefix. New ones are not kept."""

    keys: torch.Tensor
    values: torch.Tensor
    apart = False  # new keys are handed on alone, to an attention that knows where the prefix is

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        # Set here, because the library would otherwise make empty keys of its own at the first update.
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.apart:
            return key_states, value_states
        # If they were kept, these rows would be seen by the next ones over the same prefix.
        return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)

    def get_seq_length(self) -> int:
        return int(self.keys.shape[2])


def can_replace_attention(model: Any) -> bool:
    """Whether the model's attention can be exchanged."""
    return bool(getattr(model.config, "_attn_implementation", None) == "sdpa")


@contextmanager
def separate_rows(prefix: Cache, seen: torch.Tensor, span: int) -> Iterator[None]:
    """While open, attention takes rows of `span` tokens after the prefix. seen (batch, columns): which are a row's."""
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
            raise UnsupportedArchitecture("attention of another kind than rows need")  # keys are joined then
        prefix = layers[module.layer_idx]
        columns = prefix.keys.shape[2]
        batch, heads, tokens, size = query.shape
        key_heads = key.shape[1]
        sharers = heads // key_heads  # query heads that share one key head
        length = span if tokens % span == 0 else 1  # a block below all rows gets one token, which is not read
        count = tokens // length
        scale = options.get("scaling") or size**-0.5
        least = torch.finfo(torch.float32).min

        queries = query.reshape(batch, key_heads, -1, size)
        to_prefix = (queries @ prefix.keys.transpose(-1, -2)).float() * scale
        to_prefix = to_prefix.masked_fill(~seen.to(to_prefix.device)[:, None, None, :], least)
        to_prefix = to_prefix.view(batch, key_heads, sharers, count, length, columns)

        row_keys = key.reshape(batch, key_heads, 1, count, length, -1)
        row_values = value.reshape(batch, key_heads, 1, count, length, -1)
        queries = query.reshape(batch, key_heads, sharers, count, length, size)
        to_row = (queries @ row_keys.transpose(-1, -2)).float() * scale
        later = torch.ones((length, length), dtype=torch.bool, device=to_row.device).triu(1)
        to_row = to_row.masked_fill(later, least)

        weights = torch.cat([to_prefix, to_row], dim=-1).softmax(dim=-1).to(value.dtype)
        on_prefix = weights[..., :columns].reshape(batch, key_heads, -1, columns)
        out = (on_prefix @ prefix.values).view(batch, key_heads, sharers, count, length, -1)
        out = out + weights[..., columns:] @ row_values
        return out.reshape(batch, heads, tokens, -1).transpose(1, 2).contiguous(), None

    return attend
