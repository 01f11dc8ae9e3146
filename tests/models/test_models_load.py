"""Loading: every kind of checkpoint, and one sentence for everything that can be wrong with one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from models_tools import SENTENCES, logits, save, tiny_model, tiny_tokenizer, write_gguf
from vestige.errors import UserError
from vestige.models import args as choose
from vestige.models import checks, load, locate, quantised
from vestige.models.load import LoadedModel, ModelArgs, load_model, load_tokenizer, wrap_model
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


def test_bfloat16_is_kept(checkpoint: Path) -> None:
    loaded = load_model(ModelArgs(str(checkpoint), dtype="bfloat16"))
    assert loaded.dtype == "bfloat16"
    # Some virtual machines advertise AMX and then trap on it, which kills the process; stay off it.
    with torch.backends.mkldnn.flags(enabled=False):
        rough = logits(loaded.model, loaded.tokenizer)
    assert torch.allclose(rough, logits(tiny_model(), tiny_tokenizer()), atol=0.02)


def test_half_precision_checkpoints_are_read_as_float32_on_cpu(tmp_path: Path) -> None:
    save(tmp_path / "half", tiny_model().to(torch.bfloat16))
    assert load_model(ModelArgs(str(tmp_path / "half"))).dtype == "float32"


def test_tied_weights_are_not_called_missing(tmp_path: Path) -> None:
    save(tmp_path / "tied", tiny_model(tie_word_embeddings=True))
    loaded = load_model(ModelArgs(str(tmp_path / "tied")))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


def test_attention_is_chosen_and_told(checkpoint: Path) -> None:
    assert load_model(ModelArgs(str(checkpoint), attention="eager")).attention == "eager"
    loaded = load_model(ModelArgs(str(checkpoint), attention="flash_attention_2"))
    assert loaded.attention == "sdpa" and "flash_attention_2 is not available" in loaded.notes[0]


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


def test_loading_says_nothing_on_its_own(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(ModelArgs(str(checkpoint)))
    assert capfd.readouterr() == ("", "")


def test_a_model_in_memory_is_wrapped() -> None:
    loaded = wrap_model(tiny_model().train(), tiny_tokenizer())
    assert isinstance(loaded, LoadedModel) and not loaded.model.training
    assert (loaded.name, loaded.dtype, loaded.device) == ("in-memory model", "float32", "cpu")
    assert loaded.fingerprint.startswith("memory-")


def test_importing_the_room_is_cheap() -> None:
    heavy = "{'torch', 'transformers', 'peft'}"
    code = f"import sys, vestige.models.load; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


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


def test_adapter_errors(tmp_path: Path) -> None:
    save(tmp_path / "base")
    config = tmp_path / "lora" / "adapter_config.json"
    make_adapter(tmp_path / "lora", tmp_path / "base")
    edit(config, base_model_name_or_path="./gone")
    assert "'./gone' is neither beside the adapter" in fails(str(tmp_path / "lora"))
    edit(config, base_model_name_or_path=None)
    assert "which model" in fails(str(tmp_path / "lora"))
    edit(config, base_model_name_or_path=str(tmp_path / "base"), task_type="SEQ_CLS")
    assert "trained for SEQ_CLS" in fails(str(tmp_path / "lora"))
    edit(config, task_type="CAUSAL_LM", target_modules=["q_proj", "up_proj", "down_proj"])
    assert "which would be random: base_model" in fails(str(tmp_path / "lora"))
    edit(config, target_modules=["q_proj"])
    assert "fit nowhere in" in fails(str(tmp_path / "lora"))
    edit(config, peft_type="WORMHOLE")
    assert "peft cannot read" in fails(str(tmp_path / "lora"))


def test_a_prompt_adapter_is_refused(tmp_path: Path) -> None:
    from peft import PromptTuningConfig, get_peft_model

    save(tmp_path / "base")
    model = get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    model.save_pretrained(tmp_path / "prompt")
    edit(tmp_path / "prompt" / "adapter_config.json", base_model_name_or_path=str(tmp_path / "base"))
    assert "learns a prompt" in fails(str(tmp_path / "prompt"))


def test_an_adapter_beside_a_whole_model_is_ambiguous(tmp_path: Path) -> None:
    make_adapter(save(tmp_path / "both"), "../both")
    assert "both a whole model and an adapter" in fails(str(tmp_path / "both"))


def test_missing_packages_are_named(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(tmp_path / "lora", checkpoint)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert "pip install 'vestige[peft]'" in fails(str(tmp_path / "lora"))
    assert "pip install 'vestige[quant]'" in fails(ModelArgs(str(checkpoint), quantization="4bit"))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "pip install 'vestige[gguf]'" in fails(str(tmp_path / "x.gguf"))


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


def test_a_gguf_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny_model(), tiny_tokenizer())
    parsed: list[str] = []

    class Counting(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def __init__(self, path: Any, *rest: Any) -> None:
            parsed.append(str(path))
            super().__init__(path, *rest)

    monkeypatch.setattr(gguf, "GGUFReader", Counting)
    load_tokenizer(ModelArgs(str(file)))  # as `eval` does before it loads the model
    loaded = load_model(ModelArgs(str(file)))
    assert parsed == [str(file)]
    assert gguf.GGUFReader is Counting and not quantised._kept
    load_tokenizer(ModelArgs(str(file)))
    write_gguf(file, tiny_model(seed=5), tiny_tokenizer())  # another file of the same name is another parse
    again = load_model(ModelArgs(str(file)))
    assert len(parsed) == 3
    assert not torch.equal(logits(again.model, tiny_tokenizer()), logits(loaded.model, tiny_tokenizer()))


def test_gguf_errors(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nonsense")
    assert "does not start like a GGUF file" in fails(str(tmp_path / "model.gguf"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(40))
    assert "is damaged, cut short, or" in fails(str(tmp_path / "model.gguf"))
    assert "leave `quantization` out" in fails(ModelArgs(str(tmp_path / "model.gguf"), quantization="4bit"))
    assert f"Did you mean '{tmp_path / 'model.gguf'}'?" in fails(str(tmp_path / "modle.gguf"))
    assert f"Did you mean '{tmp_path / 'model.gguf'}'?" in fails(str(tmp_path))


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


def test_a_tokenizer_needs_no_weights(checkpoint: Path, tmp_path: Path) -> None:
    save(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert len(load_tokenizer(ModelArgs(str(tmp_path / "m")))[0]) == len(tiny_tokenizer())


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


def test_a_tokenizer_with_the_rules_of_its_class_is_left_alone(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2Tokenizer

    by_class = Qwen2Tokenizer({"<|endoftext|>": 0, "a": 1, "b": 2}, [])
    by_class.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=400).save_pretrained(tmp_path)
    tokenizer, notes = load_tokenizer(ModelArgs(path=str(tmp_path)))
    assert type(tokenizer).__name__ == "Qwen2Tokenizer" and notes == []


def test_a_tokenizer_too_large_is_noted(tmp_path: Path) -> None:
    save(tmp_path / "small", tiny_model(vocab_size=100))
    assert "the model only 100" in load_model(ModelArgs(str(tmp_path / "small"))).notes[0]


# Paths


def test_paths_that_are_not_there(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = checkpoint.parent
    assert f"Did you mean '{checkpoint}'?" in fails(str(parent / "forget01"))
    assert f"Did you mean '{checkpoint}'?" in fails(str(parent / "forget1" / "last"))
    assert fails("./nowhere/at/all") == "No model at './nowhere/at/all'."
    assert "no subfolder 'last'" in fails(ModelArgs(str(checkpoint), subfolder="last"))
    assert "is a file" in fails(str(checkpoint / "config.json"))
    monkeypatch.chdir(parent)
    assert "it holds: forget10/" in fails("../" + parent.name)


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offline = {"local_files_only": True, "cache_dir": str(tmp_path)}
    assert "the hub cannot be reached" in fails(ModelArgs("nobody/nothing", extra=offline))
    assert "the hub cannot be reached" in fails(ModelArgs("nobody/nothing/x.gguf", extra=offline))
    assert "nor a well-formed hub id" in fails("what is this")
    save(tmp_path / "mine" / "forget10")
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'mine/forget10'?" in fails(ModelArgs("mine/forget1", extra=offline))


def test_hub_errors_by_their_type() -> None:
    from huggingface_hub import errors

    args = ModelArgs("org/model", revision="v9")
    response = pytest.importorskip("unittest.mock").MagicMock()
    for kind, words in {
        errors.GatedRepoError: "is gated: ask for access",
        errors.RepositoryNotFoundError: "nor a model on the hub",
        errors.RevisionNotFoundError: "has no revision 'v9'",
        errors.HfHubHTTPError: "the hub cannot be reached",
    }.items():
        assert words in str(locate.hub_error("org/model", args, kind("no", response=response)))
    assert "set HF_HOME" in str(locate.hub_error("org/model", args, PermissionError(13, "no", "/cache")))


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


def test_a_download_takes_what_is_needed_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the hub: it copies the files asked for, as snapshot_download would."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    remote = save(tmp_path / "remote", max_shard_size="100KB")
    (remote / "optimizer.safetensors").write_bytes(b"large")
    here = tmp_path / "commit"

    def download(repo: str, *, revision: str | None, allow_patterns: list[str], **_: Any) -> str:
        assert revision in (None, "commit")
        here.mkdir(exist_ok=True)
        for name in filter_repo_objects([p.name for p in remote.iterdir()], allow_patterns=allow_patterns):
            if not (here / name).exists():  # what is in its cache is not written again
                shutil.copy(remote / name, here / name)
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert len(load_tokenizer(ModelArgs("org/tiny"))[0]) == len(tiny_tokenizer())
    assert not list(here.glob("*.safetensors"))
    loaded = load_model(ModelArgs("org/tiny"))
    assert torch.equal(logits(loaded.model, loaded.tokenizer), logits(tiny_model(), tiny_tokenizer()))
    assert {p.name for p in remote.iterdir()} - {p.name for p in here.iterdir()} == {"optimizer.safetensors"}


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


def test_pickle_needs_an_opt_in(tmp_path: Path) -> None:
    path = save(tmp_path / "old")
    torch.save(tiny_model().state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    assert "only pickle weights (pytorch_model.bin)" in fails(str(path))
    loaded = load_model(ModelArgs(str(path), extra={"use_safetensors": False}))
    assert torch.equal(logits(loaded.model, loaded.tokenizer), logits(tiny_model(), tiny_tokenizer()))


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


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    path = save(tmp_path / "m")
    edit(path / "config.json", quantization_config={"quant_method": "awq"})
    assert "already quantised (awq)" in fails(ModelArgs(str(path), quantization="4bit"))


# Choices


def test_misspelt_choices(checkpoint: Path) -> None:
    path = str(checkpoint)
    assert "Did you mean 'bfloat16'?" in fails(ModelArgs(path, dtype="bfloat6"))
    assert "Did you mean 'eager'?" in fails(ModelArgs(path, attention="eagre"))
    assert "Did you mean '4bit'?" in fails(ModelArgs(path, quantization="4-bit"))
    assert "Unknown device 'gpu'" in fails(ModelArgs(path, device="gpu"))
    assert "torch sees" in fails(ModelArgs(path, device="cuda:99"))


def test_memory_errors_say_what_to_try(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(load, "_load_weights", full)
    assert "memory of cpu" in fails(str(checkpoint))


def test_several_gpus_share_a_model_too_large_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 16 * 2**30))
    args = ModelArgs("m")
    assert choose.choose_device_map(args, "cuda", 2**30) == ({"": "cuda"}, [])
    device_map, notes = choose.choose_device_map(args, "cuda", 20 * 2**30)
    assert device_map == "auto" and "20 GB" in notes[0]
    assert choose.choose_device_map(args, "cuda:1", 20 * 2**30)[0] == {"": "cuda:1"}
    assert choose.choose_device_map(ModelArgs("m", device_map="balanced"), "cuda", 1)[0] == "balanced"


def test_auto_dtype_and_memory() -> None:
    assert choose.choose_dtype("auto", "cuda") == "auto"
    assert choose.choose_dtype("auto", "cpu") is torch.float32
    half = {"dtype": "bfloat16"}
    assert choose.needed_bytes(10, half, ModelArgs("m", dtype="float32")) == 20
    assert choose.needed_bytes(10, {}, ModelArgs("m", dtype="bfloat16")) == 5
    assert choose.needed_bytes(10, half, ModelArgs("m", quantization="4bit")) == 4
    nf4 = choose.quantization_config(ModelArgs("m", quantization="4bit"))
    assert nf4.bnb_4bit_quant_type == "nf4" and not nf4.bnb_4bit_use_double_quant
    assert nf4.bnb_4bit_compute_dtype is torch.bfloat16


def test_offloaded_tensors_cannot_be_fingerprinted() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="offloaded"):
        wrap_model(model, SimpleNamespace())
