"""Diffusion models that a user brings: sampler settings of texts, models that read later tokens, prompts of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import DATA, FULL, GOLDEN, vestige
from transformers import AutoTokenizer

DIFFUSION = GOLDEN / "diffusion"
MDLM, EOS = DIFFUSION / "tiny-mdlm", 2
PLAIN = ("stats.resamples=0", "--quiet")


class TokenMetrics:
    """A folder with ROUGE metrics for `--config-dir`, whose prompts are token numbers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names: list[str] = []

    def add(self, name: str, rows: list[dict[str, Any]], settings: dict[str, Any], **args: Any) -> None:
        """ROUGE with `settings` as its generation_args, or another metric that they define whole."""
        path = harness.write_rows(self.place / f"{name}.jsonl", rows)
        data = {"handler": "TokenDataset", "args": {"hf_args": {"path": str(path)}, **args}}
        config = settings if "handler" in settings else {"handler": "rouge", "generation_args": settings}
        whole = {**config, "datasets": {"own": data}}
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


# ---- models that look at later tokens --------------------------------------------------------------------------------

BLOCKWISE = """
import torch
from transformers import LlamaForCausalLM

class BlockwiseForCausalLM(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        block = torch.arange(input_ids.shape[1]) // 4
        seen = block[None, :] <= block[:, None]
        hidden = torch.zeros(seen.shape, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)
        return super().forward(input_ids, attention_mask=hidden.expand(len(input_ids), 1, -1, -1), **kwargs)
"""

IN_MEMORY = """
import sys
import vestige
from transformers import AutoModelForCausalLM, AutoTokenizer

place, code, data = sys.argv[1:]
exec(open(code).read())
model = BlockwiseForCausalLM.from_pretrained(place)
try:
    vestige.evaluate(model, tokenizer=AutoTokenizer.from_pretrained(place), suite="tofu", data=data, limit=2)
except vestige.UserError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_code_that_sees_later_tokens_is_not_scored_as_causal(dtype: str, tmp_path: Path) -> None:
    """A block-diffusion model under a name of its own: with weights of the lab's model, and blocks of four tokens."""
    model = harness.copy_tree(FULL, tmp_path / "model")
    (model / "modeling_mine.py").write_text(BLOCKWISE)
    config = harness.read_json(model / "config.json")
    config |= {"architectures": ["BlockwiseForCausalLM"]}
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_mine.BlockwiseForCausalLM"}
    (model / "config.json").write_text(json.dumps(config))
    words = ("--data", DATA, "--limit", 2, "--metrics", "forget_Q_A_Prob", "--dtype", dtype, *PLAIN)
    refused = vestige(
        "eval", "tofu", "--model", model, "--trust-remote-code", *words, "--out", tmp_path / "a", status=2
    )
    assert "attends to later tokens" in refused.err and str(model) in refused.err
    vestige("eval", "tofu", "--model", FULL, *words, "--out", tmp_path / "b")


def test_a_model_in_memory_that_sees_later_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(BLOCKWISE)
    outcome = harness.python(IN_MEMORY, FULL, tmp_path / "code.py", DATA, cwd=tmp_path)
    assert "refused:" in outcome.out and "attends to later tokens" in outcome.out


# Facts of published configurations: what they call themselves, and what a user is told.
PUBLISHED = {
    "SEDD": ({"tokens": 50257, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "model": {"type": "ddit"}},
             ("SEDD", "ratios")),
    "BD3LM": ({"model_type": "bd3lm", "architectures": ["BD3LM"], "block_size": 4}, ("BD3LM", "level of noise")),
    "RND1": ({"model_type": "rnd1", "architectures": ["RND1LM"], "mask_token_id": 151669}, ("RND1", "experts")),
    "LLaDA2": ({"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"],
                "auto_map": {"AutoModelForCausalLM": "modeling.LLaDA2MoeModelLM"}}, ("LLaDA2", "block of 32 tokens")),
    "Fast-dLLM v2": ({"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 32,
                      "auto_map": {"AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM"}},
                     ("Fast-dLLM v2", "block of 32 tokens")),
}  # fmt: skip


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_diffusion_families_are_named(family: str, tmp_path: Path) -> None:
    config, words = PUBLISHED[family]
    model = harness.copy_tree(FULL, tmp_path / "model")
    (model / "config.json").write_text(json.dumps(config))
    run = ("--data", DATA, "--limit", 2, "--metrics", "forget_Q_A_Prob", *PLAIN, "--out", tmp_path / "out")
    refused = vestige("eval", "tofu", "--model", model, "--trust-remote-code", *run, status=2)
    assert all(word in refused.err for word in words), refused.err


EXPERTS = """
from transformers import LlamaForCausalLM

class LLaDAMoEModelLM(LlamaForCausalLM):
    pass
"""


def test_a_mixture_of_experts_has_a_mask_token_of_its_own(tmp_path: Path) -> None:
    """LLaDA-MoE hides tokens by 156895 and LLaDA by 126336, which neither configuration says."""
    model = harness.copy_tree(FULL, tmp_path / "model")
    (model / "modeling_mine.py").write_text(EXPERTS)
    config = harness.read_json(model / "config.json")
    code = {"AutoModelForCausalLM": "modeling_mine.LLaDAMoEModelLM"}
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["LLaDAMoEModelLM"], "auto_map": code}))
    run = ("--data", DATA, "--limit", 2, "--metrics", "forget_Q_A_Prob", *PLAIN, "--out", tmp_path / "out")
    refused = vestige("eval", "tofu", "--model", model, "--trust-remote-code", *run, status=2)
    assert "156895" in refused.err and "mask_token_id" in refused.err


# ---- prompts of tokens -----------------------------------------------------------------------------------------------

LENGTHS = [4, 6, 4, 6, 5]


def padded(side: str, pad: int) -> list[dict[str, Any]]:
    """Prompt-only rows as the guide has them: equally long, the labels the whole conversation."""
    rows = []
    for number, length in enumerate(LENGTHS):
        prompt = list(range(10 + number, 10 + number + length))
        padding = [pad] * (7 - length)
        ids = padding + prompt if side == "left" else prompt + padding
        rows.append({"input_ids": ids, "labels": [*prompt, 40, 41, 42]})
    return rows


def test_pad_tokens_of_a_prompt_are_not_prompt(tmp_path: Path) -> None:
    """Rows without attention_mask: told by the pad token, on either side, in texts and along trajectories."""
    sampler = {"steps": 3, "max_new_tokens": 3}
    along = {
        "handler": "trajectory_metrics",
        "metrics": ["probability"],
        "trajectory_config": {"sampler_kwargs": sampler},
    }
    metrics = TokenMetrics(tmp_path)
    plain = [
        {"input_ids": row["input_ids"][: -(7 - n)], "labels": row["labels"]}
        for row, n in zip(padded("right", 0), LENGTHS, strict=True)
    ]
    for name, rows in {"plain": plain, "left": padded("left", 0), "right": padded("right", 0)}.items():
        for kind, settings in {"texts": {"max_new_tokens": 4}, "along": along}.items():
            metrics.add(f"{kind}_{name}", rows, settings, predict_with_generate=True)
    metrics.add("no_flag", padded("left", 0), along)
    found, outcome = metrics.run(MDLM)
    for name in ("along_plain", "along_left", "along_right", "no_flag"):
        metadata = found[name]["trajectory_step_metadata"]
        assert list(metadata["prompt_len_by_index"].values()) == LENGTHS
        harness.assert_same(found["along_plain"]["agg_value"], found[name]["agg_value"], least=4)
    for name in ("left", "right"):
        assert found[f"texts_{name}"]["value_by_index"] == found["texts_plain"]["value_by_index"]
    assert "pad token is also" not in outcome.printed


def test_a_pad_token_that_ends_texts_is_ambiguous(tmp_path: Path) -> None:
    """Prompts with an end token inside: it goes with the padding, and a note says so; an attention_mask keeps it."""
    model = harness.copy_tree(MDLM, tmp_path / "model")
    config = harness.read_json(model / "tokenizer_config.json")
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "[EOS]"}))
    metrics = TokenMetrics(tmp_path)
    row = {"input_ids": [EOS, EOS, 10, EOS, 11], "labels": [10, EOS, 11, 40]}
    metrics.add("mine", [row], {"max_new_tokens": 4}, predict_with_generate=True)
    _, outcome = metrics.run(model)
    assert "the pad token is also the end token (2)" in outcome.printed and "attention_mask" in outcome.printed
    metrics.add("mine", [{**row, "attention_mask": [0, 0, 1, 1, 1]}], {"max_new_tokens": 4}, predict_with_generate=True)
    _, silent = metrics.run(model)
    assert "the pad token is also" not in silent.printed
