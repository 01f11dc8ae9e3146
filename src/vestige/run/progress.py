"""What is said while work goes on: bars on standard error, for people only; and holding one's tongue."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """A tqdm bar with a total, counted or set; silent when asked or when nobody is watching."""

    def __init__(self, label: str, total: int, unit: str, show: bool) -> None:
        from tqdm import tqdm

        self.base = 0
        watched = show and sys.stderr.isatty()
        self.bar: Any = tqdm(
            total=total, desc=label, unit=unit, unit_scale=True, disable=not watched, delay=0.5, leave=False
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def add(self, amount: int) -> None:
        self.bar.update(amount)

    def expect(self, count: int, left: int) -> None:
        """A running count stands at `count` and has `left` to go."""
        self.base = count
        self.bar.reset(total=left)

    def to(self, count: int) -> None:
        self.bar.update(count - self.base - self.bar.n)


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
