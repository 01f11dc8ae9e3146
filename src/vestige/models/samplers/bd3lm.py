"""BD3LM: block after block, each denoised with everything before it in view.

Rows are padded on the left to whole blocks, so that the windows of all rows begin in one column. Attention is
block-causal: a token sees its own block and earlier ones. What was read is kept in a key/value cache where the model
has one, and read again otherwise; both give the same logits. The canvas is on the host, as in mdlm.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vestige.models.attention import send
from vestige.models.diffusion import MaskPredictor
from vestige.models.samplers.base import Move, Places, SamplerRow, Sampling, block_size
from vestige.models.samplers.choose import decide, suppressed, with_guidance
from vestige.wants import Denoising


@dataclass(frozen=True)
class Block:
    """The last columns of a canvas, which are being denoised."""

    canvas: torch.Tensor
    width: int
    first: int  # its first column's place in the window

    @property
    def tokens(self) -> torch.Tensor:
        """A view: what is written here is written on the canvas."""
        return self.canvas[:, -self.width :]


def run_bd3lm(
    sampling: Sampling, rows: Sequence[SamplerRow], plans: Sequence[Sequence[Sequence[Move]]], together: bool = False
) -> list[list[int]]:
    """Denoises the blocks of each row's window; returns the tokens of the blocks it came to.

    A row ends with the block that holds its first end token. `together` keeps every row going until all have ended,
    as dllm does; what a row says then depends on its batch only in length.
    """
    predictor, denoising = sampling.predictor, sampling.denoising
    block = block_size(denoising)
    canvas, keep = _prompts(predictor, [row.prompt for row in rows], block)
    sampling.show(canvas)
    views = _views(predictor, canvas, keep, block, denoising)
    written: list[list[int]] = [[] for _ in rows]
    active = list(range(len(rows)))
    for b in range(len(plans[0])):
        if b:
            for view in views:
                view.read(canvas[:, -block:], keep[:, -block:])
        width = min(block, rows[0].length - b * block)
        fresh = torch.full((len(active), width), predictor.mask_id, dtype=torch.long)
        canvas = torch.cat([canvas, fresh], dim=1)
        keep = torch.cat([keep, torch.ones_like(fresh, dtype=torch.bool)], dim=1)
        moves = [plans[i][b] for i in active]
        _denoise(sampling, [rows[i] for i in active], moves, views, Block(canvas, width, b * block))
        for i, tokens in zip(active, canvas[:, -width:].tolist(), strict=True):
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


def _denoise(
    sampling: Sampling,
    rows: Sequence[SamplerRow],
    moves: Sequence[Sequence[Move]],
    views: Sequence[View],
    at_work: Block,
) -> None:
    """The passes over one block, in place."""
    denoising, mask_id = sampling.denoising, sampling.predictor.mask_id
    block, width = at_work.tokens, at_work.width
    start = [row.passes for row in rows]
    while True:
        # A block that is full takes no more passes, and one without a plan left (drawn counts) waits for the others.
        live = [r for r, row in enumerate(rows) if row.passes - start[r] < len(moves[r])]
        live = [r for r in live if bool((block[r] == mask_id).any())]
        if not live:
            return
        looks = [view.look(block) for view in views]  # all rows: the cache holds them all
        logits = looks[0] if len(looks) == 1 else with_guidance(looks[0], looks[1], denoising.cfg_scale)
        at = torch.tensor(live)
        looked = logits if len(live) == len(rows) else logits[send(at, logits.device)]
        logits = suppressed(looked.reshape(-1, logits.shape[-1]), denoising.suppress_tokens)
        row = torch.arange(len(live)).repeat_interleave(width)
        column = torch.arange(width).repeat(len(live))
        places = Places([rows[r] for r in live], row, column + at_work.first)
        steps = [moves[r][rows[r].passes - start[r]] for r in live]
        before = block[at].reshape(-1)
        proposal, chosen = decide(sampling, places, steps, logits, before)
        del looks, logits  # before the next look makes its own
        block[at] = torch.where(chosen, proposal, before).view(len(live), width)
        sampling.show(at_work.canvas)


def _prompts(
    predictor: MaskPredictor, prompts: Sequence[Sequence[int]], block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts on the right of a canvas of whole blocks, and which columns are not padding."""
    width = math.ceil(max(len(p) for p in prompts) / block) * block
    canvas = torch.full((len(prompts), width), predictor.pad_id, dtype=torch.long)
    keep = torch.zeros((len(prompts), width), dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        if prompt:
            canvas[i, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
            keep[i, width - len(prompt) :] = True
    return canvas, keep


class View(Protocol):
    """What the model has read, and through it the block at hand."""

    def read(self, ids: torch.Tensor, keep: torch.Tensor) -> None: ...
    def look(self, block: torch.Tensor) -> torch.Tensor: ...
    def select(self, rows: torch.Tensor) -> None: ...


def _views(
    predictor: MaskPredictor, canvas: torch.Tensor, keep: torch.Tensor, block: int, denoising: Denoising
) -> list[View]:
    """The prompt as it is, and for guidance a second view in which it is hidden."""
    shift = predictor.shift if denoising.right_shift_logits is None else denoising.right_shift_logits
    kind = CachedView if predictor.cached else PlainView
    views: list[View] = [kind(predictor, block, shift, len(canvas))]
    prompts = [canvas]
    if denoising.cfg_scale > 0:
        given = keep & (canvas != predictor.mask_id)
        if denoising.cfg_keep_tokens:
            given &= ~torch.isin(canvas, torch.tensor(denoising.cfg_keep_tokens))
        views.append(kind(predictor, block, shift, len(canvas)))
        prompts.append(canvas.masked_fill(given, predictor.mask_id))
    if canvas.shape[1]:
        for view, prompt in zip(views, prompts, strict=True):
            view.read(prompt, keep)
    return views


def staircase(keep: torch.Tensor, queries: int, block: int) -> torch.Tensor:
    """allowed (rows, queries, keys) for the last `queries` columns: own block and earlier ones, no padding."""
    number = torch.arange(keep.shape[1], device=keep.device) // block
    first = keep.shape[1] - queries
    return (number[None, :] <= number[first:, None])[None] & keep[:, None, :] & keep[:, first:, None]


def positions_of(keep: torch.Tensor) -> torch.Tensor:
    """Padding takes no position."""
    return (keep.long().cumsum(dim=1) - 1).clamp_min(0)


class PlainView:
    """Reads everything again at every look."""

    def __init__(self, predictor: MaskPredictor, block: int, shift: bool, rows: int) -> None:
        self.predictor, self.block, self.shift = predictor, block, shift
        self.ids = torch.zeros((rows, 0), dtype=torch.long)
        self.keep = torch.zeros((rows, 0), dtype=torch.bool)

    def read(self, ids: torch.Tensor, keep: torch.Tensor) -> None:
        self.ids = torch.cat([self.ids, ids], dim=1)
        self.keep = torch.cat([self.keep, keep], dim=1)

    def look(self, block: torch.Tensor) -> torch.Tensor:
        ids = send(torch.cat([self.ids, block], dim=1), self.predictor.device)
        keep = send(torch.cat([self.keep, torch.ones_like(block, dtype=torch.bool)], dim=1), self.predictor.device)
        rows, columns = ids.shape
        column = torch.arange(self.ids.shape[1], columns, device=ids.device)
        if self.shift:
            column = (column - 1).clamp_min(0)
        where = (torch.arange(rows, device=ids.device)[:, None] * columns + column).reshape(-1)
        allowed = staircase(keep, columns, self.block)
        logits = self.predictor.forward(ids, where, allowed=allowed, positions=positions_of(keep))
        return logits.view(rows, block.shape[1], -1)

    def select(self, rows: torch.Tensor) -> None:
        self.ids, self.keep = self.ids[rows], self.keep[rows]


class CachedView:
    """Keeps keys and values of what was read; a look leaves them as they were."""

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

    def look(self, block: torch.Tensor) -> torch.Tensor:
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
            ids, where, allowed=staircase(keep, new, self.block), positions=positions_of(keep)[:, -new:],
            cache=self.cache,
        )  # fmt: skip

    def select(self, rows: torch.Tensor) -> None:
        self.keep = self.keep[rows]
        self.last = None if self.last is None else self.last[send(rows, self.last.device)]
        for layer in self.cache.layers:
            if layer.is_initialized:
                at = send(rows, layer.keys.device)
                layer.keys, layer.values = layer.keys[at], layer.values[at]
