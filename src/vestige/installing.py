"""Folders of our own for libraries that write files, and how what is in them is moved to where it belongs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.errors import write_error
from vestige.ownership import (
    JOURNAL,
    Journal,
    absolute,
    is_plain,
    journal_of,
    name_in,
    not_ours,
    open_scratch,
    ours_below,
    permit,
    session,
)
from vestige.writing import delete, finish_install, make_directory, move_whole


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A folder of our own below a directory, removed at the end, or by the next command if this process is killed."""
    make_directory(directory)
    journal = journal_of(directory / JOURNAL)
    if journal is not None:
        session().begin(journal)
    place = absolute(directory) / session().temporary()
    _open(place)
    try:
        yield place
    finally:
        open_scratch.discard(place)
        waiting = () if journal is None else journal.read().pending
        if not any(Path(name).is_relative_to(name_in(journal, place)) for name in waiting if journal is not None):
            delete(place)


def _open(place: Path, again: bool = False) -> None:
    """A folder in which this process may write and delete, until it leaves `open_scratch`."""
    try:
        place.mkdir(exist_ok=again)
    except OSError as error:
        raise write_error(error, place) from None
    open_scratch.add(place)


@contextlib.contextmanager
def workshop(directory: Path, key: str) -> Iterator[Path]:
    """A folder of our own below a directory for work that a killed process leaves for the next one.

    Work with the same `key` goes on in it; unfinished work with another key is discarded. It is removed when the work
    is done, and stays when it fails: the same command goes on.
    """
    make_directory(directory)
    journal = journal_of(directory / JOURNAL)
    name = f".unfinished-{key}"
    place = absolute(directory) / name
    if journal is not None:
        for other in sorted(journal.read().workshops - {name}):
            _close(journal, other)
        if name not in journal.workshops:
            if os.path.lexists(place):
                raise not_ours(place)
            journal.add({"workshop": name})
    _open(place, again=True)
    try:
        yield place
    finally:
        open_scratch.discard(place)
    if journal is None:
        delete(place)
    else:
        _close(journal, name)


def hand_over(shop: Path, made: Path, *names: str) -> None:
    """Moves folders of a workshop into a scratch, from which they are installed."""
    for name in names:
        if (shop / name).is_dir():
            (shop / name).rename(made / name)


def _close(journal: Journal, name: str) -> None:
    place = journal.home / name
    if not place.is_symlink():
        delete(place)
    journal.add({"closed": name})


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
    finish_install(journal, said)


def _before(journal: Journal, start: str, names: list[str]) -> list[str]:
    """What the last install to the same place brought and this one does not, runs among it with all they hold."""
    old = [journal.home / name for name, line in journal.files.items() if line.get("by") == f"install:{start}"]
    old += [path for home in old if home.name == JOURNAL for path in ours_below(home.parent)]
    new = {f"{start}{name}" for name in names}
    return sorted({name_in(journal, path) for path in old} - new)


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
    move_whole(made, target)
    return True
