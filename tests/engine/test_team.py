"""Several processes on one evaluation: the same numbers as one, and nothing lost when a team is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige.cli import main
from vestige.runs.team import Team
from vestige.types import Target

MODELS, DATA = LAB / "models", LAB / "data"
EVAL = ["eval", "tofu", "--model", str(MODELS / "unlearned"), "--data", str(DATA), "--limit", "6", "--quiet"]
EVAL += ["--metrics", "forget_Q_A_Prob,forget_Q_A_ROUGE,mia_loss,forget_truth_ratio,mia_gradnorm"]
DEPTH = ["depth", "--unlearned", str(MODELS / "unlearned"), "--full", str(MODELS / "full"), "--quiet"]
DEPTH += ["--retain-model", str(MODELS / "retain"), "--forget", str(DATA / "forget.jsonl"), "--limit", "6"]


def launch(command: list[str], processes: int = 2) -> subprocess.CompletedProcess[str]:
    """As a person does: torchrun --nproc-per-node 2 -m vestige ... (accelerate launch does the same on GPUs)"""
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", "vestige", *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=env, timeout=300)


def read(run: Path, pattern: str) -> Any:
    return json.loads(next(run.glob(pattern)).read_text())


def close(a: Any, b: Any) -> bool:
    """Equal shapes, keys and texts; numbers to float32 rounding, because rows are packed otherwise."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return a == pytest.approx(b, rel=2e-5, abs=2e-6) if isinstance(a, float) else a == b


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert main([*EVAL, "--out", str(alone)]) == 0
    done = launch([*EVAL, "--out", str(together)])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("forget_Q_A_Prob") == 1  # one of them speaks
    assert close(read(alone, "*_EVAL.json"), read(together, "*_EVAL.json"))
    manifest = read(together, "manifest.json")
    assert manifest["processes"] == 2
    # Both ran the model, each on its share; what was asked for is counted once.
    assert manifest["cost"]["nodes"] <= 1.3 * read(alone, "manifest.json")["cost"]["nodes"]


def test_depth_in_two_processes(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert main([*DEPTH, "--out", str(alone)]) == 0
    done = launch([*DEPTH, "--out", str(together)])
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads(next(p.rglob("summary.json")).read_text()) for p in (alone, together))
    assert one["avg_uds"] == pytest.approx(two["avg_uds"], abs=1e-5)


def test_a_verb_that_cannot_share_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["ls"]) == 2
    assert "works in one process" in capsys.readouterr().err


def test_shares_are_a_partition_that_keeps_prompts_together() -> None:
    targets = [Target((1, p, 5, a), 3) for p in range(2, 9) for a in range(3)]
    wants = {t.key: t for t in targets}
    shares = [Team(rank, 3).share(wants) for rank in range(3)]
    assert sorted(k for share in shares for k in share) == sorted(wants)
    prompts = [{t.ids[:3] for t in share.values()} for share in shares]
    assert not any(a & b for i, a in enumerate(prompts) for b in prompts[i + 1 :])
    assert all(shares)
