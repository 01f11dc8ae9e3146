"""Run directories: one writer at a time, a manifest that says what made it, and a seal when it is finished.

The lock is free again when its process dies. Readers take none: the seal tells them what is finished. It is written
last: checksums.json names every file with its sha256, and one root hash over them all. While a command works in a run
directory the seal says "unfinished", so that a killed run is never taken for a damaged one. Locks, logs, half-written
files and batches under way (evidence/parts) are not part of a run, and files that somebody else put there are not
either: the seal passes over those that are there when it is made. A directory inside that has a seal of its own is a
run of its own: the outer seal names it and leaves it to its own.

In: a directory, before and after a command works in it; a kind of run and what its room knows. Out: manifest.json, with
the same keys first in every kind, checksums.json, and what does not agree with it. Callers: every room that writes runs
(`writing`, `begin`, `manifest`, `seal`), results/verify.py; store/kinds.py reads back which kind a directory holds.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vestige.errors import UserError, write_error
from vestige.guard import read_json
from vestige.io import damaged
from vestige.ownership import (
    JOURNAL,
    TEMPORARY,
    adopt_file,
    beside,
    fault,
    has_journal,
    is_ours,
    is_plain,
    pass_over,
    permit,
)
from vestige.schema import misfit
from vestige.secrets import masked, without_secrets
from vestige.store.files import LEFTOVER, versions, write_json
from vestige.types import Grouping, content_key
from vestige.writing import HOLDER, LOCK, claim, lock_file, make_directory, remove, write_bytes

MANIFEST, SEAL = "manifest.json", "checksums.json"
EVALUATIONS = ("eval", "trajectory", "harness")  # kinds of runs that `vestige eval` writes
SCHEMA = 1  # goes up when a reader of the version before could misread a manifest
VERSION = 1  # of the seal
SCRATCH = {LOCK, HOLDER, JOURNAL, SEAL}
SCRATCH_DIRECTORIES = {"parts", "logs", "s1_cache", "__pycache__"}  # s1_cache: other runs share it and add to it

# ---- one writer ---------------------------------------------------------------------------------------------------


class HeldError(UserError):
    """Another process writes there now: wait for it, rather than count it as a failure."""


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Holds the run directory while open. The operating system frees it if the process dies, however it dies."""
    make_directory(directory)
    lock, holder = FileLock(lock_file(directory)), directory / HOLDER
    try:
        lock.acquire(timeout=0.5)  # `held` takes it for a moment, to look
    except Timeout:
        raise HeldError(
            f"{directory} is being written by {_who(holder)}; "
            "wait for it, stop it, or choose another --out / task_name."
        ) from None
    except OSError as error:
        raise write_error(error, directory / ".lock") from None
    try:
        claim(directory, alone=True)
        _accept_sealed(directory)
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError, UserError):  # it only tells others who we are
            write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": started}, indent=None)
        yield
    finally:
        with contextlib.suppress(OSError, UserError):
            remove(holder)
        lock.release()


def _accept_sealed(directory: Path) -> None:
    """A finished run that was copied or unpacked may lack our journal; its seal lists its files with their digests."""
    if is_ours(directory / SEAL):
        return
    try:
        sealed = read_seal(directory)
    except ValueError:
        return  # another tool's checksums.json
    if sealed is None or not sealed.finished:
        return
    for name, digest in sealed.files.items():
        path = directory / name
        if path.is_file() and sha256(path) == digest:
            adopt_file(path)
    adopt_file(directory / SEAL)


def held(directory: Path) -> bool:
    """Whether a process writes there now. Looking changes nothing."""
    if not is_plain(directory / LOCK):
        return False
    with (directory / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _who(holder: Path) -> str:
    try:
        data = json.loads(holder.read_text())
    except (OSError, ValueError):
        return "another process"
    if misfit(data, dict[str, int | str]) or not {"pid", "host", "since"} <= data.keys():
        return "another process"
    return f"process {data['pid']} on {data['host']} (since {data['since']})"


# ---- the manifest -------------------------------------------------------------------------------------------------


def manifest(kind: str, config: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The keys that all kinds have; `facts` are the kind's own, and may replace `versions`."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "schema": SCHEMA,
        "kind": kind,
        "created": now,
        "versions": dict(versions()),
        "config": dict(config),
        **facts,
    }


def config_json(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of an evaluation's configuration: plain data, without secrets (secrets.py).

    Where a value came from the environment, `environment` is a digest of the whole: another value is another run.
    """
    plain = dict(json.loads(json.dumps(described, default=str)))
    shown: dict[str, Any] = masked(plain)
    for key in ("suite", "top"):  # names of ours
        if key in plain:
            shown[key] = plain[key]
    if "${oc.env:" in json.dumps(shown):
        open_ = without_secrets(plain)
        shown["environment"] = content_key(json.dumps(open_, sort_keys=True).encode())[:16]
    return shown


def write_manifest(directory: Path, kind: str, config: Mapping[str, Any], **facts: Any) -> Path:
    """The manifest of a run whose settings were not masked yet."""
    write_json(directory / MANIFEST, manifest(kind, masked(dict(config)), **facts))
    return directory / MANIFEST


def kind_in(directory: Path) -> str | None:
    """The kind that a manifest states. None: the manifest is missing, or is not ours."""
    try:
        found = read_json(directory / MANIFEST)
    except (OSError, ValueError, UserError):
        return None
    if not isinstance(found, Mapping):
        return None
    schema = found.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(
            f"{directory / MANIFEST} was written by a newer version of vestige (schema {schema}, this one reads "
            f"{SCHEMA}); install that version to read it."
        )
    kind = found.get("kind")
    return kind if isinstance(kind, str) else None


def clusters_json(found: Grouping) -> dict[str, Any]:
    """A grouping as a manifest has it: names once, and for each row the number of its name."""
    names = list(dict.fromkeys(found.of.values()))
    place = {name: i for i, name in enumerate(names)}
    return {"clusters": {"by": found.by, "names": names, "of": {row: place[c] for row, c in found.of.items()}}}


def groupings(manifest: Mapping[str, Any]) -> dict[str, Grouping]:
    """The groupings of a finished run, by fingerprint of the rows. Runs of other tools have none."""
    data = manifest.get("data")
    if not isinstance(data, Mapping):
        return {}
    for body in data.values():
        if isinstance(body, Mapping) and "clusters" in body:
            break
    else:
        return {}
    from vestige.store.forms import Rowset  # the forms of every kind of run: most runs have no clusters

    if misfit(data, dict[str, Rowset]):
        return {}
    return {
        str(body["fingerprint"]): Grouping(said["by"], {row: said["names"][i] for row, i in said["of"].items()})
        for body in data.values()
        if (said := body.get("clusters"))
    }


# ---- the seal -----------------------------------------------------------------------------------------------------


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
            if (path / SEAL).exists():
                runs.append(path.relative_to(top).as_posix())
            elif path.name not in SCRATCH_DIRECTORIES and not path.name.startswith("."):
                yield from _walk(path, runs, top)
        elif path.name in SCRATCH or path.suffix == ".log":
            continue
        elif not TEMPORARY.fullmatch(path.name) and not LEFTOVER.fullmatch(path.name):
            yield path


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
    permit(directory / SEAL)
    for name in rewritten:
        if not name.endswith(("/", "-")):
            permit(directory / name)
    refuse_other_kind(directory, kind)
    before = _sealed(directory)
    if before is not None:
        for name, digest in before.files.items():
            path = directory / name
            ours = any(name.startswith(r) if r.endswith(("/", "-")) else name == r for r in rewritten)
            if not ours and path.is_file() and sha256(path) != digest:
                raise damaged(path, "its checksum does not fit")
    write_bytes(directory / SEAL, sealed_bytes(Seal(kind, finished=False)))


SEALED_AS = {"trajectory": "eval"}  # the same command writes both, and either over the other


def refuse_other_kind(directory: Path, kind: str) -> None:
    """One directory, one kind of run: the manifest of another would be written over. Asked before any work."""
    before, said = _sealed(directory), kind_in(directory)
    found = before.kind if before is not None else SEALED_AS.get(str(said), said)
    if found is not None and found != kind:
        raise UserError(f"{directory} holds a finished run of another kind ({found}); choose another --out.")


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
    for name in pass_over(directory, files):
        del files[name]
    made = Seal(kind, dict(zip(files, map(sha256, files.values()), strict=True)), runs, facts)
    write_bytes(directory / SEAL, sealed_bytes(made))
    return made


def add(directory: Path, name: str) -> None:
    """One more file for a sealed run; the others are as they were sealed."""
    before = _sealed(directory)
    if before is not None:
        before.files[name] = sha256(directory / name)
        write_bytes(directory / SEAL, sealed_bytes(before))


def sealed_bytes(made: Seal) -> bytes:
    body: dict[str, Any] = {"version": VERSION, "kind": made.kind}
    if made.finished:
        body |= {"files": made.files, "runs": made.runs, "facts": made.facts, "root": made.root}
    else:
        body["unfinished"] = True
    return json.dumps(body, indent=1, sort_keys=True).encode()


def read_seal(directory: Path) -> Seal | None:
    """None: there is none. ValueError: it is not as it was written."""
    path = directory / SEAL
    if not path.exists():
        return None
    data = path.read_bytes()
    body = json.loads(data)
    if not isinstance(body, dict) or "kind" not in body:
        raise ValueError("it is not a seal")
    if body.get("unfinished") is True:
        return Seal(str(body["kind"]), finished=False)
    from vestige.store.forms import SealForm  # a new run reads no seal

    if words := misfit(body, SealForm):
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
