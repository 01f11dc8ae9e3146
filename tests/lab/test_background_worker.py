"""The demo's second core: work is done there in order, says nothing, and its failure costs only time."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from vestige.lab import background_worker as module
from vestige.lab import demo
from vestige.lab.background_worker import background_worker


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spare_core", lambda: True)


def _where(count: list[int]) -> tuple[int, list[int]]:
    print("not heard")
    return os.getpid(), [*count, 1]


def _only_here(home: int) -> str:
    if os.getpid() != home:
        raise ValueError("this fails in the worker")
    return "done here"


def _killed_elsewhere(home: int) -> str:
    if os.getpid() != home:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done here"


def test_work_is_done_in_another_process_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with background_worker() as worker:
        assert worker is not None
        first, second = worker.start(_where, [2]), worker.start(_where, [])
        assert first()[1] == [2, 1] and second()[1] == [1]
        assert first()[0] == second()[0] != os.getpid()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("work", [_only_here, _killed_elsewhere])
def test_a_worker_that_fails_or_dies_does_not_stop_the_demo(work: object, capfd: pytest.CaptureFixture[str]) -> None:
    with background_worker() as worker:
        assert worker is not None and callable(work)
        result = worker.start(work, os.getpid())
        assert result() == "done here"
    assert capfd.readouterr() == ("", "")


def _spoils(home: int, weights: torch.Tensor) -> float:
    weights += 1
    if os.getpid() != home:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(weights.sum())


def test_a_worker_that_dies_halfway_leaves_what_it_was_given(capfd: pytest.CaptureFixture[str]) -> None:
    weights = torch.zeros(3)
    with background_worker() as worker:
        assert worker is not None
        result = worker.start(_spoils, os.getpid(), weights)
        assert result() == 3.0  # as if nobody had begun
        # Nobody is there any more: the rest is done here.
        assert worker.start(_where, [])()[0] == os.getpid()
    with pytest.raises(KeyError), background_worker() as worker:
        assert worker is not None
        worker.start(_killed_elsewhere, os.getpid())()
        raise KeyError  # and not that the worker is gone


def test_a_demo_that_fails_takes_its_worker_along() -> None:
    begun = time.monotonic()
    with pytest.raises(KeyError), background_worker() as worker:
        assert worker is not None
        worker.start(time.sleep, 3600)
        worker.start(time.sleep, 3600)
        raise KeyError
    assert time.monotonic() - begun < 3600


def test_with_one_core_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spare_core", lambda: False)
    with background_worker() as worker:
        assert worker is None


def test_what_another_core_does_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("models", "evaluate", "diffusion"):
        part = demo.PARTS[name]
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
        assert demo.waiting_time(part) == part.seconds
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        assert 0 < demo.waiting_time(part) == part.seconds - part.meanwhile
    # The diffusion models are measured while layers and attacks are looked at.
    before = [p for name, p in demo.PARTS.items() if name in ("layers", "attacks")]
    assert demo.PARTS["diffusion"].meanwhile <= sum(p.seconds for p in before)
