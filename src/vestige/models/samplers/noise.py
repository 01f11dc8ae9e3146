"""Random numbers that belong to a sample, not to a batch.

Each sample has its own generator, seeded by the run's seed and the sample's tokens. Whoever shares the batch, and in
whatever order, the same sample draws the same numbers. They are drawn on the CPU, so a GPU changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vestige.types import content_key


def sample_generator(seed: int, ids: Sequence[int]) -> torch.Generator:
    key = content_key(str(seed).encode(), np.asarray(ids, dtype=np.int64).tobytes())
    return torch.Generator().manual_seed(int(key[:15], 16))


def gumbel_choice(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """One draw a row from softmax(logits / temperature), by the Gumbel-max trick in float64.

    The same choice as the usual argmax of exp(logits) / (-log u)^temperature, in logs: nothing overflows.
    """
    u = torch.rand(logits.shape, dtype=torch.float64, generator=generator).to(logits.device)
    return (logits.double() - temperature * torch.log(-torch.log(u))).argmax(dim=-1)
