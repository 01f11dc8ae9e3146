"""The demo's second core: work that needs nothing of the parts before it is done beside them, in a process of its own.

In: a function that leaves its results in files. Out: those files, which the demo then finds as a second call of it
would. Nothing else passes between the two, so that a helper which fails costs time and not the demo: what is missing is
made in its turn, and an error is told there. Caller: lab/demo.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context

from vestige.lab.story import spare_core


@contextmanager
def beside(work: Callable[..., object], *given: object) -> Iterator[Callable[[], None]]:
    """Starts the work; what it yields waits for its end. With one core there is nothing to win, and nothing starts."""
    if not spare_core():
        yield lambda: None
        return
    # Spawned rather than forked: torch's threads do not survive a fork.
    helper = get_context("spawn").Process(target=_silently, args=(work, given))
    helper.start()
    try:
        yield helper.join
    finally:
        helper.terminate()  # only if nobody waited for its end, because the demo failed before
        helper.join()


def _silently(work: Callable[..., object], given: tuple[object, ...]) -> None:
    """The terminal belongs to the demo: bars and errors of this process go nowhere, at the level of the system."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    work(*given)
