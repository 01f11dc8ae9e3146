"""Training losses as plain functions of logits, labels and sequence losses.

A label of IGNORE is not trained. In causal language models logits at position t predict the label at t + 1, as in
transformers; in masked ones they predict the label at t. Formulas follow open-unlearning and, for masked models,
LLaDA (Nie et al. 2025).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

IGNORE = -100


def placed_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each label under the logits at its own place, (batch, length); ignored positions are 0."""
    losses = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view_as(labels)


def token_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each predicted token of a causal model, (batch, length - 1); ignored positions are 0."""
    return placed_nll(logits[:, :-1], labels[:, 1:])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over all label tokens of the batch: long answers weigh more, as in transformers.

    With equal logits every token costs log(vocabulary):

    >>> import torch
    >>> round(float(cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[IGNORE, 2, 1]])).exp()), 4)
    4.0
    """
    return token_nll(logits, labels).sum() / (labels[:, 1:] != IGNORE).sum()


def sequence_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed loss of each sequence: minus the log-probability of its answer."""
    return token_nll(logits, labels).sum(dim=-1)


def masked_nll(logits: Tensor, labels: Tensor, hidden: Tensor, sizes: Tensor) -> Tensor:
    """An estimate of minus the log-probability of each answer, from `hidden` of its `sizes` tokens.

    Logits are given only where a label is, (labels, vocabulary), in reading order. The loss of the hidden tokens is
    scaled up to the whole answer. Its mean over all ways to hide tokens bounds minus the log-probability from above.
    Four equal logits, one of two tokens hidden: the answer is worth 4 * 4.

    >>> import torch
    >>> nll = masked_nll(torch.zeros(1, 4), torch.tensor([[IGNORE, 3]]), torch.tensor([1]), torch.tensor([2]))
    >>> round(float(nll.exp()), 4)
    16.0
    """
    trained = labels != IGNORE
    losses = F.cross_entropy(logits.float(), labels[trained], reduction="none")
    placed = losses.new_zeros(labels.shape).masked_scatter(trained, losses)
    return placed.sum(dim=-1) * sizes / hidden


def masked_cross_entropy(logits: Tensor, labels: Tensor, hidden: Tensor, sizes: Tensor) -> Tensor:
    """The estimate for one token, averaged over answers: the diffusion loss with weight 1/t, t = hidden / sizes."""
    return (masked_nll(logits, labels, hidden, sizes) / sizes).mean()


def grad_ascent(forget_loss: Tensor) -> Tensor:
    """Climb the forget loss. Nothing bounds it, so it ends in gibberish if it is not stopped."""
    return -forget_loss


def grad_diff(forget_loss: Tensor, retain_loss: Tensor, gamma: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Climb the forget loss while descending the retain loss."""
    return gamma * grad_ascent(forget_loss) + alpha * retain_loss


def npo(
    forget_nll: Tensor,
    reference_nll: Tensor,
    retain_loss: Tensor,
    beta: float = 0.1,
    gamma: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """Negative preference optimisation: like ascent at first, fading as an answer becomes less likely.

    `forget_nll` and `reference_nll` are summed per sequence. At the start they are equal and the forget term
    is (2 / beta) log 2:

    >>> import torch
    >>> round(float(npo(torch.ones(3), torch.ones(3), torch.tensor(0.0))), 4)
    13.8629
    """
    preference = F.logsigmoid(beta * (forget_nll - reference_nll)).mean()
    return gamma * (-2 / beta) * preference + alpha * retain_loss
