"""Keys that several query heads share are not copied, and every bit of the result stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.integrations import sdpa_attention

from collect_tools import VOCAB, model_of
from vestige.models.attention import without_copies


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of key tensors that transformers copied for query heads."""
    seen: list[int] = []
    copy = sdpa_attention.repeat_kv

    def counting(states: torch.Tensor, times: int) -> torch.Tensor:
        seen.append(states.shape[2])
        return copy(states, times)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", counting)
    return seen


def masked(model: Any, seed: int = 1) -> Callable[[], torch.Tensor]:
    """A forward of a padded batch, so that there is a mask."""
    noise = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (3, 12), generator=noise)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0

    def forward() -> torch.Tensor:
        with torch.inference_mode():
            out: torch.Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return out

    return forward


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "olmo2", "mixtral"])
def test_the_same_bits_without_copies(name: str, copies: list[int]) -> None:
    model = model_of(name)
    forward = masked(model)
    plain = forward()
    assert copies  # the library copies keys under a mask: otherwise nothing is tested here
    copies.clear()
    with without_copies(model):
        assert torch.equal(forward(), plain)
    assert not copies
    forward()
    assert copies  # put back
