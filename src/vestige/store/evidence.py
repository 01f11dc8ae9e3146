"""Evidence on disk, by content key: what was collected is never collected again.

A bank is one file per kind and identity (models/fingerprint.py has the table). While collecting, each batch
is a part file of its own beside a journal that lists what is being collected; a killed run finds both, packs the same
batches again and runs only those without a part. When all is there the parts are folded into the bank.

Every file carries a digest of its content, and says inside whose evidence it is. One whose digest or name does not fit
is treated as not there while collecting (it is collected again), and refused by name when scores are made of it.

In: items by content key (TokenStats, Text, Trace, numbers) from a collector. Out: the same items in a later run.
Callers: engine/obtain.py and engine/patches.py while a model runs, engine/stored.py without one, store/trust.py before
anything kept is believed.

The order of writing is what makes a kill harmless at any moment: the journal before the first part, the bank before
parts are removed, the journal removed last. Whatever is on disk then is either complete or explained by the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from vestige.errors import first_line
from vestige.guard import is_there
from vestige.io import damaged
from vestige.runs.directory import listed_files, remove, remove_empty
from vestige.schema import misfit
from vestige.store.files import read_json, read_ours, write_bytes, write_json, write_pieces
from vestige.store.formats import FORMATS, Altered, Format, Head
from vestige.store.laid_out import Joined
from vestige.types import content_key

__all__ = ["FORMATS", "Bank", "discard_all", "remarks", "remember", "tidy"]

log = logging.getLogger("vestige.store")

T = TypeVar("T")


# Parts of a head that must be as expected before what a bank holds is read while collecting. Scoring does not
# ask for them: a finished run's evidence is scored as it was made. models/fingerprint.py has the table.
CHECKED = {"version": "collected in another way", "tokens": "made with other special tokens",
           "decoder": "read by another decoder"}  # fmt: skip


class _Plan(TypedDict):
    keys: list[str]
    settings: dict[str, Any]


class Foreign(Altered):
    """Whole, but of something else."""


class Bank(Generic[T]):
    """All evidence of one kind for one identity, on disk.

    `made` goes into the head of what is written; those of its parts that CHECKED names are also expected of what is
    read.
    """

    def __init__(self, directory: Path, kind: str, identity: str, made: Head | None = None) -> None:
        self.format: Format[T] = FORMATS[kind]
        self.kind, self.identity = kind, identity
        self.stem = f"{kind}-{identity}"
        self.path = directory / f"{self.stem}{self.format.suffix}"
        # Parts have a folder of their own: listing a bank's directory never shows a file that is half of something.
        self.parts = directory / "parts"
        self.journal = self.parts / f"{self.stem}.plan.json"
        self.made: Head = made or {}
        self.head: Head = {}  # of the file, once it was read
        self.trouble = ""  # why what is there was not read

    def beside(self, directory: Path) -> Bank[T]:
        """The bank of the same evidence in another directory."""
        return Bank(directory, self.kind, self.identity, self.made)

    def load(self) -> Mapping[str, T]:
        """What is complete. A file that cannot be read is treated as not there: it will be collected again.

        To lose evidence costs time. To believe wrong evidence costs a wrong number that nobody notices.
        """
        self.head, self.trouble = {}, ""
        try:
            items, head = self._read(self.path)
        except Foreign as why:
            self.trouble = f"{self.path.name} was not used, it is {why}: collected again"
            log.warning("%s is %s: collecting it again.", self.path, why)
            return {}
        except ValueError as why:
            log.warning("%s is damaged (%s): collecting it again.", self.path, why)
            return {}
        self.head = head
        return items if head else {}

    def unfinished(self) -> Mapping[str, T]:
        """What an interrupted run left beside the bank."""
        return self._parts_done()

    @property
    def is_damaged(self) -> bool:
        try:
            self._read(self.path)
        except ValueError:
            return True
        return False

    def load_whole(self) -> Mapping[str, T]:
        """For scoring: nothing if the file is missing, and a sentence if it is damaged.

        Unlike `load` this must not pass over damage: nothing collects again here, and the score would be of fewer rows.
        """
        try:
            items, _ = self._read(self.path, collecting=False)
        except ValueError as why:
            raise damaged(self.path, str(why)) from None
        return items

    def _read(self, path: Path, collecting: bool = True) -> tuple[Mapping[str, T], Head]:
        """ValueError: the file is there, and is not what was written, or not what its name says."""
        if not is_there(path):
            return {}, {}
        try:
            # A part is never written over: its name is that of its content.
            items, head = self.format.read(path, stays=path != self.path)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, arrays that do not have their size
            raise Altered(first_line(error) or type(error).__name__) from None
        # A file that was copied or renamed is whole, and has a digest that fits; only its head tells.
        if head.get("of", self.stem) != self.stem:
            raise Foreign(f"evidence of something else under this name ({head['of']})")
        if head and collecting:
            for part, words in CHECKED.items():
                if part in self.made and head.get(part) != self.made[part]:
                    raise Foreign(words)
        return items, head

    def begin(self, keys: Sequence[str], settings: Mapping[str, Any]) -> Mapping[str, T]:
        """Notes what is about to be collected and returns what an interrupted run already has of it."""
        plan = {"keys": sorted(keys), "settings": dict(settings)}
        done = self._parts_done()
        if self.interrupted() != (plan["keys"], plan["settings"]):
            # Another question than last time: what parts there are is good evidence, but not these batches. Batches
            # decide the last bits of a number, so a resumed run must be packed exactly as the first one was; the plan
            # in the journal is how to know that it will be.
            if done:
                self.merge(done)
            self.discard_parts()
            write_json(self.journal, plan, indent=None)
            return {}
        return done

    def interrupted(self) -> tuple[list[str], dict[str, Any]] | None:
        """The keys and settings an unfinished run was after, if there is one."""
        try:
            plan = read_json(self.journal)
        except (OSError, ValueError):
            return None
        return None if misfit(plan, _Plan) else (list(plan["keys"]), dict(plan["settings"]))

    def _parts_done(self) -> Mapping[str, T]:
        out: list[Mapping[str, T]] = []
        for path in sorted(self.parts.glob(f"{self.stem}.part-*")):
            try:
                items, head = self._read(path)
                out.append(items if head else {})
            except ValueError as why:
                log.warning("%s is damaged (%s): that batch is collected again.", path, why)
        return Joined(*out)

    def add_part(self, items: Mapping[str, T]) -> None:
        """Keeps one batch."""
        # Named by what it answers: a batch that is run twice replaces itself, and is not counted twice.
        name = content_key(*(k.encode() for k in sorted(items)))
        write_bytes(self.parts / f"{self.stem}.part-{name}", self.format.dump(items, self._signed({})))

    def _signed(self, head: Head) -> Head:
        """The head to write: what is known of how the evidence was made, laid over what was known before."""
        return {**head, **self.made, "of": self.stem}  # last: no head read from elsewhere may change whose it is

    def merge(self, items: Mapping[str, T], head: Head | None = None, without: Iterable[str] = frozenset()) -> None:
        """Folds items into the bank file. `head`: what the file that they come from says of them."""
        # The whole file is read and written again, once per stage. Appending would be cheaper and could leave half a
        # record; this way the file is replaced in one rename, and its digest covers everything in it.
        kept = self.load()
        left = set(without)
        everything = Joined(Joined.chosen(kept, (k for k in kept if k not in left)), items)
        signed = self._signed({**self.head, **(head or {})})
        write_pieces(self.path, lambda: self.format.pieces(everything, signed))

    def reset(self) -> None:
        """Starts over: what is stored was found to belong to something else."""
        self.discard_parts()
        write_bytes(self.path, self.format.dump({}, self._signed({})))

    def finish(self) -> None:
        """All parts are there: fold them into the bank and forget the journal."""
        self.merge(self._parts_done())
        self.discard_parts()  # killed before this line, the parts are here twice: `tidy` removes them

    def take_all(self) -> tuple[Mapping[str, T], Head]:
        """All that is here, parts included, with what it says of itself; afterwards nothing is."""
        everything = dict(Joined(self.load(), self._parts_done()))  # in memory: the files go
        remove(self.path)
        self.discard_parts()
        return everything, self.head

    def discard_parts(self) -> None:
        remove(*self.parts.glob(f"{self.stem}.part-*"), self.journal)  # the journal last: it says what they are
        remove_empty(self.parts)


NOTES = "notes.json"  # how evidence came about, where that must be known: batches halved, the plain way used


def remember(directory: Path, stem: str, notes: Sequence[str]) -> None:
    """Keeps notes with a bank, before the evidence they are about: a resumed run must say them, too."""
    known = _all_notes(directory)
    new = [note for note in notes if note not in known.get(stem, [])]
    if new:
        write_json(directory / NOTES, {**known, stem: [*known.get(stem, []), *new]})


def remarks(directory: Path, stem: str) -> list[str]:
    return _all_notes(directory).get(stem, [])


def _all_notes(directory: Path) -> dict[str, list[str]]:
    path = directory / NOTES
    return dict(read_ours(path, dict[str, list[str]])) if path.exists() else {}


def tidy(directory: Path) -> None:
    """Parts that were folded already: a run was killed after it wrote the bank and before it removed them."""
    for journal in sorted((directory / "parts").glob("*.plan.json")):
        kind, _, identity = journal.name.removesuffix(".plan.json").partition("-")
        if kind in FORMATS:
            bank = Bank[Any](directory, kind, identity)
            asked = bank.interrupted()
            # Only if the bank has all that was asked for: parts of a run that can still resume are its progress.
            if asked is None or set(asked[0]) <= set(bank.load()):
                bank.discard_parts()
    # Nothing can resume from a part without a journal: nobody knows which batches it was one of.
    for part in sorted((directory / "parts").glob("*.part-*")):
        if not (part.parent / f"{part.name.partition('.part-')[0]}.plan.json").exists():
            remove(part)
    remove_empty(directory / "parts")


def discard_all(directory: Path, keep: Iterable[str] = ()) -> None:
    """Forgets the evidence of a run (overwrite=true)."""
    kept = set(keep)
    # Only what our journal lists: a user's own file in this directory is not ours to remove.
    remove(*(path for path in listed_files(directory) if path.name not in kept))
