"""BD3LM: block after block, each denoised with everything before it in view.

Rows are padded on the left to whole blocks, so that the windows of all rows begin in one column. Attention is
block-causal: a token sees its own block and earlier ones. What was read is kept in a key/value cache where the model
has one, and read again otherwise; both give the same logits. The canvas is on the host, as in mdlm.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from vestige.models.attention import send
from vestige.models.diffusion import MaskPredictor
from vestige.models.samplers.base import Move, Places, SamplerRow, Sampling, block_size
from vestige.models.samplers.choose import decide, hideable_tokens, suppressed, with_guidance


def run_bd3lm(
    sampling: Sampling, rows: Sequence[SamplerRow], plans: Sequence[Sequence[Sequence[Move]]], together: bool = False
) -> list[list[int]]:
    """Denoises the blocks of each row's window; returns the tokens of the blocks it came to.

    A row ends with the block that holds its first end token. `together` keeps every row going until all have ended,
    as dllm does; what a row says then depends on its batch only in length.
    """
    predictor, denoising = sampling.predictor, sampling.denoising
    block = block_size(denoising)
    # Prompts on the right of a canvas of whole blocks.
    width = math.ceil(max(len(row.prompt) for row in rows) / block) * block
    canvas = torch.full((len(rows), width), predictor.pad_id, dtype=torch.long)
    keep = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        if row.prompt:
            canvas[i, width - len(row.prompt) :] = torch.tensor(row.prompt, dtype=torch.long)
            keep[i, width - len(row.prompt) :] = True
    sampling.show(canvas)

    # The prompt as it is, and for guidance a second view in which it is hidden.
    prompts = [canvas]
    if denoising.cfg_scale > 0:
        given = hideable_tokens(sampling, canvas, keep)
        prompts.append(canvas.masked_fill(given, predictor.mask_id))
    shift = predictor.shift if denoising.right_shift_logits is None else denoising.right_shift_logits
    views: list[View] = []
    for prompt in prompts:
        kind = CachedView if predictor.cached else PlainView
        view = kind(predictor, block, shift, len(rows))
        if width:
            view.read(prompt, keep)
        views.append(view)

    written: list[list[int]] = [[] for _ in rows]
    active = list(range(len(rows)))
    for b in range(len(plans[0])):
        if b:
            for view in views:
                view.read(canvas[:, -block:], keep[:, -block:])
        size = min(block, rows[0].length - b * block)
        fresh = torch.full((len(active), size), predictor.mask_id, dtype=torch.long)
        canvas = torch.cat([canvas, fresh], dim=1)
        keep = torch.cat([keep, torch.ones_like(fresh, dtype=torch.bool)], dim=1)
        _denoise_block(
            sampling, [rows[i] for i in active], [plans[i][b] for i in active], views, canvas, size, b * block
        )
        for i, tokens in zip(active, canvas[:, -size:].tolist(), strict=True):
            written[i] += tokens
        going = [r for r, i in enumerate(active) if not set(written[i]) & set(predictor.eos_ids)]
        if not going:
            break
        if len(going) < len(active) and not together:
            active = [active[r] for r in going]
            at = torch.tensor(going)
            canvas, keep = canvas[at], keep[at]
            for view in views:
                view.select(at)
    return written


def _denoise_block(
    sampling: Sampling, rows: Sequence[SamplerRow], moves: Sequence[Sequence[Move]], views: Sequence[View],
    canvas: torch.Tensor, size: int, first: int,
) -> None:  # fmt: skip
    """The passes over the last `size` columns of the canvas, in place; `first`: the block's place in the window."""
    denoising, mask_id = sampling.denoising, sampling.predictor.mask_id
    block = canvas[:, -size:]  # a view: what is written here is written on the canvas
    start = [row.passes for row in rows]
    while True:
        # A block that is full takes no more passes, and one whose plan has ended (drawn counts) waits for the others.
        live = [r for r, row in enumerate(rows) if row.passes - start[r] < len(moves[r])]
        live = [r for r in live if bool((block[r] == mask_id).any())]
        if not live:
            return
        logits = views[0].forward_block(block)  # all rows: the cache holds them all
        if len(views) > 1:
            logits = with_guidance(logits, views[1].forward_block(block), denoising.cfg_scale)
        at = torch.tensor(live)
        if len(live) < len(rows):
            logits = logits[send(at, logits.device)]
        logits = suppressed(logits.reshape(-1, logits.shape[-1]), denoising.suppress_tokens)
        row = torch.arange(len(live)).repeat_interleave(size)
        column = torch.arange(size).repeat(len(live))
        places = Places([rows[r] for r in live], row, column + first)
        steps = [moves[r][rows[r].passes - start[r]] for r in live]
        before = block[at].reshape(-1)
        proposal, chosen = decide(sampling, places, steps, logits, before)
        del logits  # before the next look makes its own
        block[at] = torch.where(chosen, proposal, before).view(len(live), size)
        sampling.show(canvas)


# ---- What the model has read, and through it the block at hand -------------------------------------------------------


def block_causal_mask(keep: torch.Tensor, queries: int, block: int) -> torch.Tensor:
    """allowed (rows, queries, keys) for the last `queries` columns: own block and earlier ones, no padding."""
    number = torch.arange(keep.shape[1], device=keep.device) // block
    first = keep.shape[1] - queries
    return (number[None, :] <= number[first:, None])[None] & keep[:, None, :] & keep[:, first:, None]


def positions_of(keep: torch.Tensor) -> torch.Tensor:
    """Padding takes no position."""
    return (keep.long().cumsum(dim=1) - 1).clamp_min(0)


class PlainView:
    """Reads everything again for every block."""

    def __init__(self, predictor: MaskPredictor, block: int, shift: bool, rows: int) -> None:
        self.predictor, self.block, self.shift = predictor, block, shift
        self.ids = torch.zeros((rows, 0), dtype=torch.long)
        self.keep = torch.zeros((rows, 0), dtype=torch.bool)

    def read(self, ids: torch.Tensor, keep: torch.Tensor) -> None:
        self.ids = torch.cat([self.ids, ids], dim=1)
        self.keep = torch.cat([self.keep, keep], dim=1)

    def forward_block(self, block: torch.Tensor) -> torch.Tensor:
        ids = send(torch.cat([self.ids, block], dim=1), self.predictor.device)
        keep = send(torch.cat([self.keep, torch.ones_like(block, dtype=torch.bool)], dim=1), self.predictor.device)
        rows, columns = ids.shape
        column = torch.arange(self.ids.shape[1], columns, device=ids.device)
        if self.shift:
            column = (column - 1).clamp_min(0)
        where = (torch.arange(rows, device=ids.device)[:, None] * columns + column).reshape(-1)
        allowed = block_causal_mask(keep, columns, self.block)
        logits = self.predictor.forward(ids, where, allowed=allowed, positions=positions_of(keep))
        return logits.view(rows, block.shape[1], -1)

    def select(self, rows: torch.Tensor) -> None:
        self.ids, self.keep = self.ids[rows], self.keep[rows]


class CachedView:
    """Keeps keys and values of what was read; a forward over a block leaves them as they were."""

    def __init__(self, predictor: MaskPredictor, block: int, shift: bool, rows: int) -> None:
        from transformers import DynamicCache

        self.predictor, self.block, self.shift = predictor, block, shift
        self.cache: Any = DynamicCache()
        self.keep = torch.zeros((rows, 0), dtype=torch.bool)
        self.last: torch.Tensor | None = None  # the logits of the last column read, for shifted models

    def read(self, ids: torch.Tensor, keep: torch.Tensor) -> None:
        self.keep = torch.cat([self.keep, keep], dim=1)
        rows, columns = ids.shape
        where = torch.arange(rows, device=self.predictor.device) * columns + columns - 1
        self.last = self._forward(ids, where, self.keep)

    def forward_block(self, block: torch.Tensor) -> torch.Tensor:
        rows, width = block.shape
        keep = torch.cat([self.keep, torch.ones_like(block, dtype=torch.bool)], dim=1)
        where = torch.arange(rows * width, device=self.predictor.device)
        logits = self._forward(block, where, keep).view(rows, width, -1)
        for layer in self.cache.layers:
            layer.keys = layer.keys[:, :, : self.keep.shape[1]]
            layer.values = layer.values[:, :, : self.keep.shape[1]]
        if not self.shift:
            return logits
        left = logits[:, :1] if self.last is None else self.last[:, None]
        return torch.cat([left, logits[:, :-1]], dim=1)

    def _forward(self, ids: torch.Tensor, where: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        new = ids.shape[1]
        ids, keep = (send(t, self.predictor.device) for t in (ids, keep))
        return self.predictor.forward(
            ids, where, allowed=block_causal_mask(keep, new, self.block), positions=positions_of(keep)[:, -new:],
            cache=self.cache,
        )  # fmt: skip

    def select(self, rows: torch.Tensor) -> None:
        self.keep = self.keep[rows]
        self.last = None if self.last is None else self.last[send(rows, self.last.device)]
        for layer in self.cache.layers:
            if layer.is_initialized:
                at = send(rows, layer.keys.device)
                layer.keys, layer.values = layer.keys[at], layer.values[at]


View = PlainView | CachedView
