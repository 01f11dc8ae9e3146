"""Whose a path is: ours because `.vestige.journal` in its directory lists it, never because of its name.

The journal has one record per line; lines are added at its end, and a long journal is written again, shorter, under
its lock. A line is written before the file it names exists, so that a killed process leaves nothing of ours unlisted.
A line is JSON and its own checksum; one that does not fit counts for nothing. Lines:

    {"vestige": "journal", "version": 1}                the first one
    {"token": "1f0c...", "pid": 7, "host": "gpu1"}      a process that writes here; its temporary names carry the token
    {"file": "evidence/notes.json"}                     ours from now on; "sha256": and only while it is unchanged;
                                                        "by": it came with an install, and goes with the next
    {"gone": "evidence/notes.json"}                     no longer there, by our hand
    {"beside": "notes.txt"}                             not ours, and there when the run was sealed
    {"install": ".1f0c...-3.tmp", "to": "best", ...}    a finished result about to be moved into place, and
    {"installed": ".1f0c...-3.tmp"}                     that it was
    {"workshop": ".unfinished-9b2e..."}                 a folder of ours that outlives a killed process, and
    {"closed": ".unfinished-9b2e..."}                   that it is gone

Nothing is written here but the journal; files are removed and replaced in writing.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vestige.errors import UserError, write_error

JOURNAL = ".vestige.journal"
HEADER = {"vestige": "journal", "version": 1}
TEMPORARY = re.compile(r"\.([0-9a-f]{16})-[0-9]+\.tmp(\.[A-Za-z0-9]{1,8})?")
_LOCK = threading.RLock()
open_journals: dict[Path, Journal] = {}
open_scratch: set[Path] = set()  # folders of this process's own; in them there is nothing to record


class ForeignError(UserError):
    """Somebody else's file is where ours would go."""


def not_ours(path: Path) -> ForeignError:
    what = "is a link" if path.is_symlink() else "was not written by vestige"
    return ForeignError(f"{path} {what}, so it is not replaced; move it elsewhere, or choose another place (--out).")


class Journal:
    """What one directory's journal says, read as far as it goes; another process may have added to it since."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / JOURNAL
        self._forget()

    def _forget(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}  # name -> its line
        self.tokens: dict[str, tuple[str, int]] = {}  # token -> host and process
        self.beside: set[str] = set()
        self.pending: dict[str, dict[str, Any]] = {}
        self.workshops: set[str] = set()
        self.damaged = self.cut = False  # a line is not as it was written; the last one has no end
        self._stamp, self._offset = (-1, -1, -1), 0

    def read(self) -> Journal:
        """Takes in what was added since the last look. No journal: nothing is ours."""
        with _LOCK:
            try:
                found = os.lstat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                self._forget()
                return self
            if not stat.S_ISREG(found.st_mode):
                raise foreign_journal(self.path)
            if (found.st_ino, found.st_size, found.st_mtime_ns) != self._stamp:
                file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    self._take_in(file)
                finally:
                    os.close(file)
        return self

    def _take_in(self, file: int) -> None:
        found = os.fstat(file)
        if (found.st_ino, found.st_size, found.st_mtime_ns) == self._stamp:
            return
        if found.st_ino != self._stamp[0] or found.st_size <= self._stamp[1]:
            self._forget()
        data = os.pread(file, max(0, found.st_size - self._offset), self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        lines = list(filter(None, whole.split(b"\n")))
        if self._offset == 0 and lines and _parsed(lines[0]) != HEADER:
            raise foreign_journal(self.path)
        self._stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        self._offset += len(whole)
        self.cut = len(whole) < len(data)
        for line in lines:
            said = _parsed(line)
            self.damaged = self.damaged or not said
            self._apply(said)

    def _apply(self, said: dict[str, Any]) -> None:
        if "file" in said:
            self.files[str(said["file"])] = said
            self.beside.discard(str(said["file"]))
        elif "gone" in said:
            self.files.pop(str(said["gone"]), None)
        elif "token" in said:
            self.tokens[str(said["token"])] = (str(said.get("host")), int(said.get("pid", 0)))
        elif "beside" in said:
            self.beside.add(str(said["beside"]))
        elif "install" in said:
            self.pending[str(said["install"])] = said
        elif "installed" in said:
            self.pending.pop(str(said["installed"]), None)
        elif "workshop" in said:
            self.workshops.add(str(said["workshop"]))
        elif "closed" in said:
            self.workshops.discard(str(said["closed"]))

    def add(self, *lines: dict[str, Any]) -> None:
        """Appends lines, and makes the journal with the first of them. Several processes may do so at once."""
        if not lines:
            return
        try:
            with _LOCK, self._held() as file:
                size = os.fstat(file).st_size
                head = [] if size else [HEADER]
                text = "".join(map(_line, (*head, *lines)))
                if size and os.pread(file, 1, size - 1) != b"\n":  # a full disk cut the last line short
                    text = "\n" + text
                _write_all(file, text.encode())
                self._take_in(file)
        except OSError as error:
            raise write_error(error, self.path) from None

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """The journal open for appending, while no other process appends: on a network disk they would collide."""
        flags, file = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, -1
        while file < 0:
            try:
                file = os.open(self.path, flags, 0o666)
            except OSError as error:
                raise foreign_journal(self.path) if error.errno == errno.ELOOP else error from None
            with contextlib.suppress(OSError):  # a disk without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.lstat(self.path)):
                    break
            os.close(file)  # it was replaced or removed while we waited
            file = -1
        try:
            if os.fstat(file).st_size:
                self._take_in(file)  # refuses a journal that is somebody else's before anything is added
            yield file
        finally:
            os.close(file)

    def shorten(self, over: set[str], half: Path) -> None:
        """Leaves out dead writers and files that are not there: what appears under such a name later is not ours."""
        with contextlib.suppress(OSError), _LOCK, self._held() as file:  # a long journal is as good
            self._take_in(file)
            lines: list[dict[str, Any]] = [HEADER]
            lines += [{"token": t, "host": h, "pid": p} for t, (h, p) in self.tokens.items() if t not in over]
            lines += [line for name, line in self.files.items() if os.path.lexists(self.home / name)]
            lines += [{"beside": n} for n in sorted(self.beside)]
            lines += list(self.pending.values())
            lines += [{"workshop": n} for n in sorted(self.workshops) if os.path.lexists(self.home / n)]
            text = "".join(map(_line, lines))
            new = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            try:
                _write_all(new, text.encode())
            finally:
                os.close(new)
            os.replace(half, self.path)  # noqa: PTH105
        self.read()


def foreign_journal(path: Path) -> UserError:
    return UserError(f"{path} is not a journal of vestige; move it elsewhere, or choose another --out.")


def _line(said: dict[str, Any]) -> str:
    text = json.dumps(said, ensure_ascii=True)
    return f"{text} {zlib.crc32(text.encode()):08x}\n"


def _parsed(line: bytes) -> dict[str, Any]:
    text, _, check = line.rpartition(b" ")
    if check != f"{zlib.crc32(text):08x}".encode():
        return {}
    said = json.loads(text)
    return said if isinstance(said, dict) else {}


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class Session:
    """This process as a writer: the random token in its temporary names."""

    def __init__(self) -> None:
        self.process, self.host = os.getpid(), socket.gethostname()
        self.token, self._count = secrets.token_hex(8), 0

    def temporary(self, suffix: str = "") -> str:
        with _LOCK:
            self._count += 1
            return f".{self.token}-{self._count}.tmp{suffix if TEMPORARY.fullmatch(f'.{0:016x}-0.tmp{suffix}') else ''}"

    def begin(self, journal: Journal) -> None:
        """The token is recorded before a file with it in its name exists."""
        if self.token not in journal.tokens:
            journal.add({"token": self.token, "pid": self.process, "host": self.host})


_session: Session | None = None


def session() -> Session:
    """The writer that this process is; a forked child is another."""
    global _session
    if _session is None or _session.process != os.getpid():
        _session = Session()
    return _session


def is_over(token: str, host: str, process: int) -> bool:
    """Whether a writer is known to be dead. One on another machine, or whose number is in use, is taken for alive."""
    us = session()
    if token == us.token or host != us.host:
        return False
    if process == us.process:
        return True  # our number, and not our token
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


# ---- whose a path is ---------------------------------------------------------------------------------------------


def absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without following links


def own_journal(directory: Path) -> Journal:
    """The journal in a directory; it need not be there yet."""
    home = absolute(directory)
    return open_journals.setdefault(home, Journal(home)).read()


def journal_of(path: Path) -> Journal | None:
    """The journal that answers for a file: the nearest above it, or a new one beside it. None: it is in a scratch."""
    path = absolute(path)
    for place in path.parents:
        if has_journal(place):
            return own_journal(place)
        if place in open_scratch or ((made := TEMPORARY.fullmatch(place.name)) and _is_scratch(place, made[1])):
            return None
    return own_journal(path.parent)


def _is_scratch(place: Path, token: str) -> bool:
    """Whether it is a scratch folder that another process of ours opened (a pool's workers write into it)."""
    return any(token in own_journal(home).tokens for home in place.parents if has_journal(home))


def has_journal(directory: Path) -> bool:
    return os.path.lexists(directory / JOURNAL)


def name_in(journal: Journal, path: Path) -> str:
    return absolute(path).relative_to(journal.home).as_posix()


def is_plain(path: Path) -> bool:
    """Whether it is there, and a file, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_ours(path: Path) -> bool:
    """Whether it is there, a plain file, and listed."""
    if not is_plain(path):
        return False
    if path.name == JOURNAL:
        own_journal(path.parent)  # refuses one that is not ours
        return True
    journal = journal_of(path)
    return journal is None or (name_in(journal, path) in journal.files and link_above(journal, path) is None)


def link_above(journal: Journal, path: Path) -> Path | None:
    """A link between a home and a file of it, if there is one."""
    place = journal.home
    for part in absolute(path).parent.relative_to(journal.home).parts:
        place /= part
        if place.is_symlink():
            return place
    return None


def permit(*paths: Path) -> None:
    """Refuses paths at which there is something that is not ours; to be asked before any work is done for them."""
    for path in paths:
        journal = journal_of(path)
        link = None if journal is None else link_above(journal, path)
        if link is not None:
            raise not_ours(link)
        if os.path.lexists(path) and not is_ours(path):
            raise not_ours(path)


def adopt_file(path: Path) -> None:
    """Lists a file that the caller has seen to be ours, in the journal that answers for it."""
    journal = journal_of(path)
    if journal is not None and is_plain(path) and not is_ours(path) and link_above(journal, path) is None:
        journal.add({"file": name_in(journal, path)})


def pass_over(directory: Path, names: Iterable[str]) -> list[str]:
    """Remembers which files of a run that is being sealed are somebody else's: not part of it, and not damage."""
    journal = own_journal(directory)
    others, new = [], []
    for name in names:
        if not is_ours(directory / name):
            others.append(name)
            if name not in journal.beside:
                new.append({"beside": name})
    journal.add(*new)
    return others


def fault(directory: Path) -> str:
    """What is wrong with the journal of a directory, if there is one and something is."""
    try:
        found = Journal(absolute(directory)).read()
        return "a line does not fit its checksum" if found.damaged or found.cut else ""
    except UserError:
        return "it does not begin as one"


def beside(directory: Path) -> set[str]:
    return set(own_journal(directory).beside) if has_journal(directory) else set()


def ours_below(directory: Path) -> list[Path]:
    """Our files in a directory, as the journal that answers for it lists them.

    A directory further down with a journal of its own is another command's, unless that journal is listed as well.
    """
    top = absolute(directory)
    journal = journal_of(top / JOURNAL)
    if journal is None:
        return sorted(p for p in top.rglob("*") if is_plain(p))
    found = [journal.home / name for name in journal.files]
    found = [path for path in found if top in path.parents and os.path.lexists(path)]
    inner = [path for path in found if path.name == JOURNAL and path.parent != journal.home]
    return sorted({*found, *(path for home in inner for path in ours_below(home.parent))})
