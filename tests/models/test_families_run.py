"""Everything else on published diffusion families, through the command line: guide, suites, plan, depth, stress."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from conftest import LAB
from family_tools import GOLDEN, copy_of
from vestige.cli import main

DATA = LAB / "data"
DOCS = Path(__file__).parents[2] / "docs"
MODELS = ("llada", "dream")


def results(place: Path, stem: str = "TOFU") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / f"{stem}_EVAL.json").read_text())
    return found


def test_the_guides_first_command_runs_on_a_published_layout(tmp_path: Path) -> None:
    """As docs/diffusion.md has it; only the path is another one, and the rows are few and local."""
    page = (DOCS / "diffusion.md").read_text()
    command = next(c for c in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "model=LLaDA-8B-Instruct" in c)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["vestige", "eval", "--config-name=eval.yaml"]
    path = f"model.model_args.pretrained_model_name_or_path={GOLDEN / 'llada'}"
    assert main([*words[1:], path, "--data", str(DATA), "--limit", "4", "--out", str(tmp_path), "--quiet"]) == 0
    found = results(tmp_path)
    curves = found["trajectory_metrics"]["agg_value"]["full"]["steps"]
    assert set(curves) == {"probability", "exact_memorization", "rouge"}
    assert all(len(curve) == 64 for curve in curves.values())
    assert 0 < found["forget_Q_A_Prob"]["agg_value"] < 1
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["model"]["loaded_as"] == "LlamaForCausalLM"


def eight_billion(place: Path) -> Path:
    """The published config of LLaDA-8B-Instruct, a tokenizer, no weights."""
    changes = {
        "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
        "vocab_size": 126464, "embedding_size": 126464, "rope_theta": 500000.0, "mask_token_id": 126336,
        "eos_token_id": 126081, "max_sequence_length": 4096, "dtype": "absent", "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = copy_of("llada", place, **changes)
    (path / "model.safetensors").unlink()
    return path


def test_a_plan_needs_only_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = eight_billion(tmp_path)
    sampler = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    words = [f"{sampler}.steps=16", f"{sampler}.max_new_tokens=32"]
    said = ["plan", "tofu_trajectory", "--model", str(model), "--data", str(DATA), "--limit", "4"]
    assert main([*said, *words]) == 0
    out = capsys.readouterr().out
    assert "8,015,581,184 parameters" in out and "16.0 GB by its config.json" in out
    line = next(line for line in out.splitlines() if line.startswith("windows to denoise"))
    windows, passes = (int(re.search(p, line)[1].replace(",", "")) for p in (r"  ([\d,]+) prompts", r"([\d,]+) passes"))  # type: ignore[index]
    assert windows >= 4 and passes == 16 * windows
    memory = float(re.search(r"memory +about ([\d.]+) GB", out)[1])  # type: ignore[index]
    assert 32 < memory < 36  # float32 on a CPU


def test_depth_says_that_it_is_not_meaningful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [f"--{flag}={GOLDEN / name}" for flag, name in
              {"unlearned": "llada", "full": "llada-gqa", "retain": "llada"}.items()]  # fmt: skip
    assert main(["depth", *models, "--forget", str(DATA / "forget.jsonl"), "--out", str(tmp_path / "depth")]) == 2
    assert "diffusion model" in capsys.readouterr().err
    paths = [f"eval.tofu.{k}_model_path={GOLDEN / 'llada-gqa'}" for k in ("full", "retain")]
    said = ["eval", "tofu", "--model", str(GOLDEN / "llada"), "--data", str(DATA), "--limit", "2", "--quiet"]
    assert main([*said, "--metrics", "uds,forget_Q_A_Prob", "--out", str(tmp_path / "tofu"), *paths]) == 0
    entry = results(tmp_path / "tofu")["uds"]
    assert entry["agg_value"] is None and "looks both ways" in json.dumps(entry)


@pytest.mark.parametrize("name", MODELS)
def test_stress_saves_copies_in_the_published_layout(name: str, tmp_path: Path) -> None:
    attacks = ["relearn=1", "prune=0.3", "quantise=8", "jailbreak"]
    how = ["--limit", "2", "--metrics", "forget_Q_A_Prob", "--keep", "--out", str(tmp_path)]
    assert main(["stress", *attacks, "--model", str(GOLDEN / name), "--data", str(DATA), *how]) == 0
    rows = json.loads((tmp_path / "stress.json").read_text())["rows"]
    assert {row["attack"] for row in rows} >= {"relearn", "prune", "quantise", "jailbreak"}
    kept = tmp_path / "checkpoints" / "model"
    for copy in (kept / "relearn-1", kept / "prune-0.3"):
        original = json.loads((GOLDEN / name / "config.json").read_text())
        config = json.loads((copy / "config.json").read_text())
        assert config["model_type"] == original["model_type"] and config["architectures"] == original["architectures"]
        assert set(load_file(copy / "model.safetensors")) == set(load_file(GOLDEN / name / "model.safetensors"))
