"""Whose a path is: ours because a journal lists it, never because of its name. Nothing is written but the journal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.journal import JOURNAL, TEMPORARY, Journal, not_ours, open_journals, open_scratch


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
        if place in open_scratch or _is_scratch(place):
            return None
    return own_journal(path.parent)


def _is_scratch(place: Path) -> bool:
    """Whether it is a scratch folder that another process of ours opened (a pool's workers write into it)."""
    found = TEMPORARY.fullmatch(place.name)
    homes = (home for home in place.parents if has_journal(home)) if found else ()
    return any(found[1] in own_journal(home).tokens for home in homes if found)


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


def adopt(home: Path, names: Iterable[str], by: str | None = None) -> None:
    """Lists files that a version of vestige without journals wrote; the caller has seen that they are its own."""
    journal = own_journal(home)
    there = [journal.home / name for name in names]
    found = {name_in(journal, p) for p in there if is_plain(p) and link_above(journal, p) is None}
    more = {} if by is None else {"by": by}
    journal.add(*({"file": name, **more} for name in sorted(found - set(journal.files))))


def adopt_file(path: Path) -> None:
    """The same for one file, in the journal that answers for it."""
    journal = journal_of(path)
    if journal is not None and is_plain(path) and not is_ours(path) and link_above(journal, path) is None:
        journal.add({"file": name_in(journal, path)})


def strangers(directory: Path, names: Iterable[str]) -> list[str]:
    """Of some files of a run, by their paths inside it, those that are not ours."""
    return [name for name in names if not is_ours(directory / name)]


def note_beside(directory: Path, names: Sequence[str]) -> None:
    """Remembers strangers in a run that is being sealed: they are not part of it, and not damage."""
    journal = own_journal(directory)
    journal.add(*({"beside": name} for name in names if name not in journal.beside))


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
