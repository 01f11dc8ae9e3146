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
from vestige.errors import UserError
from vestige.models.diffusion import EITHER, FULL, MaskPredictor, need_predictor
from vestige.models.fingerprint import fingerprint
from vestige.models.load import ModelArgs, load_model, wrap_model
from vestige.models.samplers import sample
from vestige.types import Prompt
from vestige.wants import Denoising


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
