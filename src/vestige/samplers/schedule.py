"""How many tokens each pass decides.

Two schedules are in use. dllm's follows a noise schedule alpha(t) and leaves out passes that would decide nothing;
LLaDA's shares the tokens out evenly, the remainder to the first passes, and keeps empty passes. They differ whenever
the steps do not divide the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from vestige.errors import UserError
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


def counts_of(masked: int, steps: int, denoising: Denoising, generator: torch.Generator) -> list[int]:
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
        plan += [Move(0, first + block, n) for n in counts_of(end - first, budget, denoising, generator)]
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
            counts = counts_of(inside, budget, denoising, generator)
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
        out.append([Move(first, end, n) for n in counts_of(end - first, budget, denoising, generator)])
    return out


def block_size(denoising: Denoising) -> int:
    return denoising.block_size or 32
