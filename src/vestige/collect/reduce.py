"""The one place in evaluation that sees the vocabulary axis: three functions, listed in REDUCTIONS.

In: logits (positions, vocabulary), as a model or a sampler hands them over. Out: numbers per position. Callers: what
runs models in collect. tests/test_vocabulary.py follows runs: no package but models, samplers and collect holds that
axis.
"""

from __future__ import annotations

import numpy as np
import torch

from vestige.models.attention import send
from vestige.types import Array

# Cells of logits reduced at once. On a CPU the float32 copies should stay in its cache (measured: 2.7 times faster
# than a million cells); a GPU wants few large steps.
CHUNK_CELLS = {"cpu": 1 << 18}
CHUNK_CELLS_ELSEWHERE = 1 << 25
# exp(-200) is 0 in float32, so a logit this far below the top may as well be exactly this far: it keeps the squares
# finite when a vocabulary is padded with -inf or with the dtype's minimum.
FLOOR = -200.0


def reduce_logits(logits: torch.Tensor, where: torch.Tensor, label: torch.Tensor) -> dict[str, Array]:
    """Logits (positions, vocabulary) -> what TokenStats keeps of them, in float32 whatever the weights' dtype.

    `where` and `label` list (position, true token) pairs: several answers may ask one position for different
    tokens. Each pair gets logprob, and the position's top1, mean and std.

    A position with NaN or +inf logits has no distribution: its floats are NaN and its top1 is -1.
    """
    cells = CHUNK_CELLS.get(logits.device.type, CHUNK_CELLS_ELSEWHERE)
    rows = max(1, cells // max(1, logits.shape[-1]))
    parts = map(_reduce_chunk, logits.split(rows))
    lse, top1, mean, std = map(torch.cat, zip(*parts, strict=True))
    logprob = logits[where, label].float() - lse[where]
    whole = torch.stack([label, top1[where]]).to(torch.int32)
    numbers = torch.stack([logprob, mean[where], std[where]])
    # One copy for all of them: a GPU is waited for once. Whole numbers travel as the bits they are.
    columns = torch.cat([numbers, whole.view(torch.float32)]).cpu().numpy()
    return {
        "label": columns[3].view(np.int32),
        "top1": columns[4].view(np.int32),
        "logprob": columns[0],
        "mean": columns[1],
        "std": columns[2],
    }


def _reduce_chunk(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = logits.float()
    top, top1 = largest(x)
    x = (x - top[:, None]).clamp_min_(FLOOR)  # a fresh tensor: the following steps may work in place
    e = x.exp()
    total = e.sum(dim=-1)
    # First and second moment of the shifted logits. Shifted, because log p = x - log(total) has the same variance, and
    # because the top at 0 keeps the moments small where a distribution is peaked: no cancellation to speak of.
    first = e.mul_(x).sum(dim=-1) / total
    second = e.mul_(x).sum(dim=-1) / total
    log_total = total.log()
    bad = ~torch.isfinite(log_total)  # NaN or +inf somewhere in the row
    nan = float("nan")
    return (
        (top + log_total).masked_fill(bad, nan),
        top1.masked_fill(bad, -1),
        (first - log_total).masked_fill(bad, nan),
        (second - first * first).clamp_min(0).sqrt().masked_fill(bad, nan),
    )


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest value of each row and where it is (the first, when there are several)."""
    if x.device.type != "cpu":
        top, top1 = x.max(dim=-1)
        return top, top1
    # numpy's argmax is vectorised and torch's on a CPU is not: it took a third of the whole reduction. numpy has no
    # bfloat16; as float32 the values are the same.
    plain = x.detach().float() if x.dtype == torch.bfloat16 else x.detach()
    where = torch.from_numpy(plain.numpy().argmax(axis=-1))
    return x.gather(-1, where[:, None])[:, 0], where


def chosen_logprob(logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The log-probability of one token per row."""
    x = logits.float()
    return x.gather(-1, send(token, x.device)[:, None])[:, 0] - x.logsumexp(dim=-1)


def token_logprobs(
    logits: torch.Tensor, where: torch.Tensor, label: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """log p(label) for (position, token) pairs and nothing else, in float32, or float64 where the logits are.

    Half of what `reduce_logits` does is for statistics that a cross matrix has no use for.
    """
    cells = CHUNK_CELLS.get(logits.device.type, CHUNK_CELLS_ELSEWHERE)
    rows = max(1, cells // max(1, logits.shape[-1]))
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.to(exact) if temperature == 1.0 else x.to(exact) / temperature

    parts = [scaled(logits[i : i + rows]).logsumexp(-1) for i in range(0, logits.shape[0], rows)]
    return scaled(logits[where, label]) - torch.cat(parts)[where]


# All that evaluation reduces logits with: per token all statistics, of one token per row, of many tokens.
REDUCTIONS = (reduce_logits, chosen_logprob, token_logprobs)
