"""Diffusion models that a user brings: sampler settings of texts, models that read later tokens, prompts of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
from harness import FULL, GOLDEN, vestige
from transformers import AutoTokenizer

DIFFUSION = GOLDEN / "diffusion"
MDLM, EOS = DIFFUSION / "tiny-mdlm", 2
PLAIN = ("stats.resamples=0", "--quiet")


class TokenMetrics:
    """A folder with ROUGE metrics for `--config-dir`, whose prompts are token numbers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names: list[str] = []

    def add(self, name: str, rows: list[dict[str, Any]], generation: dict[str, Any], **args: Any) -> None:
        path = harness.write_rows(self.place / f"{name}.jsonl", rows)
        data = {"handler": "TokenDataset", "args": {"hf_args": {"path": str(path)}, **args}}
        whole = {"handler": "rouge", "datasets": {"own": data}, "generation_args": generation}
        file = self.place / "configs" / "eval" / "tofu_metrics" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package eval.tofu.metrics.{name}\n{json.dumps(whole)}\n")
        self.names.append(name)

    def run(self, model: Path, **options: Any) -> tuple[dict[str, Any], harness.Outcome]:
        out = self.place / "run"
        words = ("--config-dir", self.place / "configs", "--metrics", ",".join(self.names), "--out", out, *PLAIN)
        words = (*words, "--overwrite")
        outcome = vestige("eval", "tofu", "--model", model, *words, **options)
        return harness.read_json(out / "TOFU_EVAL.json") if outcome.status == 0 else {}, outcome


# ---- settings of the sampler in generation_args ----------------------------------------------------------------------

# Runs of the generate function that LLaDA's authors published, by our names of its settings.
BLOCKS = {
    "llada_b8_s8": {"steps": 8},
    "llada_b4_s8": {"steps": 8, "block_size": 4, "schedule": "llada"},
    "llada_b4_s4": {"steps_per_block": 2, "block_size": 4},
}


def test_generation_args_set_the_sampler(tmp_path: Path) -> None:
    """Texts come in blocks, as the authors of LLaDA sample them."""
    published = harness.read_json(DIFFUSION / "samplers.json")["llada_generate"]
    runs = {run["name"]: run for run in published if run["name"] in BLOCKS}
    metrics = TokenMetrics(tmp_path)
    for name, settings in BLOCKS.items():
        row = {"input_ids": [10, 11, 12, 5], "labels": [-100, -100, -100, 5]}
        metrics.add(name, [row], {"max_new_tokens": 8, **settings})
    found, _ = metrics.run(MDLM)
    tokenizer = AutoTokenizer.from_pretrained(MDLM)
    texts = {name: found[name]["value_by_index"]["0"]["generation"] for name in BLOCKS}
    for name, run in runs.items():
        assert texts[name] == tokenizer.decode(run["sequences"][0][3:], skip_special_tokens=True).strip(), name
    assert len(set(texts.values())) == 3


def test_sampler_settings_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    metrics = TokenMetrics(tmp_path)
    metrics.add("mine", [{"input_ids": [10, 11, 5], "labels": [-100, -100, 5]}], {"block_size": 4})
    _, causal = metrics.run(FULL, status=2)
    assert "block_size" in causal.err and "left to right" in causal.err
    metrics.add("mine", [{"input_ids": [10, 11, 5], "labels": [-100, -100, 5]}], {"block_size": 0})
    _, zero = metrics.run(MDLM, status=2)
    assert "generation_args.block_size must be a whole number of at least 1" in zero.err


def test_a_note_says_that_most_texts_are_empty(tmp_path: Path) -> None:
    metrics = TokenMetrics(tmp_path)
    rows = [{"input_ids": [n, n + 1, 5], "labels": [-100, -100, 5]} for n in range(10, 13)]
    only_ends = [token for token in range(64) if token != EOS]
    for name, more in (("empty", {"suppress_tokens": only_ends}), ("full", {"suppress_tokens": [EOS]})):
        metrics.add(name, rows, {"max_new_tokens": 8, **more})
        _, outcome = metrics.run(MDLM)
        assert ("generated texts are empty" in outcome.printed) is (name == "empty")
        assert "generation_args.block_size" in outcome.printed or name == "full"
        metrics.names.clear()
