"""Texts decoded together: what fits a device that tells its memory, the same number as ever elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.collect.backend import Cost, LocalBackend
from vestige.models import batch_budget
from vestige.models.batch_budget import BatchBudget, text_batch_budget

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


def test_more_memory_more_rows_unless_they_are_set(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    holding(monkeypatch, 64 * MEGABYTE)
    small = text_batch_budget(model)
    holding(monkeypatch, 64 * MEGABYTE + 100)  # nearly the same device
    assert text_batch_budget(model) == small
    holding(monkeypatch, 256 * MEGABYTE)
    large = text_batch_budget(model)
    assert large.rows > small.rows and large.cells > small.cells
    assert text_batch_budget(model, 5) == BatchBudget(5, large.cells)


def test_an_interrupted_run_resumes_only_with_the_same_room(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    writer = LocalBackend(SimpleNamespace(model=model, device="cpu"), None, Cost(), None, None)  # type: ignore[arg-type]
    before = writer.settings("texts")
    assert before == {"max_rows": 128, "cells": 65536}
    holding(monkeypatch, 64 * MEGABYTE)
    assert writer.settings("texts") != before
