"""Numbers for people, the same in tables, verdicts and pictures; and the words that carry no fact."""

from __future__ import annotations

# Words that carry no fact by themselves: facts are looked for among the others.
_WORDS = """
    a an the of in on at to for from by with as and or but nor so is are was were be been being am it its this that
    these those he she they his her their him them who whom whose which what when where why how has have had do does
    did not no yes also into onto over under about between through during after before since until than then there here
    very most more such own can could will would shall should may might must i you we my your our me us named called
    titled known
"""
FUNCTION_WORDS = frozenset(_WORDS.split())


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


def percent(share: float) -> str:
    """A share in whole percents.

    >>> percent(0.264), percent(-0.1)
    ('26 %', '-10 %')
    """
    return f"{100 * share:.0f} %"


def counted(n: int, noun: str) -> str:
    """
    >>> counted(1, "cluster"), counted(3, "cluster")
    ('1 cluster', '3 clusters')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
