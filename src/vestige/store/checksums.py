"""A finished run is sealed: checksums.json names every file of it with its sha256, and one root hash over them all.

It is written last. While a command works in a run directory the seal says "unfinished", so that a killed run is never
taken for a damaged one. Locks, logs, half-written files and batches under way (evidence/parts) are not part of a run,
and files that somebody else put there are not either: the seal passes over those that are there when it is made. A
directory inside that has a seal of its own is a run of its own: the outer seal names it and leaves it to its own.

In: a run directory, before and after a command works in it. Out: checksums.json, and what does not agree with it.
Callers: every room that writes a run (`begin`, `seal`), and results/verify.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.journal import JOURNAL, TEMPORARY
from vestige.ownership import adopt, beside, fault, has_journal, is_ours, note_beside, permit, strangers
from vestige.schema import misfit
from vestige.store.files import LEFTOVER, damaged, write_bytes
from vestige.store.manifest import NAME as MANIFEST
from vestige.store.manifest import kind_in
from vestige.writing import claim

NAME = "checksums.json"
VERSION = 1
SCRATCH = {".lock", ".holder.json", JOURNAL, NAME}
SCRATCH_DIRECTORIES = {"parts", "logs", "s1_cache", "__pycache__"}  # s1_cache: other runs share it and add to it


@dataclass
class Seal:
    """What a seal says; `files` maps paths inside the run to sha256."""

    kind: str
    files: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)  # directories inside with seals of their own
    facts: dict[str, Any] = field(default_factory=dict)
    finished: bool = True

    @property
    def root(self) -> str:
        body = [VERSION, self.kind, self.files, self.runs, self.facts]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        if not self.finished:
            return {"version": VERSION, "kind": self.kind, "unfinished": True}
        body = {"version": VERSION, "kind": self.kind, "files": self.files, "runs": self.runs, "facts": self.facts}
        return {**body, "root": self.root}


def contents(directory: Path) -> tuple[dict[str, Path], list[str]]:
    """The files of a run by their paths inside it, and the runs inside it."""
    files: dict[str, Path] = {}
    runs: list[str] = []
    for path in _walk(directory, runs, directory):
        files[path.relative_to(directory).as_posix()] = path
    return files, sorted(runs)


def _walk(place: Path, runs: list[str], top: Path) -> Iterator[Path]:
    for path in sorted(place.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if (path / NAME).exists():
                runs.append(path.relative_to(top).as_posix())
            elif path.name not in SCRATCH_DIRECTORIES and not path.name.startswith("."):
                yield from _walk(path, runs, top)
        elif path.name not in SCRATCH and path.suffix != ".log" and not _is_half(path.name):
            yield path


def _is_half(name: str) -> bool:
    return bool(TEMPORARY.fullmatch(name) or LEFTOVER.fullmatch(name))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def begin(directory: Path, kind: str, rewritten: Sequence[str]) -> None:
    """Marks the run as unfinished. What the command will not rewrite must be as it was sealed.

    `rewritten`: names of files, or directories with a slash at their end. Otherwise a new seal would make damage look
    whole. What is there under such a name and is not ours is refused here, before any work.
    """
    if not has_journal(directory):
        claim(directory)
    adopt_earlier(directory, rewritten)
    permit(directory / NAME, *(directory / name for name in rewritten if not name.endswith(("/", "-"))))
    refuse_other_kind(directory, kind)
    before = _sealed(directory)
    if before is not None:
        for name, digest in before.files.items():
            path = directory / name
            ours = any(name.startswith(r) if r.endswith(("/", "-")) else name == r for r in rewritten)
            if not ours and path.is_file() and sha256(path) != digest:
                raise damaged(path, "its checksum does not fit")
    write_bytes(directory / NAME, sealed_bytes(Seal(kind, finished=False)))


SEALED_AS = {"trajectory": "eval"}  # the same command writes both, and either over the other


def refuse_other_kind(directory: Path, kind: str) -> None:
    """One directory, one kind of run: the manifest of another would be written over. Asked before any work."""
    before, said = _sealed(directory), kind_in(directory)
    if said is None and kind not in ("eval", "harness") and _is_our_manifest(directory / MANIFEST):
        said = "eval"  # of a version whose manifests did not say
    found = before.kind if before is not None else SEALED_AS.get(str(said), said)
    if found is not None and found != kind:
        raise UserError(f"{directory} holds a finished run of another kind ({found}); choose another --out.")


def adopt_earlier(directory: Path, rewritten: Sequence[str] = ()) -> None:
    """Lists the files of a run that a version without journals made: what its seal names.

    One that was not finished has no such list; then those are taken over that the same command rewrites.
    """
    if is_ours(directory / NAME):
        return
    try:
        found = read_seal(directory)
    except ValueError:
        return  # somebody else's
    if found is not None and found.finished:
        adopt(directory, [NAME, *found.files])
    elif found is not None or _is_our_manifest(directory / "manifest.json"):
        patterns = [
            f"{name}*" if name.endswith("-") else f"{name}**/*" for name in rewritten if name.endswith(("/", "-"))
        ]
        places = [p for pattern in [*patterns, "evidence/parts/*"] for p in directory.glob(pattern)]
        plain = [name for name in rewritten if not name.endswith(("/", "-"))]
        if rewritten:
            adopt(directory, [NAME, *plain, *(p.relative_to(directory).as_posix() for p in places)])


class _SealManifest(TypedDict):
    config: Any
    versions: dict[str, Any]


def _is_our_manifest(path: Path) -> bool:
    try:
        body = read_json(path)
    except (OSError, ValueError, UserError):
        return False
    return not misfit(body, _SealManifest) and "vestige" in body["versions"]


def _sealed(directory: Path) -> Seal | None:
    """The seal of a finished run, if there is a whole one."""
    try:
        seal = read_seal(directory)
    except ValueError:
        return None
    return seal if seal is not None and seal.finished else None


def seal(directory: Path, kind: str, **facts: Any) -> Seal:
    """Names every file. The last thing a command does to its run directory."""
    files, runs = contents(directory)
    others = pass_over(directory, files)
    made = Seal(kind, {name: sha256(path) for name, path in files.items() if name not in others}, runs, facts)
    write_bytes(directory / NAME, sealed_bytes(made))
    return made


def pass_over(directory: Path, files: Iterable[str]) -> list[str]:
    """Notes which files in a run are somebody else's: not part of it, and not damage. Returns their names."""
    others = strangers(directory, files)
    note_beside(directory, others)
    return others


def add(directory: Path, name: str) -> None:
    """One more file for a sealed run; the others are as they were sealed."""
    before = _sealed(directory)
    if before is not None:
        before.files[name] = sha256(directory / name)
        write_bytes(directory / NAME, sealed_bytes(before))


def sealed_bytes(made: Seal) -> bytes:
    return json.dumps(made.to_json(), indent=1, sort_keys=True).encode()


class _SealForm(TypedDict):
    kind: str
    files: dict[str, str]
    runs: list[str]
    facts: dict[str, Any]


def read_seal(directory: Path) -> Seal | None:
    """None: there is none. ValueError: it is not as it was written."""
    path = directory / NAME
    if not path.exists():
        return None
    data = path.read_bytes()
    body = json.loads(data)
    if not isinstance(body, dict) or "kind" not in body:
        raise ValueError("it is not a seal")
    if body.get("unfinished") is True:
        return Seal(str(body["kind"]), finished=False)
    if words := misfit(body, _SealForm):
        raise ValueError(words)
    made = Seal(str(body["kind"]), dict(body["files"]), list(body["runs"]), dict(body["facts"]))
    if body.get("root") != made.root or data != sealed_bytes(made):
        raise ValueError("its root hash does not fit")
    return made


def is_whole(directory: Path) -> bool:
    """Sealed, and every file as it was sealed."""
    found = _sealed(directory)
    return found is not None and not check(directory, found)


def check(directory: Path, found: Seal) -> list[str]:
    """What is wrong with the files of a sealed run: a sentence each. A further run inside is its own affair."""
    files, runs = contents(directory)
    lost = [name for name in found.files if name not in files] + [name for name in found.runs if name not in runs]
    out = [f"{directory / name} is missing; run the command that made it again." for name in lost]
    if why := fault(directory):
        return [*out, str(damaged(directory / JOURNAL, why))]
    others = beside(directory)
    for name, path in files.items():
        if name in others and name not in found.files:
            continue
        if path.is_symlink():
            out.append(f"{path} is a link, not a file of this run; delete it.")
        elif name not in found.files:
            out.append(f"{path} was not there when the run was sealed; delete it or move it elsewhere.")
        elif sha256(path) != found.files[name]:
            out.append(str(damaged(path, "its checksum does not fit")))
    return out
