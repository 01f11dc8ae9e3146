"""Loading: every kind of checkpoint, and one sentence for everything that can be wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from models_tools import SENTENCES, logits, save, tiny_model, tiny_tokenizer, write_gguf
from vestige.errors import UserError
from vestige.models.load import ModelArgs, load_model, load_tokenizer
from vestige.models.tokenizer import tokenizer_facts


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VESTIGE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "forget10")


def fails(args: ModelArgs | str) -> str:
    """The sentence a user would see; it must stand alone, without a chain of other errors."""
    with pytest.raises(UserError) as caught:
        load_model(args if isinstance(args, ModelArgs) else ModelArgs(args))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


# Whole models


def test_a_directory_loads_as_it_was_saved(checkpoint: Path) -> None:
    loaded = load_model(ModelArgs(str(checkpoint)))
    assert torch.equal(logits(loaded.model, loaded.tokenizer), logits(tiny_model(), tiny_tokenizer()))
    assert (loaded.dtype, loaded.device, loaded.attention) == ("float32", "cpu", "sdpa")
    assert loaded.quantization is None and loaded.notes == [] and not loaded.model.training
    assert loaded.tokenizer.pad_token is None  # padding is the data room's business


def test_sharded_and_subfolder_checkpoints_load(tmp_path: Path) -> None:
    save(tmp_path / "run" / "last", tokenizer=False, max_shard_size="100KB")
    tiny_tokenizer().save_pretrained(tmp_path / "run")  # the tokenizer stays above the subfolder
    assert len(list((tmp_path / "run" / "last").glob("*.safetensors"))) > 1
    loaded = load_model(ModelArgs(str(tmp_path / "run"), subfolder="last"))
    assert torch.equal(logits(loaded.model, loaded.tokenizer), logits(tiny_model(), tiny_tokenizer()))


@pytest.mark.parametrize("mode", ["4bit", "8bit"])
def test_bitsandbytes_quantises_on_cpu(checkpoint: Path, mode: str) -> None:
    pytest.importorskip("bitsandbytes")
    loaded = load_model(ModelArgs(str(checkpoint), quantization=mode))
    gap = (logits(loaded.model, loaded.tokenizer) - logits(tiny_model(), tiny_tokenizer())).abs().max()
    assert loaded.quantization == mode and loaded.fingerprint.endswith(f"-{mode}")
    assert 0 < gap < 0.2


def test_4bit_computes_in_float32_where_asked(checkpoint: Path) -> None:
    """The reference: a plain model that holds the dequantised weights."""
    bnb = pytest.importorskip("bitsandbytes")
    loaded = load_model(ModelArgs(str(checkpoint), quantization="4bit", compute_dtype="float32"))
    plain = tiny_model()
    for name, module in loaded.model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            weight = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            plain.get_submodule(name).weight.data = weight.float()
    want = logits(plain, tiny_tokenizer())
    assert torch.allclose(logits(loaded.model, loaded.tokenizer), want, atol=1e-5)


# Adapters


def make_adapter(directory: Path, base: Path | str, **options: Any) -> Any:
    """A LoRA adapter with weights that matter (a fresh one changes nothing); returns the model it sits on."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM", **options}
    model = get_peft_model(tiny_model(), LoraConfig(**settings))
    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.5)
    model.save_pretrained(directory)
    edit(directory / "adapter_config.json", base_model_name_or_path=str(base))
    return model.eval()


@pytest.mark.parametrize("base", ["absolute", "../base"])
def test_an_adapter_equals_its_merged_model(tmp_path: Path, base: str) -> None:
    save(tmp_path / "base")
    made = make_adapter(tmp_path / "lora", tmp_path / "base" if base == "absolute" else base)
    loaded = load_model(ModelArgs(str(tmp_path / "lora")))
    merged = made.merge_and_unload()
    tokenizer = tiny_tokenizer()
    assert torch.allclose(logits(loaded.model, loaded.tokenizer), logits(merged, tokenizer), atol=1e-5)
    assert not torch.allclose(logits(loaded.model, tokenizer), logits(tiny_model(), tokenizer), atol=1e-2)
    assert "not merged" in loaded.notes[0] and loaded.attention == "sdpa"


# GGUF


def test_a_gguf_file_loads_as_a_plain_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "here").mkdir()
    write_gguf(tmp_path / "tiny.gguf", tiny_model(), tiny_tokenizer())
    write_gguf(tmp_path / "here" / "tiny.gguf", tiny_model(seed=5), tiny_tokenizer())
    monkeypatch.chdir(tmp_path / "here")  # a namesake in the current directory must not be taken instead
    loaded = load_model(ModelArgs(str(tmp_path / "tiny.gguf")))
    want = logits(tiny_model(), tiny_tokenizer())
    assert torch.allclose(logits(loaded.model, tiny_tokenizer()), want, atol=1e-5)
    assert loaded.tokenizer(SENTENCES[0])["input_ids"] == tiny_tokenizer()(SENTENCES[0])["input_ids"]
    assert loaded.quantization is None and "unpacked" in loaded.notes[0]
    loaded.model.save_pretrained(tmp_path / "saved")  # a model still marked as GGUF refuses to be saved
    assert load_model(ModelArgs("tiny.gguf")).fingerprint != loaded.fingerprint


# Tokenizers


def test_the_tokenizer_may_come_from_elsewhere(tmp_path: Path, checkpoint: Path) -> None:
    bare = save(tmp_path / "bare", tokenizer=False)
    assert "has no tokenizer" in fails(str(bare))
    (bare / "tokenizer_config.json").write_text("{}")  # alone it is not a tokenizer
    assert "has no tokenizer" in fails(str(bare))
    tokenizer, notes = load_tokenizer(ModelArgs(str(bare), base=str(checkpoint)))
    assert len(tokenizer) == len(tiny_tokenizer()) and "took the one of" in notes[0]
    assert load_tokenizer(ModelArgs(str(bare), tokenizer=str(checkpoint)))[1] == []
    assert "has no tokenizer files" in fails(ModelArgs(str(checkpoint), tokenizer=str(tmp_path)))
    (bare / "tokenizer.json").write_text("{")
    assert "cannot be read" in fails(str(bare))


@pytest.mark.parametrize("named", ["PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_a_qwen2_checkpoint_is_cut_by_its_files_rules(tmp_path: Path, named: str) -> None:
    """transformers 5 builds Qwen2Tokenizer's rules by itself: digits one by one, and a pad token of its own."""
    from transformers import Qwen2Config

    from tokenizer_tools import byte_bpe

    written = byte_bpe("llama3", special=("<|endoftext|>", "<|im_end|>"), more=("19", "197"))
    written.eos_token = "<|im_end|>"
    written.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=400).save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": named}))
    tokenizer, notes = load_tokenizer(ModelArgs(path=str(tmp_path)))
    text = "born in 1978, the box"
    assert tokenizer(text)["input_ids"] == written(text)["input_ids"]
    # A class that the files name speaks for them where they leave something open; one they do not name does not.
    assert tokenizer.pad_token == ("<|endoftext|>" if named == "Qwen2Tokenizer" else None)
    assert tokenizer.eos_token == "<|im_end|>"
    assert len(notes) == 1 and "tokenizer.json" in notes[0] and "Qwen2Tokenizer" in notes[0]
    by_class = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_facts(tokenizer)["pipeline"] != tokenizer_facts(by_class)["pipeline"]


# Paths


def test_a_cached_hub_snapshot_loads_offline(tmp_path: Path) -> None:
    """The hub's cache as other programs leave it: a reference, and a snapshot of the files they used."""
    repo = tmp_path / "models--org--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    save(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    extra = {"local_files_only": True, "cache_dir": str(tmp_path)}
    loaded = load_model(ModelArgs("org/tiny", extra=extra))
    assert loaded.name == "org/tiny"
    assert loaded.fingerprint == load_model(ModelArgs(str(repo / "snapshots" / commit))).fingerprint


# Contents


def test_damaged_and_missing_weights(tmp_path: Path) -> None:
    weights = save(tmp_path / "m") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "damaged or cut short" in fails(str(tmp_path / "m"))
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in fails(str(tmp_path / "m"))
    weights.unlink()
    assert "has no weights (model.safetensors;" in fails(str(tmp_path / "m"))
    shards = save(tmp_path / "shards", max_shard_size="100KB")
    next(shards.glob("model-00002*")).unlink()
    assert "lacks 1 of its" in fails(str(shards))
    (tmp_path / "m" / "config.json").write_text("{")
    assert "not readable as JSON" in fails(str(tmp_path / "m"))


def test_random_weights_are_never_measured(tmp_path: Path) -> None:
    save(tmp_path / "headless", tiny_model().model)
    words = fails(str(tmp_path / "headless"))
    assert "would be random: lm_head.weight;" in words
    path = save(tmp_path / "shapes")
    edit(path / "config.json", intermediate_size=32)
    assert "another shape than its config.json says" in fails(str(path))


@pytest.mark.parametrize("layers", [1, 0, -3])
def test_tensors_that_nobody_reads_are_an_error(tmp_path: Path, layers: int) -> None:
    path = save(tmp_path / "shallow")
    edit(path / "config.json", num_hidden_layers=layers)
    words = fails(str(path))
    assert "holds tensors that its configuration has no place for: model.layers." in words
    assert "allow_unused_tensors=true" in words
    loaded = load_model(ModelArgs(str(path), extra={"allow_unused_tensors": True}))
    assert len(loaded.model.model.layers) == max(layers, 0)
    assert any("were left out (allow_unused_tensors): model.layers." in note for note in loaded.notes)


def test_other_kinds_of_models_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m")
    config = path / "config.json"
    code = {"AutoConfig": "a.C", "AutoModelForCausalLM": "a.M"}
    edit(config, model_type="llada", architectures=["LLaDAMoEModelLM"], auto_map=code)
    assert "diffusion language model (llada) that brings its own Python code" in fails(str(path))
    edit(config, model_type="sdar", architectures=["SDARForCausalLM"])
    assert "Model does not have a sampler" in fails(ModelArgs(str(path), trust_remote_code=True))
    edit(config, model_type="bert", architectures=["BertForMaskedLM", "BertForSequenceClassification"], auto_map=None)
    assert "not a causal language model (BertForMaskedLM, Bert" in fails(str(path))
    edit(config, model_type="t5", architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True)
    assert "not a causal language model" in fails(str(path))
    edit(config, model_type="vit", architectures=None, is_encoder_decoder=None)
    assert "not a causal language model (vit)" in fails(str(path))
    edit(config, model_type="brandnew", auto_map=code)
    assert "set trust_remote_code=true" in fails(str(path))
    edit(config, model_type="brandnew", auto_map=None)
    assert "'brandnew'" in fails(str(path)) and "unknown to transformers" in fails(str(path))
    edit(config, model_type=None)
    assert "has no model_type" in fails(str(path))


# Choices
