"""One writer per run directory.

In: the directory that a command is about to write to. Out: nothing; `writing` holds it while open, and names who holds
it otherwise. Callers: every room that writes runs. Readers take no lock: the seal tells them what is finished.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from filelock import FileLock, Timeout

from vestige.errors import UserError
from vestige.ownership import is_plain
from vestige.schema import misfit
from vestige.store.checksums import adopt_earlier
from vestige.store.files import make_directory, write_error, write_json
from vestige.writing import HOLDER, LOCK, claim, lock_file, remove


class HeldError(UserError):
    """Another process writes there now: wait for it, rather than count it as a failure."""


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Holds the run directory while open. The operating system frees it if the process dies, however it dies."""
    make_directory(directory)
    lock, holder = FileLock(lock_file(directory)), directory / HOLDER
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
        claim(directory, alone=True)
        adopt_earlier(directory)
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError, UserError):  # it only tells others who we are
            write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": started}, indent=None)
        yield
    finally:
        with contextlib.suppress(OSError, UserError):
            remove(holder)
        lock.release()


class _Holder(TypedDict):
    pid: int
    host: str
    since: str


def held(directory: Path) -> bool:
    """Whether a process writes there now. Looking changes nothing."""
    if not is_plain(directory / LOCK):
        return False
    with (directory / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _who(holder: Path) -> str:
    try:
        data = json.loads(holder.read_text())
    except (OSError, ValueError):
        return "another process"
    if misfit(data, _Holder):
        return "another process"
    return f"process {data['pid']} on {data['host']} (since {data['since']})"
