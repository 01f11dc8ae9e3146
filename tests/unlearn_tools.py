"""A model and rows so small that a test can train on them."""

from __future__ import annotations

from transformers import LlamaForCausalLM

from models_tools import tiny_model
from vestige.unlearn.objectives import ChatRow

FORGET = [ChatRow((1, 5, 6, 7, 2), 2), ChatRow((1, 8, 9, 2), 2), ChatRow((1, 4, 10, 11, 2), 2)]
RETAIN = [ChatRow((1, 12, 13, 14, 2), 2), ChatRow((1, 15, 16, 2), 2)]


def small_model(layers: int) -> LlamaForCausalLM:
    return tiny_model(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
