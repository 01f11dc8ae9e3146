"""Whether data from a file have the form that their reader takes for granted; if not, which field is wrong.

A reader checks what it has parsed against a form (a type: TypedDict, dict[str, float], ...) before our code works with
it. So a KeyError or a TypeError behind that point is a mistake of ours, and looks like one.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from vestige.errors import UserError


def misfit(data: Any, form: Any) -> str:
    """What does not fit, and where; empty if all does. Keys that the form does not name are let through.

    >>> misfit({"a": {"b": [1, "x"]}}, dict[str, dict[str, list[int]]])
    'expected `int`, got `str` at `$[...][...][1]`'
    >>> misfit({"n": 1}, dict[str, float])
    ''
    """
    try:
        msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        words = str(error).replace(" - at ", " at ")
        return words[:1].lower() + words[1:]
    except RecursionError:
        return "it is nested too deeply"
    return ""


def check_form(data: Any, form: Any, what: str, remedy: str = "make it again") -> None:
    """One sentence about the file and the field that is wrong."""
    if words := misfit(data, form):
        raise UserError(f"{what} does not have the form it should: {words}; {remedy}.")


def number(value: Any) -> float | None:
    """A number as Python reads it from JSON; None for anything else, true and false included.

    >>> number(2), number(True), number("2")
    (2.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
