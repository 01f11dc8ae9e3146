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


def simnpo(
    forget_nll: Tensor,
    lengths: Tensor,
    retain_loss: Tensor,
    beta: float = 4.5,
    delta: float = 0.0,
    gamma: float = 0.125,
    alpha: float = 1.0,
) -> Tensor:
    """NPO without a reference model; long answers weigh no more than short ones.

    gamma (-2 / beta) mean log sigmoid(beta (nll / length - delta)) + alpha retain
    """
    preference = F.logsigmoid(beta * (forget_nll / lengths - delta)).mean()
    return gamma * (-2 / beta) * preference + alpha * retain_loss


def dpo(
    forget_nll: Tensor,
    forget_reference: Tensor,
    alternate_nll: Tensor,
    alternate_reference: Tensor,
    retain_loss: Tensor,
    beta: float = 0.1,
    gamma: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """Prefer another answer ("I don't know", or a made-up one) to the one to be forgotten.

    gamma (-2 / beta) mean log sigmoid(beta (gain - loss)) + alpha retain, where gain is by how much the alternate has
    become likelier than under the reference, and loss the same for the original. (Textbook DPO has 1 for 2 / beta.)
    """
    gain = alternate_reference - alternate_nll
    loss = forget_reference - forget_nll
    return gamma * (-2 / beta) * F.logsigmoid(beta * (gain - loss)).mean() + alpha * retain_loss


def activation_distance(states: Tensor, goal: Tensor, mask: Tensor) -> Tensor:
    """The squared distance of hidden states from a goal: mean over features, over each row's tokens, over rows."""
    squared = (states - goal).pow(2).mean(dim=-1) * mask
    return (squared.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)).mean()


def rmu(forget_distance: Tensor, retain_distance: Tensor, gamma: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Steer forget activations to a random direction, hold retain activations where the reference has them.

    gamma |h(forget) - c u|^2 + alpha |h(retain) - h_reference(retain)|^2
    """
    return gamma * forget_distance + alpha * retain_distance


def undial(logits: Tensor, teacher: Tensor, labels: Tensor, beta: float = 10.0, everywhere: bool = True) -> Tensor:
    """Learn from oneself with the true token made less likely: mean CE(model, softmax(teacher - beta onehot(label))).

    Logits and labels stand at the same places. Where no token is labelled the goal is the teacher's own opinion;
    `everywhere` counts those places too, as open-unlearning does (which by a slip lowers token V - 100 there).
    """
    labelled = labels != IGNORE
    lowered = F.one_hot(labels.clamp(min=0), logits.shape[-1]) * labelled[..., None]
    goal = (teacher - beta * lowered).softmax(dim=-1)
    each = -(goal * logits.float().log_softmax(dim=-1)).sum(dim=-1)
    return each.mean() if everywhere else each[labelled].mean()


def without_first(labels: Tensor, count: int) -> Tensor:
    """The labels with the first `count` of each row not trained.

    >>> import torch
    >>> without_first(torch.tensor([[IGNORE, 5, 6]]), 1).tolist()
    [[-100, -100, 6]]
    """
    labelled = labels != IGNORE
    return labels.masked_fill(labelled & (labelled.cumsum(dim=-1) <= count), IGNORE)


def ceu(logits: Tensor, labels: Tensor) -> Tensor:
    """Spread the true token's probability over the others: mean CE(model, softmax(own logits, true token at -inf)).

    Logits and labels stand at the same places; the goal is a constant of the step.
    """
    chosen = labels != IGNORE
    own = logits[chosen].float()
    goal = own.detach().scatter(-1, labels[chosen][:, None], float("-inf")).softmax(dim=-1)
    return -(goal * own.log_softmax(dim=-1)).sum() / chosen.sum().clamp(min=1)


def _weighted_ascent(nll: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Minus the mean over labelled tokens of weight * loss."""
    return -(weight.detach() * nll).sum() / (labels != IGNORE).sum()


def satimp(
    nll: Tensor,
    labels: Tensor,
    retain_loss: Tensor,
    beta1: float = 5.0,
    beta2: float = 1.0,
    gamma: float = 0.1,
    alpha: float = 1.0,
) -> Tensor:
    """Climb most where a token is likely but not certain: -gamma mean[p^beta1 (1 - p)^beta2 nll] + alpha retain.

    `nll` is per token, p = exp(-nll) a constant of the step.
    """
    p = (-nll).exp()
    return gamma * _weighted_ascent(nll, labels, p**beta1 * (1 - p) ** beta2) + alpha * retain_loss


def wga(
    nll: Tensor, labels: Tensor, retain_loss: Tensor, beta: float = 1.0, gamma: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """Climb less where a token is already unlikely: -gamma mean[p^beta nll] + alpha retain."""
    return gamma * _weighted_ascent(nll, labels, (-nll).exp() ** beta) + alpha * retain_loss


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over labelled places of (largest logit - mean logit)^2: zero when the model has no opinion."""
    chosen = logits[labels != IGNORE].float()
    return (chosen.max(dim=-1).values - chosen.mean(dim=-1)).pow(2).mean()


def pdu(margin: Tensor, retain_loss: Tensor, price: float, retain_loss_eps: float = 0.0, gamma: float = 1.0) -> Tensor:
    """Flatten the forget logits while the retain loss stays below a bound: gamma margin + price (retain - eps)."""
    return gamma * margin + price * (retain_loss - retain_loss_eps)


def dual_price(price: float, retain_loss: float, retain_loss_eps: float, dual_step_size: float) -> float:
    """PDU's price of a broken bound goes up, of a kept one down, and never below 0.

    >>> dual_price(1.0, retain_loss=0.5, retain_loss_eps=0.25, dual_step_size=2.0)
    1.5
    """
    return max(0.0, price + dual_step_size * (retain_loss - retain_loss_eps))


def mdu(
    logits: Tensor,
    anchor: Tensor,
    retain_loss: Tensor,
    eta: float = 0.0,
    tau: float = 1.0,
    gamma: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """Masked diffusion unlearning: answer as if the prompt had not been read.

    gamma mean KL(softmax l_c || softmax(tau (l_u - eta (l_c - l_u)))) + alpha retain, over hidden tokens. l_c are the
    logits with the prompt, `anchor` (l_u) those of the starting model after a prompt of masks; the goal is a constant
    of the step. eta > 0 pushes past the anchor, away from what the prompt adds; tau = 0 makes the goal uniform:

    >>> import torch
    >>> round(float(mdu(torch.tensor([[0.0, 9.0]]), torch.tensor([[0.0, 9.0]]), torch.tensor(0.5))), 4)
    0.5
    >>> round(float(mdu(torch.tensor([[0.0, 99.0]]), torch.zeros(1, 2), torch.tensor(0.0), tau=0.0)), 4)  # log 2
    0.6931
    """
    prompted, unprompted = logits.float(), anchor.float()
    goal = (tau * (unprompted - eta * (prompted.detach() - unprompted))).log_softmax(dim=-1)
    ours = prompted.log_softmax(dim=-1)
    distance = F.kl_div(goal, ours, reduction="sum", log_target=True) / max(1, len(prompted))  # KL(ours || goal)
    return gamma * distance + alpha * retain_loss


def divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(reference || model), averaged over every place of the batch, padding included, as in open-unlearning."""
    ours, theirs = (x.flatten(0, -2).float().log_softmax(dim=-1) for x in (logits, reference))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
