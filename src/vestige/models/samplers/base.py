"""What every sampler shares: the schedule of its passes, the record of one sample, and random numbers.

Schedules. How many tokens each pass decides. Two are in use: dllm's follows a noise schedule alpha(t) and leaves out
passes that would decide nothing; LLaDA's shares the tokens out evenly, the remainder to the first passes, and keeps
empty passes. They differ whenever the steps do not divide the tokens.

Random numbers belong to a sample, not to a batch. Each sample has its own generator, seeded by the run's seed and the
sample's tokens. Whatever else is in the batch, and in whatever order, the same sample draws the same numbers. They are
drawn on the CPU, so a GPU changes nothing. DiffusionGemma can also be sampled with the numbers that transformers'
`generate` draws (SharedNoise), which belong to a batch: for comparing with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from vestige.errors import UserError
from vestige.models.attention import send
from vestige.models.diffusion import MaskPredictor
from vestige.types import content_key
from vestige.wants import Denoising

ALPHAS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: 1 - torch.cos(torch.pi / 2 * (1 - t)),
}


class Move(NamedTuple):
    """One pass of one sample: `take` of the masked positions in [first, end) are decided."""

    first: int
    end: int
    take: int


def transfer_counts(
    masked: int, steps: int, scheduler: str = "linear", generator: torch.Generator | None = None
) -> list[int]:
    """dllm's schedule for one row: the tokens decided in each pass that decides any.

    With a generator the counts are drawn (binomial) instead of rounded.

    >>> transfer_counts(8, 3)
    [3, 2, 3]
    """
    alpha = ALPHAS[scheduler]
    left, counts = masked, []
    for j in range(steps):
        if left == 0:
            break
        # float32, as the noise schedule is defined there: the halves that rounding meets depend on it.
        before, after = (torch.tensor(x / steps, dtype=torch.float32) for x in (steps - j, steps - j - 1))
        share = 1 - (1 - alpha(after)) / (1 - alpha(before))
        if generator is None:
            count = int(torch.round(left * share.double()))
        else:
            chance = share.double().clamp(0, 1)
            count = int(torch.binomial(torch.tensor(float(left), dtype=torch.float64), chance, generator=generator))
        count = min(count, left)
        left -= count
        if count > 0:
            counts.append(count)
    return counts


def even_counts(masked: int, steps: int) -> list[int]:
    """LLaDA's schedule for one row: equal shares, one more in the first passes; passes without any stay.

    >>> even_counts(8, 3), even_counts(2, 4)
    ([3, 3, 2], [1, 1, 0, 0])
    """
    share, rest = divmod(masked, steps)
    return [share + (j < rest) for j in range(steps)]


def pass_counts(masked: int, steps: int, denoising: Denoising, generator: torch.Generator) -> list[int]:
    if denoising.schedule == "llada":
        return even_counts(masked, steps)
    drawn = generator if denoising.stochastic_transfer else None
    return transfer_counts(masked, steps, denoising.scheduler, drawn)


def window_plan(denoising: Denoising, generator: torch.Generator) -> list[Move]:
    """MDLM: the passes over a window of masks. Masks left over in an earlier block stay candidates in later ones."""
    length = denoising.max_new_tokens
    block = denoising.block_size or length
    blocks = math.ceil(length / block)
    uneven = denoising.steps % blocks if denoising.steps_per_block is None else 0
    if denoising.schedule == "llada" and (length % block or uneven):
        raise UserError(
            f"schedule=llada needs blocks that divide evenly: max_new_tokens={length} by block_size={block}, and "
            f"steps={denoising.steps} by the {blocks} blocks; change them or use schedule=dllm."
        )
    budget = denoising.steps_per_block or math.ceil(denoising.steps / blocks)
    plan = []
    for first in range(0, length, block):
        end = min(first + block, length)
        plan += [Move(0, first + block, n) for n in pass_counts(end - first, budget, denoising, generator)]
    return plan


def infill_plan(masked: list[bool], denoising: Denoising, generator: torch.Generator) -> list[Move]:
    """MDLM infilling: windows over the sequence, each filled before the next; windows without masks take no pass.

    The windows divide the row's own length (dllm: the longest row's), so that a row does not depend on its batch.
    """
    length = len(masked)
    block = denoising.block_size or max(length, 1)
    blocks = math.ceil(length / block)
    plan = []
    for first in range(0, length, block):
        inside = sum(masked[first : first + block])
        if inside:
            budget = denoising.steps_per_block or math.ceil(denoising.steps / blocks)
            counts = pass_counts(inside, budget, denoising, generator)
            plan += [Move(first, first + block, n) for n in counts]
    return plan


def block_plan(denoising: Denoising, generator: torch.Generator) -> list[list[Move]]:
    """BD3LM: for each block its passes, positions counted within the window."""
    length, block = denoising.max_new_tokens, block_size(denoising)
    blocks = math.ceil(length / block)
    budget = denoising.steps_per_block or math.ceil(denoising.steps / blocks)
    out = []
    for first in range(0, length, block):
        end = min(first + block, length)
        out.append([Move(first, end, n) for n in pass_counts(end - first, budget, denoising, generator)])
    return out


def block_size(denoising: Denoising) -> int:
    return denoising.block_size or 32


# ---- One sample and one pass ----


@dataclass
class SamplerRow:
    """One sample while it is being denoised."""

    sample: int  # its number among the samples asked for
    prompt: tuple[int, ...]
    length: int  # of the window
    generator: torch.Generator
    target: tuple[int, ...] = ()  # guided modes: the tokens to write, IGNORE where free
    passes: int = 0  # so far
    fixed: list[int] = field(default_factory=list)  # for each position the pass that decided it, or -1

    def __post_init__(self) -> None:
        self.fixed = [-1] * self.length


@dataclass(frozen=True)
class Pass:
    """What one forward pass saw and would write, flat over the positions it looked at.

    The logits are those used to fill: after guidance, suppression and shift. They are gone after the call.
    """

    sample: torch.Tensor  # (n,), like all but the logits on the host, which knows them anyway
    number: torch.Tensor  # (n,) the sample's own count of passes
    position: torch.Tensor  # (n,) in the sample's window
    logits: torch.Tensor  # (n, vocabulary)
    canvas: torch.Tensor  # (n,) the token before the pass
    proposal: torch.Tensor  # (n,) the token it would write; the standing token where one is decided
    accepted: torch.Tensor | None = None  # (n,) whether it wrote it, from samplers that may take it back


Recorder = Callable[[Pass], None]
SamplerWatch = Callable[[torch.Tensor], None]  # sees the whole canvas at the start and after every pass


@dataclass(frozen=True)
class Sampling:
    """What stays the same from pass to pass: the model, the settings, and who looks on."""

    predictor: MaskPredictor
    denoising: Denoising
    recorder: Recorder | None = None
    watch: SamplerWatch | None = None

    def show(self, canvas: torch.Tensor) -> None:
        if self.watch is not None:
            self.watch(canvas)


@dataclass(frozen=True)
class Places:
    """Which positions a pass looks at, flat and row after row: their row among `rows`, their place in its window.

    On the host: canvases are small, and so is what is decided of them. Only the vocabulary axis is on the device.
    """

    rows: Sequence[SamplerRow]
    row: torch.Tensor  # (n,)
    position: torch.Tensor  # (n,)
    lead: Sequence[int] = ()  # how many columns each row has before the first of these

    def per_row(self, values: Sequence[int]) -> torch.Tensor:
        """One number per row, spread over its positions."""
        return torch.tensor(list(values))[self.row]


# ---- Random numbers ----------------------------------------------------------------------------------------------

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
        largest_logit, other_logit = row[tried].double()
        scores = _perturbed(row[tried].double(), u[tried], temperature)
        best = scores.max()
        best = best - SLACK * (1 + best.abs() + largest_logit.abs() + temperature)
        least_number = torch.exp(-torch.exp((largest_logit - best) / temperature)) - SMALLEST_STEP
        least_logit = best - (scores[1] - other_logit)
        # Rounded to the logits' precision and one step further down, so that they are compared as they are.
        step = 2 * torch.finfo(row.dtype).eps * least_logit.abs()
        below = (u < least_number).logical_or_(row < (least_logit - step).to(row.dtype))
        able = below.logical_not_().nonzero()[:, 0]
        choice[r] = able[_perturbed(row[able], u[able], temperature).argmax()]
    return choice


def slices(logits: torch.Tensor) -> list[slice]:
    """Positions in parts, so that what is made of (positions, vocabulary) on the way stays small."""
    step = max(1, PART_CELLS // logits.shape[-1])
    return [slice(i, i + step) for i in range(0, len(logits), step)]


class OwnNoise:
    """Each sample draws from its own generator, and only while it is being denoised."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def uniform(self, rows: Sequence[SamplerRow], live: Sequence[int], width: int, vocab: int) -> torch.Tensor:
        out = torch.zeros((len(rows), width), dtype=torch.long)
        for r in live:
            out[r] = torch.randint(0, vocab, (width,), generator=rows[r].generator)
        return send(out, self.device)

    def choose(self, rows: Sequence[SamplerRow], live: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """One uniform number per position, looked up in its cumulated probabilities."""
        out = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
        if not live:
            return out
        drawn = [torch.rand(logits.shape[1], dtype=torch.float64, generator=rows[r].generator) for r in live]
        for r, u in zip(live, send(torch.stack(drawn), logits.device), strict=True):
            for at in slices(logits[r]):
                below = logits[r, at].softmax(dim=-1, dtype=torch.float32).double().cumsum(dim=-1)
                token = torch.searchsorted(below, (u[at] * below[:, -1])[:, None], right=True)[:, 0]
                out[r, at] = token.clamp_max(logits.shape[-1] - 1)
        return out


class SharedNoise:
    """The numbers transformers' `generate` draws, in its order, from torch's global generator, for all rows at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def uniform(self, rows: Sequence[SamplerRow], live: Sequence[int], width: int, vocab: int) -> torch.Tensor:
        return torch.randint(low=0, high=vocab, size=(len(rows), width), device=self.device)

    def choose(self, rows: Sequence[SamplerRow], live: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        p = logits.softmax(dim=-1, dtype=torch.float32).flatten(0, 1)
        return torch.multinomial(p, num_samples=1).view(logits.shape[:-1])


Noise = OwnNoise | SharedNoise  # where the random tokens of canvases come from, for the rows `live` of a batch
