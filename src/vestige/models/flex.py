"""Packed trees without a dense mask: torch's FlexAttention, with the rule of the tree instead of its cells.

Off unless `TREES` is set: on a GPU, where it is meant to help, it has never run (docs/gpu.md). The kernel is compiled
on first use. Which blocks of a row hide everything is found once per batch, and all layers share it.

In: where the subtrees of packed rows end, which tokens are hidden. Out: a block mask that transformers passes on to the
attention function as it is; `flexing` puts that function in the place of sdpa's. Caller: collect/forward.py. The check
of packed scoring against plain scoring covers it like any other way to attend.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from vestige.models.calling import Attention, attending

TREES = False  # only for models with sdpa attention


def tree_blocks(end: torch.Tensor, hidden: torch.Tensor) -> Any:
    """The block mask of packed rows: a query looks at its ancestors and itself, less hidden tokens.

    `end` (rows, width): where each position's subtree ends, 0 for padding. A query that would see nothing sees itself.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    rows, width = end.shape
    alone = _sees_nothing(end, hidden)

    def looks(row: Any, head: Any, query: Any, key: Any) -> Any:
        above = (key <= query) & (query < end[row, key]) & ~hidden[row, key]
        return above | ((query == key) & alone[row, query])

    return create_block_mask(looks, rows, None, width, width, device=str(end.device))


def _sees_nothing(end: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Per position: is there no visible ancestor, itself included? Each visible token counts from itself to its end."""
    at = torch.arange(end.shape[1], device=end.device)
    visible = (~hidden & (end > at)).to(torch.int32)
    changes = torch.nn.functional.pad(visible, (0, 1)).scatter_add(1, end, -visible)
    return changes[:, :-1].cumsum(dim=1) == 0


def flexing() -> AbstractContextManager[None]:
    """While open, calls of sdpa attention with a block mask go to the compiled kernel."""
    return attending(_flexible)


def _flexible(whole: Attention) -> Attention:
    from torch.nn.attention.flex_attention import BlockMask

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if not isinstance(attention_mask, BlockMask):
            return whole(module, query, key, value, attention_mask, **options)
        shared = key.shape[1] != query.shape[1]
        out = _kernel()(query, key, value, block_mask=attention_mask, scale=options.get("scaling"), enable_gqa=shared)
        return out.transpose(1, 2).contiguous(), None

    return attend


@cache
def _kernel() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
