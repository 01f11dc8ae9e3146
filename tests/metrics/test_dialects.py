"""Dialects as users choose them: muse and tofu beside open-unlearning and strict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige.cli import main


def muse(out: Path, *more: str) -> dict[str, Any]:
    args = ["eval", "muse", "--model", str(LAB / "models" / "full"), "--data", str(LAB / "data" / "muse")]
    assert main([*args, "--out", str(out), *more]) == 0
    return dict(json.loads((out / "MUSE_EVAL.json").read_text()))


def test_muse_has_no_stemmer(tmp_path: Path) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    got = muse(tmp_path, "--dialect", "muse", "--metrics", "forget_verbmem_ROUGE")["forget_verbmem_ROUGE"]
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    for row in got["value_by_index"].values():
        expected = scorer.score(row["ground_truth"], row["generation"])["rougeL"].fmeasure
        assert row["rougeL_f1"] == expected


@pytest.mark.parametrize(("split", "theirs"), [("News", 0.4772), ("Books", 0.5393)])
def test_muse_compares_with_the_published_retrain_model(split: str, theirs: float, tmp_path: Path) -> None:
    """In MUSE's own convention: 100 (AUC - AUC_retrain) / AUC_retrain, where its AUC is one minus ours."""
    words = ("--dialect", "muse", "--metrics", "privleak,mia_min_k", f"eval.muse.data_split={split}")
    got = muse(tmp_path, *words)
    mine = 1 - got["mia_min_k"]["agg_value"]
    assert got["privleak"]["agg_value"] == pytest.approx(100 * (mine - theirs) / theirs, rel=1e-6)
    assert "published retrain model" in got["privleak"]["notes"][0]
