"""manifest.json: what it says of a run, and whether the files are as it says. Nothing is written here."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from vestige.errors import UserError
from vestige.guard import parse_json
from vestige.io import WORK, DamagedError, damaged, json_text
from vestige.secrets import masked, without_secrets
from vestige.types import Grouping, content_key

MANIFEST = "manifest.json"
SCHEMA = 1  # goes up when a reader of the version before could misread a manifest
EVALUATIONS = ("eval", "trajectory", "harness")  # kinds of runs that `vestige eval` writes
OPEN = ("sweep", "s1")  # folders that several commands add to; they are never finished
BOOKKEEPING = ("state", "writer", "writes", "sha256", "runs", "root")
SAME = {"trajectory": "eval"}  # the same command writes both, and either over the other
SHARED = ("s1_cache", "logs", "__pycache__")  # folders that change without the run that made them
_ROOT = re.compile('\n    "root": "([0-9a-f]*)"')


@dataclass(frozen=True)
class Manifest:
    """What a manifest.json of ours says."""

    kind: str
    state: str = ""  # unfinished | finished | open; empty where another tool wrote it
    writes: frozenset[str] = frozenset()
    sha256: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()  # folders inside with manifests of their own
    root: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        return self.state == "unfinished"


def read_run(directory: Path, strict: bool = True) -> Manifest | None:
    """The manifest in a directory; None: there is none, or it is not ours.

    `strict`: one that is not as it was written is refused. A command that writes there only needs the names.
    """
    path = directory / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        body = parse_json(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return None
    schema = body.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(
            f"{path} was written by a newer version of vestige (schema {schema}, this one reads "
            f"{SCHEMA}); install that version to read it."
        )
    facts = {key: value for key, value in body.items() if key not in BOOKKEEPING}
    writes, digests, runs = body.get("writes", []), body.get("sha256", {}), body.get("runs", [])
    if not isinstance(writes, list) or not isinstance(digests, dict) or not isinstance(runs, list):
        raise damaged(path, "its list of files is not one")
    state, root = str(body.get("state", "")), str(body.get("root", ""))
    if strict and root and root != _root_of(text):
        raise damaged(path, "its root hash does not fit")
    return Manifest(body["kind"], state, frozenset(map(str, writes)), digests, tuple(map(str, runs)), root, facts)


def _root_of(text: str) -> str:
    return hashlib.sha256(_ROOT.sub('\n    "root": ""', text).encode()).hexdigest()


def kind_in(directory: Path) -> str | None:
    """The kind that a manifest states. None: the manifest is missing, or is not ours."""
    try:
        found = read_run(directory, strict=False)
    except DamagedError:
        return None
    return None if found is None else found.kind


def refuse_other_kind(directory: Path, kind: str) -> None:
    """One directory, one kind of run: the manifest of another would be written over. Asked before any work."""
    found = kind_in(directory)
    if found is not None:
        refuse_kind(directory, found, kind)


def refuse_kind(directory: Path, found: str, kind: str) -> None:
    if SAME.get(found, found) != SAME.get(kind, kind) and found not in OPEN:
        raise UserError(f"{directory} holds a run of another kind ({found}); choose another --out.")


def manifest_text(body: Mapping[str, Any], finished: bool) -> str:
    """The content of a manifest.json; that of a finished run holds one hash over all of it."""
    text = json_text({**body, "root": ""} if finished else body)
    return _ROOT.sub(f'\n    "root": "{_root_of(text)}"', text) if finished else text


def check_files(directory: Path, found: Manifest) -> list[str]:
    """What is wrong with the files of a finished run: a sentence each. A run inside it is checked by itself."""
    files, runs = files_of(directory, found.writes), runs_in(directory)
    wrong = []
    for name in (*found.sha256, *found.runs):
        if name not in files and name not in runs:
            wrong.append(f"{directory / name} is missing; run the command that made it again.")
    for name, path in files.items():
        if path.is_symlink():
            wrong.append(f"{path} is a link, not a file of this run; delete it.")
        elif name not in found.sha256:
            wrong.append(f"{path} was not there when the run was finished; delete it or move it elsewhere.")
        elif sha256(path) != found.sha256[name]:
            wrong.append(str(damaged(path, "its checksum does not fit")))
    return wrong


def is_whole(directory: Path) -> bool:
    """Finished, and every file as it was then."""
    try:
        found = read_run(directory)
    except UserError:
        return False
    return found is not None and bool(found.root) and not check_files(directory, found)


def files_of(directory: Path, names: Iterable[str]) -> dict[str, Path]:
    """The files under some listed names, by name; those of runs inside are theirs."""
    files: dict[str, Path] = {}
    waiting = [directory / name for name in sorted(names)]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or path.is_file():
            files[name] = path
        elif path.is_dir() and path.name not in (WORK, *SHARED) and not is_run(path):
            waiting += path.iterdir()
    return dict(sorted(files.items()))


def runs_in(directory: Path) -> list[str]:
    """The runs inside a directory, by name; those inside them are theirs."""
    runs = []
    for place, folders, _ in os.walk(directory):
        for folder in sorted(folders):
            path = Path(place, folder)
            if path.is_symlink() or folder in (WORK, *SHARED):
                folders.remove(folder)
            elif is_run(path):
                runs.append(path.relative_to(directory).as_posix())
                folders.remove(folder)
    return sorted(runs)


def is_run(directory: Path) -> bool:
    """Whether there is a manifest of ours in a directory."""
    if not is_plain(directory / MANIFEST):
        return False
    try:
        found = read_run(directory, strict=False)
    except DamagedError:
        return True  # the question about the run itself names the problem
    return found is not None and found.state != ""


def is_plain(path: Path) -> bool:
    """Whether it is there, and a file, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- what a run says of itself ------------------------------------------------------------------------------------

PACKAGES = (
    "vestige",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "scipy",
    "peft",
    "bitsandbytes",
    "lm_eval",
)


@functools.cache  # they cannot change under a running process, and looking them up takes a second on a slow disk
def versions() -> Mapping[str, str]:
    """Of Python and the packages that numbers depend on; for manifests."""
    out = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out


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


def clusters_json(found: Grouping) -> dict[str, Any]:
    """A grouping as a manifest has it: names once, and for each row the number of its name."""
    names = list(dict.fromkeys(found.of.values()))
    place = {name: i for i, name in enumerate(names)}
    return {"clusters": {"by": found.by, "names": names, "of": {row: place[c] for row, c in found.of.items()}}}


@dataclass(frozen=True)
class _Clusters:
    by: str
    names: list[str]
    of: dict[str, int]


def groupings(manifest: Mapping[str, Any]) -> dict[str, Grouping]:
    """The groupings of a finished run, by fingerprint of the rows. Runs of other tools have none."""
    data = manifest.get("data")
    found = {}
    for body in data.values() if isinstance(data, Mapping) else ():
        if isinstance(body, Mapping) and "clusters" in body and "fingerprint" in body:
            try:
                said = msgspec.convert(body["clusters"], _Clusters)
            except msgspec.ValidationError:
                return {}
            found[str(body["fingerprint"])] = Grouping(said.by, {row: said.names[i] for row, i in said.of.items()})
    return found
