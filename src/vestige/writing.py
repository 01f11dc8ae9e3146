"""Every write, replacement and removal of files. Nothing else in the source does any of them (tests/test_writing.py).

vestige removes and replaces only what its journal in that directory lists (ownership.py); whatever else is there
is left alone, and a command that would have to write over it refuses. What replaces something is whole first: it is
written beside under a temporary name and then moved. Links are never followed: below the directory that has the
journal, a link in the way is somebody else's.

    write_bytes     one file of a run directory, whole or not at all
    one_file        one file that the user named (-o FILE): replaced only while it is as we left it
    remove          what the journal lists, and nothing else

Folders that other people's libraries fill are in installing.py; a killed install is finished here, by the next command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vestige.errors import UserError, WriteError, write_error
from vestige.ownership import (
    JOURNAL,
    TEMPORARY,
    ForeignError,
    Journal,
    absolute,
    adopt_file,
    has_journal,
    is_ours,
    is_over,
    is_plain,
    journal_of,
    name_in,
    not_ours,
    open_scratch,
    ours_below,
    own_journal,
    permit,
    session,
)

LOCK, HOLDER = ".lock", ".holder.json"
STAYS = (LOCK, HOLDER, JOURNAL)  # of a process at work in a directory, not of what it holds


# ---- directories -------------------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, path) from None


def claim(directory: Path, alone: bool = False) -> None:
    """Begins to write in a directory: it gets a journal, and what killed processes left unfinished is put in order.

    `alone`: no other process can be writing there now (the caller holds its lock).
    """
    make_directory(directory)
    journal, us = own_journal(directory), session()
    us.begin(journal)
    over = set()  # tokens of writers that are dead
    for token, who in journal.tokens.items():
        if token != us.token and (alone or is_over(token, *who)):
            over.add(token)
    if over:
        for name, said in list(journal.pending.items()):
            if _token(name) in over:
                finish_install(journal, said)
        for path in list(_leftovers(journal.home, over)):
            delete(path)
        if alone or len(over) > 50:
            half = journal.home / session().temporary()
            journal.shorten(over, half)
            delete(half)


def _token(name: str) -> str:
    """The token in a path of ours, if there is one."""
    return next((found[1] for part in Path(name).parts if (found := TEMPORARY.fullmatch(part))), "")


def _leftovers(place: Path, tokens: set[str]) -> Iterator[Path]:
    """What carries the token of a dead process. Directories with a journal look after themselves."""
    for path in sorted(place.iterdir()):
        if _token(path.name) in tokens:
            yield path
        elif path.is_dir() and not path.is_symlink() and not has_journal(path):
            yield from _leftovers(path, tokens)


class VanishedError(WriteError):
    """Something that was there a moment ago."""


def lock_file(directory: Path) -> Path:
    """The path to lock. Locking empties the file, so one that holds something is not taken."""
    path = directory / LOCK
    empty = is_plain(path) and path.stat().st_size == 0  # as in a copied directory
    if not empty:
        permit(path)
    journal = own_journal(directory)
    if LOCK not in journal.files:
        journal.add({"file": LOCK})
    return path


# ---- inputs -------------------------------------------------------------------------------------------------------


def keep_apart(out: Path, inputs: Mapping[str, Any], replaced: Sequence[str] = ("",)) -> None:
    """Refuses an input at or below what a command replaces in its output directory. Before anything is touched.

    `inputs`: what the user calls them -> where they are; names of the hub and None are passed over.
    """
    for said, path in inputs.items():
        try:
            place = None if path is None else Path(path).expanduser().resolve()
            if place is None or not place.exists():
                continue
        except (OSError, ValueError, RuntimeError):  # not a path; who reads it says so
            continue
        if is_plain(place) and not is_ours(place):
            continue  # it is not written over; if it is in the way, an error names it
        for name in replaced:
            target = (out / name).resolve()
            if place == target or target in place.parents:
                where = out / name if name else out
                raise UserError(
                    f"{said} {path} is in {where}, which this command writes; choose another place (--out)."
                )


# ---- files -------------------------------------------------------------------------------------------------------


def _created(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "w+b")


def create_bytes(path: Path, data: bytes) -> None:
    """A new file where there is none, for folders of our own."""
    make_directory(path.parent)
    try:
        with _created(path) as out:
            out.write(data)
    except FileExistsError:
        raise not_ours(path) from None
    except OSError as error:
        raise write_error(error, path) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: the new content appears whole or not at all, whatever kills us."""
    if not _already(path, data):
        _write(path, lambda: [data])


def write_pieces(path: Path, make: Callable[[], Iterable[bytes]]) -> None:
    """The same for content that is made while it is written, because all of it at once would be large."""
    if is_plain(path) and not is_ours(path):  # it may be what would be written
        write_bytes(path, b"".join(make()))
    else:
        _write(path, make)


def _write(path: Path, make: Callable[[], Iterable[bytes]]) -> None:
    make_directory(path.parent)
    for last in (False, True):
        try:
            with _becoming(path) as half, _created(half) as out:
                out.writelines(make())
            return
        except VanishedError:  # another process took our half-written file for a dead one's
            if last:
                raise


def _already(path: Path, data: bytes) -> bool:
    """A file that is not listed but is what would be written is listed and left: nothing can be lost with it."""
    if not is_plain(path) or is_ours(path) or path.stat().st_size != len(data) or path.read_bytes() != data:
        return False
    adopt_file(path)
    return is_ours(path)


@contextlib.contextmanager
def _becoming(path: Path, named: bool = False, suffix: str = "") -> Iterator[Path]:
    """A temporary path beside the final one, moved there at the end if nothing of somebody else's is in the way.

    `named`: the user named the file, and the journal records what is in it.
    """
    permit(path)
    journal = journal_of(path)
    half = absolute(path).parent / session().temporary(path.suffix if named else suffix)
    if journal is not None:
        session().begin(journal)
    try:
        if journal is not None and not named and name_in(journal, path) not in journal.files:
            journal.add({"file": name_in(journal, path)})  # before it is there
        yield half
        if journal is not None and named:
            journal.add({"file": name_in(journal, path), "sha256": _sha256(half)})
        move_whole(half, path)
    except BaseException as error:
        delete(half)
        if journal is not None and not os.path.lexists(path):
            with contextlib.suppress(UserError):  # the disk may be full
                journal.add({"gone": name_in(journal, path)})
        if isinstance(error, OSError):
            said = write_error(error, path)
            raise VanishedError(str(said)) if isinstance(error, FileNotFoundError) else said from None
        raise


def move_whole(half: Path, path: Path) -> None:
    """Into place. Where nothing was, by a link that fails if something is there by now; else by replacing."""
    if not os.path.lexists(path):
        try:
            os.link(half, path, follow_symlinks=False)
        except FileExistsError:
            permit(path)
        except OSError:  # a disk without hard links; or the file is gone, which the next line says
            half.replace(path)
            return
        else:
            half.unlink()
            return
    half.replace(path)


@contextlib.contextmanager
def one_file(path: Path) -> Iterator[Path]:
    """Where to write one file that the user named. An earlier one is replaced only if it is as vestige left it."""
    make_directory(path.parent)
    journal = journal_of(path)
    if journal is not None:
        over = {t for t, who in journal.tokens.items() if is_over(t, *who)}
        for half in [p for p in path.parent.iterdir() if _token(p.name) in over and is_plain(p)]:
            delete(half)
    if journal is not None and is_ours(path):
        digest = journal.files[name_in(journal, path)].get("sha256")  # None: a file of a run
        if digest != _sha256(path):
            raise ForeignError(f"{path} is not as vestige wrote it; move it elsewhere, or name another file (-o).")
    with _becoming(path, named=True) as half:
        yield half


def one_file_bytes(path: Path, data: bytes) -> None:
    with one_file(path) as half, _created(half) as out:
        out.write(data)


def written_by(path: Path, save: Callable[..., Any], named: bool = False, **settings: Any) -> Path:
    """A file that another library writes, such as a picture. `named`: by the user, as in one_file."""
    make_directory(path.parent)
    with one_file(path) if named else _becoming(path, suffix=path.suffix) as half:
        save(half, **settings)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_to(path: Path) -> IO[str]:
    """A log of ours, open at its end; every line is written at once."""
    make_directory(path.parent)
    permit(path)
    journal = journal_of(path)
    if journal is not None and name_in(journal, path) not in journal.files:
        journal.add({"file": name_in(journal, path)})
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o666), "a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise write_error(error, path) from None


def copy_file(source: Path, target: Path) -> None:
    make_directory(target.parent)
    with _becoming(target) as half, _created(half) as out, source.open("rb") as file:
        shutil.copyfileobj(file, out)


# ---- folders of our own ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder of our own where the system keeps such things, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="vestige-") as name:
        place = absolute(Path(name))
        open_scratch.add(place)
        try:
            yield place
        finally:
            open_scratch.discard(place)


def finish_install(journal: Journal, said: Mapping[str, Any]) -> None:
    """Every step may be done already, by the process that was killed or by another that finishes the same."""
    start = str(said["to"])
    made, target = journal.home / str(said["install"]), journal.home / start
    left = [name for name in said["names"] if os.path.lexists(made / name)]
    permit(*(target / name for name in left))
    journal.add(*({"file": f"{start}{name}", "by": f"install:{start}"} for name in said["names"]))
    try:
        remove(*(journal.home / name for name in said["drop"]))
        for name in left:
            make_directory((target / name).parent)
            with contextlib.suppress(FileNotFoundError):
                move_whole(made / name, target / name)
    except OSError as error:
        raise write_error(error, target) from None
    journal.add({"installed": said["install"]})
    delete(made)


# ---- removing ----------------------------------------------------------------------------------------------------


def remove(*paths: Path) -> int:
    """Removes what is ours of some files, then the directories that this left empty. Returns how many files went."""
    gone: dict[Path, list[dict[str, Any]]] = {}  # home of a journal -> its new lines
    emptied: set[Path] = set()
    count = 0
    for path in sorted(paths, key=lambda p: p.name == JOURNAL):  # a journal last: it says whose the others are
        journal = journal_of(path)
        if not is_ours(path):
            continue
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            emptied.add(absolute(path).parent)
            count += 1
        if journal is not None and path.name != JOURNAL:
            gone.setdefault(journal.home, []).append({"gone": name_in(journal, path)})
    for home, lines in gone.items():
        if has_journal(home):
            own_journal(home).add(*lines)
    for place in emptied:  # those that are empty now, and those above; never the one that has or had the journal
        journal = journal_of(place / JOURNAL)
        while journal is not None and journal.home in place.parents and remove_empty(place):
            place = place.parent
    return count


def remove_empty(place: Path) -> bool:
    try:
        place.rmdir()
    except OSError:  # not empty, a link, or not there
        return False
    return True


def remove_all(directory: Path) -> int:
    """All that is ours in a directory, its journal and lock included; the directory too, if nothing else is in it."""
    if directory.is_symlink() or not directory.is_dir():
        return 0
    top = absolute(directory)
    count = remove(*ours_below(top))
    remove(top / JOURNAL)
    remove_empty(top)
    return count


def delete(path: Path) -> None:
    """A temporary file or folder of our own, or of a process of ours that is dead."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
