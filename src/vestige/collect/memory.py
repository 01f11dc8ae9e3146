"""Running out of memory: how it shows, what frees some, and the one loop that tries again with less.

In: work that may not fit. Out: the same work in smaller pieces. Callers: everything in this room that sizes its own
batches, and engine/handles.py when a model goes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import TracebackType

import torch


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU allocator and MPS raise a plain RuntimeError; their texts are all there is to go by.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


class Halving:
    """Tries until the work fits into memory. Each time it does not, memory is freed and the caller asks for less:

        for attempt in Halving():
            if attempt.again:
                size //= 2
            with attempt:
                attempt.size = size
                ...

    `size` is that of the piece in work: at 1 there is nothing to halve, and the error is the caller's. Memory is freed
    between two attempts and not where the error is caught: as long as the error lives, its traceback holds the tensors.
    """

    def __init__(self) -> None:
        self.size = 1
        self.again = self._failed = False

    def __iter__(self) -> Iterator[Halving]:
        yield self
        while self._failed:
            free_memory()
            self.again, self._failed = True, False
            yield self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self._failed = error is not None and self.size > 1 and out_of_memory(error)
        return self._failed


def free_memory(gone: bool = False) -> None:
    """Gives back what nothing refers to. `gone`: the caller has seen its object go, so that on a CPU nothing is left
    to look for (looking through all that torch and transformers made takes a quarter of a second)."""
    gpu = torch.cuda.is_available()
    if gpu or not gone:
        gc.collect()
    if gpu:
        torch.cuda.empty_cache()
