"""A key/value cache whose rows can leave.

`DynamicCache` copies all keys at every step and can only drop rows by copying the rest. Here new keys are written in
place, and a finished row's slot is taken by the last active row. Buffers have room for some steps; after those they are
made again for the rows and columns that are left, so memory is what is needed and not what might be.

In: the keys and values of a forward. Out: those of the active rows, as views. Callers: collect/texts.py, which decodes
rows of unequal length, and collect/staircase.py, which reads one layer's keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.models.calling import send
from vestige.types import Array


class Unfit(ValueError):  # noqa: N818 - a finding about an architecture, not a failure of ours
    """An architecture does not do what a fast way takes for granted; the plain way is there."""


def held(layer: object) -> tuple[torch.Tensor, torch.Tensor]:
    """A prefilled layer's keys and values. Recurrent layers have states instead, and some keep nothing."""
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        raise Unfit(f"a layer of its cache ({type(layer).__name__}) holds no keys and values")
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
        for held_here, new in ((self.keys, keys), (self.values, values)):
            taken = new.transpose(1, 2).flatten(0, 1)[places]  # (rows, time, heads, width)
            held_here[self.rows : self.rows + count, :, length - time : length] = taken.transpose(1, 2)
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
            raise Unfit("its prefill leaves no keys behind")
        self.slots = [SlotLayer((rows, columns)) for _ in range(layers)]
        super().__init__(layers=list(self.slots))

    def admit(self, prefilled: Cache, places: Sequence[Array], length: int) -> None:
        """Rows of a prefill, each given by where its tokens are in the flattened keys."""
        # A row's own first token fills the columns before it: masked, and never another row's NaN.
        at = np.stack([np.pad(p, (max(map(len, places)) - len(p), 0), mode="edge") for p in places])
        for slot, layer in zip(self.slots, prefilled.layers, strict=True):
            keys, values = held(layer)
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
