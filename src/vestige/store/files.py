"""Writing so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vestige.guard import read_json

__all__ = ["read_json", "write_bytes", "write_json"]


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: the new content appears whole or not at all, whatever kills us."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101 - mkstemp makes files private; results are not secrets
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_json(path: Path, data: Any, indent: int | None = 4) -> None:
    """Sorted keys and fixed indentation: equal results are equal bytes. NaN is refused: missing is null."""
    text = json.dumps(data, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes(path, text.encode("utf-8"))
