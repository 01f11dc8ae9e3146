"""Patching: the published scores, the fast way against the plain way, and every kind of architecture."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from conftest import GOLDEN, LAB
from vestige.collect import layered_patching
from vestige.collect.backend import Cost
from vestige.collect.layered_patching import Patcher
from vestige.collect.patch import (
    PatchPlan,
    check_identity,
    collect_states,
    decode_states,
    make_plan,
    patched_plain,
    source_states,
)  # fmt: skip
from vestige.data.rows import load_rows
from vestige.data.spans import Span, encode_span, read_spans
from vestige.errors import UserError
from vestige.metrics import depth
from vestige.models.load import ModelArgs, load_model
from vestige.types import Target
from vestige.wants import PatchWant

torch.set_num_threads(1)
EXTRAS = json.loads((GOLDEN / "depth_extras.json").read_text())["sets"]["lab"]


@cache
def model(name: str, attention: str) -> Any:
    return load_model(ModelArgs(path=str(LAB / "models" / name), device="cpu", attention=attention))


@cache
def spans() -> tuple[Span, ...]:
    rows, source = load_rows({"path": str(LAB / "data" / "forget.jsonl")})
    return tuple(read_spans(rows, source))


@cache
def wants() -> tuple[PatchWant, ...]:
    tokenizer = model("full", "eager").tokenizer
    return tuple(encode_span(s, tokenizer).want() for s in spans())  # type: ignore[union-attr]


def states_of(m: Any, plan: PatchPlan, ask: Any, batch: int) -> dict[str, torch.Tensor]:
    return {k: v for part in collect_states(m, ask, plan, batch) for k, v in part.items()}


# ---- the published scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("component", "golden"), [("mlp", "mlp"), ("attn", "attn"), ("mid_norm", "mid")])
def test_golden_components(component: str, golden: str) -> None:
    full, retain = (model(n, "eager").model for n in ("full", "retain"))
    plan = PatchPlan(make_plan(full).layers, component=component)
    states = states_of(retain, plan, wants(), 8)
    drops = [depth.drops(depth.layer_scores(patched_plain(full, w, states[w.key], plan))) for w in wants()]
    for span, drop in zip(spans(), drops, strict=True):
        assert np.abs(drop - EXTRAS["component_s1"][golden]["deltas"][span.index]).max() < 1e-5
    assert np.abs(np.mean(drops, axis=0) - EXTRAS["component_s1"][golden]["mean_by_layer"]).max() < 1e-5


def test_mid_is_the_stream_and_not_only_what_the_norm_reads() -> None:
    """Replacing the stream after attention with the source's own, in a block whose MLP is the target's, at the last
    layer: the same as running the target's MLP on the source's stream."""
    full, retain, want = model("full", "eager").model, model("retain", "eager").model, wants()[0]
    plan = PatchPlan((3,), component="mid")
    mid = source_states(retain, [want], plan)[want.key][0]
    block = full.model.layers[3]
    with torch.inference_mode():
        out = mid + block.mlp(block.post_attention_layernorm(mid))
    expected = decode_states(full, out, want.target.labels)
    got = patched_plain(full, want, mid[None], plan).logprob[1]
    assert np.abs(got - expected).max() < 1e-5


# ---- architectures ----------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**COMMON, "num_key_value_heads": 2}
SMALL = {
    "vocab_size": 97,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**GROUPED),
    "qwen2": lambda: tf.Qwen2Config(**GROUPED),
    "qwen3": lambda: tf.Qwen3Config(**GROUPED, head_dim=8),
    "mistral": lambda: tf.MistralConfig(**GROUPED),
    "gemma": lambda: tf.GemmaConfig(**GROUPED, head_dim=8),
    "gemma2": lambda: tf.Gemma2Config(**GROUPED, head_dim=8, sliding_window=64),
    "phi": lambda: tf.PhiConfig(**COMMON),
    "phi3": lambda: tf.Phi3Config(**GROUPED),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**COMMON),
    "gpt2": lambda: tf.GPT2Config(**SMALL),
    "opt": lambda: tf.OPTConfig(**COMMON, ffn_dim=48, word_embed_proj_dim=32),
    "olmo2": lambda: tf.Olmo2Config(**GROUPED),
}


def random_model(config: Any, seed: int) -> Any:
    """Norm weights far from one: patching after the norm instead of before it would show."""
    torch.manual_seed(seed)
    made = tf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.rand_like(p) + 0.3) if p.ndim == 1 else p.mul_(4)
    return made


def some_wants() -> list[PatchWant]:
    """Spans of several lengths and scopes, to be padded together."""
    draw = np.random.default_rng(0)

    def want(prompt: int, low: int, high: int, first: int, end: int) -> PatchWant:
        ids = tuple(int(x) for x in draw.integers(3, 97, prompt + high))
        return PatchWant(Target(ids, prompt + low), prompt - 1 + first, prompt - 1 + end)

    return [want(17, 1, 5, 1, 5), want(9, 0, 3, 0, 3), want(12, 1, 7, 0, 1), want(11, 2, 4, 0, 4)]


@pytest.mark.parametrize("last_layer", ["residual", "peer"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_is_patched_the_fast_way(name: str, last_layer: str) -> None:
    full, source = random_model(CONFIGS[name](), 0), random_model(CONFIGS[name](), 1)
    ask = some_wants()
    assert check_identity(full, ask[0]) < 1e-5  # every layer, the last one included
    plan = make_plan(full, None, last_layer)
    states = states_of(source, plan, ask, 4)
    patcher = Patcher(full, plan, Cost(), 4)
    found = {k: v for part in patcher.run(ask, [states, states]) for k, v in part.items()}
    assert not patcher.plain and patcher.apart == (full.config._attn_implementation == "sdpa")
    for want in ask:
        plain = patched_plain(full, want, states[want.key], plan)
        assert np.abs(plain.logprob[1:] - plain.logprob[0]).max() > 1e-3  # the patch does something
        for stats in found[want.key]:
            assert np.abs(stats.logprob - plain.logprob).max() < 1e-5
            assert (stats.top1 == plain.top1).all()


def test_a_sliding_window_falls_back_to_the_plain_way_and_says_so() -> None:
    config = tf.Gemma2Config(**GROUPED, head_dim=8, sliding_window=8)
    full, source = random_model(config, 0), random_model(config, 1)
    ask = some_wants()
    plan = make_plan(full)
    states = states_of(source, plan, ask, 4)
    patcher = Patcher(full, plan, Cost(), 4)
    found = {k: v for part in patcher.run(ask, [states]) for k, v in part.items()}
    assert patcher.plain and "slower" in patcher.cost.notes[0]
    for want in ask:
        plain = patched_plain(full, want, states[want.key], plan)
        assert np.array_equal(found[want.key][0].logprob, plain.logprob)


# ---- parts of models --------------------------------------------------------------------------------------------


def test_a_model_that_its_own_states_change_is_refused() -> None:
    """The stream has a second half here, which block 0 hands to block 1 behind the hooks' back."""
    full = random_model(CONFIGS["llama"](), 0)
    hidden: list[torch.Tensor] = []
    first, second = full.model.layers[0], full.model.layers[1]
    whole = first.forward

    def halved(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = whole(*args, **kwargs)
        hidden[:] = [out * 0.5 + torch.randn(1)]  # no two runs have the same
        return out * 0.5

    first.forward = halved
    second.register_forward_pre_hook(lambda m, args: (args[0] + hidden[0], *args[1:]))
    with pytest.raises(UserError, match=r"odd .*cannot be patched"):
        check_identity(full, some_wants()[0], "odd")


def test_bfloat16_is_patched_the_fast_way_and_errors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of plain batches decides; shifted states are still noticed, in the identity and on the fast way."""
    full, retain = (load_model(ModelArgs(str(LAB / "models" / n), dtype="bfloat16")).model for n in ("full", "retain"))
    ask = list(wants())[:4]
    assert check_identity(full, ask[0]) < 0.5
    plan = make_plan(full)
    states = states_of(retain, plan, ask, 4)
    patcher = Patcher(full, plan, Cost(), 4)
    list(patcher.run(ask, [states]))
    assert not patcher.plain, patcher.cost.notes
    real = layered_patching.patched_plain
    monkeypatch.setattr(layered_patching, "patched_plain", lambda m, w, s, p: real(m, w, s.roll(1, dims=0), p))
    patcher = Patcher(full, plan, Cost(), 4)
    list(patcher.run(ask[:1], [states]))
    assert patcher.plain and "fast patching" in patcher.cost.notes[0]
