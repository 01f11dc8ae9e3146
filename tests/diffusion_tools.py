"""The tiny mask predictors of the golden runs, loaded once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from conftest import LAB
from vestige.models.diffusion import EITHER, FULL, MaskPredictor

torch.set_num_threads(1)

HERE = Path(__file__).parent / "golden" / "diffusion"
MASK, EOS = 4, 2


@cache
def golden() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / "samplers.json").read_text())
    return data


@cache
def _model(name: str) -> Any:
    kind = AutoModelForCausalLM if "llama" in name else AutoModelForMaskedLM
    return kind.from_pretrained(HERE / name).eval()


def predictor(name: str = "tiny-mdlm", cached: bool | None = None) -> MaskPredictor:
    """A golden model, by hand: what loading makes of it is tested elsewhere."""
    name = name.split(" ")[0]
    causal = "llama" in name
    return MaskPredictor(
        _model(name), MASK, (EOS,), pad_id=0, bos_id=1, masks=FULL if causal else EITHER,
        cached=causal if cached is None else cached, kind="adapted" if causal else "masked",
    )  # fmt: skip


def save_lab_bert(place: Path, positions: int) -> Path:
    """A tiny random mask predictor with the lab's tokenizer: plumbing does not need it to be good."""
    tokenizer = AutoTokenizer.from_pretrained(LAB / "models" / "full")
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.save_pretrained(place)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=positions, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
        mask_token_id=tokenizer.mask_token_id,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(place)
    return place
