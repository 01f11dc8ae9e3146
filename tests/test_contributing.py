"""CONTRIBUTING's recipe for a new metric, followed to the letter on a copy of the source."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_docs import ROOT, blocks, filled

PAGE = ROOT / "CONTRIBUTING.md"
TEXT = filled(PAGE.read_text(encoding="utf-8")).split("## A new metric in three steps")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with the three steps done."""
    place = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    steps = [b for b in blocks(PAGE) if b.body in TEXT]
    assert [b.mark for b in steps] == ["add to", "add to", "file", "not run"]
    for block in steps[:3]:
        file = place / block.word
        before = file.read_text(encoding="utf-8") if block.mark == "add to" else ""
        file.write_text(f"{before}\n\n{block.body}" if before else block.body, encoding="utf-8")
    for needed in re.findall(r"It needs `([^`]+)` at the top", TEXT):
        file = place / steps[1].word
        first = "from vestige.metrics import memorisation\n"
        text = file.read_text(encoding="utf-8")
        assert text.count(first) == 1
        file.write_text(text.replace(first, f"{first}{needed}\n"), encoding="utf-8")
    return place


def run(tree: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *words], cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_commands_of_the_recipe_use_the_new_metric(tree: Path) -> None:
    commands = next(b.body for b in blocks(PAGE) if b.kind == "bash" and "worst_token" in b.body)
    said = [run(tree, *shlex.split(line)) for line in commands.splitlines()]
    summary = json.loads((tree / "saves" / "eval" / "worst" / "TOFU_SUMMARY.json").read_text())
    assert list(summary) == ["forget_worst_token"] and summary["forget_worst_token"] > 0
    assert "token surprises" in said[0]  # the card's reading, in the table
    assert "-(least lp_t)" in said[1] and "Your Paper 2026" in said[1]
