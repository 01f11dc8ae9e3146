"""Random numbers that belong to a sample, not to a batch.

Each sample has its own generator, seeded by the run's seed and the sample's tokens. Whatever else is in the batch,
and in whatever order, the same sample draws the same numbers. They are drawn on the CPU, so a GPU changes nothing.
DiffusionGemma can also be sampled with the numbers that transformers' `generate` draws (SharedNoise), which belong to
a batch: for comparing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from vestige.models.attention import send
from vestige.types import content_key

PART_CELLS = 1 << 24
# How far below the best a candidate of `gumbel_choice` may be, relative to its terms, and how far its number below what
# it needs: several times what float64 rounds off there, so that rounding never rules a winner out.
SLACK = 1e-12
SMALLEST_STEP = 1e-15
SMALL_VOCABULARY = 4096  # up to here taking every logarithm costs less than ruling cells out


def sample_generator(seed: int, ids: Sequence[int]) -> torch.Generator:
    key = content_key(str(seed).encode(), np.asarray(ids, dtype=np.int64).tobytes())
    return torch.Generator().manual_seed(int(key[:15], 16))


def gumbel_choice(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """One draw per row from softmax(logits / temperature), by the Gumbel-max trick in float64.

    The same choice as the usual argmax of exp(logits) / (-log u)^temperature, in logs: nothing overflows.
    """
    if logits.device.type == "cpu" and logits.shape[-1] > SMALL_VOCABULARY:
        return _among_candidates(logits, temperature, generator)
    u = send(torch.rand(logits.shape, dtype=torch.float64, generator=generator), logits.device)
    return _perturbed(logits, u, temperature).argmax(dim=-1)


def _perturbed(logits: torch.Tensor, u: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits.double() - temperature * torch.log(-torch.log(u))


def _among_candidates(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """The same numbers are drawn and the same token wins, but logarithms are taken only of cells that can win.

    The likeliest token and the one with the largest number are tried first. Whatever beats the better of them needs a
    large enough number, even with the largest logit, and a large enough logit, even with the largest number. What is
    not a number is never ruled out. (On a GPU the candidates would have to be counted, which makes the host wait.)
    """
    choice = torch.empty(len(logits), dtype=torch.long)
    u = torch.empty(logits.shape[-1], dtype=torch.float64)
    for r, row in enumerate(logits):
        u.uniform_(generator=generator)
        tried = torch.stack([row.argmax(), u.argmax()])
        number, logit = _needed(row[tried].double(), u[tried], temperature)
        # Rounded to the logits' precision and one step further down, so that they are compared as they are.
        step = 2 * torch.finfo(row.dtype).eps * logit.abs()
        below = (u < number).logical_or_(row < (logit - step).to(row.dtype))
        able = below.logical_not_().nonzero()[:, 0]
        choice[r] = able[_perturbed(row[able], u[able], temperature).argmax()]
    return choice


def _needed(logit: torch.Tensor, u: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What a winner has at least, given the largest logit (first) and the largest number (second): number and logit."""
    scores = _perturbed(logit, u, temperature)
    best = scores.max()
    best = best - SLACK * (1 + best.abs() + logit[0].abs() + temperature)
    number = torch.exp(-torch.exp((logit[0] - best) / temperature)) - SMALLEST_STEP
    return number, best - (scores[1] - logit[1])


def slices(logits: torch.Tensor) -> list[slice]:
    """Positions in parts, so that what is made of (positions, vocabulary) on the way stays small."""
    step = max(1, PART_CELLS // logits.shape[-1])
    return [slice(i, i + step) for i in range(0, len(logits), step)]


class HasGenerator(Protocol):
    """A sample with random numbers of its own."""

    @property
    def generator(self) -> torch.Generator: ...


class Noise(Protocol):
    """Where the random tokens of canvases come from, for the rows `live` of a batch; the others' do not matter."""

    def uniform(self, rows: Sequence[HasGenerator], live: Sequence[int], width: int, vocab: int) -> torch.Tensor: ...
    def choose(self, rows: Sequence[HasGenerator], live: Sequence[int], logits: torch.Tensor) -> torch.Tensor: ...


class OwnNoise:
    """Each sample draws from its own generator, and only while it is being denoised."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def uniform(self, rows: Sequence[HasGenerator], live: Sequence[int], width: int, vocab: int) -> torch.Tensor:
        out = torch.zeros((len(rows), width), dtype=torch.long)
        for r in live:
            out[r] = torch.randint(0, vocab, (width,), generator=rows[r].generator)
        return send(out, self.device)

    def choose(self, rows: Sequence[HasGenerator], live: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """One uniform number per position, looked up in its cumulated probabilities."""
        out = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
        if not live:
            return out
        drawn = [torch.rand(logits.shape[1], dtype=torch.float64, generator=rows[r].generator) for r in live]
        for r, u in zip(live, send(torch.stack(drawn), logits.device), strict=True):
            for at in slices(logits[r]):
                below = logits[r, at].softmax(dim=-1, dtype=torch.float32).double().cumsum(dim=-1)
                found = torch.searchsorted(below, (u[at] * below[:, -1])[:, None], right=True)[:, 0]
                out[r, at] = found.clamp_max(logits.shape[-1] - 1)
        return out


class SharedNoise:
    """The numbers transformers' `generate` draws, in its order, from torch's global generator, for all rows at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def uniform(self, rows: Sequence[HasGenerator], live: Sequence[int], width: int, vocab: int) -> torch.Tensor:
        return torch.randint(low=0, high=vocab, size=(len(rows), width), device=self.device)

    def choose(self, rows: Sequence[HasGenerator], live: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        p = logits.softmax(dim=-1, dtype=torch.float32).flatten(0, 1)
        return torch.multinomial(p, num_samples=1).view(logits.shape[:-1])
