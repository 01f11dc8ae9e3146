"""One pass's decisions: what each position would become, and which positions are decided now.

MDLM and BD3LM share this; they differ only in what the model looks at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vestige.models.attention import send
from vestige.models.samplers.base import Move, Pass, Places, Sampling, gumbel_choice
from vestige.types import IGNORE
from vestige.wants import Denoising

ENTROPY_FLOOR = 1e-10  # Dream adds it inside the logarithm


def hideable_tokens(sampling: Sampling, canvas: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The given tokens, which guidance hides in its second look; `cfg_keep_tokens` stay visible there."""
    given = keep & (canvas != sampling.predictor.mask_id)
    kept = sampling.denoising.cfg_keep_tokens
    if kept:
        given &= ~torch.isin(canvas, torch.tensor(kept))
    return given


def suppressed(logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    if not tokens:
        return logits
    return logits.index_fill(1, send(torch.tensor(list(tokens)), logits.device), float("-inf"))


def with_guidance(given: torch.Tensor, hidden: torch.Tensor, scale: float) -> torch.Tensor:
    """Classifier-free guidance: away from what the model says when the prompt is hidden."""
    return hidden + (scale + 1) * (given - hidden)


def decide(
    sampling: Sampling, places: Places, moves: Sequence[Move], logits: torch.Tensor, canvas: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The proposal for each position (n,) and whether it is written in this pass (n,); the rows are advanced.

    The logits are where the model is, all else is on the host: what is decided comes back in one copy.
    """
    denoising, mask_id = sampling.denoising, sampling.predictor.mask_id
    rows, device = places.rows, logits.device
    masked = canvas == mask_id

    choice = logits.argmax(dim=-1)
    if denoising.temperature > 0:
        for r, row in enumerate(rows):
            own = send((masked & (places.row == r)).nonzero()[:, 0], device)
            choice[own] = gumbel_choice(logits[own], denoising.temperature, row.generator)
    confidence = _confidences(places, logits, choice, denoising)

    target: torch.Tensor | None = None
    if denoising.mode != "unguided" and any(row.target for row in rows):
        width = max(row.length for row in rows)
        table = [[*row.target, *[IGNORE] * (width - len(row.target))] for row in rows]
        target = torch.tensor(table)[places.row, places.position]
    if target is not None and denoising.mode == "guided_skew":
        wanted = send(target, device)
        of_target = _probability(logits, wanted.clamp_min(0))
        confidence = torch.where(wanted == IGNORE, send(confidence, device), of_target)

    if confidence.device == choice.device:
        # Both in one copy, tokens as the bits they are: a GPU is waited for once.
        both = torch.stack([choice.to(torch.int32).view(torch.float32), confidence.float()]).cpu()
        choice, confidence = both[0].view(torch.int32).long(), both[1]
    else:  # random confidences are on the host already
        choice = choice.cpu()
    if target is not None:
        choice = torch.where(target == IGNORE, choice, target)
    proposal = torch.where(masked, choice, canvas)
    if sampling.recorder is not None:
        sample = places.per_row([row.sample for row in rows])
        number = places.per_row([row.passes for row in rows])
        sampling.recorder(Pass(sample, number, places.position, logits, canvas, proposal))
    chosen = _most_confident(places, moves, confidence, masked)
    # Only a token counts as decided: a model may write the mask token itself, and then nothing has changed.
    written = chosen & (proposal != mask_id)
    for r, p in zip(places.row[written].tolist(), places.position[written].tolist(), strict=True):
        rows[r].fixed[p] = rows[r].passes
    for row in rows:
        row.passes += 1
    return proposal, chosen


def _confidences(places: Places, logits: torch.Tensor, choice: torch.Tensor, denoising: Denoising) -> torch.Tensor:
    """How sure the model is of each position, by the rule that `remasking` names."""
    if denoising.remasking == "random":
        draws = [torch.rand(row.length, generator=row.generator) for row in places.rows]
        return torch.nn.utils.rnn.pad_sequence(draws, batch_first=True)[places.row, places.position]
    # Tokens suppressed "at the beginning" are taken out after the choice: they only make a position unsure.
    logits = suppressed(logits, denoising.begin_suppress_tokens)
    if denoising.remasking == "topk_margin":
        first, second = logits.float().softmax(dim=-1).topk(2, dim=-1).values.unbind(dim=-1)
        return first - second
    if denoising.remasking == "entropy":
        p = logits.float().softmax(dim=-1)
        return (p * torch.log(p + ENTROPY_FLOOR)).sum(dim=-1)
    return _probability(logits, choice)  # low_confidence, which Dream calls maskgit_plus


def _probability(logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return logits.float().softmax(dim=-1).gather(-1, token[:, None])[:, 0]


def _most_confident(
    places: Places, moves: Sequence[Move], confidence: torch.Tensor, masked: torch.Tensor
) -> torch.Tensor:
    """In each row the surest `take` masked positions of its move.

    Equally sure positions are common (a confident model says exactly 1). Among them this takes what dllm takes, which
    is what torch.topk on a CPU makes of the row as it lies on the canvas; padding plays no part.
    """
    first = places.per_row([move.first for move in moves])
    end = places.per_row([move.end for move in moves])
    eligible = masked & (places.position >= first) & (places.position < end)
    sure = confidence.masked_fill(~eligible, float("-inf"))
    sizes = torch.bincount(places.row, minlength=len(moves)).tolist()
    chosen = torch.zeros(len(sure), dtype=torch.bool)
    at = 0
    for r, (move, size) in enumerate(zip(moves, sizes, strict=True)):
        lead = places.lead[r] if places.lead else 0
        line = torch.nn.functional.pad(sure[at : at + size], (lead, 0), value=float("-inf"))
        picked = line.topk(min(move.take, size)).indices - lead
        chosen[at + picked[picked >= 0]] = True
        at += size
    return chosen & eligible
