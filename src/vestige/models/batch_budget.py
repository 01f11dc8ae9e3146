"""How many texts are decoded together: what fits the memory of a device that tells it, a fixed number elsewhere.

In: a model. Out: rows of a batch, and cells (rows x columns) of its key/value cache. Caller: collect/backend.py.
All of a device's memory counts, not what is free at the moment: batches of a resumed run must be those of the first,
and the other rows of a batch decide the last bits of its logits. What others use of the device shows as running out of
memory, which halves the batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vestige.models.args import text_config


class BatchBudget(NamedTuple):
    rows: int
    cells: int


DEFAULT_BUDGET = BatchBudget(128, 65536)
SHARE = 0.5  # of what the weights leave; the rest is for activations, and for what the allocator cannot use
COPIES = 2  # of a cache: it is copied when it has to grow
LOGITS = 0.25  # of that share: the logits of one step
LOGIT_BYTES = 16  # of one token in one row: float32 logits, their probabilities, a sorted copy, its order


def total_memory(device: Any) -> int | None:
    """Bytes of a GPU; None where a device does not tell, or where all programs share it (a CPU)."""
    import torch

    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info(device)[1])


def text_batch_budget(model: Any, rows: int | None = None) -> BatchBudget:
    """Rows and cells of a batch. `rows` were asked for; None: as many as fit."""
    total = total_memory(model.device)
    cell = None if total is None else cell_size(model.config)
    if total is None or cell is None:
        return DEFAULT_BUDGET._replace(rows=rows or DEFAULT_BUDGET.rows)
    left = SHARE * (total - sum(p.numel() * p.element_size() for p in model.parameters()))
    cells = _power_of_two((1 - LOGITS) * left / (COPIES * cell * model.dtype.itemsize))
    return BatchBudget(
        rows or _power_of_two(LOGITS * left / (LOGIT_BYTES * model.config.get_text_config().vocab_size)), cells
    )


def cell_size(config: Any) -> int | None:
    """Keys and values of one token in all layers, as numbers; None where a configuration does not have their shape."""
    config = text_config(config)
    layers, heads, width = (
        getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    if not (layers and heads and width):
        return None
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * layers * key_heads * (getattr(config, "head_dim", None) or width // heads))


def _power_of_two(limit: float) -> int:
    """The largest up to `limit`, at least 1: a few bytes more or less on the same kind of device change nothing."""
    return 1 << max(0, int(max(limit, 1)).bit_length() - 1)
