"""The 45 sampler runs of the published families, canvas by canvas: as functions, and through the command line.

The golden prompts are token numbers, some of which are not text. For the command line the checkpoints therefore get a
tokenizer with one word per token (`t017` is token 17); the weights and their config stay as published.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from family_tools import FACTS, GOLDEN, copy_of
from vestige.cli import main
from vestige.collect.denoise import DenoiseCollector
from vestige.models.load import LoadedModel, ModelArgs, load_model
from vestige.models.samplers import sample
from vestige.report.traces import row_traces
from vestige.suites.trajectory import read_denoising
from vestige.types import Prompt, Trace
from vestige.wants import DenoiseWant, Denoising

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


def of_trace(trace: Trace) -> list[list[int]]:
    return [*trace.canvas.tolist(), trace.final.tolist()]


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


@pytest.mark.parametrize("run", RUNS, ids=label)
def test_evidence_holds_the_same_canvases(run: dict[str, Any]) -> None:
    """What an evaluation collects and stores: the canvas before every pass, and the final one."""
    from vestige.collect.backend import Cost
    from vestige.collect.tree import Limits

    predictor = loaded(run["model"]).diffusion
    assert predictor is not None
    wants = [DenoiseWant(Prompt(tuple(p)), ((5,),), settings(run)) for p in run["prompts"]]
    traces: dict[str, Trace] = {}
    for batch in DenoiseCollector(predictor, Limits(4096, 10**7), Cost()).run(wants):
        traces |= batch
    for i, want in enumerate(wants):
        assert of_trace(traces[want.key]) == windows(run, i)


def word_tokenizer(place: Path) -> None:
    """One word per token, so that a text can say any row of token numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    table = Tokenizer(models.WordLevel({f"t{i:03}": i for i in range(MASK + 1)}, unk_token="t003"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "t001", "eos_token": "t002", "pad_token": "t000"}
    if "mask_token" in json.loads((place / "tokenizer_config.json").read_text()):  # LLaDA's does not name it
        special["mask_token"] = f"t{MASK}"
    fast = PreTrainedTokenizerFast(tokenizer_object=table, **special)
    for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json"):
        (place / name).unlink(missing_ok=True)
    fast.save_pretrained(str(place))


def spelled(ids: tuple[int, ...]) -> str:
    return " ".join(f"t{i:03}" for i in ids)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    rows = [{"question": spelled(p), "answer": spelled((7, 8 + i))} for i, p in enumerate(PROMPTS)]
    (place / "forget.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


# One run of each kind on each family; the golden batch of three where there is one.
BY_COMMAND = list({(r["model"], r["sampler"], r["params"].get("alg"), r["params"].get("block_size"),
                    "cfg_scale" in r["params"]): r for r in RUNS}.values())  # fmt: skip


@pytest.mark.parametrize("run", BY_COMMAND, ids=label)
def test_the_command_line_stores_the_published_canvases(run: dict[str, Any], data: Path, tmp_path: Path) -> None:
    model = copy_of(run["model"], tmp_path)
    word_tokenizer(model)
    metric = "eval.tofu_trajectory.metrics.trajectory_metrics"
    said = {k: "null" if v is None else str(v).lower() for k, v in run["params"].items()}
    said |= {"sampler": run["sampler"], "trajectory_sample_interval": "1"}
    words = [f"++{metric}.trajectory_config.sampler_kwargs.{k}={v}" for k, v in said.items()]
    template = ["++model.template_args.apply_chat_template=false", "++model.template_args.user_end_tag=' '"]
    out = tmp_path / "out"
    status = main([
        "eval", "trajectory-eval", "--model", str(model), "--data", str(data), "--out", str(out), "--quiet",
        f"{metric}.metrics=[probability]", f"{metric}.trajectory_config.include_views=[full]", *words, *template,
        "stats.resamples=0",
    ])  # fmt: skip
    assert status == 0
    found = row_traces(out)
    assert [row.index for row in found] == ["0", "1", "2"]
    for i, prompt in enumerate(run["prompts"]):
        assert tuple(prompt) == PROMPTS[i]
        assert of_trace(found[i].trace) == windows(run, i)


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
