"""Training masked diffusion models: what is hidden, what it costs, and that every method works on them too."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from vestige.unlearn import losses
from vestige.unlearn.objectives import ChatRow, MaskedDiffusion, hidden_counts

PAD, EOS, MASK, WINDOW = 0, 2, 19, 6
OBJECTIVE = MaskedDiffusion(MASK, EOS, WINDOW)
FORGET = [ChatRow((1, 5, 6, 7, 2), 2), ChatRow((1, 8, 9, 2), 2), ChatRow((1, 4, 10, 11, 2), 3)]


@pytest.fixture
def model() -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        initializer_range=0.2,
    )
    return BertForMaskedLM(config)


def batches(rows: list[ChatRow], count: int = 20):
    noise = Random("test")
    return [OBJECTIVE.collate(rows, PAD, noise) for _ in range(count)]


def test_masked_losses_by_hand():
    logits = np.array([[[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [1.0, 1.0, 0.0]], [[0, 1.0, 0], [2.0, -2, 1], [0.3, 0, 0]]])
    labels = np.array([[-100, 1, 2], [2, -100, -100]])
    first = math.log(math.exp(0.5) + math.exp(2.0) + 1) - 2.0, math.log(2 * math.e + 1) - 0.0
    second = math.log(2 + math.e)  # each label's loss at its own place, no shift
    hidden, sizes = torch.tensor([2, 1]), torch.tensor([3, 4])
    expected = [sum(first) * 3 / 2, second * 4 / 1]
    placed = torch.tensor(logits)[torch.tensor(labels) != losses.IGNORE]  # only where a label is
    got = losses.masked_nll(placed, torch.tensor(labels), hidden, sizes)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    mean = losses.masked_cross_entropy(placed, torch.tensor(labels), hidden, sizes)
    assert float(mean) == pytest.approx((expected[0] / 3 + expected[1] / 4) / 2, rel=1e-6)


def test_only_answers_are_hidden_and_only_hidden_tokens_are_trained():
    for batch in batches(FORGET):
        for k, row in enumerate(FORGET):
            whole = [*row.ids, *[EOS] * (WINDOW - (len(row.ids) - row.start))]
            ids, labels = batch.ids[k].tolist(), batch.labels[k].tolist()
            hidden = [i for i, token in enumerate(ids) if token == MASK]
            assert len(hidden) == int(batch.hidden[k]) >= 1 and min(hidden) >= row.start
            assert int(batch.sizes[k]) == WINDOW and int(batch.attention[k].sum()) == len(whole)
            assert [labels[i] for i in hidden] == [whole[i] for i in hidden]
            assert all(labels[i] == losses.IGNORE for i in range(len(labels)) if i not in hidden)
            seen = [whole[i] if i < len(whole) else PAD for i in range(len(ids))]
            assert all(ids[i] == seen[i] for i in range(len(ids)) if i not in hidden)


def test_every_number_of_hidden_tokens_is_equally_likely_and_a_batch_is_spread():
    noise, size, rows = Random(1), 6, 3
    draws = [hidden_counts([size] * rows, noise) for _ in range(4000)]
    for place in range(rows):  # each row's draw by itself is uniform; one sigma is 24
        counts = Counter(draw[place] for draw in draws)
        assert sorted(counts) == list(range(1, size + 1))
        assert all(abs(counts[n] - 4000 / size) < 90 for n in counts)
    assert all(sorted((n - 1) // 2 for n in draw) == [0, 1, 2] for draw in draws)


def test_the_estimate_is_unbiased():
    # A model that does not look at its input: then hiding tokens changes nothing and the truth is a plain sum.
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 2 + WINDOW, 20)))
    row = FORGET[0]
    answer = torch.tensor([[*row.ids[row.start :], *[EOS] * (WINDOW - 3)]])
    truth = float(losses.placed_nll(logits[:, row.start :], answer).sum())
    noise = Random(2)
    drawn = [OBJECTIVE.collate([row], PAD, noise) for _ in range(3000)]
    estimates = [float(OBJECTIVE.nll(logits[batch.labels != losses.IGNORE], batch)) for batch in drawn]
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth) < 4 * error < 0.05 * truth


def test_padding_does_not_change_the_loss(model):
    [batch] = batches(FORGET, 1)
    together = OBJECTIVE.nll(OBJECTIVE.logits(model, batch), batch)
    for k in range(len(FORGET)):
        length = int(batch.attention[k].sum())
        labels = batch.labels[k : k + 1, :length]
        logits = model(input_ids=batch.ids[k : k + 1, :length]).logits[labels != losses.IGNORE]
        alone = losses.masked_nll(logits, labels, batch.hidden[k], batch.sizes[k])
        assert torch.allclose(alone, together[k : k + 1], atol=1e-5)
