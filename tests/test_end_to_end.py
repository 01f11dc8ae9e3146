"""One path through the house, from a checkpoint to a page: what `make quick` runs besides the rooms without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import LAB
from vestige.cli import main

METRICS = "forget_Q_A_Prob,forget_Q_A_ROUGE,extraction_strength,mia_loss"


def test_from_a_checkpoint_to_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retain, mine, page = (tmp_path / name for name in ("retain", "mine", "page"))

    def vestige(*words: str | Path) -> str:
        assert main([str(w) for w in words]) == 0, words
        return capsys.readouterr().out

    for model, out in (("retain", retain), ("unlearned", mine)):
        checkpoint = LAB / "models" / model
        words = ("--data", LAB / "data", "--limit", "6", "--metrics", METRICS, "--quiet", "--out", out)
        vestige("eval", "tofu", "--model", checkpoint, *words)
    summary = json.loads((mine / "TOFU_SUMMARY.json").read_text())
    assert set(summary) == set(METRICS.split(",")) and 0 < summary["forget_Q_A_Prob"] < 1

    before = (mine / "TOFU_EVAL.json").read_bytes()
    vestige("score", mine)
    assert (mine / "TOFU_EVAL.json").read_bytes() == before  # the same bytes, without a model
    assert "forget_Q_A_Prob" in vestige("compare", retain, mine)
    vestige("verify", mine)
    vestige("pack", mine, "-o", tmp_path / "mine.zip")
    vestige("verify", tmp_path / "mine.zip")

    vestige("report", retain, mine, "-o", page)
    report = json.loads((page / "report.json").read_text())
    assert len(report["models"]) == 2 and "<script" in (page / "index.html").read_text()
