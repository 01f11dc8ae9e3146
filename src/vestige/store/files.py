"""Writing so that a reader never sees half a file, and reading that says which file is broken."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.schema import misfit
from vestige.secrets import hide

LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}")  # what mkstemp calls a file that a killed process did not rename
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


class WriteError(UserError):
    """The disk would not take it. Never to be passed over: what follows would stand on files that are not there."""


class DamagedError(UserError):
    """A file of ours that cannot be what was written."""


def write_error(error: OSError, path: str | Path) -> WriteError:
    """The sentence for a disk that refuses."""
    words = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in FULL:
        return WriteError(f"Cannot write {path} ({words}); make room and run the same command again: it goes on.")
    if error.errno in CLOSED:
        return WriteError(f"Cannot write {path} ({words}); make the directory writable, or choose another --out.")
    return WriteError(f"Cannot write {path} ({words}); when that is put right, run the same command again: it goes on.")


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, path) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: the new content appears whole or not at all, whatever kills us."""
    make_directory(path.parent)
    try:
        _write(path, data)
    except FileNotFoundError:  # another process of the same sweep took our half-written file for a dead one's
        _write(path, data)


def _write(path: Path, data: bytes) -> None:
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101 - mkstemp makes files private; results are not secrets
        Path(name).replace(path)
    except BaseException as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise write_error(error, path) from None
        raise


def leftovers(directory: Path) -> Iterator[Path]:
    """Half-written files that a killed process left; directories with a lock of their own are not ours to judge."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and not (path / ".lock").exists():
            yield from leftovers(path)
        elif LEFTOVER.fullmatch(path.name) and path.is_file():
            yield path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_json(path: Path, data: Any, indent: int | None = 4) -> None:
    """Sorted keys and fixed indentation: equal results are equal bytes. NaN is refused: missing is null.

    Secrets are replaced (secrets.py).
    """
    text = json.dumps(data, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes(path, hide(text).encode("utf-8"))


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
