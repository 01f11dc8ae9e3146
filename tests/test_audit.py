"""Two checkpoints and one's own rows: what applies is worked out, what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB, SYSTEM
from vestige.cli import main
from vestige.judging.runs import JudgeAsk, judge_runs

DATA = LAB / "data"


def audit(*more: str) -> int:
    models = ["--before", str(LAB / "models" / "full"), "--after", str(LAB / "models" / "unlearned")]
    return main(["audit", *models, "--system-prompt", SYSTEM, "--limit", "6", *more])


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def forget_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "forget.jsonl").read_text().splitlines()]


def test_forget_and_retain_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = write(tmp_path / "f.jsonl", [{k: r[k] for k in ("question", "answer")} for r in forget_rows()])
    assert audit("--forget", plain, "--retain", str(DATA / "retain.jsonl"), "--out", str(tmp_path / "o")) == 0
    out = capsys.readouterr().out
    assert "forget_ROUGE" in out
    assert "mia_loss" not in out  # nothing to attack with
    for what in ("holdout rows", "paraphrased_answer", "retain model"):
        assert what in out
    assert "- retain rows" not in out
    summary = json.loads((tmp_path / "o" / "after" / "OWN_SUMMARY.json").read_text())
    assert {"forget_Prob", "retain_ROUGE", "forget_extraction_strength"} <= set(summary)
    assert "forget_truth_ratio" not in summary


def test_everything_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--forget", str(DATA / "forget.jsonl"), "--retain", str(DATA / "retain.jsonl")]
    more += ["--holdout", str(DATA / "holdout.jsonl"), "--retain-model", str(LAB / "models" / "retain")]
    assert audit(*more, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "What would make this firmer" not in out
    words = judge_runs(JudgeAsk([tmp_path / "after"], [tmp_path / "before"], [tmp_path / "retain"]))
    assert f"Did it forget? {words['title']}. {words['headline']}" in out
    assert words["power"]["text"] in out and "tells forget rows from fresh ones" in out
    assert f"vestige depth --unlearned {LAB / 'models' / 'unlearned'} --full" in out and "vestige stress relearn" in out
    before = json.loads((tmp_path / "before" / "OWN_SUMMARY.json").read_text())
    assert {"forget_quality", "privleak", "mia_loss", "forget_truth_ratio"} <= set(before)


def test_plain_text_rows_are_cut_in_the_middle(tmp_path: Path) -> None:
    rows = write(tmp_path / "t.jsonl", [{"text": f"{r['question']} {r['answer']}"} for r in forget_rows()])
    assert audit("--forget", rows, "--out", str(tmp_path / "o")) == 0
    result = json.loads((tmp_path / "o" / "before" / "OWN_EVAL.json").read_text())
    first = result["forget_ROUGE"]["value_by_index"]["0"]
    assert first["input"] == "Where was Anselm Varga born? Anselm"


@pytest.mark.parametrize(
    ("file", "content", "needle"),
    [("missing.jsonl", None, "no such file"), ("odd.jsonl", '{"body": "x"}\n', "none of the metrics")],
)
def test_mistakes(file: str, content: str | None, needle: str, tmp_path: Path, capsys: Any) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    assert audit("--forget", str(tmp_path / file), "--out", str(tmp_path / "o")) == 2
    assert needle in capsys.readouterr().err
