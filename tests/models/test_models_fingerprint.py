"""Fingerprints: equal weights have equal names wherever they lie, and nothing else has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from models_tools import save, tiny_model
from vestige.models.args import ModelArgs
from vestige.models.fingerprint import fingerprint, fingerprint_module


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VESTIGE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "model", tokenizer=False)


def of(path: Path, **options: object) -> str:
    return fingerprint(ModelArgs(str(path), **options))  # type: ignore[arg-type]


def change_config(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_copy_has_the_same_fingerprint(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert of(checkpoint) == of(tmp_path / "copy")


def test_one_weight_changes_it(checkpoint: Path, tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-6
    assert of(save(tmp_path / "other", model, tokenizer=False)) != of(checkpoint)


def test_volatile_config_keys_do_not_count_and_others_do(checkpoint: Path) -> None:
    before = of(checkpoint)
    change_config(checkpoint / "config.json", transformers_version="9", dtype="bfloat16", _name_or_path="x")
    assert of(checkpoint) == before
    change_config(checkpoint / "config.json", rms_norm_eps=0.5)
    assert of(checkpoint) != before


def test_settings_that_change_the_weights_count(checkpoint: Path) -> None:
    plain = of(checkpoint)
    assert of(checkpoint, quantization="4bit") == f"{plain}-4bit"
    assert of(checkpoint, extra={"num_hidden_layers": 1}) != plain
    assert of(checkpoint, extra={"local_files_only": True}) == plain
    assert of(checkpoint, dtype="bfloat16") == plain  # how weights are held is told by LoadedModel
    (checkpoint / "modeling.py").write_text("x = 1")
    assert of(checkpoint) == plain
    assert of(checkpoint, trust_remote_code=True) != plain


def test_an_adapter_counts_with_its_base(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    save(tmp_path / "base", tokenizer=False)
    save(tmp_path / "other", tiny_model(seed=3), tokenizer=False)
    torch.manual_seed(0)
    lora = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    lora.save_pretrained(tmp_path / "lora")
    config = tmp_path / "lora" / "adapter_config.json"
    change_config(config, base_model_name_or_path="../base")
    before = of(tmp_path / "lora")
    assert before != of(tmp_path / "base")
    change_config(config, base_model_name_or_path=str(tmp_path / "base"), peft_version="9")
    assert of(tmp_path / "lora") == before
    change_config(config, lora_alpha=99)
    assert of(tmp_path / "lora") != before
    change_config(config, lora_alpha=8, base_model_name_or_path="../other")
    assert of(tmp_path / "lora") != before


# In memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_modules_are_named_by_their_tensors(dtype: torch.dtype) -> None:
    model, twin = tiny_model().to(dtype), tiny_model().to(dtype)
    before = fingerprint_module(model)
    assert before == fingerprint_module(twin) != fingerprint_module(tiny_model(seed=1).to(dtype))
    with torch.no_grad():
        twin.model.embed_tokens.weight[3, 5] += 0.25
    assert before != fingerprint_module(twin)
    assert before == fingerprint_module(model)


def test_buffers_and_config_count_and_precision_too() -> None:
    model = tiny_model()
    before = fingerprint_module(model)
    model.register_buffer("steer", torch.zeros(3))
    with_buffer = fingerprint_module(model)
    model.steer[1] = 1
    assert len({before, with_buffer, fingerprint_module(model)}) == 3
    assert before != fingerprint_module(tiny_model(rms_norm_eps=0.5))
    assert before != fingerprint_module(tiny_model().to(torch.bfloat16))
    assert fingerprint_module(torch.nn.Linear(2, 2)).startswith("memory-")


def test_the_same_bytes_in_another_precision_are_other_numbers() -> None:
    def of_type(dtype: torch.dtype) -> str:
        module = torch.nn.Module()
        module.register_buffer("x", torch.arange(8, dtype=torch.int16).view(dtype))
        return fingerprint_module(module)

    assert len({of_type(dtype) for dtype in (torch.float16, torch.bfloat16, torch.int16)}) == 3


def test_an_adapter_in_memory_counts_with_its_scale() -> None:
    from peft import LoraConfig, get_peft_model

    def lora(alpha: int) -> str:
        torch.manual_seed(0)
        config = LoraConfig(r=2, lora_alpha=alpha, target_modules=["q_proj"], task_type="CAUSAL_LM")
        return fingerprint_module(get_peft_model(tiny_model(), config))

    assert lora(4) == lora(4) != lora(8)
