"""A training that goes on too long: the rule picks an epoch before that (5 seeds: tools/best_checkpoint.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import SYSTEM
from vestige.cli import main
from watch_tools import DATA, FULL, LAB, PROB


@pytest.mark.processors
def test_an_epoch_before_over_forgetting_is_picked(tmp_path: Path) -> None:
    said = ["--metrics", f"{PROB},retain_Q_A_Prob", "--limit", "16", "--system-prompt", SYSTEM, "--quiet"]
    retain = ["--model", str(LAB / "models" / "retain"), "--data", str(DATA), "--out", str(tmp_path / "retain")]
    assert main(["eval", "tofu", *retain, *said]) == 0
    rows = ["--forget", str(DATA / "forget.jsonl"), "--eval-data", str(DATA), "--retain-logs", str(tmp_path / "retain")]
    how = ["--method", "GradAscent", "--epochs", "6", "--lr", "2e-3", "--accumulation", "1", "stats.resamples=0"]
    out = tmp_path / "long"
    assert main(["unlearn", "--model", str(FULL), "--out", str(out), *rows, *how, *said, "checkpoints=false"]) == 0
    curve = json.loads((out / "evals" / "watch.json").read_text())
    looks = {look["step"]: look for look in curve["looks"]}
    best, last = looks[curve["best"]], looks[max(looks)]
    assert last["values"][PROB] < 0.1 * curve["retain"][PROB] and last["why"].startswith("over-forgotten")
    assert last["score"] is None and 0 < best["step"] < last["step"]
    over = [look for look in looks.values() if look["why"].startswith("over-forgotten")]
    assert over and all(look["score"] is None for look in over)
    assert (out / "best" / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()
