"""Work on the demo's second core: it leaves files, says nothing, and ends with the demo."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vestige.lab import beside as module
from vestige.lab import story
from vestige.lab.beside import beside


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spare_core", lambda: True)


def test_waiting_ends_when_the_work_is_done(tmp_path: Path) -> None:
    with beside(os.mkdir, tmp_path / "made") as done:
        done()
        assert (tmp_path / "made").is_dir()


def test_a_failing_helper_says_nothing_and_does_not_stop_the_demo(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with beside(os.rmdir, tmp_path / "missing") as done:
        done()
    assert capfd.readouterr() == ("", "")


def test_a_demo_that_fails_takes_its_helper_along() -> None:
    begun = time.monotonic()
    with pytest.raises(KeyError), beside(time.sleep, 3600):
        raise KeyError
    assert time.monotonic() - begun < 3600


def test_with_one_core_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spare_core", lambda: False)
    with beside(os.mkdir, tmp_path / "made") as done:
        done()
    assert not (tmp_path / "made").exists()


def test_what_another_core_does_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    part = story.PARTS["diffusion"]
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert story.waiting(part) == part.seconds
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert 0 < story.waiting(part) == part.seconds - part.beside
    # It is done by the time its turn comes.
    before = [p for name, p in story.PARTS.items() if name in ("models", "evaluate")]
    assert part.beside <= sum(p.seconds for p in before)
