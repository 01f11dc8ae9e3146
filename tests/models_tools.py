"""Tiny checkpoints for the tests of the models room: a two-layer Llama and a word-level or BPE tokenizer."""

from __future__ import annotations

import json
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


def write_gguf(path: Path, model: Any, tokenizer: Any) -> None:
    """The tiny model as llama.cpp would store it: query and key rows interleaved for its rotary layout."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _write_vocabulary(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        n = next((count for key, count in heads.items() if key in name), 0)
        if n:
            rows, width = tensor.shape
            tensor = tensor.reshape(n, 2, rows // n // 2, width).transpose(1, 2).reshape(rows, width)
        stem = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{stem}.weight", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_vocabulary(writer: Any, tokenizer: Any) -> None:
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    tokens += [f"<unused{i}>" for i in range(320 - len(tokens))]
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
