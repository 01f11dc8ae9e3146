"""Our own JSON files as records, JSON in one order, and files that are whole or not there.

Every record is a frozen dataclass. `decode` turns a file into one; a field of the wrong type, or a file that is
cut short, is reported with the name of the file and of the field.

`replacing` and `write_file` write one file atomically and ask nobody whose it is: files in a run directory are written
by runs/directory.py, which does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vestige.errors import UserError, write_error
from vestige.guard import read_json
from vestige.secrets import hide

T = TypeVar("T")


class DamagedError(UserError):
    """One of our files is not what was written."""


def damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path} is damaged ({why}); delete it, then run the command that made it again.")


def decode(path: Path, form: type[T]) -> T:
    """The record in one of our JSON files. FileNotFoundError if there is no file, DamagedError if it does not fit.

    `form` is a dataclass, or a type such as dict[str, Record]. msgspec reads its annotations, so they must be
    importable at run time (not under TYPE_CHECKING). Keys that the record does not name are ignored.
    """
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise damaged(path, str(error)) from None
    if problem := misfit(data, form):
        raise damaged(path, problem)
    return msgspec.convert(data, form)


def decode_data(data: Any, form: type[T], what: str, remedy: str = "make it again") -> T:
    """The same for data that is already parsed. `what` names the file in the error, `remedy` says what to do."""
    if problem := misfit(data, form):
        raise UserError(f"{what} does not have the form it should: {problem}; {remedy}.")
    return msgspec.convert(data, form)


# ---- what is wrong with data --------------------------------------------------------------------------------------


def misfit(data: Any, form: Any, place: str = "") -> str:
    """What does not fit, and where; empty if all does. Keys that the form does not name are let through.

    `place` is where the data are in a larger whole, such as `$.model`.

    >>> misfit({"a": {"c": [0], "b": [1, "x"]}}, dict[str, dict[str, list[int]]])
    'expected `int`, got `str` at `$.a.b[1]`'
    >>> misfit({"n": 1}, dict[str, float])
    ''
    >>> misfit(["a"], list[int], "$.layers")
    'expected `int`, got `str` at `$.layers[0]`'
    """
    try:
        msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at ")
        where = _named(where, data, form) if where else ""
        if place:
            where = where.replace("`$", f"`{place}", 1) or f"`{place}`"
        return words[:1].lower() + words[1:] + (f" at {where}" if where else "")
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


# ---- one file, whole or not at all ----------------------------------------------------------------------------------

_DIGIT = re.compile("[0-9]")
WORK = ".vestige"  # temporary files of a run are in this folder of its directory
_lock = threading.Lock()
_count = 0


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, path) from None


def temporary_name(suffix: str = "") -> str:
    """A new name for a temporary file or folder. It says whose it is, so that those of dead processes can go."""
    global _count
    with _lock:
        _count += 1
        return f"tmp-{host_name()}-{os.getpid()}-{_count}{suffix}"


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "", socket.gethostname())


def _work_folder(path: Path) -> Path:
    """Where a file is written before it is whole: in the run it belongs to, else next to it."""
    if (path.parent / WORK).is_dir():
        return path.parent / WORK
    for place in path.parents[1:]:
        if os.path.lexists(place / WORK / ".lock"):
            return place / WORK
    return path.parent


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` at the end. If the work in between fails, nothing has changed."""
    make_directory(path.parent)
    folder = _work_folder(path.absolute())
    name = temporary_name(path.suffix)
    half = folder / (name if folder.name == WORK else f".{name}")
    try:
        yield half
        half.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_error(error, path) from None
        raise


def write_file(path: Path, data: bytes) -> None:
    with replacing(path) as half:
        half.write_bytes(data)


# ---- JSON in one order ----------------------------------------------------------------------------------------------


def json_text(data: Mapping[str, Any]) -> str:
    """A file of JSON: sorted keys and fixed indentation, so that equal data are equal bytes; secrets are replaced."""
    return hide(json.dumps(in_order(data), indent=4, ensure_ascii=False, allow_nan=False))


def json_pieces(data: Any, indent: int | None = None, depth: int = 4, level: int = 0) -> Iterator[str]:
    """What json.dumps makes of the data in order, entry by entry of mappings that hold others.

    >>> "".join(json_pieces({"b": {"c": [1]}, "a": {}}))
    '{"a": {}, "b": {"c": [1]}}'
    """
    line = "" if indent is None else "\n" + " " * indent * level
    if depth == 0 or not _nests(data):
        text = json.dumps(in_order(data), indent=indent, ensure_ascii=False, allow_nan=False)
        yield text.replace("\n", line) if line else text  # texts in JSON have no line breaks of their own
        return
    deeper, between = line + " " * (indent or 0), ", " if indent is None else ","
    for i, key in enumerate(_sorted_keys(data)):
        yield f"{between if i else '{'}{deeper}{json.dumps(key, ensure_ascii=False)}: "
        yield from json_pieces(data[key], indent, depth - 1, level + 1)
    yield line + "}"


def _nests(data: Any) -> bool:
    """Whether it is a mapping of names to more than plain values; of one that makes its values nobody asks."""
    if not isinstance(data, Mapping) or not data or not all(isinstance(key, str) for key in data):
        return False
    return not isinstance(data, dict) or any(isinstance(value, Mapping) for value in data.values())


def in_order(data: Any) -> Any:
    """The same data with the keys of every mapping sorted, numbers in them by their size.

    >>> list(in_order({"step_10": 0, "step_2": 0, "b": 0, "10": 0, "9": 0}))
    ['9', '10', 'b', 'step_2', 'step_10']
    """
    if isinstance(data, Mapping):
        ordered = {}
        for key in _sorted_keys(data):
            value = data[key]
            ordered[key] = in_order(value) if isinstance(value, (Mapping, list, tuple)) else value
        return ordered
    if not isinstance(data, (list, tuple)):
        return data
    items = []
    for item in data:
        items.append(in_order(item) if isinstance(item, (Mapping, list, tuple)) else item)
    return items


def _sorted_keys(data: Mapping[Any, Any]) -> list[Any]:
    if not _DIGIT.search("".join(map(str, data))):
        return sorted(data, key=str)  # without numbers the order is the alphabet's
    return sorted(data, key=_natural)


def _natural(key: Any) -> tuple[list[Any], str]:
    parts: list[Any] = re.split("([0-9]+)", str(key))  # texts at even places, digits at odd ones
    parts[1::2] = map(int, parts[1::2])
    return parts, str(key)
