"""Losses against numpy by hand, signs of a step, and the loops."""

from __future__ import annotations

import copy
import math
from random import Random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.errors import UserError
from vestige.unlearn import METHODS, ChatRow, Training, finetune, losses, unlearn
from vestige.unlearn.loop import bucketed
from vestige.unlearn.methods import Step, method_named
from vestige.unlearn.objectives import collate, logits_of

LOGITS = np.array(
    [
        [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, 0.0, 3.0], [9.0, 9.0, 9.0]],
        [[0.0, 1.0, 0.0], [2.0, -2.0, 1.0], [0.3, 0.1, 0.2], [9.0, 9.0, 9.0]],
    ]
)
LABELS = np.array([[-100, -100, 1, 2], [-100, 2, 0, -100]])


def nll_by_hand() -> list[list[float]]:
    """Minus log-softmax of each label, read from the position before it, with no torch."""
    rows = []
    for logits, labels in zip(LOGITS, LABELS, strict=True):
        row = []
        for position, label in enumerate(labels):
            if label != -100:
                before = logits[position - 1]
                row.append(math.log(sum(math.exp(x) for x in before)) - before[label])
        rows.append(row)
    return rows


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(LOGITS), torch.tensor(LABELS)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


FORGET = [ChatRow((1, 5, 6, 7, 2), 2), ChatRow((1, 8, 9, 2), 2), ChatRow((1, 4, 10, 11, 2), 2)]
RETAIN = [ChatRow((1, 12, 13, 14, 2), 2), ChatRow((1, 15, 16, 2), 2)]


def loss_on(model: LlamaForCausalLM, rows: list[ChatRow]) -> float:
    batch = collate(rows, pad_id=0)
    with torch.no_grad():
        return float(losses.cross_entropy(logits_of(model, batch), batch.labels))


def test_sequence_nll_sums_the_labels_by_hand(tensors):
    expected = [sum(row) for row in nll_by_hand()]
    np.testing.assert_allclose(losses.sequence_nll(*tensors).numpy(), expected, rtol=1e-6)


def test_cross_entropy_is_the_mean_over_tokens_not_over_rows(tensors):
    tokens = [x for row in nll_by_hand() for x in row]
    assert float(losses.cross_entropy(*tensors)) == pytest.approx(np.mean(tokens), rel=1e-6)


def test_cross_entropy_equals_the_loss_of_transformers(model):
    batch = collate(FORGET, pad_id=0)
    model.requires_grad_(False)
    theirs = model(input_ids=batch.ids, labels=batch.labels)
    assert float(losses.cross_entropy(theirs.logits, batch.labels)) == pytest.approx(float(theirs.loss), rel=1e-5)


def test_grad_ascent_and_difference_by_hand():
    forget, retain = torch.tensor(2.0), torch.tensor(0.5)
    assert float(losses.grad_ascent(forget)) == -2.0
    assert float(losses.grad_diff(forget, retain)) == -1.5
    assert float(losses.grad_diff(forget, retain, gamma=0.5, alpha=4.0)) == pytest.approx(-0.5 * 2 + 4 * 0.5)


def test_npo_by_hand():
    nll, reference, beta, gamma, alpha = np.array([3.0, 8.0]), np.array([1.0, 9.0]), 0.3, 0.7, 2.0
    preference = np.log(1 / (1 + np.exp(-beta * (nll - reference))))
    expected = gamma * (-2 / beta) * preference.mean() + alpha * 0.25
    got = losses.npo(torch.tensor(nll), torch.tensor(reference), torch.tensor(0.25), beta, gamma, alpha)
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_npo_of_the_reference_itself_is_a_constant(model):
    batch = collate(FORGET, pad_id=0)
    reference = copy.deepcopy(model)
    loss = METHODS["npo"].loss(Step(model, batch, batch, reference), alpha=0.0)
    assert float(loss) == pytest.approx(2 / 0.1 * math.log(2), rel=1e-5)


def test_npo_pushes_less_the_more_is_forgotten():
    near = torch.tensor([1.0], requires_grad=True)
    far = torch.tensor([100.0], requires_grad=True)
    for nll in (near, far):
        losses.npo(nll, torch.tensor([1.0]), torch.tensor(0.0)).backward()
    assert near.grad is not None and far.grad is not None
    assert near.grad.item() == pytest.approx(-1.0)  # ascent on the summed loss, exactly
    assert abs(far.grad.item()) < 1e-3


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_raises_the_forget_loss(model, method):
    chosen = METHODS[method]
    knobs = {"alpha": 0.1} if chosen.needs_retain else {}
    # SatImp weighs by p^5: only an answer that is known is unlearned.
    finetune(model, FORGET + RETAIN, Training(epochs=40, lr=1e-2))
    before = loss_on(model, FORGET)
    alternates = RETAIN[:1] * 3 if chosen.needs_alternate else None
    steps = Training(epochs=5, lr=3e-3)
    unlearn(model, method, FORGET, RETAIN, steps, knobs=knobs, alternates=alternates)
    assert loss_on(model, FORGET) > before


def test_grad_diff_keeps_what_ascent_loses(model):
    finetune(model, FORGET + RETAIN, Training(epochs=60, lr=1e-2))
    ascended, spared = copy.deepcopy(model), model
    training = Training(epochs=20, lr=3e-3)
    unlearn(ascended, "grad_ascent", FORGET, RETAIN, training)
    unlearn(spared, "grad_diff", FORGET, RETAIN, training, {"alpha": 2.0})
    assert loss_on(spared, FORGET) > 1.0
    assert loss_on(spared, RETAIN) < loss_on(ascended, RETAIN)


def test_finetune_learns_and_reports_every_step(model):
    seen: list[tuple[int, int, float]] = []
    history = finetune(
        model, FORGET, Training(epochs=40, lr=1e-2, batch_size=2), on_step=lambda *step: seen.append(step)
    )
    assert loss_on(model, FORGET) < 0.1 < history[0]
    assert [done for done, _, _ in seen] == list(range(1, 81))
    assert {total for _, total, _ in seen} == {80} and [loss for _, _, loss in seen] == history


def test_the_same_seed_gives_the_same_weights(model):
    twin, other = copy.deepcopy(model), copy.deepcopy(model)
    rows = FORGET + RETAIN
    finetune(model, rows, Training(epochs=3, lr=1e-2, batch_size=2))
    finetune(twin, rows, Training(epochs=3, lr=1e-2, batch_size=2))
    finetune(other, rows, Training(epochs=3, lr=1e-2, batch_size=2, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_padding_does_not_change_the_loss(model):
    one_by_one = [losses.sequence_nll(logits_of(model, b), b.labels) for b in (collate([r], 0) for r in FORGET)]
    batch = collate(FORGET, pad_id=0)
    together = losses.sequence_nll(logits_of(model, batch), batch.labels)
    assert torch.allclose(together, torch.cat(one_by_one), atol=1e-5)


def test_buckets_hold_every_row_once_and_pad_little():
    rows = [ChatRow((1,) * (3 + i % 17), 1) for i in range(50)]
    batches = bucketed(rows, 8, Random(0))
    assert sorted(len(r.ids) for b in batches for r in b) == sorted(len(r.ids) for r in rows)
    assert len(batches) == math.ceil(50 / 8)
    padded = sum(len(b) * max(len(r.ids) for r in b) for b in batches)
    assert padded < 1.3 * sum(len(r.ids) for r in rows)


def test_mistakes_are_explained(model):
    with pytest.raises(UserError, match="Did you mean 'grad_diff'"):
        method_named("grad_dif")
    with pytest.raises(ValueError, match="retain rows"):
        unlearn(model, "grad_diff", FORGET, [], Training(epochs=1, lr=1e-3))
