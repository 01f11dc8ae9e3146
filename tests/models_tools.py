"""Tiny checkpoints for the tests of the models room: a two-layer Llama and a word-level or BPE tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)

SENTENCES = ["the cat sat on the mat", "a dog ate the small cat", "what did the dog forget today"]
TEXT = "the small dog sat on a mat"


def tiny_tokenizer() -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")


def tiny_config(**changes: Any) -> LlamaConfig:
    settings = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return LlamaConfig(**{**settings, **changes})


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(**changes)).eval()


def save(directory: Path, model: Any = None, tokenizer: bool = True, **options: Any) -> Path:
    """Write a checkpoint; returns its directory."""
    (model if model is not None else tiny_model()).save_pretrained(directory, **options)
    if tokenizer:
        tiny_tokenizer().save_pretrained(directory)
    return directory


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokenizer(TEXT)["input_ids"]])).logits.float()
