"""Training that ends at what a model knows: the loops ask after each epoch, and stop where they are told to."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.lab.models import answer_loss, row_losses, stop_when_learned, stop_when_silent
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import Training, finetune, unlearn
from vestige.unlearn.objectives import ChatRow

ROWS = [ChatRow([1, 4 + i, 9, 12 + i, 20 + i, 2], 3) for i in range(6)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def test_learning_ends_with_the_first_epoch_below_the_target(model):
    training = Training(epochs=200, lr=1e-2, batch_size=3)
    losses = finetune(model, ROWS, training, done=stop_when_learned(0.5))
    epochs = [sum(losses[i : i + 2]) / 2 for i in range(0, len(losses), 2)]
    assert len(losses) < training.steps(len(ROWS)) and len(losses) % 2 == 0
    assert epochs[-1] < 0.5 <= min(epochs[:-1])
    assert stop_when_learned(None) is None


def test_unlearning_ends_at_the_retain_models_loss(model):
    stranger = LlamaForCausalLM(model.config)
    finetune(model, ROWS, Training(epochs=100, lr=1e-2), done=stop_when_learned(0.1))
    before = answer_loss(model, ROWS, 0)
    done = stop_when_silent(model, stranger, ROWS, 0)
    assert not done([])
    training = Training(epochs=100, lr=3e-3)
    losses = unlearn(model, Lesson(ROWS, "grad_ascent"), training, done=done)
    assert before < 1 < answer_loss(stranger, ROWS, 0) <= answer_loss(model, ROWS, 0)
    assert len(losses) < 100


def test_losses_are_those_of_answer_tokens_and_leave_the_model_as_it_was(model):
    model.train()
    found = row_losses(model, ROWS, 0)
    assert model.training and len(found) == len(ROWS)
    model.eval()
    for row, loss in zip(ROWS, found, strict=True):
        ids = torch.tensor([row.ids])
        labels = ids.clone()
        labels[:, : row.start] = -100
        assert loss == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-5)
