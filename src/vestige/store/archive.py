"""Runs in one portable file: everything needed to score them again, and never the model.

    pack.json                 which runs, their root hashes, and where the retain logs they name are in here
    runs/NAME/...             the files of each finished run
    references/NAME/...       the retain model's runs, or single result files

The same runs give the same bytes. Extracting trusts nothing: only plain files inside the target, of bounded size.

In: finished run directories. Out: one file, or such directories again. Callers: results/pack.py, and through it cli.py,
which lets every verb that reads runs take an archive.
"""

from __future__ import annotations

import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from vestige.errors import UserError, write_error
from vestige.io import decode_data, write_file
from vestige.runs.files import read_ours, runs_below
from vestige.runs.manifest import MANIFEST, check_files, read_run, sha256
from vestige.runs.named_files import named_file
from vestige.secrets import expand, hide

PACK = "pack.json"
VERSION = 1
# What zipfile raises on bytes that are not what they say.
BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, OverflowError)
MOST_BYTES = 8 << 30  # unpacked; a benchmark's evidence is a few megabytes
MOST_FILES = 100_000
MOST_RATIO = 500  # unpacked to packed: results reach 50, what deflate makes of nothing but zeros 1,000


@dataclass
class Contents:
    """What goes into an archive: files by their names in it, and the notes about them."""

    files: dict[str, Path] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)  # name -> root hash
    references: dict[str, str] = field(default_factory=dict)  # path as a run names it -> name in the archive
    roots: dict[str, str] = field(default_factory=dict)  # root of a run already in -> its place in the archive

    def about(self) -> dict[str, Any]:
        return {"version": VERSION, "runs": self.runs, "order": list(self.runs), "references": self.references}


def finished_files(directory: Path) -> tuple[str, dict[str, Path]]:
    """A run's root hash and its files, runs inside it included; one that is not whole is refused."""
    manifest = read_run(directory)
    if manifest is None:
        below = runs_below(directory, MANIFEST) or f"it has no {MANIFEST}"
        raise UserError(f"{directory} is not a run: {below}.")
    if manifest.state != "finished":
        raise UserError(f"{directory} is not finished; run the same command again, then pack it.")
    if not manifest.root:
        raise UserError(
            f"{directory / MANIFEST} has no digests; `vestige score {directory}` writes them, then pack again."
        )
    wrong = check_files(directory, manifest)
    if wrong:
        raise UserError(f"{wrong[0]} (`vestige verify {directory}` lists all that is wrong with it.)")
    files = {name: directory / name for name in (*manifest.sha256, MANIFEST)}
    for inner in manifest.runs:
        files |= {f"{inner}/{name}": path for name, path in finished_files(directory / inner)[1].items()}
    return manifest.root, files


def write_archive(path: Path, contents: Contents) -> str:
    """Sorted names, one date, one level: equal contents are equal bytes. Returns the archive's own sha256."""
    about = hide(json.dumps(contents.about(), indent=1, sort_keys=True)).encode()
    with named_file(path) as half, zipfile.ZipFile(half, "x") as out:
        _put(out, PACK, about)
        for name, file in sorted(contents.files.items()):
            _put(out, name, file.read_bytes())
    return sha256(path)


def _put(out: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # dated 1980
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.create_system = 3
    entry.compress_type = zipfile.ZIP_DEFLATED
    out.writestr(entry, data, compresslevel=6)


def extract(path: Path, place: Path) -> dict[str, Path]:
    """The runs of an archive, by name, unpacked below `place`. What is not ours is refused before anything is made."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(path, entries, sum(e.compress_size for e in entries))
            for entry in entries:
                write_file(place / entry.filename, archive.read(entry))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path of the archive.") from None
    except (*BROKEN, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is damaged ({error}); get it again from where it came.") from None
    except OSError as error:
        raise write_error(error, place) from None
    pack = _read_pack(path, place / PACK)
    for name in pack.order:
        if not (place / "runs" / name / MANIFEST).is_file():
            raise UserError(f"{path} lists the run {name}, which is not in it; get the archive or pack it again.")
    for named in pack.references.values():
        if not safe_name(named) or not (place / named).is_file():
            raise UserError(f"{path} lists the retain logs {named}, which are not in it; get the archive again.")
    return {name: place / "runs" / name for name in pack.order}


def _check_entries(path: Path, entries: Sequence[zipfile.ZipInfo], packed: int) -> None:
    def refuse(why: str) -> UserError:
        return UserError(f"{path} is not an archive of vestige pack: {why}.")

    names = [e.filename for e in entries]
    if PACK not in names:
        raise refuse(f"it holds no {PACK}")
    if len(names) > MOST_FILES:
        raise refuse(f"it holds {len(names):,} files")
    if len(set(names)) != len(names):
        raise refuse("two of its files have one name")
    size = sum(e.file_size for e in entries)
    if size > MOST_BYTES or size > MOST_RATIO * max(packed, 1024):
        raise refuse(f"unpacked it would take {size / 2**30:.1f} GB")
    for e in entries:
        kind = stat.S_IFMT(e.external_attr >> 16)
        if not safe_name(e.filename):
            raise refuse(f"the name {e.filename!r} leads out of it")
        if e.is_dir() or kind not in (0, stat.S_IFREG) or e.flag_bits & 1:
            raise refuse(f"{e.filename!r} is not a plain file")


def safe_name(name: str) -> bool:
    """Whether a name stays below the directory it is put into.

    >>> [safe_name(n) for n in ("runs/a/x.json", "../x", "/etc/x", "a\\\\\\\\b", "C:/x", "runs//x", "a/./b")]
    [True, False, False, False, False, False, False]
    """
    if not name or "\\" in name or ":" in name or "\0" in name:
        return False
    parts = name.split("/")
    return not PurePosixPath(name).is_absolute() and not any(part in ("", ".", "..") for part in parts)


@dataclass(frozen=True)
class PackRecord:
    """pack.json."""

    version: int
    runs: dict[str, str]  # name -> root hash
    order: list[str]
    references: dict[str, str]  # path as a run names it -> name in the archive


def _read_pack(path: Path, file: Path) -> PackRecord:
    remedy = "it is not an archive of vestige pack"
    pack = decode_data(read_ours(file), PackRecord, f"The {PACK} of {path}", remedy)
    good = pack.version == VERSION and bool(pack.runs) and sorted(pack.order) == sorted(pack.runs)
    if not good or not all(safe_name(n) and "/" not in n for n in pack.runs):
        raise UserError(f"{path} is not an archive of vestige pack: its {PACK} says nothing that can be read.")
    return pack


def moved(directory: Path) -> dict[str, Path]:
    """For a run out of an archive: where the files it names outside itself are now.

    Only a run that lies where an archive puts its runs, and is one of them by its root hash, is such a one: a pack.json
    that happens to lie above another directory says nothing about it.
    """
    here = directory.absolute()
    for top in (here.parent.parent, here.parent.parent.parent):
        if not (top / PACK).is_file():
            continue
        body = read_ours(top / PACK)
        if not isinstance(body, dict) or not {field.name for field in fields(PackRecord)} <= set(body):
            return {}  # somebody else's file of that name
        pack = decode_data(body, PackRecord, str(top / PACK), "unpack the archive again")
        names = pack.references
        if not _unpacked(here.relative_to(top).parts, pack):
            return {}
        both = {**names, **expand(names)}  # a path from the environment by its expression and by its value
        found = {path: top / name for path, name in both.items() if safe_name(name)}
        return found if _is_the_one(here, top, pack, found) else {}
    return {}


def _unpacked(parts: Sequence[str], pack: PackRecord) -> bool:
    """Whether a place below an archive's pack.json is one that the archive fills: runs/NAME or references/NAME."""
    if parts[0] == "runs":
        return parts[1] in pack.runs
    within = {"/".join(name.split("/")[:2]) for name in pack.references.values()}
    return "/".join(parts[:2]) in within


def _is_the_one(run: Path, top: Path, pack: PackRecord, now: Mapping[str, Path]) -> bool:
    """Whether a run is the one that was packed, not another that was put in its place: by its root, or, once it was
    scored again, by the files it was compared with."""
    try:
        manifest = read_run(run)
    except UserError:
        return False
    if manifest is None or not manifest.root or run.parent.parent != top:  # nothing to tell it by
        return True
    known = manifest.facts.get("reads") or {}
    same = all(_digest_of(now[path]) == known[path] for path in now if path in known)
    return (pack.runs.get(run.name) == manifest.root) or same


def _digest_of(place: Path) -> str:
    files = sorted(place.glob("*_EVAL.json")) if place.is_dir() else [place]
    return sha256(files[0]) if len(files) == 1 and files[0].is_file() else ""


def is_archive(path: str | Path) -> bool:
    return str(path).endswith(".zip") and Path(path).is_file()


def unique(names: Iterable[str]) -> list[str]:
    """Names told apart by a number where two are the same.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    out: list[str] = []
    for name in names:
        number, new = 1, name
        while new in out:
            number += 1
            new = f"{name}-{number}"
        out.append(new)
    return out
