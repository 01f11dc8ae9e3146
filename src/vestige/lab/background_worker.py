"""The demo's second core: work that need not wait for its turn is done in a process of its own.

In: functions of a module, called as they would be called here. Out: what they return, asked for later. A worker that
fails costs time and not the demo: the work is then done here, when its result is asked for, and an error is shown.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

T = TypeVar("T")


def spare_core() -> bool:
    """Whether a second process would have a core of its own."""
    return (os.cpu_count() or 1) > 1


class Worker:
    """A second process, which does what it is given in order."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def start(self, work: Callable[..., T], *given: Any) -> Callable[[], T]:
        """Hands over work. Returns a function that waits for its end and gives its result."""
        # A copy is handed over, because torch puts tensors into shared memory: a worker that dies halfway through a
        # training would leave half-trained weights here.
        try:
            pending = self._pool.submit(work, *copy.deepcopy(given))
        except BrokenExecutor:
            return lambda: work(*given)

        def result() -> T:
            failed = pending.exception()  # waits
            return pending.result() if failed is None else work(*given)

        return result


@contextmanager
def background_worker() -> Iterator[Worker | None]:
    """A worker, which ends with the block. None where there is one core only: there is nothing to gain."""
    if not spare_core():
        yield None
        return
    # Spawned rather than forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(1, get_context("spawn"), _be_silent) as pool:
        process = pool.submit(os.getpid)
        try:
            yield Worker(pool)
        except BaseException:  # a demo that failed does not wait for its worker
            pool.shutdown(wait=False, cancel_futures=True)
            number = None if process.exception() else process.result()
            for child in active_children():
                if child.pid == number:
                    child.terminate()
            raise


def _be_silent() -> None:
    """The terminal belongs to the demo: bars and errors of this process go nowhere, at the level of the system."""
    import torch

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)
