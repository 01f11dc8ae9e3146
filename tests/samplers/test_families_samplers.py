"""The 45 sampler runs of the published families, canvas by canvas: as functions, and through the command line.

The golden prompts are token numbers, some of which are not text. For the command line the checkpoints therefore get a
tokenizer with one word per token (`t017` is token 17); the weights and their config stay as published.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from family_tools import FACTS, GOLDEN
from vestige.models.load import LoadedModel, ModelArgs, load_model
from vestige.models.samplers import sample
from vestige.suites.trajectory import read_denoising
from vestige.types import Prompt
from vestige.wants import Denoising

MASK = FACTS["mask_token_id"]
RUNS: list[dict[str, Any]] = FACTS["runs"]
PROMPTS = [tuple(p) for p in FACTS["prompts"]]


def label(run: dict[str, Any]) -> str:
    how = run["params"].get("alg") or f"b{run['params']['block_size']}"
    guided = "-cfg" if "cfg_scale" in run["params"] else ""
    return f"{run['model']}-{run['sampler']}-{how}{guided}-{len(run['prompts'])}"


@cache
def loaded(name: str) -> LoadedModel:
    return load_model(ModelArgs(str(GOLDEN / name)))


def settings(run: dict[str, Any]) -> Denoising:
    """By the road of the command line: `sampler_kwargs` as the published code names them."""
    return read_denoising({"sampler": run["sampler"], **run["params"]})


def windows(run: dict[str, Any], row: int) -> list[list[int]]:
    """The golden window of one row at the start and after every pass; what no block has reached yet is masked."""
    lengths = [len(p) for p in run["prompts"]]
    start = lengths[row]  # mdlm: padded on the right
    if run["sampler"] == "bd3lm":  # on the left, to whole blocks
        start = math.ceil(max(lengths) / run["params"]["block_size"]) * run["params"]["block_size"]
    if run["sampler"] == "dream":  # on the left
        start = max(lengths)
    length = run["params"]["max_new_tokens"]
    cut = [canvas[row][start : start + length] for canvas in run["histories"]]
    return [tokens + [MASK] * (length - len(tokens)) for tokens in cut]


@pytest.mark.parametrize("run", RUNS, ids=label)
def test_every_canvas_is_that_of_the_published_code(run: dict[str, Any]) -> None:
    predictor = loaded(run["model"]).diffusion
    assert predictor is not None
    seen: list[list[list[int]]] = []
    prompts = [Prompt(tuple(p)) for p in run["prompts"]]
    found = sample(
        predictor, prompts, (), settings(run), watch=lambda canvas: seen.append(canvas.tolist()), together=True
    )
    if run["sampler"] == "dream":  # its batches are padded on the left; a row without padding is the same row
        width = [len(p) + run["params"]["max_new_tokens"] for p in run["prompts"]]
        theirs = [[row[-n:] for row, n in zip(canvas, width, strict=True)] for canvas in run["histories"]]
        ours = [[row[:n] for row, n in zip(canvas, width, strict=True)] for canvas in seen]
        assert ours == theirs
    else:
        assert seen == run["histories"]
    assert [list(one.final) for one in found] == [windows(run, i)[-1] for i in range(len(found))]


# One run of each kind on each family; the golden batch of three where there is one.


@pytest.mark.parametrize("name", ["llada", "llada-gqa", "dream"])
def test_blocks_run_on_every_family_and_the_cache_changes_nothing(name: str) -> None:
    """BD3LM on families that were published without it: reading the prefix again gives what keeping it gives."""
    predictor = loaded(name).diffusion
    assert predictor is not None and predictor.cached
    denoising = Denoising("bd3lm", steps=12, max_new_tokens=12, block_size=4)
    prompts = [Prompt(p) for p in PROMPTS]
    kept = sample(predictor, prompts, (), denoising)
    alone = [sample(predictor, [p], (), denoising)[0] for p in prompts]
    predictor.cached = False
    try:
        read = sample(predictor, prompts, (), denoising)
    finally:
        predictor.cached = True
    texts = [[one.final for one in way] for way in (kept, read, alone)]
    assert texts[0] == texts[1] == texts[2]
    assert all(MASK not in one.final and one.passes == 12 for one in kept)
