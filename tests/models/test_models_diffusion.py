"""Finding, loading and asking mask predictors: masked LMs, adapted causal models, and families with their own code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from diffusion_tools import EOS, HERE, MASK, predictor
from models_tools import tiny_model, tiny_tokenizer
from vestige.errors import UserError
from vestige.models.diffusion import EITHER, FULL, ROWS, MaskPredictor, mask_predictor, need_predictor
from vestige.models.families import auto_class, diffusion_kind
from vestige.models.fingerprint import fingerprint
from vestige.models.load import ModelArgs, load_model, wrap_model
from vestige.models.samplers import sample
from vestige.types import Prompt
from vestige.wants import Denoising


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "masked"),
        ({"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}, "masked"),
        ({"model_type": "llada", "architectures": ["LLaDAModelLM"]}, "llada"),
        ({"model_type": "Dream", "architectures": ["DreamModel"]}, "dream"),
        ({"model_type": "a2d-qwen3", "architectures": ["A2DQwen3LMHeadModel"]}, "adapted"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "mask_token_id": 0}, "adapted"),
        ({"model_type": "sdar", "architectures": ["SDARForCausalLM"]}, "other"),
        ({"model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"]}, "diffusion_gemma"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, None),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "mask_token_id": None}, None),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "mask_token_id": 4}, None),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM", "BertForTokenClassification"]}, None),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, None),
        ({}, None),
    ],
)
def test_kinds_are_told_from_the_config(config: dict[str, Any], kind: str | None) -> None:
    assert diffusion_kind(config) == kind


def test_which_class_loads_a_kind() -> None:
    code = {"AutoModel": "m.M", "AutoConfig": "m.C"}
    assert auto_class("masked", {}) == "AutoModelForMaskedLM"
    assert auto_class("dream", {"auto_map": code}) == "AutoModel"
    assert auto_class("llada", {"auto_map": code | {"AutoModelForCausalLM": "m.M"}}) == "AutoModelForCausalLM"
    assert auto_class(None, {"auto_map": code}) == "AutoModelForCausalLM"


def test_a_masked_language_model_loads() -> None:
    loaded = load_model(ModelArgs(str(HERE / "tiny-mdlm")))
    found = loaded.diffusion
    assert found is not None and type(loaded.model).__name__ == "BertForMaskedLM"
    assert (found.mask_id, found.eos_ids, found.pad_id, found.bos_id) == (MASK, (EOS,), 0, 1)
    assert (found.shift, found.masks, found.cached, found.kind, found.vocab) == (False, EITHER, False, "masked", 64)
    denoising = Denoising(steps=3, max_new_tokens=5)
    prompts = [Prompt((10, 11))]
    assert sample(found, prompts, (), denoising) == sample(predictor(), prompts, (), denoising)


def test_a_causal_model_must_be_marked(tmp_path: Path) -> None:
    """Nothing in the files of an adapted Llama tells it from a Llama: its config says so, or the user."""
    path = HERE / "tiny-bd3lm-llama"
    plain = load_model(ModelArgs(str(path)))
    assert plain.diffusion is None
    with pytest.raises(UserError, match=r"Model does not have a sampler: .*tiny-bd3lm-llama.*diffusion=adapted"):
        need_predictor(plain.diffusion, plain.name)
    marked = load_model(ModelArgs(str(path), extra={"diffusion": "adapted"}))
    copy = shutil.copytree(path, tmp_path / "m")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"mask_token_id": MASK}))
    said = load_model(ModelArgs(str(copy)))
    for loaded in (marked, said):
        found = need_predictor(loaded.diffusion, loaded.name)
        assert (found.mask_id, found.masks, found.cached, found.kind) == (MASK, FULL, True, "adapted")
    assert fingerprint(ModelArgs(str(path))) != fingerprint(ModelArgs(str(path), extra={"diffusion": "adapted"}))


def test_misspelt_kinds_and_missing_mask_tokens(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'adapted'"):
        load_model(ModelArgs(str(HERE / "tiny-mdlm"), extra={"diffusion": "adaptd"}))
    with pytest.raises(UserError, match="names a mask token; add mask_token"):
        wrap_model(tiny_model(), tiny_tokenizer(), diffusion="adapted")
    with pytest.raises(UserError, match="Model does not have a sampler"):
        mask_predictor(tiny_model(), tiny_tokenizer(), "other")
    assert wrap_model(tiny_model(), tiny_tokenizer()).diffusion is None


def test_in_memory_models_are_recognised() -> None:
    golden = predictor()
    tokenizer = hf.AutoTokenizer.from_pretrained(HERE / "tiny-mdlm")
    found = wrap_model(golden.model, tokenizer).diffusion
    assert found is not None and found.kind == "masked" and found.mask_id == MASK


def full_logits(model: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, **inputs).logits
    return logits


def ask(found: MaskPredictor, ids: torch.Tensor, keep: torch.Tensor, where: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return found.logits(ids, keep, torch.tensor(where))


IDS = torch.tensor([[10, MASK, 12, MASK, 14], [20, MASK, MASK, EOS, EOS]])
KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def test_only_wanted_positions_in_their_own_place() -> None:
    found = predictor()
    whole = full_logits(found.model, IDS, attention_mask=KEEP.long()).reshape(10, -1)
    where = [1, 3, 6, 7]
    assert torch.allclose(ask(found, IDS, KEEP, where), whole[where], atol=1e-5)
    found.shift = True
    left = [0, 0, 2, 5, 6]  # column 0 has nothing to its left and speaks for itself
    assert torch.allclose(ask(found, IDS, KEEP, [0, 1, 3, 6, 7]), whole[left], atol=1e-5)
    assert found.forwards == 2 and found.tokens == 20


def test_a_causal_model_looks_both_ways() -> None:
    """The last token changes what an adapted model says of an earlier one; hidden columns change nothing."""
    found = predictor("tiny-bd3lm-llama")
    one = ask(found, IDS, KEEP, [1, 6])
    other = IDS.clone()
    other[0, 4], other[1, 4] = 33, 33
    two = ask(found, other, KEEP, [1, 6])
    assert not torch.allclose(one[0], two[0], atol=1e-3)
    assert torch.allclose(one[1], two[1], atol=1e-5)


def test_modernbert_uses_its_own_local_attention() -> None:
    """Rows of 0/1 keep a model's sliding window; a block mask by hand would not, so it is refused."""
    torch.manual_seed(0)
    config = hf.ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        local_attention=4, global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, mask_token_id=MASK, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = hf.ModernBertForMaskedLM(config).eval()
    found = wrap_model(model, hf.AutoTokenizer.from_pretrained(HERE / "tiny-mdlm")).diffusion
    assert found is not None and found.kind == "masked"
    whole = full_logits(model, IDS, attention_mask=KEEP.long()).reshape(10, -1)
    assert torch.allclose(ask(found, IDS, KEEP, [1, 3, 6]), whole[[1, 3, 6]], atol=1e-5)
    denoising = {"steps": 4, "max_new_tokens": 6, "block_size": 2}
    assert MASK not in sample(found, [Prompt((10, 11))], (), Denoising(**denoising))[0].final
    with pytest.raises(UserError, match="in some layers, which a mask over"):
        sample(found, [Prompt((10, 11))], (), Denoising("bd3lm", **denoising))


# A relative of a family that brings its own code: a BERT that calls itself a kind of LLaDA or Dream.
CODE = """
import torch
from transformers import BertConfig, BertForMaskedLM


class OwnConfig(BertConfig):
    model_type = "MODEL_TYPE"


class OwnModel(BertForMaskedLM):
    config_class = OwnConfig

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        assert attention_mask.ndim == DIMENSIONS
        return super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids)
"""


def own_code(directory: Path, model_type: str, name: str, dimensions: int) -> Path:
    path = shutil.copytree(HERE / "tiny-mdlm", directory / model_type)
    code = CODE.replace("MODEL_TYPE", model_type).replace("DIMENSIONS", str(dimensions))
    (path / "modeling_own.py").write_text(code)
    config = json.loads((path / "config.json").read_text())
    config |= {
        "model_type": model_type,
        "architectures": [name],
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"},
        "mask_token_id": MASK,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("model_type", "name", "masks", "shift"),
    [("llada", "LLaDAMoEModelLM", ROWS, False), ("Dream", "DreamOnModel", FULL, True)],
)
def test_families_with_their_own_code_need_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, name: str, masks: str, shift: bool
) -> None:
    import transformers.dynamic_module_utils as dynamic

    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    path = own_code(tmp_path, model_type, name, 2 if masks == ROWS else 4)
    with pytest.raises(UserError, match=r"brings its own Python code.*trust_remote_code=true"):
        load_model(ModelArgs(str(path)))
    loaded = load_model(ModelArgs(str(path), trust_remote_code=True))
    found = need_predictor(loaded.diffusion, loaded.name)
    assert (found.masks, found.shift, found.cached) == (masks, shift, False)
    denoising = Denoising(steps=3, max_new_tokens=5)
    same = Denoising(steps=3, max_new_tokens=5, right_shift_logits=shift)
    prompts = [Prompt((10, 11)), Prompt((20,))]
    assert sample(found, prompts, (), denoising) == sample(predictor(), prompts, (), same)


def test_published_mask_tokens_are_known() -> None:
    class Nameless:
        mask_token_id = None
        eos_token_id = 1

    model = tiny_model()
    for kind, mask_id in (("llada", 126336), ("dream", 151666)):
        with pytest.raises(UserError, match=f"would be {mask_id}, but it has only"):
            mask_predictor(model, Nameless(), kind)


def test_a_masked_model_with_tied_weights_and_no_end_token_loads(tmp_path: Path) -> None:
    """As the published BERTs are: one matrix in and out, [SEP] where others have an end token."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    model = hf.BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path / "m")
    tokenizer = hf.AutoTokenizer.from_pretrained(HERE / "tiny-mdlm")
    raw = tokenizer.backend_tokenizer
    named = hf.PreTrainedTokenizerFast(
        tokenizer_object=raw, sep_token="[EOS]", cls_token="[BOS]", mask_token="[MASK]", pad_token="[PAD]"
    )
    named.save_pretrained(tmp_path / "m")
    loaded = load_model(ModelArgs(str(tmp_path / "m")))
    found = need_predictor(loaded.diffusion, loaded.name)
    assert (found.eos_ids, found.bos_id, found.mask_id, found.vocab) == ((EOS,), 1, MASK, 64)
    whole = full_logits(model, IDS, attention_mask=KEEP.long()).reshape(10, -1)
    assert torch.allclose(ask(found, IDS, KEEP, [1, 6]), whole[[1, 6]], atol=1e-5)


def test_an_adapted_model_with_a_window_is_asked_within_it() -> None:
    torch.manual_seed(0)
    config = hf.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = hf.MistralForCausalLM(config).eval()
    found = wrap_model(model, hf.AutoTokenizer.from_pretrained(HERE / "tiny-mdlm"), diffusion="adapted").diffusion
    assert found is not None
    assert MASK not in sample(found, [Prompt((10, 11))], (), Denoising(steps=3, max_new_tokens=6))[0].final
    with pytest.raises(UserError, match="looks only 8 tokens far"):
        sample(found, [Prompt((10, 11))], (), Denoising(steps=3, max_new_tokens=7))
