"""A tiny random DiffusionGemma, made on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
)

from conftest import LAB

CANVAS = 8
# Two layers of each kind of attention, a window shorter than the prompts, a vision part that must not be used.
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16, "num_experts": 4, "top_k_experts": 2,
    "moe_intermediate_size": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 4, "patch_size": 2,
}  # fmt: skip


def tiny_gemma(vocab: int = 300, seed: int = 0, **text: Any) -> Any:
    """Random weights. Its logits are flat, so tests lower the temperature to make it sure of something."""
    torch.manual_seed(seed)
    config = DiffusionGemmaConfig(
        text_config=DiffusionGemmaTextConfig(vocab_size=vocab, **{**TEXT, **text}),
        vision_config=Gemma4VisionConfig(**VISION), canvas_length=CANVAS,
        image_token_id=vocab - 1, boi_token_id=vocab - 2, eoi_token_id=vocab - 3,
    )  # fmt: skip
    return DiffusionGemmaForBlockDiffusion(config).eval()


@cache
def shared_gemma() -> Any:
    model = tiny_gemma()
    model.generation_config.eos_token_id = [7, 8, 9, 10]
    model.generation_config.pad_token_id = 0
    return model


def save_gemma(place: Path, **generation: Any) -> Path:
    """A folder as published: weights with the vision part, tokenizer, generation_config.json."""
    tokenizer = AutoTokenizer.from_pretrained(LAB / "models" / "full")
    tokenizer.save_pretrained(place)
    model = tiny_gemma(len(tokenizer) + 3)
    said = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, **generation}
    for name, value in said.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(place)
    return place
