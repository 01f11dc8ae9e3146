"""MDLM: the whole window is looked at in every pass, and filled from the surest position on.

Rows stand at column 0 of the canvas and are padded on the right. Each row follows its own plan, and leaves the
forwards when that ends; nothing about it depends on its neighbours. The canvas is on the host and is sent to the model
for each look: a GPU is waited for when a pass has decided, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vestige.models.attention import send
from vestige.models.diffusion import MaskPredictor
from vestige.models.samplers.base import Move, Places, SamplerRow, Sampling
from vestige.models.samplers.choose import decide, suppressed, with_guidance
from vestige.wants import Denoising


def run_mdlm(
    sampling: Sampling, rows: Sequence[SamplerRow], plans: Sequence[Sequence[Move]], sequences: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Fills the masks of `sequences` (prompt and window, whose last `row.length` tokens are the window)."""
    predictor, denoising = sampling.predictor, sampling.denoising
    canvas, keep = _canvas(predictor, sequences)
    given = keep & (canvas != predictor.mask_id)
    if denoising.cfg_keep_tokens:
        given &= ~torch.isin(canvas, torch.tensor(denoising.cfg_keep_tokens))
    starts = [len(s) - row.length for s, row in zip(sequences, rows, strict=True)]
    sampling.show(canvas)
    while True:
        active = [i for i, row in enumerate(rows) if row.passes < len(plans[i])]
        if not active:
            return canvas
        at = torch.tensor(active)
        places, where = _places([rows[i] for i in active], [starts[i] for i in active], canvas)
        logits = _look(predictor, canvas[at], keep[at], given[at], where, denoising)
        flat = at[places.row] * canvas.shape[1] + where % canvas.shape[1]
        before = canvas.view(-1)[flat]
        moves = [plans[i][rows[i].passes] for i in active]
        proposal, chosen = decide(sampling, places, moves, logits, before)
        del logits  # before the next look makes its own
        canvas.view(-1)[flat[chosen]] = proposal[chosen]
        sampling.show(canvas)


def _canvas(predictor: MaskPredictor, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(s) for s in sequences)
    filler = predictor.eos_ids[0] if predictor.eos_ids else predictor.pad_id  # hidden either way; dllm pads with EOS
    canvas = torch.full((len(sequences), width), filler, dtype=torch.long)
    keep = torch.zeros((len(sequences), width), dtype=torch.bool)
    for i, sequence in enumerate(sequences):
        canvas[i, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        keep[i, : len(sequence)] = True
    return canvas, keep


def _places(rows: Sequence[SamplerRow], starts: Sequence[int], canvas: torch.Tensor) -> tuple[Places, torch.Tensor]:
    """All window positions of some rows, and where they stand in the flattened rows."""
    lengths = torch.tensor([row.length for row in rows])
    row = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    position = torch.cat([torch.arange(n) for n in lengths.tolist()])
    where = row * canvas.shape[1] + torch.tensor(starts)[row] + position
    return Places(rows, row, position, starts), where


def _look(
    predictor: MaskPredictor,
    canvas: torch.Tensor,
    keep: torch.Tensor,
    given: torch.Tensor,
    where: torch.Tensor,
    denoising: Denoising,
) -> torch.Tensor:
    shift, device = denoising.right_shift_logits, predictor.device
    seen, there = send(keep, device), send(where, device)
    logits = predictor.logits(send(canvas, device), seen, there, shift)
    if denoising.cfg_scale > 0:
        hidden = send(canvas.masked_fill(given, predictor.mask_id), device)
        blind = predictor.logits(hidden, seen, there, shift)
        logits = with_guidance(logits, blind, denoising.cfg_scale)
    return suppressed(logits, denoising.suppress_tokens)
