"""One pass's decisions: what each position would become, and which positions are decided now.

Both samplers share this; they differ only in what the model looks at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vestige.models.attention import send
from vestige.models.samplers.base import Move, Pass, Places, Sampling, gumbel_choice
from vestige.types import IGNORE
from vestige.wants import Denoising

ENTROPY_FLOOR = 1e-10  # Dream adds it inside the logarithm


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
    masked = canvas == mask_id
    picked = _choices(places, logits, masked, denoising)
    sure = _confidences(places, logits, picked, denoising)
    target = None if denoising.mode == "unguided" else _targets(places)
    if target is not None and denoising.mode == "guided_skew":
        asked = send(target, logits.device)
        sure = torch.where(asked == IGNORE, send(sure, logits.device), _probability(logits, asked.clamp_min(0)))
    choice, confidence = _on_host(picked, sure)
    if target is not None:
        choice = torch.where(target == IGNORE, choice, target)
    proposal = torch.where(masked, choice, canvas)
    if sampling.recorder is not None:
        sample = places.per_row([row.sample for row in places.rows])
        number = places.per_row([row.passes for row in places.rows])
        sampling.recorder(Pass(sample, number, places.position, logits, canvas, proposal))
    chosen = _most_confident(places, moves, confidence, masked)
    _note(places, chosen & (proposal != mask_id))
    return proposal, chosen


def _on_host(choice: torch.Tensor, sure: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in one copy, tokens as the bits they are; random confidences are on the host already."""
    if sure.device != choice.device:
        return choice.cpu(), sure
    both = torch.stack([choice.to(torch.int32).view(torch.float32), sure.float()]).cpu()
    return both[0].view(torch.int32).long(), both[1]


def _choices(places: Places, logits: torch.Tensor, masked: torch.Tensor, denoising: Denoising) -> torch.Tensor:
    choice = logits.argmax(dim=-1)
    if denoising.temperature > 0:
        for r, row in enumerate(places.rows):
            own = send((masked & (places.row == r)).nonzero()[:, 0], logits.device)
            choice[own] = gumbel_choice(logits[own], denoising.temperature, row.generator)
    return choice


def _confidences(places: Places, logits: torch.Tensor, choice: torch.Tensor, denoising: Denoising) -> torch.Tensor:
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


def _targets(places: Places) -> torch.Tensor | None:
    if not any(row.target for row in places.rows):
        return None
    width = max(row.length for row in places.rows)
    table = [list(row.target) + [IGNORE] * (width - len(row.target)) for row in places.rows]
    return torch.tensor(table)[places.row, places.position]


def _most_confident(
    places: Places, moves: Sequence[Move], confidence: torch.Tensor, masked: torch.Tensor
) -> torch.Tensor:
    """In each row the surest `take` masked positions of its move.

    Equally sure positions are common (a confident model says exactly 1). Among them this takes what dllm takes, which
    is what torch.topk on a CPU makes of the row as it lies on the canvas; padding plays no part.
    """
    first, end = (places.per_row([move[k] for move in moves]) for k in range(2))
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


def _note(places: Places, written: torch.Tensor) -> None:
    """Only a token counts as decided: a model may write the mask token itself, and then nothing has changed."""
    for r, p in zip(places.row[written].tolist(), places.position[written].tolist(), strict=True):
        places.rows[r].fixed[p] = places.rows[r].passes
    for row in places.rows:
        row.passes += 1
