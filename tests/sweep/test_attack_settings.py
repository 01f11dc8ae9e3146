"""Attacks say every setting in effect, 4-bit layers multiply as published, and a sweep attacks what is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import GOLDEN, LAB
from sweep_tools import METRIC, started, write_plan
from vestige.cli import main
from vestige.models import quantised
from vestige.models.args import compute_dtype
from vestige.models.load import ModelArgs, load_model

UNLEARNED, RETAIN, FULL = (str(LAB / "models" / name) for name in ("unlearned", "retain", "full"))
DATA = str(LAB / "data")
FEW = ["--data", DATA, "--limit", "4", "--metrics", METRIC]
RELEARNING = ["--lr", "1e-3", "--batch-size", "2", "--accumulation", "3"]
SUITES: dict[str, Any] = {
    "tofu": {"data": DATA, "metrics": [METRIC], "limit": 4, "overrides": ["stats.resamples=0"]},
}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_stress_json_has_every_setting_in_effect(tmp_path: Path) -> None:
    attacks = ["relearn=2", "quantise=4,8", "prune=0.3", "jailbreak", "few-shot=1", "leak=1"]
    metrics = ["--metrics", f"{METRIC},forget_Q_A_ROUGE"]
    flags = [*FEW[:-2], *metrics, *RELEARNING, "--keep", "--out", str(tmp_path)]
    assert main(["stress", *attacks, "--model", UNLEARNED, *flags]) == 0
    rows = {(r["attack"], r["budget"]): r["settings"] for r in read(tmp_path / "stress.json")["rows"]}
    assert rows["none", None] == {}
    learned = rows["relearn", 2]
    wanted = {"lr": 1e-3, "batch_size": 2, "accumulation": 3, "effective_batch_size": 6, "steps": 2, "rows": 4}
    assert {k: learned[k] for k in wanted} == wanted
    # What `auto` stands for on this machine, not the word.
    assert learned["optim"] != "auto" and learned["bf16"] in (True, False)
    assert learned["precision"] and learned["dtype"] and learned["weight_decay"] == 0.0
    four, eight = rows["quantise", 4], rows["quantise", 8]
    assert (four["quant_type"], four["compute_dtype"], four["use_double_quant"]) == ("nf4", "bfloat16", False)
    assert (eight["quant_type"], eight["llm_int8_threshold"]) == ("LLM.int8()", 6.0) and "compute_dtype" not in eight
    assert rows["prune", 0.3]["share"] == 0.3 and rows["prune", 0.3]["weights_zeroed"] > 0
    assert rows["jailbreak", 1]["answer_prefix"] and rows["few-shot", 1]["few_shot_dataset_hf_args"]
    assert rows["leak", 1] == {"do_sample": True, "temperature": 1.0, "seeds": [0]}
    for name in ("relearn-2", "prune-0.3"):
        record = read(tmp_path / "checkpoints" / "model" / name / "attack.json")
        attack, _, budget = name.partition("-")
        assert record["settings"] == rows[attack, float(budget)] and record["attack"] == attack
        assert record["model"]["name"] == UNLEARNED and record["model"]["fingerprint"]


def test_the_compute_type_of_nf4_can_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for said in ("bfloat16", "float32"):
        out = tmp_path / said
        flags = [*FEW, "--compute-dtype", said, "--out", str(out)]
        assert main(["stress", "quantise=4", "--model", UNLEARNED, *flags]) == 0
        row = read(out / "stress.json")["rows"][1]
        assert row["settings"]["compute_dtype"] == said
        manifest = read(out / "evals" / "model" / "quantise-4" / "manifest.json")
        assert manifest["model"]["compute_dtype"] == said
        found[said] = row["values"][METRIC]
    assert found["bfloat16"] != found["float32"]
    capsys.readouterr()
    for words, needle in (
        (["prune", "--compute-dtype", "float32"], "not among the attacks"),
        (["quantise=4", "--compute-dtype", "float23"], "Did you mean 'float32'?"),
    ):
        assert main(["stress", *words, "--model", UNLEARNED, *FEW, "--out", str(tmp_path / "x")]) == 2
        assert needle in capsys.readouterr().err


def test_another_compute_type_is_other_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the same run directory: nothing of one type is reported for the other."""

    def evaluate(*more: str) -> tuple[float, dict[str, Any]]:
        words = ["eval", "tofu", "--model", UNLEARNED, *FEW, "--quiet", "--out", str(tmp_path / "run")]
        assert main([*words, "--quantization", "4bit", "--overwrite", *more]) == 0
        body, manifest = read(tmp_path / "run" / "TOFU_EVAL.json"), read(tmp_path / "run" / "manifest.json")
        return body[METRIC]["agg_value"], manifest["model"]

    default, how = evaluate()
    assert how["compute_dtype"] == "bfloat16" and how["quantization"] == "4bit"
    exact, other = evaluate("--compute-dtype", "float32")
    assert other["compute_dtype"] == "float32" and other["evidence"] != how["evidence"] and exact != default
    assert evaluate("--compute-dtype", "bfloat16")[0] == default
    capsys.readouterr()
    for more, needle in ((["--quantization", "8bit"], "quantization is 8bit"), ([], "no quantization is asked for")):
        words = ["eval", "tofu", "--model", UNLEARNED, *FEW, "--quiet", "--out", str(tmp_path / "x")]
        assert main([*words, "--compute-dtype", "float32", *more]) == 2
        assert needle in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_layers_read_back_by_us_multiply_in_the_compute_type(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX-512 bitsandbytes reads llada's tiny layers wrongly, without it rightly: here it always does."""
    read = quantised._as_read
    monkeypatch.setattr(quantised, "_as_read", lambda weight, state: read(weight, state) + (state.shape[0] > 1))
    args = ModelArgs(str(GOLDEN / "families" / "llada"), device="cpu", quantization="4bit", compute_dtype=dtype)
    model = load_model(args).model
    assert compute_dtype(model) == dtype
    ours = [m for m in model.modules() if type(m).__name__ == "PlainLayer"]
    assert ours
    layer = ours[0]
    came = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    kind = getattr(torch, dtype)
    bias = None if layer.bias is None else layer.bias.to(kind)
    want = torch.nn.functional.linear(came.to(kind), layer.weight.to(kind), bias).float()
    assert torch.equal(layer(came), want)


def sweep(place: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[int, list[str], str]:
    models = {"full": FULL, "unlearned": UNLEARNED, "retain": RETAIN}
    plan = write_plan(place, **{"models": models, "suites": SUITES, **changes})
    capsys.readouterr()
    status = main(["sweep", str(plan)])
    said = capsys.readouterr()
    return status, started(said.out), said.out + said.err


def test_a_sweep_does_not_attack_the_full_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, ran, said = sweep(tmp_path, capsys, attacks=[{"quantise": {"bits": 8}}])
    assert status == 0 and sorted(ran) == sorted(
        ["tofu/full", "tofu/retain", "tofu/unlearned", "tofu/retain+quantise", "tofu/unlearned+quantise"]
    )
    assert "full is not attacked" in said and "attack: true" in said
    models = {"full": {"path": FULL, "attack": True}, "unlearned": UNLEARNED, "retain": RETAIN}
    status, ran, said = sweep(tmp_path, capsys, attacks=[{"quantise": {"bits": 8}}], models=models)
    assert (status, ran) == (0, ["tofu/full+quantise"]) and "not attacked" not in said


def test_a_sweep_records_attacks_and_knows_their_compute_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"unlearned": UNLEARNED}
    relearn = {"relearn": {"lr": "1e-3", "steps": 1, "batch_size": 2, "accumulation": 1}}
    how: dict[str, Any] = {"models": models, "retain": None}
    assert sweep(tmp_path, capsys, attacks=[relearn, "quantise"], **how)[0] == 0
    runs = tmp_path / "sweep" / "runs" / "tofu"
    learned = read(runs / "unlearned+relearn" / "sweep_task.json")["settings"]
    assert (learned["lr"], learned["effective_batch_size"], learned["steps"]) == (1e-3, 2, 1)
    assert learned["optim"] != "auto" and learned["precision"]
    four = read(runs / "unlearned+quantise" / "sweep_task.json")["settings"]
    assert (four["quant_type"], four["compute_dtype"]) == ("nf4", "bfloat16")
    assert "settings" not in read(runs / "unlearned" / "sweep_task.json")
    # Said in other words nothing changes; another type is another result.
    same = {"quantise": {"bits": 4, "compute_dtype": "bfloat16"}}
    other = {"quantise": {"compute_dtype": "float32"}}
    assert sweep(tmp_path, capsys, attacks=[relearn, other], **how)[:2] == (0, ["tofu/unlearned+quantise"])
    assert read(runs / "unlearned+quantise" / "manifest.json")["model"]["compute_dtype"] == "float32"
    assert sweep(tmp_path, capsys, attacks=[relearn, same], **how)[:2] == (0, ["tofu/unlearned+quantise"])
    bad = {"quantise": {"bits": 8, "compute_dtype": "float32"}}
    status, _, said = sweep(tmp_path, capsys, attacks=[bad], **how)
    assert status == 2 and "quantization is 8bit" in said
