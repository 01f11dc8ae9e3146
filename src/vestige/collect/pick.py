"""One next token from one row of logits, when it is not simply the largest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vestige.errors import UserError
from vestige.wants import Decoding


def pick(
    scores: torch.Tensor, seen: Sequence[int], decoding: Decoding, penalty: float, noise: torch.Generator | None
) -> int:
    """The next token of one row from its logits, with penalty, temperature, top-k and top-p in HF's order."""
    if penalty != 1.0:
        ids = torch.tensor(sorted(set(seen)))
        old = scores[ids]
        scores = scores.clone()
        scores[ids] = torch.where(old < 0, old * penalty, old / penalty)
    if decoding.greedy:
        return int(scores.argmax())
    scores = scores / decoding.temperature
    if decoding.top_k:
        floor = torch.topk(scores, min(decoding.top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < floor, float("-inf"))
    probabilities = scores.softmax(dim=-1)
    if not torch.isfinite(probabilities).all():
        raise UserError("The model's logits are not numbers, so nothing can be sampled; use do_sample=false.")
    if decoding.top_p < 1.0:
        ordered, index = probabilities.sort(descending=True)
        spare = ordered.cumsum(0) - ordered >= decoding.top_p  # keep the token that crosses the line
        probabilities[index[spare]] = 0.0
    return int(torch.multinomial(probabilities, 1, generator=noise))
