"""One writer per run directory."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from filelock import FileLock, Timeout

from vestige.errors import UserError
from vestige.schema import misfit
from vestige.store.files import make_directory, write_error, write_json


class HeldError(UserError):
    """Another process writes there now: wait for it, rather than count it as a failure."""


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Holds the run directory while open. The operating system frees it if the process dies, however it dies."""
    make_directory(directory)
    lock, holder = FileLock(directory / ".lock"), directory / ".holder.json"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise HeldError(
            f"{directory} is being written by {_who(holder)}; "
            "wait for it, stop it, or choose another --out / task_name."
        ) from None
    except OSError as error:
        raise write_error(error, directory / ".lock") from None
    try:
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError, UserError):  # it only tells others who we are
            # Written by replacing: a link planted under this name is not followed.
            write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": started}, indent=None)
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


class _Holder(TypedDict):
    pid: int
    host: str
    since: str


def _who(holder: Path) -> str:
    try:
        data = json.loads(holder.read_text())
    except (OSError, ValueError):
        return "another process"
    if misfit(data, _Holder):
        return "another process"
    return f"process {data['pid']} on {data['host']} (since {data['since']})"
