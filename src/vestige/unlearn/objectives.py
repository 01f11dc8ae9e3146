"""What training asks of each kind of language model: which tokens it sees, and what its logits cost.

Methods and loops are written once. They take the same chat rows for both kinds, and leave to the objective how rows
become a batch and how logits become a loss:

    Causal            reads the answer and predicts each token from those before it
    MaskedDiffusion   reads the answer with some tokens hidden and predicts the hidden ones
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor

from vestige.errors import UserError
from vestige.models.attention import logits_at
from vestige.models.diffusion import MaskPredictor
from vestige.unlearn import losses


@dataclass(frozen=True)
class ChatRow:
    """A tokenised conversation of which `ids[start:]`, the answer and its end token, is trained."""

    ids: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class TrainingBatch:
    """Right-padded token ids and the labels to train, IGNORE elsewhere."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class MaskedBatch(TrainingBatch):
    """A batch with hidden tokens; labels are there only where a token is hidden."""

    attention: Tensor  # (batch, length) 0 on the padding, which a model that looks both ways would see
    hidden: Tensor  # (batch,) how many tokens of each answer are hidden
    sizes: Tensor  # (batch,) how many tokens each answer has
    prompt: Tensor  # (batch, length) True on the tokens before the answer


class Objective(Protocol):
    """From rows to a batch, from a batch to logits, from logits to a loss (one for the batch, or one per row)."""

    def collate(self, rows: Sequence[ChatRow], pad_id: int, noise: Random, device: Any = "cpu") -> Any: ...

    def logits(self, model: Any, batch: Any) -> Tensor: ...

    def loss(self, logits: Tensor, batch: Any) -> Tensor: ...

    def nll(self, logits: Tensor, batch: Any) -> Tensor: ...


class Causal:
    """The next token from those before it."""

    def collate(self, rows: Sequence[ChatRow], pad_id: int, noise: Random, device: Any = "cpu") -> TrainingBatch:
        return collate(rows, pad_id, device)

    def logits(self, model: Any, batch: TrainingBatch) -> Tensor:
        return logits_of(model, batch)

    def loss(self, logits: Tensor, batch: TrainingBatch) -> Tensor:
        return losses.cross_entropy(logits, batch.labels)

    def nll(self, logits: Tensor, batch: TrainingBatch) -> Tensor:
        return losses.sequence_nll(logits, batch.labels)


@dataclass(frozen=True)
class MaskedDiffusion:
    """The hidden tokens of an answer from those left visible, as LLaDA is fine-tuned.

    Answers are filled up with end tokens to the window, so that the model learns to end: a sampler asks for a window,
    not for an answer. The prompt is never hidden. Without a window, the longest answer of the batch is one.

    `least` and `most` bound the share of an answer that is hidden. LLaDA's loss has 0 and 1. A small model that starts
    from nothing learns much sooner what context is good for when most of it is there.

    `visible` is the share of the trained tokens that stay visible, as in BERT. A sampler shows what is decided;
    without it, what the model says at those places is arbitrary. Leave it at 0 to estimate a likelihood.

    `eps`, where given, hides every token by itself, with a probability drawn per row from (eps, 1): what a method whose
    definition says so needs. Otherwise a number of tokens is drawn, which varies less (`hidden_counts`).

    `predictor` says how the family is called: which mask makes it look both ways, and whether its logits are about
    the next place (Dream). Without it the model looks both ways by itself (BERT).
    """

    mask_id: int
    eos_id: int
    window: int | None = None
    least: float = 0.0
    most: float = 1.0
    visible: float = 0.0
    eps: float | None = None
    predictor: MaskPredictor | None = None

    def collate(self, rows: Sequence[ChatRow], pad_id: int, noise: Random, device: Any = "cpu") -> MaskedBatch:
        filled = [self._filled(row, self.window or max(len(r.ids) - r.start for r in rows)) for row in rows]
        plain = collate(filled, pad_id)
        ids, labels = plain.ids.clone(), torch.full_like(plain.labels, losses.IGNORE)
        sizes = [len(row.ids) - row.start for row in filled]
        places = self._hide(sizes, noise)
        for k, (row, hidden) in enumerate(zip(filled, places, strict=True)):
            chosen = [row.start + i for i in hidden]
            labels[k, chosen] = plain.ids[k, chosen]
            ids[k, chosen[int(self.visible * len(chosen)) :]] = self.mask_id
        columns = torch.arange(ids.shape[1])
        attention = (columns < torch.tensor([len(row.ids) for row in filled])[:, None]).long()
        prompt = columns < torch.tensor([row.start for row in filled])[:, None]
        counts = torch.tensor([len(hidden) for hidden in places])
        parts = (ids, labels, attention, counts, torch.tensor(sizes), prompt)
        return MaskedBatch(*(part.to(device) for part in parts))

    def _hide(self, sizes: Sequence[int], noise: Random) -> list[list[int]]:
        """Which tokens of each answer are hidden."""
        if self.eps is None:
            counts = hidden_counts(sizes, noise, self.least, self.most)
            return [noise.sample(range(size), count) for size, count in zip(sizes, counts, strict=True)]
        shares = [noise.uniform(self.eps, 1.0) for _ in sizes]
        return [[i for i in range(size) if noise.random() < t] for size, t in zip(sizes, shares, strict=True)]

    def without_prompt(self, batch: MaskedBatch) -> MaskedBatch:
        """The same hidden answers after a prompt of masks only: what the model says when it is told nothing."""
        return replace(batch, ids=batch.ids.masked_fill(batch.prompt, self.mask_id))

    def logits(self, model: Any, batch: MaskedBatch) -> Tensor:
        """Those of trained tokens only: the output layer is most of a small model's work."""
        where = (batch.labels != losses.IGNORE).flatten().nonzero()[:, 0]
        if self.predictor is None:
            return logits_at(model, where, input_ids=batch.ids, attention_mask=batch.attention)
        return replace(self.predictor, model=model).logits(batch.ids, batch.attention.bool(), where)

    def loss(self, logits: Tensor, batch: MaskedBatch) -> Tensor:
        return losses.masked_cross_entropy(logits, batch.labels, batch.hidden, batch.sizes)

    def nll(self, logits: Tensor, batch: MaskedBatch) -> Tensor:
        return losses.masked_nll(logits, batch.labels, batch.hidden, batch.sizes)

    def _filled(self, row: ChatRow, window: int) -> ChatRow:
        missing = window - (len(row.ids) - row.start)
        if missing < 0:
            raise UserError(
                f"An answer has {len(row.ids) - row.start} tokens, its end token included, but the window has "
                f"{window}; choose a window at least as long as the longest answer."
            )
        return ChatRow((*row.ids, *[self.eos_id] * missing), row.start)


def hidden_counts(sizes: Sequence[int], noise: Random, least: float = 0.0, most: float = 1.0) -> list[int]:
    """How many tokens of each answer to hide: at least one, each number within the bounds equally likely.

    LLaDA hides each token with a probability drawn from (0, 1); drawing the number instead has the same mean and
    varies less. A batch's draws are spread evenly, so that no step sees only nearly whole or nearly hidden answers:

    >>> sorted(hidden_counts([8, 8, 8, 8], Random(0)))[::3]
    [2, 8]
    """
    offset = noise.random()
    turns = noise.sample(range(len(sizes)), len(sizes))
    shares = [least + (most - least) * (turn + offset) / len(sizes) for turn in turns]
    return [min(size, 1 + int(share * size)) for share, size in zip(shares, sizes, strict=True)]


def collate(rows: Sequence[ChatRow], pad_id: int, device: Any = "cpu") -> TrainingBatch:
    """Right-padded ids and labels; the prompt and the padding are not trained.

    >>> collate([ChatRow((5, 6, 7), 1), ChatRow((8, 9), 1)], pad_id=0).labels.tolist()
    [[-100, 6, 7], [-100, 9, -100]]
    """
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id)
    labels = torch.full((len(rows), width), losses.IGNORE)
    for k, row in enumerate(rows):
        ids[k, : len(row.ids)] = torch.tensor(row.ids)
        labels[k, row.start : len(row.ids)] = ids[k, row.start : len(row.ids)]
    return TrainingBatch(ids.to(device), labels.to(device))


def logits_of(model: Any, batch: TrainingBatch) -> Tensor:
    """A forward pass without an attention mask: padding is on the right, so a causal model never sees it."""
    logits: Tensor = model(input_ids=batch.ids, use_cache=False).logits
    return logits
