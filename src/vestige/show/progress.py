"""Progress: bars on standard error, rare lines in a log file; and how to silence output."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ALLOWED = [True]  # False while a command with --quiet runs


@contextmanager
def bars(wanted: bool) -> Iterator[None]:
    """Whether bars are drawn and counted at all, whatever a caller asks for (`--quiet`)."""
    before = ALLOWED[0]
    ALLOWED[0] = wanted
    try:
        yield
    finally:
        ALLOWED[0] = before


class Bar:
    """A tqdm bar with a total, counted or set; in a log file a line now and then; silent when asked."""

    EVERY = 30.0  # seconds between two lines of a log file

    def __init__(self, label: str, total: int, unit: str, show: bool) -> None:
        from tqdm import tqdm

        self.base, self.count, self.total = 0, 0, total
        self.label, self.unit = label, unit
        show = show and ALLOWED[0]
        watched = show and sys.stderr.isatty()
        self.logged = show and not watched
        self.spoke = time.monotonic()
        self.bar: Any = tqdm(
            total=total, desc=label, unit=unit, unit_scale=True, disable=not watched, delay=0.5, leave=False
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def add(self, amount: int) -> None:
        self.count += amount
        self.bar.update(amount)
        if self.logged and time.monotonic() - self.spoke >= self.EVERY:
            self.spoke = time.monotonic()
            print(f"{self.label}: {self.count} of {self.total} {self.unit}", file=sys.stderr, flush=True)

    def expect(self, count: int, left: int) -> None:
        """A running count stands at `count` and has `left` to go."""
        self.base, self.count, self.total = count, 0, left
        self.bar.reset(total=left)

    def to(self, count: int) -> None:
        self.add(count - self.base - self.count)


@contextmanager
def hushed() -> Iterator[None]:
    """Our own warnings held back while somebody else says the same in better words."""
    log = logging.getLogger("vestige")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
