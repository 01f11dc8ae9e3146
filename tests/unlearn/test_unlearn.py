"""The plain loops: what a method does to a model, what a seed fixes, how rows are batched."""

from __future__ import annotations

import copy
import math
from random import Random

import pytest
import torch
from transformers import LlamaForCausalLM

from unlearn_tools import FORGET, RETAIN, small_model
from vestige.errors import UserError
from vestige.unlearn import losses
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import Training, bucket_rows, finetune, unlearn
from vestige.unlearn.methods import method_named
from vestige.unlearn.objectives import ChatRow, collate, logits_of

pytestmark = pytest.mark.processors


@pytest.fixture
def model() -> LlamaForCausalLM:
    return small_model(layers=1)


def loss_on(model: LlamaForCausalLM, rows: list[ChatRow]) -> float:
    batch = collate(rows, pad_id=0)
    with torch.no_grad():
        return float(losses.cross_entropy(logits_of(model, batch), batch.labels))


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
    batches = bucket_rows(rows, 8, Random(0))
    assert sorted(len(r.ids) for b in batches for r in b) == sorted(len(r.ids) for r in rows)
    assert len(batches) == math.ceil(50 / 8)
    padded = sum(len(b) * max(len(r.ids) for r in b) for b in batches)
    assert padded < 1.3 * sum(len(r.ids) for r in rows)


def test_mistakes_are_explained(model):
    with pytest.raises(UserError, match="Did you mean 'grad_diff'"):
        method_named("grad_dif")
    with pytest.raises(UserError, match="retain rows"):
        unlearn(model, Lesson(FORGET, "grad_diff"), Training(epochs=1, lr=1e-3))
