"""The next token of every row of a batch: the largest logit, or a seeded draw. One call for all rows, on their device.

In: logits (rows, vocabulary) and how each row decodes. Out: one token per row, BROKEN where the logits are not numbers.
Caller: collect/texts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vestige.collect.reduce import largest
from vestige.errors import UserError
from vestige.models.attention import send
from vestige.types import BROKEN
from vestige.wants import Decoding

NO_DRAW = -2  # in the place of a token: logits that are numbers, and a temperature that leaves none
NUCLEUS = 1024  # candidates of top-p looked at first: sorting a whole vocabulary takes longer than all the rest


@dataclass(frozen=True)
class Chooser:
    """How one row decodes: its settings, the penalty in force, what it has read so far, its own random numbers."""

    decoding: Decoding
    penalty: float
    seen: Sequence[int]
    noise: torch.Generator | None

    @property
    def plain(self) -> bool:
        """Whether the largest logit it is."""
        return self.decoding.greedy and self.penalty == 1.0

    @property
    def alike(self) -> tuple[object, ...]:
        """Rows with the same value are drawn together."""
        d = self.decoding
        return (d.greedy, self.penalty, d.temperature, d.top_k, d.top_p)


def choose(logits: torch.Tensor, choosers: Sequence[Chooser | None]) -> list[int]:
    """The next token of each row; None stands for a row that takes the largest."""
    top, best = largest(logits)
    # NaN counts as the largest value there is, so that the largest says it all: NaN, +inf, or nothing but -inf.
    whole = torch.isfinite(top)
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, chooser in enumerate(choosers):
        if chooser is not None and not chooser.plain:
            groups.setdefault(chooser.alike, []).append(i)
    for rows in groups.values():
        at = send(torch.tensor(rows), logits.device)
        # A broken row draws from nothing in particular: it ends here, and so do its random numbers.
        scores = torch.where(whole[at, None], logits[at].float(), 0.0)
        best[at] = pick(scores, [c for i in rows if (c := choosers[i]) is not None])
    # Read once, whatever was decided: a GPU is waited for here, and only here.
    tokens = [int(t) for t in best.masked_fill(~whole, BROKEN).tolist()]
    if NO_DRAW in tokens:
        raise UserError("The model's logits are not numbers, so nothing can be sampled; use do_sample=false.")
    return tokens


def pick(scores: torch.Tensor, rows: Sequence[Chooser]) -> torch.Tensor:
    """A token per row, with penalty, temperature, top-k and top-p in HF's order. All rows have the same settings."""
    decoding, penalty = rows[0].decoding, rows[0].penalty
    if penalty != 1.0:
        scores = _penalised(scores, [row.seen for row in rows], penalty)
    if decoding.greedy:
        return largest(scores)[1]
    scores = scores / decoding.temperature
    if decoding.top_k:
        floor = torch.topk(scores, min(decoding.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < floor, float("-inf"))
    probabilities = scores.softmax(dim=-1)
    numbers = torch.isfinite(probabilities).all(dim=-1)
    if decoding.top_p < 1.0:
        probabilities = _nucleus(probabilities, decoding.top_p)
    # The draw of torch.multinomial, spelled out: there every row would need a call of its own, with its own generator.
    noise = torch.empty(probabilities.shape, dtype=probabilities.dtype)
    for own, row in zip(noise, rows, strict=True):
        own.exponential_(1, generator=row.noise)
    drawn = largest(probabilities / send(noise, probabilities.device))[1]
    return drawn.masked_fill(~numbers, NO_DRAW)


def _penalised(scores: torch.Tensor, seen: Sequence[Sequence[int]], penalty: float) -> torch.Tensor:
    width = max(map(len, seen))
    ids = send(torch.tensor([[*s, *[s[0]] * (width - len(s))] for s in seen]), scores.device)
    old = scores.gather(1, ids)  # a token that was seen twice is written twice, with the same number
    return scores.scatter(1, ids, torch.where(old < 0, old * penalty, old / penalty))


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The most likely tokens that together reach `top_p`, the one that crosses the line included; the rest is 0."""
    size = probabilities.shape[-1]
    few = min(NUCLEUS, size) if probabilities.device.type == "cpu" else size  # to ask whether few are enough is to wait
    ordered, index = probabilities.topk(few)
    if few < size and not bool((ordered.sum(-1) > top_p).all()):
        ordered, index = probabilities.sort(descending=True)
    inside = ordered.cumsum(-1) - ordered < top_p
    return torch.zeros_like(probabilities).scatter(1, index, torch.where(inside, ordered, 0.0))
