"""Tiny random models of many architectures, and the slow independent way to score an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as hf

from vestige.types import Target

torch.set_num_threads(1)

VOCAB = 101
EOS = 2
WINDOW = 8  # of the sliding-window models: shorter than every test sequence

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": EOS,
    "pad_token_id": None,
}  # fmt: skip
_ENDS = {"bos_token_id": 1, "eos_token_id": EOS}
_NEOX = {k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_SIZES)),
    "qwen2": lambda: (hf.Qwen2ForCausalLM, hf.Qwen2Config(**_SIZES)),
    "qwen3": lambda: (hf.Qwen3ForCausalLM, hf.Qwen3Config(**_SIZES, head_dim=8)),
    "mistral": lambda: (hf.MistralForCausalLM, hf.MistralConfig(**_SIZES, sliding_window=100)),
    "mistral-window": lambda: (hf.MistralForCausalLM, hf.MistralConfig(**_SIZES, sliding_window=WINDOW)),
    "gemma": lambda: (hf.GemmaForCausalLM, hf.GemmaConfig(**_SIZES, head_dim=8)),
    "gemma2": lambda: (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(**_SIZES, head_dim=8, sliding_window=WINDOW, final_logit_softcapping=5.0),
    ),
    "gemma3": lambda: (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=WINDOW)),
    "phi": lambda: (hf.PhiForCausalLM, hf.PhiConfig(**_SIZES)),
    "phi3": lambda: (hf.Phi3ForCausalLM, hf.Phi3Config(**_SIZES)),
    "gpt-neox": lambda: (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**_NEOX)),
    "gpt2": lambda: (
        hf.GPT2LMHeadModel,
        hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, **_ENDS),
    ),
    "opt": lambda: (
        hf.OPTForCausalLM,
        hf.OPTConfig(
            vocab_size=VOCAB, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=64, pad_token_id=1, **_ENDS,
        ),
    ),
    "olmo2": lambda: (hf.Olmo2ForCausalLM, hf.Olmo2Config(**_SIZES)),
    "mixtral": lambda: (hf.MixtralForCausalLM, hf.MixtralConfig(**_SIZES, num_local_experts=4)),
    "bloom": lambda: (
        hf.BloomForCausalLM,
        hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, **_ENDS),
    ),
    "mamba": lambda: (
        hf.MambaForCausalLM,
        hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, pad_token_id=0, **_ENDS),
    ),
}  # fmt: skip
PACKABLE = {
    "llama", "qwen2", "qwen3", "mistral", "gemma", "phi", "phi3", "gpt-neox", "gpt2", "opt", "olmo2", "mixtral",
}  # fmt: skip
QUERIES = ("q_proj", "k_proj", "qkv", "query_key_value", "c_attn")  # larger still: attention that looks somewhere
EAGER_ONLY = {"gemma2", "bloom", "mamba"}


def model_of(name: str, attention: str = "sdpa", seed: int = 0, scale: float = 4.0) -> Any:
    """A random model with weights large enough that positions, masks and neighbours matter."""
    torch.manual_seed(seed)
    cls, config = ARCHITECTURES[name]()
    config._attn_implementation = "eager" if name in EAGER_ONLY else attention
    model = cls(config).eval()
    with torch.no_grad():
        for part, p in model.named_parameters():
            if p.dim() > 1:
                p.mul_(scale * (4 if any(q in part for q in QUERIES) else 1))
    return model


def numbers(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(int(x) for x in rng.integers(3, VOCAB, count))


def family(seed: int = 0, questions: int = 4, hidden: tuple[int, ...] = ()) -> list[Target]:
    """Questions behind one system prompt, three answers each, all of different lengths (16 to 30 tokens)."""
    rng = np.random.default_rng(seed)
    stem = numbers(rng, 10)
    out = []
    for q in range(questions):
        prompt = stem + numbers(rng, 4 + 2 * q)
        out += [Target(prompt + numbers(rng, 2 + q + 2 * a), len(prompt), hidden) for a in range(3)]
    return out


def one_by_one(model: Any, target: Target) -> dict[str, Any]:
    """Scores one answer with an ordinary forward and float64 numpy; shares no code with vestige."""
    ids = torch.tensor([target.ids[:-1]])
    mask = torch.ones_like(ids)
    mask[0, [h for h in target.hidden if h < ids.shape[1]]] = 0
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[0]
    x = logits[target.start - 1 :].double().numpy()
    top = x.max(axis=-1, keepdims=True)
    logp = x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
    p = np.exp(logp)
    mean = (p * logp).sum(axis=-1)
    return {
        "logprob": logp[np.arange(len(x)), list(target.labels)],
        "top1": x.argmax(axis=-1),
        "mean": mean,
        "std": np.sqrt((p * (logp - mean[:, None]) ** 2).sum(axis=-1)),
    }
