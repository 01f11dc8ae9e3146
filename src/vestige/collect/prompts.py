"""One prompt read once, then many continuations of it as one packed row that looks back at its keys.

The keys and values of the prompt stand in a cache of one row. The continuations form a prefix tree, laid out depth
first as in tree.py; every token looks at the whole prompt and at its own ancestors. Nothing is copied per
continuation, and the next prompt keeps what it shares with this one.

In: a prompt and the tree of its continuations. Out: TokenStats per continuation. Caller: collect/cross.py, which asks
many reasonings below each of many prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.collect.forward import STRETCH, logits_at, tree_mask
from vestige.collect.tree import PackedRow, Tree
from vestige.models.attention import additive, attending, send, without_copies
from vestige.types import Array

SHORT = STRETCH // 2  # a stretch shorter than this costs more in calls than it saves in keys


class PromptLayer(DynamicLayer):
    """One layer's keys and values. Only while `growing` is what passes through also kept."""

    keys: torch.Tensor
    values: torch.Tensor
    growing = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        if self.growing:
            self.keys, self.values = keys, values
        return keys, values


class PromptCache(Cache):
    """The keys of one prompt, and the prompt."""

    def __init__(self, layers: int) -> None:
        self.own = [PromptLayer() for _ in range(layers)]
        self.ids: tuple[int, ...] = ()
        super().__init__(layers=list(self.own))

    def grow(self, growing: bool) -> None:
        for layer in self.own:
            layer.growing = growing

    def keep(self, count: int) -> None:
        """Forgets everything after the first `count` tokens."""
        self.ids = self.ids[:count]
        for layer in self.own:
            if layer.is_initialized and layer.keys.numel():
                layer.keys, layer.values = layer.keys[..., :count, :], layer.values[..., :count, :]


def layers_of(model: Any) -> int:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return int(config.num_hidden_layers)


@torch.inference_mode()
def read_prompt(model: Any, cache: PromptCache, ids: Sequence[int]) -> int:
    """Makes the cache hold `ids`; what it holds of them already is not pushed again. Returns the tokens pushed."""
    same = zip(cache.ids, ids, strict=False)
    shared = next((i for i, (a, b) in enumerate(same) if a != b), min(len(cache.ids), len(ids)))
    cache.keep(shared)
    new = list(ids[shared:])
    if new:
        cache.grow(True)
        position = torch.arange(shared, len(ids), device=model.device)[None]
        with without_copies(model):
            logits_at(
                model, torch.tensor([len(new) - 1]), input_ids=send(torch.tensor([new]), model.device),
                position_ids=position, past_key_values=cache, use_cache=True,
            )  # fmt: skip
        cache.ids = tuple(ids)
    return len(new)


@dataclass(frozen=True)
class PromptStretch:
    """Some queries of a packed row, the keys of the row they may look at, and which of them each may."""

    first: int
    last: int
    keys: torch.Tensor
    allowed: torch.Tensor  # (queries, keys)
    fills: tuple[tuple[int, int, int], ...]  # (place among the keys, position in the row, how many): see `_attend`


def stretches(row: PackedRow) -> list[PromptStretch]:
    """The row cut into stretches; the same for every prompt, so it is made once.

    A cut goes where a branch ends if one does: the next branch has no use for the keys of this one.
    """
    out = []
    before, end = np.zeros(0, np.int64), row.end
    for first, last in pairwise(_cuts(end)):
        keys = np.flatnonzero(end[:last] > first)
        queries = np.arange(first, last)
        allowed = (keys[None, :] <= queries[:, None]) & (queries[:, None] < end[keys][None, :])
        fills = _fills(before, keys)
        out.append(PromptStretch(first, last, torch.from_numpy(keys), torch.from_numpy(allowed), fills))
        before = keys
    return out


def _fills(before: Array, keys: Array) -> tuple[tuple[int, int, int], ...]:
    """What must be copied to have `keys` where the last stretch had its own: all after what both begin with."""
    n = min(len(before), len(keys))
    differ = np.flatnonzero(before[:n] != keys[:n])
    at = int(differ[0]) if len(differ) else n
    out = []
    for run in np.split(keys[at:], np.flatnonzero(np.diff(keys[at:]) != 1) + 1):
        if len(run):
            out.append((at, int(run[0]), len(run)))
            at += len(run)
    return tuple(out)


def _cuts(end: Array) -> list[int]:
    """Where stretches begin, and the row's end: at branch ends, if that makes neither scraps nor long stretches."""
    width = len(end)
    # A token whose subtree is itself alone is the end of a branch.
    ends = [i + 1 for i in range(width) if end[i] == i + 1]
    cuts = [0]
    while cuts[-1] < width:
        start = cuts[-1]
        fitting = [e for e in ends if start + SHORT <= e <= start + STRETCH]
        cuts.append(fitting[0] if fitting else min(start + STRETCH, width))
        ends = [e for e in ends if e > cuts[-1]]
    return cuts


@torch.inference_mode()
def continue_prompt(
    model: Any, cache: PromptCache, tree: Tree, row: PackedRow, plan: Sequence[PromptStretch], scored: Sequence[int]
) -> torch.Tensor:
    """The logits at positions `scored` of a packed row that continues the cached prompt."""
    cache.grow(False)
    before, width = len(cache.ids), len(row.nodes)
    ids, depth, end = send(np.stack([tree.token[row.nodes], tree.depth[row.nodes], row.end]), model.device)
    # As in forward.py: a CPU gains by leaving masked cells out, a GPU prefers one large kernel.
    skipping = model.device.type == "cpu" and model.config._attn_implementation == "sdpa"
    with attending(lambda whole: _attend(whole, plan, before, width)) if skipping else nullcontext():
        return logits_at(
            model, torch.tensor(scored), input_ids=ids[None], position_ids=(depth + before)[None],
            past_key_values=cache, use_cache=True, attention_mask=_mask(end, before, model, skipping),
        )  # fmt: skip


def _mask(end: torch.Tensor, before: int, model: Any, skipping: bool) -> torch.Tensor:
    """The whole additive mask; only its shape when attention goes by stretches and never reads it."""
    width = len(end)
    if skipping:
        return torch.zeros((), dtype=model.dtype).expand(1, 1, width, before + width)
    row = tree_mask(end[None], torch.zeros_like(end, dtype=torch.bool)[None])
    return additive(torch.nn.functional.pad(row, (before, 0), value=True), model.dtype)


class _NoGroups:
    """In a module's place: the library then takes queries, keys and values as they are."""

    is_causal = False


def _attend(whole: Callable[..., Any], plan: Sequence[PromptStretch], before: int, width: int) -> Callable[..., Any]:
    """The library's attention over each stretch's own keys.

    The prompt's keys stand at the front of one buffer; a stretch's keys follow them, and only those that the stretch
    before it did not have are copied. Query heads that share a key head are laid behind one another as more queries of
    that head: the library would copy the keys for each of them instead.
    """
    masks: list[torch.Tensor] = []  # made in the first layer

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if query.shape[2] != width or key.shape[2] != before + width or options.get("position_bias") is not None:
            raise ValueError("attention of another kind than a packed row needs")  # the plain way is taken then
        heads, kept, size = query.shape[1], key.shape[1], query.shape[3]
        if not masks:
            masks.extend(_stretch_mask(s, before, heads // kept, query.dtype) for s in plan)
        most = before + max(len(s.keys) for s in plan)
        buffers = [(t, torch.empty_like(t[:, :, :most])) for t in (key, value)]
        for source, buffer in buffers:
            buffer[:, :, :before] = source[:, :, :before]
        parts = []
        for s, mask in zip(plan, masks, strict=True):
            for source, buffer in buffers:
                for at, start, count in s.fills:
                    buffer.narrow(2, before + at, count).copy_(source.narrow(2, before + start, count))
            few = [buffer.narrow(2, 0, before + len(s.keys)) for _, buffer in buffers]
            some = query[0, :, s.first : s.last].reshape(1, kept, -1, size)
            done = whole(_NoGroups(), some, *few, mask, **options)[0]  # (1, sharers x queries, kept, size)
            done = done.view(heads // kept, s.last - s.first, kept, -1).permute(1, 2, 0, 3)
            parts.append(done.reshape(1, s.last - s.first, heads, -1))
        return torch.cat(parts, dim=1), None

    return attend


def _stretch_mask(s: PromptStretch, before: int, sharers: int, dtype: torch.dtype) -> torch.Tensor:
    """All of the prompt and some of the row, once for each query head that shares the keys."""
    free = torch.ones((s.last - s.first, before), dtype=torch.bool)
    return additive(torch.cat([free, s.allowed], dim=1)[None], dtype).repeat(1, 1, sharers, 1)
