"""What a resumed training says; loggers and hub settings. (Killed trainings: tests/contract/test_training.py.)"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB, SYSTEM
from vestige.cli import main

DATA, FULL, RETAIN = LAB / "data", LAB / "models" / "full", LAB / "models" / "retain"
ROWS = ["--forget", str(DATA / "forget.jsonl"), "--retain", str(DATA / "retain.jsonl")]
LESSON = [*ROWS, "--epochs", "4", "--lr", "1e-3", "--accumulation", "1", "--limit", "8", "--quiet"]


def lesson(out: Path, method: str, *more: str) -> list[str]:
    if method == "train":
        short = [word for word in LESSON if word not in ROWS]
        return ["train", "--learn", str(DATA / "forget.jsonl"), "--model", str(FULL), "--out", str(out), *short, *more]
    return ["unlearn", "--method", method, "--model", str(FULL), "--out", str(out), *LESSON, *more]


def test_report_to_takes_effect(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    more = ["--metrics", "forget_Q_A_Prob", "--eval-data", str(DATA), "trainer.args.report_to=tensorboard"]
    short = [*lesson(tmp_path / "a", "GradAscent", *more), "--epochs", "2"]
    assert main(short) == 0
    events = EventAccumulator(str(next((tmp_path / "a" / "runs").iterdir())))
    events.Reload()
    assert {"train/loss", "train/vestige/forget_Q_A_Prob"} <= set(events.Tags()["scalars"])
    elsewhere = [*lesson(tmp_path / "b", "GradAscent", "trainer.args.report_to=tensorboard"), "--epochs", "1"]
    assert main([*elsewhere, f"trainer.args.logging_dir={tmp_path / 'logs'}"]) == 0
    assert list((tmp_path / "logs").glob("events*")) and not (tmp_path / "b" / "runs").exists()
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ


@pytest.mark.parametrize("name", ["push_to_hub=true", "hub_model_id=me/mine"])
def test_hub_settings_are_refused_by_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(lesson(tmp_path, "NPO", f"+trainer.args.{name}")) == 2
    assert f"trainer.args.{name.split('=')[0]} has no effect here" in capsys.readouterr().err


def test_retain_logs_keep_the_closest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = ["--metrics", "forget_Q_A_Prob,retain_Q_A_Prob", "--limit", "8", "--quiet"]
    more: list[Any] = ["--data", str(DATA), "--system-prompt", SYSTEM, *metrics]
    assert main(["eval", "tofu", "--model", str(RETAIN), "--out", str(tmp_path / "retain"), *more]) == 0
    words = lesson(tmp_path / "npo", "NPO", "--eval-data", str(DATA), "--system-prompt", SYSTEM, *metrics[:2])
    assert main([*words, "--retain-logs", str(tmp_path / "retain")]) == 0
    record = json.loads((tmp_path / "npo" / "training.json").read_text())
    assert record["best"]["rule"] == "closest" and (tmp_path / "npo" / "best" / "model.safetensors").is_file()
    scores = {look["epoch"]: look["score"] for look in record["evals"]}
    assert scores[0] == pytest.approx(0.0, abs=1e-6)  # the model before unlearning has forgotten nothing
    assert record["best"]["score"] == max(s for epoch, s in scores.items() if epoch and s is not None)
    curve = json.loads((tmp_path / "npo" / "evals" / "watch.json").read_text())
    assert curve["retain"]["forget_Q_A_Prob"] < curve["before"]["forget_Q_A_Prob"]
