"""Runs in one portable file: everything needed to score them again, and never the model.

    pack.json                 which runs, their root hashes, and where the retain logs they name are in here
    runs/NAME/...             the files of each finished run
    references/NAME/...       the retain model's runs, or single result files

The same runs give the same bytes. Extracting trusts nothing: only plain files inside the target, of bounded size.

In: finished run directories. Out: one file, or such directories again. Callers: runs/archive.py, and through it cli.py,
which lets every verb that reads runs take an archive.

Before results leave this machine: secrets in files, paths that name a person.

`vestige pack`: runs and what they were compared with in one file; and archives where a run is asked for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from vestige.errors import UserError, write_error
from vestige.io import decode_data, write_file
from vestige.runs import run as kinds
from vestige.runs.directory import temporary, write_bytes
from vestige.runs.files import read_ours, result_file, runs_below
from vestige.runs.manifest import MANIFEST, check_files, manifest_text, read_run, sha256
from vestige.runs.named_files import named_file
from vestige.secrets import HIDDEN, expand, hide, homes, is_secret_name, shorten

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
        raise UserError(f"{directory} is not finished; rerun the same command to resume, then pack it.")
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


# ==== publishing ====================================================================================================

WRITTEN = (".json", ".jsonl", ".csv", ".md", ".html", ".yaml", ".txt")
NOTE = "{count} files name a person's home directory (such as {home}); --shorten-paths writes ~ in its place."


def text_of(name: str, data: bytes) -> str | None:
    """The words of a file that is not tensors."""
    try:
        if name.endswith(".json.gz"):
            return gzip.decompress(data).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return None
    return data.decode("utf-8", "replace") if name.endswith(WRITTEN) else None


def refuse_secrets(files: Mapping[str, Path]) -> None:
    """An archive is for others to read: files that hold a token in the open are not packed."""
    for name, path in files.items():
        if "/evidence/" in name and not name.endswith(".json.gz"):
            continue  # what the model said
        text = text_of(name, path.read_bytes())
        where = None if text is None else _secret_in(text)
        if where:
            raise UserError(
                f"{path} holds what looks like a secret ({where}), and an archive is for others to read; run the "
                "command that made it again, then pack it."
            )


def _secret_in(text: str) -> str | None:
    """Where a text holds a secret: under which name, or in the form of a known token."""
    try:
        named = next(_named(json.loads(text)), None)
    except ValueError:
        named = None
    if named is not None:
        return named
    return "a token or a password in an address" if hide(text) != text else None


def _named(data: Any, at: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            here = f"{at}.{key}" if at else str(key)
            if is_secret_name(str(key)) and isinstance(value, str) and value != HIDDEN and "${oc.env:" not in value:
                yield here
            yield from _named(value, here)
    elif isinstance(data, list):
        for value in data:
            yield from _named(value, at)


def homes_in(files: Mapping[str, Path]) -> tuple[int, str]:
    """How many files name somebody's home, and the first such."""
    found = [homes(text_of(name, path.read_bytes()) or "") for name, path in files.items()]
    named = [places[0] for places in found if places]
    return len(named), named[0] if named else ""


@contextmanager
def shortened(files: Mapping[str, Path]) -> Iterator[tuple[dict[str, Path], dict[str, str]]]:
    """Copies of some runs' files with ~ for people's homes and new digests; and the root of each run, by its folder."""
    with temporary() as place:
        copies = {name: place / name for name in files}
        for name, path in files.items():
            data = path.read_bytes()
            text = text_of(name, data)
            # Evidence carries a digest of its own, and no path.
            if text is not None and homes(text) and not (("/evidence/" in name) and name.endswith(".jsonl")):
                words = shorten(text).encode("utf-8", "surrogatepass")
                data = gzip.compress(words, compresslevel=6, mtime=0) if name.endswith(".gz") else words
            write_bytes(copies[name], data)
        roots = {}
        for name in (name for name in files if name.endswith(f"/{MANIFEST}")):
            folder = copies[name].parent
            before = read_run(folder, strict=False)
            if before is not None and before.state:
                digests = {inner: sha256(folder / inner) for inner in before.sha256}
                about = {"state": before.state, "writes": sorted(before.writes), "runs": list(before.runs)}
                text = manifest_text({**before.facts, **about, "sha256": digests}, finished=True)
                write_bytes(copies[name], text.encode())
                again = read_run(folder)
                roots[name.rsplit("/", 1)[0]] = again.root if again else ""
        yield copies, roots


# ==== pack ==========================================================================================================

log = logging.getLogger("vestige.results")

# Arguments of verbs that name a run; an archive there stands for the runs in it.
SINGLE, MANY = ("run", "run_a", "run_b"), ("runs",)
READING_VERBS = ("score", "compare", "diff", "published", "report")  # verify opens archives itself, and says more


def pack(directories: Sequence[Path], out: Path, shorten_paths: bool = False) -> tuple[Contents, str]:
    """One archive of some runs; the archive's sha256 is that of its bytes, on every machine.

    `shorten_paths`: ~ in the place of people's homes. The digests are made again for it, so that the roots differ.
    """
    contents = Contents()
    names = unique(d.resolve().name for d in directories)
    for name, directory in zip(names, directories, strict=True):
        if not directory.is_dir():
            raise UserError(f"{directory} is not a run directory; give the directory of a finished run.")
        name_of_kind = kinds.kind_of(directory)
        if name_of_kind and (why := kinds.kind(name_of_kind).not_packed):
            raise UserError(f"{directory} is not packed: {why}.")
        root, files = finished_files(directory)
        contents.runs[name], contents.roots[root] = root, f"runs/{name}"
        contents.files |= {f"runs/{name}/{file}": path for file, path in files.items()}
    for directory in directories:
        for path in kinds.of(directory).outside(directory):
            contents.references[path] = _bring(contents, path)
    refuse_secrets(contents.files)
    if not shorten_paths:
        count, home = homes_in(contents.files)
        if count:
            log.warning(NOTE.format(count=count, home=home))
        return contents, write_archive(out, contents)
    with shortened(contents.files) as (copies, roots):
        runs = {name: roots.get(f"runs/{name}", root) for name, root in contents.runs.items()}
        references = {shorten(path): name for path, name in contents.references.items()}
        contents = replace(contents, files=copies, runs=runs, references=references)
        return contents, write_archive(out, contents)


def _bring(contents: Contents, path: str) -> str:
    """Retain logs into the archive: the whole run they are of, if it is finished; else the file."""
    file = result_file(Path(path))
    run = read_run(file.parent)
    if run is None or not run.state:
        name = f"references/{unique([*_taken(contents), file.stem])[-1]}/{file.name}"
        contents.files[name] = file
        return name
    root, files = finished_files(file.parent)
    if root not in contents.roots:
        place = f"references/{unique([*_taken(contents), file.parent.resolve().name])[-1]}"
        contents.roots[root] = place
        contents.files |= {f"{place}/{name}": source for name, source in files.items()}
    return f"{contents.roots[root]}/{file.name}"


def _taken(contents: Contents) -> list[str]:
    return sorted({name.split("/")[1] for name in contents.files if name.startswith("references/")})


def unpack(path: Path, out: Path) -> list[Path]:
    """The runs of an archive in a folder of its own, to stay."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; give a folder that is not there yet.")
    return list(extract(path, out).values())


@contextmanager
def opened(paths: Sequence[str]) -> Iterator[list[Path]]:
    """Run directories for what was named: directories as they are, archives unpacked for the time being."""
    with ExitStack() as stack:
        out: list[Path] = []
        for path in paths:
            if not is_archive(path):
                out.append(Path(path))
                continue
            place = stack.enter_context(temporary())
            out += extract(Path(path), place).values()
        yield out


@contextmanager
def archives_opened(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The arguments with archives replaced by the runs in them; nothing that is written there is kept."""
    if args.verb not in READING_VERBS:
        yield args
        return
    with ExitStack() as stack:
        changed: dict[str, Any] = {}
        for name in SINGLE:
            value = getattr(args, name, None)
            if isinstance(value, str) and is_archive(value):
                changed[name] = str(_only(value, stack.enter_context(opened([value]))))
        for name in MANY:
            value = getattr(args, name, None)
            if isinstance(value, list) and any(map(is_archive, value)):
                changed[name] = [str(p) for p in stack.enter_context(opened(value))]
        if changed and args.verb == "score":
            print("note: the archive stays as it is; `vestige unpack` makes directories that keep what is written.")
        yield argparse.Namespace(**{**vars(args), **changed})


def _only(path: str, runs: Sequence[Path]) -> Path:
    if len(runs) != 1:
        names = ", ".join(run.name for run in runs)
        raise UserError(f"{path} holds {len(runs)} runs ({names}); `vestige unpack {path} --out DIR`, then name one.")
    return runs[0]
