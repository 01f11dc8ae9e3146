"""A training that is killed goes on where its last checkpoint is, to the same weights; loggers and hub settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import LAB, SYSTEM
from vestige.cli import main
from vestige.unlearn.resume import last_checkpoint, save_work, threads_of

DATA, FULL, RETAIN = LAB / "data", LAB / "models" / "full", LAB / "models" / "retain"
ROWS = ["--forget", str(DATA / "forget.jsonl"), "--retain", str(DATA / "retain.jsonl")]
LESSON = [*ROWS, "--epochs", "4", "--lr", "1e-3", "--accumulation", "1", "--limit", "8", "--quiet"]


def lesson(out: Path, method: str, *more: str) -> list[str]:
    if method == "train":
        short = [word for word in LESSON if word not in ROWS]
        return ["train", "--learn", str(DATA / "forget.jsonl"), "--model", str(FULL), "--out", str(out), *short, *more]
    return ["unlearn", "--method", method, "--model", str(FULL), "--out", str(out), *LESSON, *more]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        assert torch.get_num_threads() == count, "a training left another number of threads behind"
        torch.set_num_threads(before)


def killed(words: list[str], place: Path, count: int) -> None:
    """The command, ended by SIGKILL as soon as there is a whole checkpoint."""
    env = {**os.environ, "OMP_NUM_THREADS": str(count)}
    process = subprocess.Popen([sys.executable, "-m", "vestige", *words], stdout=subprocess.DEVNULL, env=env)
    try:
        while process.poll() is None and not list(place.glob(".vestige/unfinished-*/checkpoint-*/trainer_state.json")):
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    assert process.returncode == -signal.SIGKILL, "it was faster than the test"
    assert not (place / "model.safetensors").exists()


WATCHED = ("--metrics", "forget_Q_A_Prob", "--eval-data", str(DATA))
KILLED = [("NPO", WATCHED, 1, 1), ("RMU", (), 2, 1), ("train", ("--lora", "4"), 1, 2)]


@pytest.mark.processors
@pytest.mark.parametrize(("method", "more", "count", "other"), KILLED, ids=[k[0] for k in KILLED])
def test_a_killed_training_ends_in_the_same_weights(
    method: str, more: tuple[str, ...], count: int, other: int, tmp_path: Path
) -> None:
    """NPO compares with the starting model and is evaluated on the way; RMU carries a random direction.

    With another number of threads sums end in other last bits; a training goes on with those it began with.
    """
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    with threads(count):
        assert main(lesson(whole, method, *more)) == 0
    token = "hf_" + "x" * 30
    again = [*lesson(cut, method, *more), f"+trainer.args.hub_token={token}"]
    killed(again, cut, count)
    assert not [p for p in cut.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    with threads(other):
        assert main(again) == 0
    weights = "adapter_model.safetensors" if "--lora" in more else "model.safetensors"
    assert (whole / weights).read_bytes() == (cut / weights).read_bytes()
    one, two = (json.loads((place / "training.json").read_text()) for place in (whole, cut))
    assert one["losses"] == two["losses"] and len(one["losses"]) == 4 and one["evals"] == two["evals"]
    assert any("went on from checkpoint-" in note for note in two["notes"])
    assert any("threads, as before the interruption" in note for note in two["notes"]) is (count != other)
    assert sorted(p.name for p in whole.rglob("*")) == sorted(p.name for p in cut.rglob("*"))  # nothing is left over
    assert main(["verify", str(cut)]) == 0


def test_another_processor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums end in other last bits, which nothing here can mend."""
    (tmp_path / "checkpoint-3").mkdir()
    save_work(tmp_path / "checkpoint-3", {})
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text("{}")
    monkeypatch.setattr("vestige.unlearn.resume._instructions", lambda: "ABACUS")
    with threads_of(last_checkpoint(tmp_path)) as notes:
        assert len(notes) == 2 and "went on with ABACUS: the weights are not bit for bit" in notes[1]


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
