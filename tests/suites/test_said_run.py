"""Secrets said, repetition and likelihood of what was said, through the command line on the golden lab."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige.cli import main
from vestige.metrics.secrets_said import secret_of
from vestige.runs.files import load_rows
from vestige.suites import handlers as _register  # noqa: F401
from vestige.types import Text
from vestige.wants import Decoding, Request

FULL, RETAIN = (LAB / "models" / name for name in ("full", "retain"))
METRICS = "forget_ROUGE,forget_secrets_said,forget_repetition,forget_said_likelihood"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("said") / "run"
    args = ["eval", "own", "--model", str(RETAIN), "--data", str(LAB / "data"), "--out", str(out), "--limit", "6"]
    assert main([*args, "--metrics", METRICS, f"eval.own.full_model_path={FULL}"]) == 0
    return out


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "OWN_EVAL.json").read_text())
    return found


def data_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LAB / "data" / "forget.jsonl").read_text().splitlines()][:6]


def test_secrets_are_counted_in_the_texts_of_rouge(run: Path) -> None:
    found = results(run)
    said, texts = found["forget_secrets_said"], found["forget_ROUGE"]["value_by_index"]
    for i, row in enumerate(data_rows()):
        entry, secret = said["value_by_index"][str(i)], secret_of(row)
        assert entry["secret"] == list(secret)
        slow = any(f" {s.lower()} " in f" {texts[str(i)]['generation'].lower().replace('.', ' ')} " for s in secret)
        assert entry["said"] == (float(slow) if secret else None)
    known = [e["said"] for e in said["value_by_index"].values() if e["said"] is not None]
    assert said["with_secret"] == len(known) and said["count"] == sum(known)
    assert said["agg_value"] == pytest.approx(sum(known) / len(known))


def test_what_was_said_is_as_likely_as_transformers_says(run: Path) -> None:
    """Each text under the other model, one plain forward pass at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    from vestige.engine.stored import load_evidence
    from vestige.runs.run import read_manifest

    model = AutoModelForCausalLM.from_pretrained(FULL, dtype=torch.float32).eval()
    manifest = read_manifest(run)
    rows = load_rows(run / "evidence" / "examples.json.gz")[manifest["data_of"]["forget_ROUGE"]["forget"]]
    texts = load_evidence(run, manifest).texts
    scores = results(run)["forget_said_likelihood"]["value_by_index"]
    for [example] in rows.examples:
        text = texts[Request(example.prompt, Decoding()).key]
        assert isinstance(text, Text)
        ids = torch.tensor([[*example.prompt.ids, *text.ids]])
        with torch.no_grad():
            logprobs = model(ids).logits.float().log_softmax(-1)
        start = len(example.prompt.ids)
        got = [logprobs[0, t - 1, ids[0, t]].item() for t in range(start, ids.shape[1])]
        assert scores[example.index]["score"] == pytest.approx(math.exp(sum(got) / len(got)), rel=1e-4)


def test_scored_again_from_evidence_alone(run: Path, tmp_path: Path) -> None:
    before = results(run)
    again = tmp_path / "again"
    shutil.copytree(run, again)
    assert main(["score", str(again)]) == 0
    assert results(again) == before
