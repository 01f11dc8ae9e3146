"""Every write, replacement and removal of files. Nothing else in the source does any of them (tests/test_writing.py).

vestige removes and replaces only what its journal in that directory lists (vestige/journal.py); whatever else is there
is left alone, and a command that would have to write over it refuses. What replaces something is whole first: it is
written beside under a temporary name and then moved. Links are never followed: below the directory that has the
journal, a link in the way is somebody else's.

    write_bytes     one file of a run directory, whole or not at all
    one_file        one file that the user named (-o FILE): replaced only while it is as we left it
    scratch         a folder of our own for libraries that write files, removed at the end
    install         moves what is in it to where it belongs; a killed install is finished by the next command
    remove          what the journal lists, and nothing else
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from vestige.errors import UserError
from vestige.journal import (
    JOURNAL,
    TEMPORARY,
    ForeignError,
    Journal,
    WriteError,
    absolute,
    adopt,
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
    write_error,
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
    others = {t: who for t, who in journal.tokens.items() if t != us.token}
    over = {t for t, who in others.items() if alone or is_over(t, *who)}
    for said in [p for half, p in journal.pending.items() if _token(half) in over]:
        _finish(journal, said)
    if over:
        for path in list(_leftovers(journal.home, over)):
            _delete(path)
        if alone or len(over) > 50:
            half = journal.home / session().temporary()
            journal.shorten(over, half)
            _delete(half)


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
    if is_plain(path) and not is_ours(path) and path.stat().st_size == 0:
        adopt(directory, [LOCK])
    permit(path)
    journal = own_journal(directory)
    if LOCK not in journal.files:
        journal.add({"file": LOCK})
    return path


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
    make_directory(path.parent)
    if _already(path, data):
        return
    for last in (False, True):
        try:
            with _becoming(path) as half, _created(half) as out:
                out.write(data)
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
        _move(half, path)
    except BaseException as error:
        _delete(half)
        if journal is not None and not os.path.lexists(path):
            with contextlib.suppress(UserError):  # the disk may be full
                journal.add({"gone": name_in(journal, path)})
        if isinstance(error, OSError):
            said = write_error(error, path)
            raise VanishedError(str(said)) if isinstance(error, FileNotFoundError) else said from None
        raise


def _move(half: Path, path: Path) -> None:
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
            _delete(half)
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


def lasting() -> Path:
    """A new folder where the system keeps temporary things; it stays."""
    return Path(tempfile.mkdtemp(prefix="vestige-"))


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A folder of our own below a directory, removed at the end, or by the next command if this process is killed."""
    make_directory(directory)
    journal = journal_of(directory / JOURNAL)
    if journal is not None:
        session().begin(journal)
    place = absolute(directory) / session().temporary()
    try:
        place.mkdir()
    except OSError as error:
        raise write_error(error, place) from None
    open_scratch.add(place)
    try:
        yield place
    finally:
        open_scratch.discard(place)
        waiting = () if journal is None else journal.read().pending
        if not any(Path(name).is_relative_to(name_in(journal, place)) for name in waiting if journal is not None):
            _delete(place)


@contextlib.contextmanager
def filling(place: Path) -> Iterator[Path]:
    """Where libraries that write over what is there may write: `place` if it is in a scratch, else one of its own."""
    if journal_of(place / JOURNAL) is None:
        make_directory(place)
        yield place
        return
    with scratch(place) as made:
        yield made
        install(made, place)


def save_pretrained(place: Path, *things: Any) -> None:
    """Weights and tokenizers by their own methods."""
    with filling(place) as made:
        for thing in things:
            thing.save_pretrained(made)


def install(made: Path, target: Path, last: str = "", patient: bool = False) -> None:
    """Moves the files of a scratch folder to where they belong. Those of the last install there go, all others stay.

    If somebody else's file is in the way nothing is moved; `patient`: and what was made waits for the next command
    there. Names are recorded before anything moves, so that a killed process's install is finished by the next one.
    `last` is moved last: it vouches for the others.
    """
    make_directory(target)
    journal = journal_of(target / JOURNAL)
    names = sorted(p.relative_to(made).as_posix() for p in made.rglob("*") if is_plain(p))
    names = [*(n for n in names if n != last), *(n for n in names if n == last)]
    if journal is None:
        for name in names:
            make_directory((target / name).parent)
            (made / name).replace(target / name)
        return
    start = "" if absolute(target) == journal.home else f"{name_in(journal, target)}/"
    said = {"install": name_in(journal, made), "to": start, "names": names, "drop": _before(journal, start, names)}
    if not patient:
        permit(*(target / name for name in names))
    journal.add(said)
    _finish(journal, said)


def _before(journal: Journal, start: str, names: list[str]) -> list[str]:
    """What the last install to the same place brought and this one does not, runs among it with all they hold."""
    old = [journal.home / name for name, line in journal.files.items() if line.get("by") == f"install:{start}"]
    old += [path for home in old if home.name == JOURNAL for path in ours_below(home.parent)]
    new = {f"{start}{name}" for name in names}
    return sorted({name_in(journal, path) for path in old} - new)


def _finish(journal: Journal, said: Mapping[str, Any]) -> None:
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
                _move(made / name, target / name)
    except OSError as error:
        raise write_error(error, target) from None
    journal.add({"installed": said["install"]})
    _delete(made)


def place_new(made: Path, target: Path) -> bool:
    """A finished file or folder of a scratch, moved as a whole to where there is none. False: somebody was faster."""
    make_directory(target.parent)
    journal = journal_of(target)
    inside = [p.relative_to(made) for p in made.rglob("*") if is_plain(p)] if made.is_dir() else [Path()]
    if journal is not None:
        permit(target / inside[0] if inside else target)
        journal.add(*({"file": name_in(journal, target / name)} for name in inside))
    if made.is_dir():
        try:
            made.rename(target)  # onto a folder that is not empty it fails
        except OSError:
            return False
        return True
    if os.path.lexists(target):
        return False
    _move(made, target)
    return True


# ---- removing ----------------------------------------------------------------------------------------------------


def remove(*paths: Path) -> int:
    """Removes what is ours of some files, then the directories that this left empty. Returns how many files went."""
    gone: dict[Path, list[str]] = {}
    removed: list[Path] = []
    for path in sorted(paths, key=lambda p: p.name == JOURNAL):  # a journal last: it says whose the others are
        journal = journal_of(path)
        if not is_ours(path):
            continue
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed.append(absolute(path))
        if journal is not None and path.name != JOURNAL:
            gone.setdefault(journal.home, []).append(name_in(journal, path))
    for home, names in gone.items():
        if has_journal(home):
            own_journal(home).add(*({"gone": name} for name in names))
    for place in {path.parent for path in removed}:
        _remove_empty_up(place)
    return len(removed)


def _remove_empty_up(place: Path) -> None:
    """A directory that holds nothing any more, and those above it; never the one that has or had the journal."""
    journal = journal_of(place / JOURNAL)
    while journal is not None and journal.home in place.parents and remove_empty(place):
        place = place.parent


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


def _delete(path: Path) -> None:
    """A temporary file or folder of our own, or of a process of ours that is dead."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
