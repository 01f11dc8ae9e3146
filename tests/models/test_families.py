"""Published diffusion families: the same logits without their code, and one sentence for what is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from family_tools import FACTS, GOLDEN, NAMES, PublishedLlada, change_tensors, copy_of
from vestige.models.args import ModelArgs
from vestige.models.families import save_published
from vestige.models.load import LoadedModel, load_model, load_tokenizer

LOGITS = load_file(GOLDEN / "logits.safetensors")
SEQUENCES: list[list[int]] = FACTS["sequences"]


def loaded_from(path: Path, **more: Any) -> LoadedModel:
    return load_model(ModelArgs(str(path), **more))


@torch.no_grad()
def rows(loaded: LoadedModel, sequences: list[list[int]]) -> list[torch.Tensor]:
    """The model's own rows (unshifted) for some sequences, padded into one batch."""
    assert loaded.diffusion is not None
    width = max(map(len, sequences))
    ids = torch.tensor([[*s, *[0] * (width - len(s))] for s in sequences])
    keep = torch.tensor([[True] * len(s) + [False] * (width - len(s)) for s in sequences])
    flat = loaded.diffusion.logits(ids, keep, torch.arange(ids.numel()), shift=False).view(*ids.shape, -1)
    return [flat[i, : len(s)] for i, s in enumerate(sequences)]


def gap(loaded: LoadedModel, name: str) -> float:
    """How far the logits of the golden sequences are from those of the published code."""
    single = [rows(loaded, [s])[0] for s in SEQUENCES]
    return max(float((s - LOGITS[f"{name}.single{i}"].view_as(s)).abs().max()) for i, s in enumerate(single))


# ---- loading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_published_code(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = loaded_from(GOLDEN / name)
    assert capfd.readouterr() == ("", "") and loaded.notes == []
    assert type(loaded.model).__module__.startswith("transformers.models.")
    assert gap(loaded, name) < 1e-5
    padded = rows(loaded, SEQUENCES)
    assert all((p - rows(loaded, [s])[0]).abs().max() < 1e-5 for p, s in zip(padded, SEQUENCES, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_block_masks_work(name: str) -> None:
    """Blocks of 4 tokens that see themselves and what is before: the first block cannot know of the second."""
    loaded = loaded_from(GOLDEN / name)
    assert loaded.diffusion is not None
    ids = torch.tensor([SEQUENCES[1][:8]])
    block = torch.arange(8) // 4
    allowed = (block[:, None] >= block[None, :])[None]
    with torch.no_grad():
        found = loaded.diffusion.forward(ids, torch.arange(8), allowed=allowed, positions=torch.arange(8)[None])
    alone = rows(loaded, [SEQUENCES[1][:4]])[0]
    assert (found[:4] - alone).abs().max() < 1e-5
    assert (found[4:] - rows(loaded, [SEQUENCES[1][:8]])[0][4:]).abs().max() > 1e-3


def test_settings_that_follow_from_others(tmp_path: Path) -> None:
    """Null sizes are derived as in the published code; biases of q, k, v alone are Qwen2's."""
    same = {"mlp_hidden_size": None, "mlp_ratio": 2, "n_kv_heads": None, "embedding_size": None}
    assert gap(loaded_from(copy_of("llada", tmp_path / "a", **same)), "llada") < 1e-5
    few = copy_of("llada", tmp_path / "b", n_kv_heads=None, multi_query_attention=True)

    def share(tensors: dict[str, torch.Tensor]) -> None:
        for key in tensors:
            if "k_proj" in key or "v_proj" in key:
                tensors[key] = tensors[key][:12].clone()

    change_tensors(few, share)
    assert loaded_from(few).model.config.num_key_value_heads == 1
    biased = copy_of("llada", tmp_path / "c", include_qkv_bias=True)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        for key in [k for k in tensors if k.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            tensors[key.replace("weight", "bias")] = torch.zeros(len(tensors[key]))

    change_tensors(biased, add)
    loaded = loaded_from(biased)
    assert type(loaded.model).__name__ == "Qwen2ForCausalLM" and gap(loaded, "llada") < 1e-5


# ---- tokenizers -------------------------------------------------------------------------------------------------


def test_dreams_tokenizer_without_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    place = GOLDEN / "dream-tokenizer"
    expected = json.loads((place / "expected.json").read_text())
    tokenizer, notes = load_tokenizer(ModelArgs(str(GOLDEN / "dream"), tokenizer=str(place)))
    assert capfd.readouterr() == ("", "") and notes == []
    assert len(tokenizer) == expected["length"]
    found = {k: getattr(tokenizer, f"{k}_token_id") for k in ("bos", "eos", "pad", "mask")}
    assert found == expected["special"]
    for case in expected["cases"]:
        assert tokenizer(case["text"])["input_ids"] == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
        assert tokenizer.decode(case["ids"], skip_special_tokens=True) == case["decoded_skip"]
    chat = [{"role": "user", "content": "Where was she born?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    ids = ids["input_ids"] if hasattr(ids, "keys") else ids
    assert list(ids) == expected["chat_ids"]


# ---- adapters ---------------------------------------------------------------------------------------------------


def adapter(path: Path, base: Path, **settings: Any) -> Any:
    """A LoRA adapter trained, so to speak, on the published code: peft writes its names. Returns the model with it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model: Any = get_peft_model(PublishedLlada(base), LoraConfig(r=4, lora_alpha=8, **settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(path)
    config = json.loads((path / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": str(base), "task_type": "CAUSAL_LM"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return model.eval()


ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj", "attn_out"]},
    "ff_out is two things": {"target_modules": ["ff_proj", "up_proj", "ff_out"]},
    "a pattern": {"target_modules": r"model\.transformer\.blocks\.[02]\.(ff_out|k_proj)"},
    "some layers": {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
    "all but the head": {"target_modules": ["ff_out", "q_proj"], "exclude_modules": ["transformer.ff_out"]},
    "ranks": {"target_modules": ["q_proj", "ff_out"], "rank_pattern": {"ff_out": 2}, "alpha_pattern": {"1.q_proj": 3}},
    "whole modules": {"target_modules": ["q_proj"], "modules_to_save": ["wte", "ln_f"]},
}


@pytest.mark.parametrize("what", list(ADAPTERS))
@pytest.mark.filterwarnings("ignore")
def test_adapters_trained_on_the_published_code(what: str, tmp_path: Path) -> None:
    base = GOLDEN / "llada-gqa"
    reference = adapter(tmp_path / "a", base, **ADAPTERS[what])
    stored = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert all(key.startswith("base_model.model.model.transformer.") for key in stored)
    loaded = loaded_from(tmp_path / "a")
    ids = torch.tensor([SEQUENCES[0]])
    with torch.no_grad():
        wanted, plain = reference(ids)[0], PublishedLlada(base)(ids)[0]
    assert (wanted - plain).abs().max() > 1e-2
    assert (plain - LOGITS["llada-gqa.single0"].view_as(plain)).abs().max() < 1e-4
    assert (rows(loaded, [SEQUENCES[0]])[0] - wanted).abs().max() < 1e-4


# ---- saving -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_saved_again_in_the_published_layout(name: str, tmp_path: Path) -> None:
    loaded = loaded_from(GOLDEN / name)
    with torch.no_grad():
        loaded.model.model.norm.weight.mul_(1.5)
    assert loaded.origin is not None
    save_published(loaded.model, loaded.origin, tmp_path / "whole")
    save_published(loaded.model, loaded.origin, tmp_path / "cut", shard="100KB")
    one, other = (json.loads((p / "config.json").read_text()) for p in (tmp_path / "whole", GOLDEN / name))
    assert one == other
    before, after = (load_file(p / "model.safetensors") for p in (GOLDEN / name, tmp_path / "whole"))
    assert before.keys() == after.keys()
    changed = [k for k in before if not torch.equal(before[k], after[k])]
    assert changed == ["model.transformer.ln_f.weight" if name.startswith("llada") else "model.norm.weight"]
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "whole" / file).read_bytes() == (GOLDEN / name / file).read_bytes()
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    for again in (tmp_path / "whole", tmp_path / "cut"):
        assert torch.equal(rows(loaded_from(again), SEQUENCES[:1])[0], rows(loaded, SEQUENCES[:1])[0])
