"""Attention over packed trees without the cells nobody looks at.

In depth-first order a stretch of queries looks at itself and at a few ancestors before it; the rest of the row is other
questions. Attending stretch by stretch to just those keys makes a row's cost grow with its length instead of with the
square of it, so rows can be as long as a batch and the shared beginning of all prompts is pushed once per batch.

The model's own attention function does the arithmetic, with fewer keys; a model that does not use the library's
attention interface never calls this and sees the whole mask as usual.

In: where the subtrees of each row end (collect/tree.py). Out: nothing; while `tree_attention` is open, forwards of the
model cost less. Caller: collect/forward.py, around each packed forward. collect/prompts.py does the same for rows that
continue a cached prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from vestige.models.attention import attending, grouped, shares_keys, without_copies
from vestige.types import Array

# Queries at a time; a question with its answers is about this long. Longer stretches look at more keys of other
# questions, shorter ones make more calls of a kernel that is then too small to be worth calling.
STRETCH = 128

Stretch = tuple[int, int, torch.Tensor]  # first query, end of queries, the keys they may look at


def stretches(end: Array, width: int) -> list[Stretch]:
    """The stretches of one row whose subtrees end at `end`; positions past the row (padding) see themselves."""
    ends = np.concatenate([end, np.arange(len(end), width) + 1])
    out = []
    for first in range(0, width, STRETCH):
        last = min(first + STRETCH, width)
        # Some query of this stretch may look at key i only if the subtree of i reaches into the stretch. That is never
        # too few; keys too many do no harm, because the mask is cut out with them and still decides cell by cell.
        keys = np.flatnonzero(ends[:last] > first)
        out.append((first, last, torch.from_numpy(keys)))
    return out


def tree_attention(model: Any, rows: Sequence[Array], width: int) -> AbstractContextManager[None]:
    """While open, the library's sdpa attention goes through the rows (given by where subtrees end) in stretches."""
    if not _applies(model, width):
        return without_copies(model)
    plan = [stretches(end, width) for end in rows]
    return attending(lambda whole: _by_stretches(grouped(whole) if shares_keys(model) else whole, plan, width))


def _applies(model: Any, width: int) -> bool:
    """On a CPU only: a GPU prefers one large kernel to many small ones.

    Only sdpa is replaced: eager attention would work alike, but who asks for it wants the library's own path.
    """
    return width > STRETCH and model.device.type == "cpu" and model.config._attn_implementation == "sdpa"


def _by_stretches(whole: Callable[..., Any], plan: Sequence[Sequence[Stretch]], width: int) -> Callable[..., Any]:
    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        # A block that was given another mask than ours (sliding window, cross attention), or a bias that would have to
        # be cut as well, gets the whole attention: slower, and right.
        expected = (len(plan), 1, width, width)
        if attention_mask is None or attention_mask.shape != expected or options.get("position_bias") is not None:
            return whole(module, query, key, value, attention_mask, **options)
        done = []
        for r, row in enumerate(plan):  # row by row, since each has other keys; on a CPU a batch is mostly one row
            parts = []
            for first, last, keys in row:
                few = [t[r : r + 1].index_select(2, keys) for t in (key, value)]
                mask = attention_mask[r : r + 1, :, first:last].index_select(3, keys)
                parts.append(whole(module, query[r : r + 1, :, first:last], *few, mask, **options)[0])
            done.append(torch.cat(parts, dim=1))
        return torch.cat(done), None

    return attend
