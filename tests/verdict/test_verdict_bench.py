"""The verdict on models of known truth: the rule on the stored numbers of the bench, and the bench itself in small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vestige.cli import main
from vestige.meta.verdict import WORDS, bench_json, read_bench

sys.path.append(str(Path(__file__).parents[2] / "bench"))


ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "golden" / "verdict" / "facts.json"


@pytest.fixture(scope="module")
def models():
    return read_bench(STORED)


@pytest.fixture(scope="module")
def bench(models):
    return bench_json(models)


def test_the_rule_keeps_its_promises_on_seeds_it_has_not_seen(bench):
    missed = [r for r in bench["table"]["rates"] if r["met"] is not True]
    assert missed == []


def test_outputs_alone_never_prove_that_anything_was_forgotten(bench):
    assert {row["outputs"] for row in bench["models"]} <= set(WORDS) - {"forgotten"}


def test_meta_verdict_prints_the_table(tmp_path, capsys):
    assert main(["meta", "verdict", str(STORED), "--out", str(tmp_path / "meta")]) == 0
    said = capsys.readouterr().out
    assert "With all tests" in said and "With outputs only" in said and "never knew" in said
    assert json.loads((tmp_path / "meta" / "verdict_bench.json").read_text())["table"]["models"] > 0


def test_what_is_hidden_comes_back_faster_than_a_stranger_learns(bench):
    """The truths are true: by construction, and by what relearning brings back with its largest budget.

    With the least (three steps) a low-rank patch does not show yet.
    """
    back = bench["table"]["relearned"]
    assert back["never knew"][1][1] < 0.75 * back["hidden"][1][0]
    assert back["never knew"][1][1] < back["half forgotten"][1][0] and back["hidden"][1][1] < back["knows"][1][0]
