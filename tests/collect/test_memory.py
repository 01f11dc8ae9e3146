"""The one loop that tries again with less when memory runs out (collect/safety.py)."""

from __future__ import annotations

import weakref

import pytest
import torch

from vestige.collect import safety
from vestige.collect.safety import Halving


def spend(size: int, room: int) -> int:
    if size > room:
        raise torch.OutOfMemoryError("out of memory")
    return size


def test_halves_until_it_fits() -> None:
    size, tried = 12, []
    for attempt in Halving():
        if attempt.again:
            size //= 2
        with attempt:
            attempt.size = size
            tried.append(size)
            spend(size, 3)
    assert tried == [12, 6, 3]


def test_a_piece_of_one_is_not_tried_again() -> None:
    size = 4
    with pytest.raises(torch.OutOfMemoryError):
        for attempt in Halving():
            size = size // 2 if attempt.again else size
            with attempt:
                attempt.size = size
                spend(size, 0)
    assert size == 1


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("shapes differ")])
def test_other_errors_are_not_a_matter_of_size(error: Exception) -> None:
    count = 0
    with pytest.raises(type(error)):
        for attempt in Halving():
            count += 1
            with attempt:
                attempt.size = 8
                raise error
    assert count == 1


def test_memory_is_freed_when_nothing_holds_the_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traceback of the error holds the frame that failed, and that its tensors: freeing earlier frees nothing."""
    held: list[weakref.ref[torch.Tensor]] = []
    seen: list[bool] = []
    monkeypatch.setattr(safety, "free_memory", lambda: seen.append(held[-1]() is None))

    def work(fails: bool) -> None:
        large = torch.zeros(4)
        held.append(weakref.ref(large))
        if fails:
            raise MemoryError

    for attempt in Halving():
        with attempt:
            attempt.size = 2
            work(not attempt.again)
    assert seen == [True]
