"""Writing so that a reader never sees half a file, and reading that says which file is broken.

In: plain data and a path. Out: sorted JSON without secrets; or what a file holds, else a DamagedError with its name.
Callers: every room with files of its own. The bytes go through writing.py, which knows whose files they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.journal import WriteError, write_error
from vestige.schema import misfit
from vestige.secrets import hide
from vestige.writing import make_directory, write_bytes, write_pieces

__all__ = ["DamagedError", "WriteError", "damaged", "make_directory", "read_json", "read_ours", "relative",
           "write_bytes", "write_error", "write_json", "write_pieces"]  # fmt: skip

BLOCK = 1 << 16  # characters

# What versions without a journal called a file before it was whole; it is not part of a run, and is left alone.
LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}")


class DamagedError(UserError):
    """A file of ours that cannot be what was written."""


def write_json(path: Path, data: Any, indent: int | None = 4) -> None:
    """Sorted keys and fixed indentation: equal results are equal bytes. NaN is refused: missing is null.

    Numbers in keys count as numbers: row 2 and step_2 come before 10, and rows of two files pair by position.
    Secrets are replaced (secrets.py). The text is made while it is written: that of all rows is larger than they are.
    """
    write_pieces(path, lambda: (hide(block).encode("utf-8") for block in _blocks(json_pieces(data, indent))))


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
    for i, key in enumerate(sorted(data, key=_natural)):
        yield f"{between if i else '{'}{deeper}{json.dumps(key, ensure_ascii=False)}: "
        yield from json_pieces(data[key], indent, depth - 1, level + 1)
    yield line + "}"


def _nests(data: Any) -> bool:
    """Whether it is a mapping of names to more than plain values; of one that makes its values nobody asks."""
    if not isinstance(data, Mapping) or not data or not all(isinstance(key, str) for key in data):
        return False
    return not isinstance(data, dict) or any(isinstance(value, Mapping) for value in data.values())


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces put together into larger ones: to look for secrets costs something each time."""
    block: list[str] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size > BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def in_order(data: Any) -> Any:
    """The same data with the keys of every mapping sorted, numbers in them by their size.

    >>> list(in_order({"step_10": 0, "step_2": 0, "b": 0, "10": 0, "9": 0}))
    ['9', '10', 'b', 'step_2', 'step_10']
    """
    if isinstance(data, Mapping):
        return {k: in_order(data[k]) for k in sorted(data, key=_natural)}
    return [in_order(item) for item in data] if isinstance(data, (list, tuple)) else data


def _natural(key: Any) -> tuple[list[Any], str]:
    parts = re.split("([0-9]+)", str(key))  # texts at even places, digits at odd ones
    return [int(p) if i % 2 else p for i, p in enumerate(parts)], str(key)


def read_ours(path: Path, form: Any = Any) -> Any:
    """JSON that we wrote, of a form. If it is none, it is damaged, and the sentence says what to delete."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise damaged(path, str(error)) from None
    if words := misfit(found, form):
        raise damaged(path, words)
    return found


def damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path} is damaged ({why}); delete it, then run the command that made it again.")


def relative(path: Path, base: Path) -> str:
    """A path as seen from another, so that a report and its runs can move together."""
    return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()
