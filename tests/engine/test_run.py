"""What a run promises: resume byte for byte, never a stale number, one writer, cost near the limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from golden_tools import eval_args, reference_args
from vestige.cli import main


def manifest(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "manifest.json").read_text()))


def results(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "TOFU_EVAL.json").read_text()))


def files_of(run: Path) -> dict[str, bytes]:
    """Everything a run leaves but what says when and how long."""
    dated = ("manifest.json", ".lock")
    kept = [p for p in sorted(run.rglob("*")) if p.is_file() and p.name not in dated and ".vestige" not in p.parts]
    return {str(p.relative_to(run)): p.read_bytes() for p in kept}


def test_cost_is_near_the_limit(tmp_path: Path) -> None:
    """9,696 distinct prefixes are asked for; a loop that pads and repeats pushes 47,088 tokens."""
    peer = json.loads((LAB / "cost_default_full.json").read_text())["total"]
    assert main(eval_args(LAB / "models" / "full", tmp_path, *reference_args()[:2])) == 0
    cost = manifest(tmp_path)["cost"]
    assert cost["nodes"] == peer["unique_prefix_trie_tokens"] == 9696
    assert cost["score_tokens"] <= 1.15 * cost["nodes"]  # the self check included
    assert cost["tokens_produced"] == peer["gen_tokens_real"] == 1998
    assert cost["decode_row_steps"] <= cost["tokens_produced"] / 4  # most of this model's text is proven
    assert not cost["notes"]


def test_every_metric_costs_no_more_answers(tmp_path: Path) -> None:
    """Forty more metrics on the same rows: only gradients and the reference model are extra."""
    assert main(eval_args(LAB / "models" / "full", tmp_path, "--metrics", "all")) == 0
    cost = manifest(tmp_path)["cost"]
    assert cost["nodes"] == 9696
    assert cost["score_tokens"] <= 1.15 * 9696
    assert cost["backwards"] == 64


def test_steps_never_exceed_tokens_without_proof(tmp_path: Path) -> None:
    """Only ROUGE is asked for, so nothing is teacher-forced and everything must be decoded."""
    names = "forget_Q_A_ROUGE,retain_Q_A_ROUGE,ra_Q_A_ROUGE,wf_Q_A_ROUGE"
    assert main(eval_args(LAB / "models" / "unlearned", tmp_path, "--metrics", names)) == 0
    cost = manifest(tmp_path)["cost"]
    assert cost["tokens_proven"] == 0
    assert cost["decode_row_steps"] <= cost["tokens_produced"] == 2124


def test_memorised_rows_give_themselves_away(tmp_path: Path) -> None:
    """Signs: before unlearning every attack's AUC is far above one half."""
    names = "mia_loss,mia_zlib,mia_min_k,mia_min_k_plus_plus,mia_gradnorm,mia_reference"
    args = eval_args(LAB / "models" / "full", tmp_path, "--metrics", names, *reference_args()[2:])
    assert main(args) == 0
    summary = json.loads((tmp_path / "TOFU_SUMMARY.json").read_text())
    assert len(summary) == 6
    assert min(summary.values()) > 0.9


@pytest.mark.processors
def test_rescoring_gives_the_same_bytes_and_other_definitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(eval_args(LAB / "models" / "unlearned", tmp_path, "--metrics", "all", *reference_args())) == 0
    before = files_of(tmp_path)
    assert main(["score", str(tmp_path)]) == 0
    assert files_of(tmp_path) == before
    assert main(["score", str(tmp_path), "dialect=strict", "mia_min_k.k=0.2"]) == 0
    strict = tmp_path / "scores" / "strict_mia_min_k.k=0.2"
    assert {k: v for k, v in files_of(tmp_path).items() if not k.startswith("scores/")} == before
    capsys.readouterr()
    fresh = tmp_path / "fresh"
    args = eval_args(LAB / "models" / "unlearned", fresh, "--metrics", "all", "--dialect", "strict", *reference_args())
    assert main(args) == 0
    rescored, direct = results(strict), results(fresh)
    assert rescored["extraction_strength"] == direct["extraction_strength"]
    assert rescored["mia_min_k"] != direct["mia_min_k"]
    # Train-mode gradients were collected for open-unlearning; strict asks for others, and says so.
    assert rescored["mia_gradnorm"]["agg_value"] is None
    assert "not collected" in rescored["mia_gradnorm"]["reason"]


def test_strict_refuses_evidence_made_with_hidden_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from golden_tools import variant_model

    model = variant_model(tmp_path, "tmpleos_padeos", "full")
    assert main(eval_args(model, tmp_path / "run", "--metrics", "forget_Q_A_Prob")) == 0
    assert main(["score", str(tmp_path / "run"), "dialect=strict"]) == 2
    assert "attention mask" in capsys.readouterr().err
    # Collected anew under strict, where every real token is attended, the numbers differ.
    assert main(eval_args(model, tmp_path / "strict", "--metrics", "forget_Q_A_Prob", "--dialect", "strict")) == 0
    loose, strict = results(tmp_path / "run"), results(tmp_path / "strict")
    assert loose["forget_Q_A_Prob"]["agg_value"] != strict["forget_Q_A_Prob"]["agg_value"]
