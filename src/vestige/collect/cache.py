"""A key/value cache whose rows can leave.

`DynamicCache` copies all keys at every step and can only drop rows by copying the rest. Here the buffers are
allocated once, new keys are written in place, and a finished row's slot is taken by the last active row.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer


class Unfit(ValueError):  # noqa: N818 - a finding about an architecture, not a failure of ours
    """An architecture does not do what a fast way takes for granted; the plain way is there."""


def held(layer: object) -> tuple[torch.Tensor, torch.Tensor]:
    """A prefilled layer's keys and values. Recurrent layers have states instead, and some keep nothing."""
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        raise Unfit(f"a layer of its cache ({type(layer).__name__}) holds no keys and values")
    return layer.keys, layer.values


class SlotLayer(DynamicLayer):
    """One layer's keys and values in preallocated buffers (rows, heads, columns, width).

    Rows are right-aligned: all of them end at column `length`, padding is on the left.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.capacity = (rows, columns)
        self.rows = 0
        self.length = 0

    def admit(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Adds prefilled rows, their last token in column `length` - 1."""
        if not self.is_initialized:
            rows, columns = self.capacity
            _, heads, _, width = keys.shape
            self.dtype, self.device = keys.dtype, keys.device
            # Zeros, not empty: masked columns are multiplied by weight 0, and 0 x NaN would be NaN.
            self.keys = keys.new_zeros((rows, heads, columns, width))
            self.values = values.new_zeros((rows, values.shape[1], columns, values.shape[3]))
            self.is_initialized = True
        count, time = keys.shape[0], keys.shape[2]
        self.keys[self.rows : self.rows + count, :, length - time : length] = keys
        self.values[self.rows : self.rows + count, :, length - time : length] = values
        self.rows += count
        self.length = length

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


class SlotCache(Cache):
    """SlotLayers for a whole model, filled from ordinary prefill caches."""

    def __init__(self, layers: int, rows: int, columns: int) -> None:
        self.slots = [SlotLayer(rows, columns) for _ in range(layers)]
        super().__init__(layers=list(self.slots))

    def admit(self, prefilled: Cache, length: int) -> None:
        for slot, layer in zip(self.slots, prefilled.layers, strict=True):
            slot.admit(*held(layer), length)

    def drop(self, row: int) -> None:
        for slot in self.slots:
            slot.drop(row)
