"""4-bit layers that are read back as they were written.

Weights are quantised in blocks of 64, one row after the other. On a CPU, bitsandbytes (0.50) reads them back wrongly
where a block reaches from one row into the next, where the width of a layer is not a multiple of the block size:
weights get the scale of a neighbouring block. Small models have such layers. The same data read as one long row
come out right, so a layer for which that makes a difference gets the right numbers, as plain weights.
"""

from __future__ import annotations

import copy
from typing import Any

RULE = "4-bit, rule 2"  # part of what evidence is kept under: it changes when the same files would be read otherwise


def repair(model: Any) -> list[str]:
    """Replaces the 4-bit layers of a model that would compute with other weights; returns their names."""
    import torch

    broken = {}
    for name, layer in model.named_modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is None or layer.weight.device.type != "cpu" or layer.weight.dtype != torch.uint8:
            continue
        right = one_row(layer.weight, state)
        if not torch.equal(right, _as_read(layer.weight, state)):
            broken[name] = (layer, right)
    for name, (layer, weight) in broken.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _plain(weight, layer.bias))
    return sorted(broken)


def one_row(weight: Any, state: Any) -> Any:
    """The weights a 4-bit layer stands for, its data read as one row."""
    flat = copy.copy(state)
    flat.shape = type(state.shape)((1, state.shape.numel()))
    return _as_read(weight, flat).reshape(state.shape)


def _as_read(weight: Any, state: Any) -> Any:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, state)


def _plain(weight: Any, bias: Any) -> Any:
    import torch

    rows, columns = weight.shape
    layer = torch.nn.Linear(columns, rows, bias=bias is not None, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = bias
    return layer.eval()
