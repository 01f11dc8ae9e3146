"""Several processes on one evaluation: each collects a share, all end with the same evidence.

    accelerate launch --num_processes 4 -m vestige eval tofu --model ...

Every process plans the same wants: planning is cheap and runs no model. What the evidence on disk lacks is dealt out by
content; each process writes its batches into the same folder, and everybody reads the whole folder. Only the leader
writes results and prints. Processes exchange files, not tensors, so a team needs no fast network, and a member's work
survives its death.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from vestige.types import Target, content_key

T = TypeVar("T")


class Team:
    """This process among those that work together; alone it costs nothing."""

    def __init__(self, rank: int = 0, size: int = 1, meeting: Any = None) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting
        self.leads = rank == 0

    def share(self, wants: Mapping[str, T]) -> dict[str, T]:
        """This process's part. Wants with the same prompt stay together: they share its cost.

        >>> Team(1, 2).share({"a": 1, "c": 3, "b": 2})
        {'b': 2}
        """
        if self.size == 1:
            return dict(wants)  # nothing to deal out, and prompts need no digest
        # Every process must come to the same deal without talking: only the wants' content may enter, not their order,
        # not the time. Names are digests, so sorting them shuffles long and short prompts, and shares cost about the
        # same.
        groups: dict[str, list[str]] = {}
        for key, want in wants.items():
            groups.setdefault(_prompt_key(key, want), []).append(key)
        mine = {key for name in sorted(groups)[self.rank :: self.size] for key in groups[name]}
        return {key: want for key, want in wants.items() if key in mine}  # in the order they were asked in

    def meet(self) -> None:
        """Waits until everybody is here. If one fails, its launcher stops the others."""
        if self.size > 1:
            self._meeting.wait_for_everyone()

    def gather(self, item: T) -> list[T]:
        """Everybody's item, in the order of ranks."""
        if self.size == 1:
            return [item]
        from accelerate.utils import gather_object

        return list(gather_object([item]))


def _prompt_key(key: str, want: Any) -> str:
    """What is dealt out together. Apart, each process would push the same prompt through its own model."""
    if isinstance(want, Target):
        return content_key(repr(want.ids[: want.start]).encode())
    prompt = getattr(want, "prompt", None)
    return key if prompt is None else str(prompt.key)


_alone = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process works by itself: the others of its launcher do something else meanwhile."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def team() -> Team:
    """The team that a launcher (accelerate, torchrun) made of this process and others; otherwise a team of one."""
    # Both launchers set this variable. Asking it first keeps accelerate and torch out of commands that work alone.
    return Team() if _alone.get() or int(os.environ.get("WORLD_SIZE", "1")) < 2 else _launched()


@functools.cache
def _launched() -> Team:
    import datetime

    from accelerate import PartialState

    # Without an accelerator the processes meet through gloo, which needs no GPU.
    # Shares take as long as they take: the usual half hour would end a healthy run.
    state = PartialState(cpu=not _has_accelerator(), timeout=datetime.timedelta(days=7))
    return Team(state.process_index, state.num_processes, state)


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available()
