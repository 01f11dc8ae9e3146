"""MDLM: the whole window is looked at in every pass, and filled from the surest position on.

Rows stand at column 0 of the canvas and are padded on the right. Each row follows its own plan, and leaves the
forwards when that ends; nothing about it depends on its neighbours. The canvas is on the host and is sent to the model
for each look: a GPU is waited for when a pass has decided, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vestige.models.attention import send
from vestige.models.samplers.base import Move, Places, SamplerRow, Sampling
from vestige.models.samplers.choose import decide, hideable_tokens, suppressed, with_guidance


def run_mdlm(
    sampling: Sampling, rows: Sequence[SamplerRow], plans: Sequence[Sequence[Move]], sequences: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Fills the masks of `sequences` (prompt and window, whose last `row.length` tokens are the window)."""
    predictor, denoising = sampling.predictor, sampling.denoising
    width = max(len(s) for s in sequences)
    # The filler is hidden from the model either way; dllm pads with the end token.
    filler = predictor.eos_ids[0] if predictor.eos_ids else predictor.pad_id
    canvas = torch.full((len(sequences), width), filler, dtype=torch.long)
    keep = torch.zeros((len(sequences), width), dtype=torch.bool)
    for i, sequence in enumerate(sequences):
        canvas[i, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        keep[i, : len(sequence)] = True
    given = hideable_tokens(sampling, canvas, keep)
    starts = [len(s) - row.length for s, row in zip(sequences, rows, strict=True)]
    sampling.show(canvas)
    while True:
        active = [i for i, row in enumerate(rows) if row.passes < len(plans[i])]
        if not active:
            return canvas
        at = torch.tensor(active)
        active_rows = [rows[i] for i in active]
        active_starts = [starts[i] for i in active]
        # All window positions of the active rows, and where they stand in the flattened active rows.
        lengths = torch.tensor([row.length for row in active_rows])
        row = torch.repeat_interleave(torch.arange(len(active)), lengths)
        position = torch.cat([torch.arange(n) for n in lengths.tolist()])
        column = torch.tensor(active_starts)[row] + position

        device, shift = predictor.device, denoising.right_shift_logits
        visible = send(keep[at], device)
        where = send(row * width + column, device)
        logits = predictor.logits(send(canvas[at], device), visible, where, shift)
        if denoising.cfg_scale > 0:
            hidden = send(canvas[at].masked_fill(given[at], predictor.mask_id), device)
            logits = with_guidance(logits, predictor.logits(hidden, visible, where, shift), denoising.cfg_scale)
        logits = suppressed(logits, denoising.suppress_tokens)

        on_canvas = at[row] * width + column
        before = canvas.view(-1)[on_canvas]
        moves = [plans[i][rows[i].passes] for i in active]
        places = Places(active_rows, row, position, active_starts)
        proposal, chosen = decide(sampling, places, moves, logits, before)
        del logits  # before the next look makes its own
        canvas.view(-1)[on_canvas[chosen]] = proposal[chosen]
        sampling.show(canvas)
