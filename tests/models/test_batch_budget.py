"""Texts decoded together: what fits a device that tells its memory, the same number as ever elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.models import batch_budget
from vestige.models.batch_budget import text_batch_budget

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def model() -> Any:
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=500, intermediate_size=48, **shape)).eval()


def holding(monkeypatch: pytest.MonkeyPatch, memory: int | None) -> None:
    monkeypatch.setattr(batch_budget, "total_memory", lambda device: memory)


def test_caches_and_logits_fit_beside_the_weights(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Counted from the tensors of a real cache: two of them, the weights and a step's logits fit, just."""
    with torch.inference_mode():
        made = model(torch.zeros((1, 1), dtype=torch.long), use_cache=True).past_key_values
    cell = sum(t.nbytes for layer in made.layers for t in (layer.keys, layer.values))
    weights = sum(p.nbytes for p in model.parameters())
    for memory in (64 * MEGABYTE, 200 * MEGABYTE, 4096 * MEGABYTE):
        holding(monkeypatch, memory)
        rows, cells = text_batch_budget(model)
        step = rows * model.config.vocab_size * 4
        assert weights + 2 * cell * cells + step < memory
        # Of what is left, three eighths are for caches and an eighth for logits and what is made of them, rounded down.
        assert 2 * cell * cells > 3 / 16 * (memory - weights) and 4 * step > (memory - weights) / 16
