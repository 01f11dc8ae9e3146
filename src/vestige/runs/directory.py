"""Run directories by the manifest rule. The package's docstring has the interface and the format of manifest.json."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from vestige.errors import UserError, write_error
from vestige.guard import read_json
from vestige.io import WORK, damaged, host_name, make_directory, replacing, temporary_name
from vestige.runs.manifest import (
    BOOKKEEPING,
    MANIFEST,
    OPEN,
    SCHEMA,
    files_of,
    is_plain,
    manifest_text,
    read_run,
    refuse_kind,
    runs_in,
    sha256,
)

LOCK = f"{WORK}/.lock"
LIST = f"{WORK}/.writes.json"  # the list of the manifest once more, for a directory whose manifest was deleted
Stamp = tuple[int, int, int]
PATIENCE = 60.0  # seconds to wait for a lock that is only held for a moment
_TEMPORARY = re.compile(r"tmp-(?P<host>.*)-(?P<process>[0-9]+)-[0-9]+")
_threads = threading.RLock()
_open: dict[Path, RunDirectory] = {}  # directories that this process writes
_temporary_folders: set[Path] = set()  # in these there is nothing to list
_known: dict[Path, RunDirectory] = {}  # directories that another process writes, as far as their manifests were read


class ForeignFileError(UserError):
    """Somebody else's file is where ours would go."""


class HeldError(UserError):
    """Another process writes there now: wait for it, rather than count it as a failure."""


def not_ours(path: Path) -> ForeignFileError:
    what = "is a link" if path.is_symlink() else "was not written by vestige"
    return ForeignFileError(
        f"{path} {what}, so it is not replaced; move it elsewhere, or choose another place (--out)."
    )


def absolute(path: Path) -> Path:
    """Without following links."""
    return Path(os.path.abspath(path))  # noqa: PTH100


# ---- writing a run ------------------------------------------------------------------------------------------------


class RunDirectory:
    """A directory that this process writes, and the names that it may write there."""

    def __init__(self, directory: Path, kind: str, lock: FileLock | None = None) -> None:
        self.directory, self.kind, self.lock = directory, kind, lock
        self.shared = False  # whether the lock is only held while the manifest is written
        self.facts: dict[str, Any] = {}
        self.names: set[str] = set()
        self.digests: dict[str, str] = {}
        self.state = ""
        self.checked: dict[str, tuple[Stamp, str]] = {}  # files that fitted their digests when the run was begun
        self.present = False  # whether there is a manifest of ours
        self._stamp: Stamp = (0, 0, 0)

    def read(self, strict: bool = False) -> None:
        """Takes in the manifest. Other processes, and children of this one, may have added names to it."""
        with contextlib.suppress(OSError):
            stamp = _stamp_of(self.directory / MANIFEST)
            if stamp == self._stamp:
                return
            self._stamp = stamp
        found = read_run(self.directory, strict)
        if found is None and self.present:  # it was removed
            self.names = set()
        self.present = found is not None
        if found is not None:
            self.names = set(found.writes)
            self.facts, self.state, self.digests = dict(found.facts), found.state, dict(found.sha256)
            self.shared = self.state == "open"

    def lists(self, name: str) -> bool:
        """Whether a name is ours: it is listed, or in a folder that is."""
        if name in self.names or name.startswith(f"{WORK}/"):
            return True
        return any(f"{folder}/" in self.names for folder in _parents(name))

    def begin(self, writes: Iterable[str] = ()) -> None:
        """Refuses names that are not ours, lists them, and marks the run as unfinished.

        `writes`: files, and folders with a slash at their end. Of a finished run, what the command will not write must
        be as it was: a new digest would make damage look whole.
        """
        wanted = list(writes)
        covered = {*wanted, MANIFEST}
        self.checked = {}
        for name, digest in self.digests.items():
            above = (f"{part}/" for part in _parents(name))
            path = self.directory / name
            if name not in covered and not any(part in covered for part in above) and path.is_file():
                stamp = _stamp_of(path)
                if sha256(path) != digest:
                    raise damaged(path, "its checksum does not fit")
                self.checked[name] = stamp, digest
        self.extend(wanted)

    def _is_free(self, name: str) -> bool:
        """Whether a name can be listed. One that exists and is not ours is refused; of a folder the files are asked."""
        path = self.directory / name
        self._refuse_links(path)
        if self.lists(name) or not os.path.lexists(path):
            return not self.lists(name)
        if not name.endswith("/"):
            raise not_ours(path)
        return False

    def _refuse_links(self, path: Path) -> None:
        link = self.link_in(path)
        if link is not None:
            raise not_ours(link)

    def link_in(self, path: Path) -> Path | None:
        """A link on the way from the directory to a path in it, if there is one."""
        place = self.directory
        for part in path.relative_to(self.directory).parts:
            place /= part
            if place.is_symlink():
                return place
        return None

    def admit(self, path: Path) -> None:
        """Lists a file before it is written, with the topmost folder that has to be made for it."""
        name = path.relative_to(self.directory).as_posix()
        self._refuse_links(path)
        if self.lists(name):
            return
        self.read()
        if self.lists(name):
            return
        if os.path.lexists(path):
            raise not_ours(path)
        if self.state == "finished":
            raise RuntimeError(f"{path} would be added to a finished run that was not begun again")
        missing = next((p for p in _parents(name) if not os.path.lexists(self.directory / p)), None)
        self._write([name if missing is None else f"{missing}/"])

    def extend(self, names: Iterable[str]) -> None:
        """Lists more names, as `begin` does."""
        new = {name for name in names if self._is_free(name)}
        self._write(name for name in new if not any(f"{folder}/" in new for folder in _parents(name)))

    def forget(self) -> None:
        """The results that the manifest describes are gone; the list of files stays."""
        self.facts = {}
        self._write([])

    def finish(self, facts: Mapping[str, Any] | None = None) -> None:
        """Writes the digests of all files. `facts`: what the kind says of itself; None: as it was."""
        self.read()
        if facts is not None:
            self.facts = {key: value for key, value in facts.items() if key not in BOOKKEEPING}
        if self._is_open:  # other processes may be about to write what they listed
            self._write([])
            return
        self.names = {name for name in self.names if os.path.lexists(self.directory / name)}
        self.clear()  # what child processes that died have left
        files, runs = files_of(self.directory, self.names), runs_in(self.directory)
        digests = {}
        for name, path in files.items():
            stamp, digest = self.checked.get(name, (None, ""))
            if is_plain(path):  # a link is not ours
                digests[name] = digest if stamp == _stamp_of(path) else sha256(path)
        self.state = "finished"
        self._save({"state": "finished", "writes": sorted(self.names), "sha256": digests, "runs": runs})
        self.digests = digests

    @property
    def _is_open(self) -> bool:
        return self.kind in OPEN or self.state == "open"

    def _write(self, new: Iterable[str]) -> None:
        """The manifest with more names, while the run is under way."""
        with _threads, self._alone():
            self.read()
            self.names |= set(new)
            body: dict[str, Any] = {"state": "open" if self._is_open else "unfinished", "writes": sorted(self.names)}
            if not self._is_open:
                body["writer"] = {"pid": os.getpid(), "host": socket.gethostname()}
            self._save(body)

    def _save(self, bookkeeping: Mapping[str, Any]) -> None:
        path = self.directory / MANIFEST
        if os.path.lexists(path) and (path.is_symlink() or not self.present):
            raise not_ours(path)
        body = {"schema": SCHEMA, "kind": self.kind, **self.facts, **bookkeeping}
        text = manifest_text(body, bookkeeping["state"] == "finished")
        if _recorded(self.directory) != set(bookkeeping["writes"]):  # other processes may have written it
            with replacing(self.directory / LIST) as half:
                half.write_text(json.dumps(bookkeeping["writes"]), encoding="utf-8")
        with replacing(path) as half:
            half.write_text(text, encoding="utf-8")
        self._stamp = _stamp_of(path)
        self.state, self.present = bookkeeping["state"], True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self.lock is None or not self.shared:
            yield
            return
        with self.lock.acquire(timeout=PATIENCE):
            yield

    def clear(self, everything: bool = True) -> None:
        """Removes the temporary files of processes that are gone; `everything`: of all but this one."""
        host = host_name()
        for path in sorted((self.directory / WORK).iterdir()):
            found = _TEMPORARY.match(path.name)
            if found is None or int(found["process"]) == os.getpid():
                continue
            if everything or (found["host"] == host and not _is_alive(int(found["process"]))):
                delete(path)

    @contextlib.contextmanager
    def workspace(self, key: str) -> Iterator[Path]:
        """A folder for work that a killed process leaves for the next one; removed when the work is done.

        Work with the same `key` resumes in it; unfinished work with another key is discarded.
        """
        place = self.directory / WORK / f"unfinished-{key}"
        for other in sorted((self.directory / WORK).glob("unfinished-*")):
            if other != place:
                delete(other)
        make_directory(place)
        _temporary_folders.add(place)
        try:
            yield place
        finally:
            _temporary_folders.discard(place)
        delete(place)


def _stamp_of(path: Path) -> Stamp:
    """By what one sees that a file was not replaced or written to: which file it is, its size, its time."""
    now = os.lstat(path)
    return now.st_ino, now.st_size, now.st_mtime_ns


def _parents(name: str) -> list[str]:
    """The folders that a name is in, the topmost first.

    >>> _parents("a/b/c.json")
    ['a', 'a/b']
    """
    parts = name.rstrip("/").split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


@contextlib.contextmanager
def open_run(
    directory: Path, kind: str, writes: Iterable[str] | None = None, shared: bool = False, wait: bool = False
) -> Iterator[RunDirectory]:
    """Holds a directory while a command writes there. The system frees it if the process dies, however it dies.

    `writes`: begins at once (RunDirectory.begin). `shared`: several processes write there at a time, and the lock is
    only held while the list is written. `wait`: for a process that is at work there, rather than refuse.
    """
    home = absolute(directory)
    make_directory(home)
    if (home / WORK).is_symlink() or is_plain(home / WORK):
        raise not_ours(home / WORK)
    make_directory(home / WORK)
    lock = FileLock(home / LOCK)
    try:
        lock.acquire(timeout=-1 if wait else PATIENCE if shared else 0.5)  # `is_held` takes it for a moment, to look
    except Timeout:
        raise HeldError(
            f"{directory} is being written by {_writer(home)}; "
            "wait for it, stop it, or choose another --out / task_name."
        ) from None
    except OSError as error:
        raise write_error(error, home / LOCK) from None
    run = RunDirectory(home, kind, lock)
    outer = _open.get(home)
    try:
        run.read(strict=True)
        if run.present:
            refuse_kind(directory, str(run.facts["kind"]), kind)
        else:
            run.names = _inherited(home) | _recorded(home)
        if run.state == "open":
            run.kind = str(run.facts["kind"])
        run.clear(everything=not shared)
        run.shared = run.shared or shared
        if run.shared:
            lock.release()
        _open[home] = run
        if writes is not None:
            run.begin(writes)
        yield run
    finally:
        _open.pop(home, None)
        if outer is not None:
            _open[home] = outer
        lock.release()


def _inherited(home: Path) -> set[str]:
    """What is in a folder that another run lists: all of it is ours, also once the folder has a manifest of its own."""
    above = owner_of(home)
    if above is None or not above.lists(f"{home.relative_to(above.directory).as_posix()}/"):
        return set()
    return {f"{path.name}/" if path.is_dir() else path.name for path in home.iterdir() if path.name != WORK}


def _recorded(home: Path) -> set[str]:
    """What a run listed whose manifest is gone: somebody deleted it because it was damaged, say."""
    try:
        found = read_json(home / LIST)
    except (OSError, ValueError, UserError):
        return set()
    return set(map(str, found)) if isinstance(found, list) else set()


def _writer(directory: Path) -> str:
    """Who is at work, as the manifest of an unfinished run says."""
    try:
        found = read_json(directory / MANIFEST)["writer"]
        return f"process {int(found['pid'])} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return "another process"


def is_held(directory: Path) -> bool:
    """Whether a process writes there now. Looking changes nothing."""
    if not is_plain(directory / LOCK):
        return False
    with (directory / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def owner_of(path: Path) -> RunDirectory | None:
    """The run that a path is in: the nearest one that this process writes, else the nearest on disk. None: no run."""
    path = absolute(path)
    for place in path.parents:
        if place in _open:
            return _open[place]
        if place in _temporary_folders:
            return None
        if os.path.lexists(place / LOCK):
            run = _known.setdefault(place, RunDirectory(place, ""))
            run.read()
            if run.present:  # otherwise the folder only holds files that a user named
                run.kind = str(run.facts["kind"])
                run.lock = (
                    FileLock(place / LOCK) if run.shared else None
                )  # else the process that opened the run holds it
                return run
    return None


# ---- inputs -------------------------------------------------------------------------------------------------------


def refuse_input_in_output(out: Path, inputs: Mapping[str, Any], replaced: Sequence[str] = ("",)) -> None:
    """Refuses an input at or below what a command replaces in its output directory. Before anything is touched.

    `inputs`: what the user calls them -> where they are; names of the hub and None are passed over.
    """
    for label, path in inputs.items():
        try:
            place = None if path is None else Path(path).expanduser().resolve()
            if place is None or not place.exists():
                continue
        except (OSError, ValueError, RuntimeError):  # not a path; who reads it says so
            continue
        if is_plain(place) and not is_listed(place):
            continue  # it is not written over; if it is in the way, an error names it
        for name in replaced:
            target = (out / name).resolve()
            if place == target or target in place.parents:
                where = out / name if name else out
                raise UserError(
                    f"{label} {path} is in {where}, which this command writes; choose another place (--out)."
                )


# ---- files in a run -----------------------------------------------------------------------------------------------


def admit(path: Path) -> None:
    """Lists a file in the run that it belongs to, before it is written; refuses one that is not ours."""
    run = owner_of(path)
    if run is not None:
        run.admit(absolute(path))
    elif path.is_symlink():
        raise not_ours(path)


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: the new content appears whole or not at all, whatever kills us."""
    write_pieces(path, lambda: [data])


def write_pieces(path: Path, make: Callable[[], Iterable[bytes]]) -> None:
    """The same for content that is made while it is written, because all of it at once would be large."""
    admit(path)
    with replacing(path) as half, half.open("wb") as out:
        out.writelines(make())


def append_to(path: Path) -> IO[str]:
    """A log of ours, open at its end; every line is written at once."""
    admit(path)
    make_directory(path.parent)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o666), "a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise write_error(error, path) from None


def is_listed(path: Path) -> bool:
    """Whether it is there, a plain file, and ours."""
    run = owner_of(path)
    if run is None or not is_plain(path):
        return False
    name = absolute(path).relative_to(run.directory).as_posix()
    return name == MANIFEST or run.lists(name)


def listed_files(directory: Path) -> list[Path]:
    """Our files in a directory: those of the run in it, or, of a folder in a run, those that the run lists."""
    top = absolute(directory)
    run = owner_of(top / MANIFEST)
    if run is None:
        return []
    return [path for path in files_of(run.directory, run.names).values() if top in path.parents]


def remove(*paths: Path) -> int:
    """Removes what is ours of some files, then the folders that this left empty. Returns how many files went."""
    count = 0
    for path in map(absolute, paths):
        run = owner_of(path)
        if run is None or not is_plain(path) or run.link_in(path) is not None:
            continue
        if not run.lists(path.relative_to(run.directory).as_posix()):
            continue
        path.unlink(missing_ok=True)
        count += 1
        place = path.parent
        while place != run.directory and remove_empty(place):
            place = place.parent
    return count


def remove_empty(place: Path) -> bool:
    try:
        place.rmdir()
    except OSError:  # not empty, a link, or not there
        return False
    return True


def remove_run(directory: Path) -> int:
    """All that a run wrote in its directory; the directory too, if nothing else is in it."""
    top = absolute(directory)
    run = RunDirectory(top, "")
    if not top.is_symlink():
        run.read()
    if not run.present:
        return 0
    count = 0
    for name in sorted(run.names):
        path = top / name
        if run.link_in(path) is not None:
            continue
        if name.endswith("/") and path.is_dir():
            count += sum(inner.is_file() for inner in path.rglob("*"))
            delete(path)
        elif is_plain(path):
            path.unlink()
            count += 1
        for folder in reversed(_parents(name)):
            remove_empty(top / folder)
    (top / MANIFEST).unlink(missing_ok=True)  # last: until then it says what is ours
    delete(top / WORK)
    remove_empty(top)
    return count


def delete(path: Path) -> None:
    """A temporary file or folder of our own, or of a process of ours that is dead."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---- folders that other libraries fill ----------------------------------------------------------------------------


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder of our own where the system keeps such things, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="vestige-") as name:
        place = absolute(Path(name))
        _temporary_folders.add(place)
        try:
            yield place
        finally:
            _temporary_folders.discard(place)


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A folder of our own in the run that a directory is in, removed at the end or when the run is next opened."""
    run = owner_of(absolute(directory) / MANIFEST)
    if run is None:
        with temporary() as place:
            yield place
        return
    place = run.directory / WORK / temporary_name()
    make_directory(place)
    _temporary_folders.add(place)
    try:
        yield place
    finally:
        _temporary_folders.discard(place)
        delete(place)
        delete(_note_of(place))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def install(made: Path, target: Path, last: str = "") -> None:
    """Moves what is in a temporary folder to where it belongs, and removes what an earlier one had and this has not.

    A folder that is ours, or not there, is replaced as a whole; in a folder of the user's the files are listed one by
    one. `last` is moved last: it vouches for the others. A process that is killed on the way can call this again.
    """
    target = absolute(target)
    run = owner_of(target / MANIFEST)
    if run is None:
        make_directory(target.parent)
        made.rename(target)
        return
    new = {target / name for name in _names_of(made)}
    moves = list(_moves(run, made, target, last))
    folders = [goal for source, goal in moves if source.is_dir()]
    run.extend(_folder_name(run, goal) for goal in folders)
    for _, goal in moves:
        if goal not in folders:
            run.admit(goal)
    for file in listed_files(target):
        if file not in new and not any(folder in file.parents for folder in folders):
            remove(file)
    for source, goal in moves:
        try:
            if goal.is_dir():
                delete(goal)
            make_directory(goal.parent)
            source.replace(goal)
        except OSError as error:
            raise write_error(error, goal) from None


def _names_of(made: Path) -> list[str]:
    """All that a folder held when it was first installed: a killed process may have moved some of it."""
    note = _note_of(made)
    if not note.is_file():
        names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*"))
        note.write_text(json.dumps(names))
    return list(json.loads(note.read_text()))


def _note_of(made: Path) -> Path:
    return made.with_name(f"{made.name}.names")


def _moves(run: RunDirectory, made: Path, target: Path, last: str) -> Iterator[tuple[Path, Path]]:
    """What is renamed to what: folders as a whole where they are ours."""
    if target != run.directory and (not os.path.lexists(target) or run.lists(_folder_name(run, target))):
        yield made, target
        return
    for path in sorted(made.iterdir(), key=lambda p: (p.name == last, p.name)):
        if path.is_dir():
            yield from _moves(run, path, target / path.name, "")
        else:
            yield path, target / path.name


def _folder_name(run: RunDirectory, folder: Path) -> str:
    return f"{folder.relative_to(run.directory).as_posix()}/"
