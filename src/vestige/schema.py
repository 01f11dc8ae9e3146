"""Whether data from a file have the form that their reader takes for granted; if not, which field is wrong.

A reader checks what it has parsed against a form (a type: TypedDict, dict[str, float], ...) before our code works with
it. So a KeyError or a TypeError behind that point is a mistake of ours, and looks like one.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from vestige.errors import UserError


def misfit(data: Any, form: Any) -> str:
    """What does not fit, and where; empty if all does. Keys that the form does not name are let through.

    >>> misfit({"a": {"c": [0], "b": [1, "x"]}}, dict[str, dict[str, list[int]]])
    'expected `int`, got `str` at `$.a.b[1]`'
    >>> misfit({"n": 1}, dict[str, float])
    ''
    """
    try:
        msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at ")
        where = f" at {_named(where, data, form)}" if where else ""
        return words[:1].lower() + words[1:] + where
    except RecursionError:
        return "it is nested too deeply"
    return ""


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])")


def _named(where: str, data: Any, form: Any) -> str:
    """The path of a wrong field with the keys of mappings, which msgspec leaves out as `[...]`."""
    path: list[Any] = []
    shown, end = "", 0
    for step in _STEP.finditer(where):
        name, index, hidden = step.groups()
        if hidden:
            name = _wrong_key(data, path, form)
            if name is None:
                break
        path.append(int(index) if index else name)
        shown, end = shown + where[end : step.start()] + (step[0] if index else f".{name}"), step.end()
    return shown + where[end:]


def _wrong_key(data: Any, path: list[Any], form: Any) -> Any:
    """Which key of the mapping at `path` holds what does not fit: its keys are halved until one is left."""
    whole = data
    for step in path:
        whole = whole[step]
    keys = list(whole)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        keys = half if _misfits(_with(data, path, {k: whole[k] for k in half}), form) else keys[len(half) :]
    return keys[0] if keys and _misfits(_with(data, path, {keys[0]: whole[keys[0]]}), form) else None


def _with(data: Any, path: list[Any], value: Any) -> Any:
    """The data with another value at a place; nothing is changed in place."""
    if not path:
        return value
    copy = list(data) if isinstance(data, (list, tuple)) else dict(data)
    copy[path[0]] = _with(data[path[0]], path[1:], value)
    return copy


def _misfits(data: Any, form: Any) -> bool:
    try:
        msgspec.convert(data, form)
    except msgspec.ValidationError:
        return True
    return False


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
