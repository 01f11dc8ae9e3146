"""Numbers for people, the same in tables, verdicts and pictures."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Four digits that mean something.

    >>> number(0.95163), number(1.9e-5), number(-99.99999), number(None)
    ('0.9516', '1.9e-05', '-100.00', '-')
    """
    if value is None:
        return "-"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def with_interval(value: float | None, lo: float | None = None, hi: float | None = None) -> str:
    """A number and, where there is one, its interval.

    >>> with_interval(0.25, 0.2, 0.3), with_interval(0.25)
    ('0.2500 (0.2000 to 0.3000)', '0.2500')
    """
    return number(value) if lo is None or hi is None else f"{number(value)} ({number(lo)} to {number(hi)})"
