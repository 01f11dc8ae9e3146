"""Each unlearning loss on a tiny case, against its formula computed with numpy and no torch."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from unlearn_tools import FORGET, RETAIN, small_model
from vestige.errors import UserError
from vestige.unlearn import losses
from vestige.unlearn.methods import (
    METHODS,
    Step,
    align_labels,
    align_logits,
    layer_of,
    record_outputs,
)
from vestige.unlearn.objectives import MaskedDiffusion, collate

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.normal(size=(2, 4, 5)), RNG.normal(size=(2, 4, 5))
LABELS = np.array([[-100, 3, 1, -100], [4, 0, 2, 2]])  # at the place of the logits that predict them
RETAIN_LOSS = 0.25


def sigmoid_log(x: np.ndarray) -> np.ndarray:
    return -np.log(1 + np.exp(-x))


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def labelled() -> list[tuple[int, int]]:
    return [(b, t) for b in range(2) for t in range(4) if LABELS[b, t] != -100]


def nll_by_hand() -> np.ndarray:
    out = np.zeros(LABELS.shape)
    for b, t in labelled():
        out[b, t] = -log_softmax(LOGITS[b, t])[LABELS[b, t]]
    return out


def tensor(x: object) -> torch.Tensor:
    return torch.tensor(x)


def causal() -> tuple[torch.Tensor, torch.Tensor]:
    """The same as causal models have it: each label one place after the logits that predict it."""
    after, before = np.full((2, 1, 5), 9.0), np.full((2, 1), -100)
    return tensor(np.concatenate([LOGITS, after], axis=1)), tensor(np.concatenate([before, LABELS], axis=1))


@pytest.fixture
def model() -> LlamaForCausalLM:
    return small_model(layers=3)


def test_sequence_nll_sums_the_labels() -> None:
    np.testing.assert_allclose(losses.sequence_nll(*causal()).numpy(), nll_by_hand().sum(-1), rtol=1e-6)


def test_cross_entropy_equals_the_loss_of_transformers(model: LlamaForCausalLM) -> None:
    batch = collate(FORGET, pad_id=0)
    model.requires_grad_(False)
    theirs = model(input_ids=batch.ids, labels=batch.labels)
    assert float(losses.cross_entropy(theirs.logits, batch.labels)) == pytest.approx(float(theirs.loss), rel=1e-5)


def test_grad_ascent_and_difference() -> None:
    forget, retain = tensor(2.0), tensor(0.5)
    assert float(losses.grad_ascent(forget)) == -2.0
    assert float(losses.grad_diff(forget, retain)) == -1.5
    assert float(losses.grad_diff(forget, retain, gamma=0.5, alpha=4.0)) == pytest.approx(-0.5 * 2 + 4 * 0.5)


def test_npo() -> None:
    nll, reference, beta, gamma, alpha = np.array([3.0, 8.0]), np.array([1.0, 9.0]), 0.3, 0.7, 2.0
    expected = gamma * -2 / beta * sigmoid_log(beta * (nll - reference)).mean() + alpha * RETAIN_LOSS
    got = losses.npo(tensor(nll), tensor(reference), tensor(RETAIN_LOSS), beta, gamma, alpha)
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_simnpo() -> None:
    nll, lengths, beta, delta, gamma, alpha = np.array([3.0, 8.0]), np.array([2, 5]), 2.5, 0.2, 0.5, 3.0
    expected = gamma * -2 / beta * sigmoid_log(beta * (nll / lengths - delta)).mean() + alpha * RETAIN_LOSS
    got = losses.simnpo(tensor(nll), tensor(lengths), tensor(RETAIN_LOSS), beta, delta, gamma, alpha)
    assert float(got) == pytest.approx(expected, rel=1e-6)
    defaults = 0.125 * -2 / 4.5 * sigmoid_log(4.5 * nll / lengths).mean() + RETAIN_LOSS
    assert float(losses.simnpo(tensor(nll), tensor(lengths), tensor(RETAIN_LOSS))) == pytest.approx(defaults, rel=1e-6)


def test_dpo() -> None:
    forget, forget_ref = np.array([4.0, 9.0]), np.array([1.0, 8.5])
    other, other_ref = np.array([2.0, 3.0]), np.array([5.0, 2.0])
    for beta, gamma, alpha in ((0.1, 1.0, 1.0), (0.7, 0.3, 2.0)):
        inside = beta * ((other_ref - other) - (forget_ref - forget))
        expected = gamma * -2 / beta * sigmoid_log(inside).mean() + alpha * RETAIN_LOSS
        args = [tensor(x) for x in (forget, forget_ref, other, other_ref, RETAIN_LOSS)]
        assert float(losses.dpo(*args, beta, gamma, alpha)) == pytest.approx(expected, rel=1e-6)


def test_rmu() -> None:
    states, goal, mask = LOGITS, TEACHER, np.array([[0, 1, 1, 0], [0, 0, 0, 1]])
    rows = [np.mean([np.mean((states[b, t] - goal[b, t]) ** 2) for t in range(4) if mask[b, t]]) for b in range(2)]
    got = losses.activation_distance(tensor(states), tensor(goal), tensor(mask))
    assert float(got) == pytest.approx(np.mean(rows), rel=1e-6)
    assert float(losses.rmu(tensor(2.0), tensor(3.0), gamma=0.5, alpha=4.0)) == 13.0


@pytest.mark.parametrize("everywhere", [True, False])
def test_undial(everywhere: bool) -> None:
    beta, each = 3.0, []
    for b in range(2):
        for t in range(4):
            goal = TEACHER[b, t].copy()
            if LABELS[b, t] != -100:
                goal[LABELS[b, t]] -= beta
            elif not everywhere:
                continue
            each.append(-(np.exp(log_softmax(goal)) * log_softmax(LOGITS[b, t])).sum())
    got = losses.undial(tensor(LOGITS), tensor(TEACHER), tensor(LABELS), beta, everywhere)
    assert float(got) == pytest.approx(np.mean(each), rel=1e-6)


def test_ceu() -> None:
    each = []
    for b, t in labelled():
        if (b, t) in ((0, 1), (1, 0)):  # the first labelled token of each row is left out
            continue
        goal = LOGITS[b, t].copy()
        goal[LABELS[b, t]] = -np.inf
        each.append(-(np.exp(log_softmax(goal)) * log_softmax(LOGITS[b, t])).sum())
    got = losses.ceu(tensor(LOGITS), losses.without_first(tensor(LABELS), 1))
    assert float(got) == pytest.approx(np.mean(each), rel=1e-6)


def test_ceu_of_answers_too_short_is_zero_and_not_nan() -> None:
    assert float(losses.ceu(tensor(LOGITS), losses.without_first(tensor(LABELS), 9))) == 0.0


def test_satimp_and_wga() -> None:
    nll = nll_by_hand()
    p = np.exp(-nll)
    picked = tuple(np.array(labelled()).T)
    sat = 0.4 * -np.mean((p**3 * (1 - p) ** 2 * nll)[picked]) + 2 * RETAIN_LOSS
    got = losses.satimp(tensor(nll), tensor(LABELS), tensor(RETAIN_LOSS), beta1=3, beta2=2, gamma=0.4, alpha=2)
    assert float(got) == pytest.approx(sat, rel=1e-6)
    weighted = 0.4 * -np.mean((p**1.5 * nll)[picked]) + 2 * RETAIN_LOSS
    got = losses.wga(tensor(nll), tensor(LABELS), tensor(RETAIN_LOSS), beta=1.5, gamma=0.4, alpha=2)
    assert float(got) == pytest.approx(weighted, rel=1e-6)


def test_the_weights_of_wga_are_constants() -> None:
    nll = torch.tensor([[1.0]], requires_grad=True)
    losses.wga(nll, torch.tensor([[3]]), torch.tensor(0.0)).backward()
    assert nll.grad is not None
    assert nll.grad.item() == pytest.approx(-math.exp(-1))  # and not the derivative of p * nll, which is 0 at nll = 1


def test_pdu() -> None:
    margins = [(LOGITS[b, t].max() - LOGITS[b, t].mean()) ** 2 for b, t in labelled()]
    margin = losses.logit_margin(tensor(LOGITS), tensor(LABELS))
    assert float(margin) == pytest.approx(np.mean(margins), rel=1e-6)
    got = losses.pdu(margin, tensor(RETAIN_LOSS), price=3.0, retain_loss_eps=0.1, gamma=0.5)
    assert float(got) == pytest.approx(0.5 * np.mean(margins) + 3 * (RETAIN_LOSS - 0.1), rel=1e-6)
    assert losses.dual_price(0.2, retain_loss=0.0, retain_loss_eps=1.0, dual_step_size=5.0) == 0.0


def test_the_price_of_pdu_follows_the_retain_loss(model: LlamaForCausalLM) -> None:
    batch, memory = collate(FORGET, 0), {}
    step = Step(model, batch, collate(RETAIN, 0), memory=memory)
    METHODS["pdu"].loss(step, retain_loss_eps=0.5, dual_step_size=2.0, alpha=1.0)
    assert memory["price"] == pytest.approx(1 + 2 * (float(step.retain_loss.detach()) - 0.5), rel=1e-5)
    late = Step(model, batch, collate(RETAIN, 0), memory={})
    METHODS["pdu"].loss(late, dual_warmup_epochs=1.0)
    assert late.memory["price"] == 1.0


def test_divergence() -> None:
    ours, theirs = log_softmax(LOGITS), log_softmax(TEACHER)
    expected = (np.exp(theirs) * (theirs - ours)).sum() / 8
    assert float(losses.divergence(tensor(LOGITS), tensor(TEACHER))) == pytest.approx(expected, rel=1e-6)


def test_a_step_reads_masked_logits_where_labels_are() -> None:
    """They are made at labelled places only; the first token of each row can still be left out."""
    batch = MaskedDiffusion(3, 2).collate(FORGET, 0, Random(0))
    trained = batch.labels != losses.IGNORE
    given = torch.randn(int(trained.sum()), 20, generator=torch.Generator().manual_seed(0))
    logits, labels = align_logits(given, batch)
    assert logits.shape == (1, *given.shape) and labels[0].tolist() == batch.labels[trained].tolist()
    by_row = losses.masked_nll(given, batch.labels, batch.hidden, batch.sizes) * batch.hidden / batch.sizes
    assert torch.allclose(losses.placed_nll(logits, labels).sum(), by_row.sum())
    left = align_labels(losses.without_first(batch.labels, 1), batch)
    assert int((left == losses.IGNORE).sum()) == len(FORGET)


def test_rmu_steers_the_layer_it_names(model: LlamaForCausalLM) -> None:
    assert layer_of(model) is model.model.layers[1]  # the middle of a shallow model
    assert layer_of(model, r"model\.layers\.2") is model.model.layers[2]
    batch = collate(FORGET, 0)
    with record_outputs(layer_of(model)) as seen:
        model(input_ids=batch.ids)
    states = model(input_ids=batch.ids, output_hidden_states=True).hidden_states
    assert torch.equal(seen[-1], states[2])
    with pytest.raises(UserError, match=r"fits 0 modules.*layers\.0 to model\.layers\.2"):
        layer_of(model, r"model\.layers\.7")
