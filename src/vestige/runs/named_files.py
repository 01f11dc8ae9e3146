"""Files that the user named (-o FILE), and folders of such files: replaced only if vestige wrote them.

DIR/.vestige/outputs.json has the names of the files in DIR, each with the digest of what was written. It is empty while
the file is being written.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from vestige.guard import read_json
from vestige.io import WORK, damaged, make_directory, replacing
from vestige.runs.directory import PATIENCE, ForeignFileError, absolute, admit, not_ours, owner_of
from vestige.runs.manifest import is_plain, sha256

OUTPUTS, OUTPUTS_LOCK = f"{WORK}/outputs.json", f"{WORK}/.outputs.lock"


@contextlib.contextmanager
def named_files(*paths: Path) -> Iterator[None]:
    """Permission to write files that the user named, all in one folder. An earlier one is replaced only if vestige
    wrote it and it is as it was left: DIR/.vestige/outputs.json has the digests.
    """
    home = absolute(paths[0]).parent
    make_directory(home / WORK)
    for path in paths:
        run = owner_of(path)
        if run is not None and run.lists(absolute(path).relative_to(run.directory).as_posix()):
            raise ForeignFileError(f"{path} is a file of the run in {run.directory}; name another file (-o).")
        if path.is_symlink():
            raise not_ours(path)
    with FileLock(home / OUTPUTS_LOCK).acquire(timeout=PATIENCE):
        known = _outputs(home)
        for path in paths:
            if os.path.lexists(path) and path.name not in known:
                raise not_ours(path)
            if is_plain(path) and known[path.name] not in ("", sha256(path)):
                raise ForeignFileError(
                    f"{path} is not as vestige wrote it; move it elsewhere, or name another file (-o)."
                )
        _note_outputs(home, {**known, **{path.name: "" for path in paths}})
    try:
        yield
    finally:
        with FileLock(home / OUTPUTS_LOCK).acquire(timeout=PATIENCE):
            known = _outputs(home)
            for path in paths:
                known.pop(path.name, None)
                if is_plain(path):
                    known[path.name] = sha256(path)
            _note_outputs(home, known)


def _outputs(home: Path) -> dict[str, str]:
    try:
        found = read_json(home / OUTPUTS)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise damaged(home / OUTPUTS, str(error)) from None
    return dict(found)


def _note_outputs(home: Path, known: Mapping[str, str]) -> None:
    with replacing(home / OUTPUTS) as half:
        half.write_text(json.dumps(known, indent=1, sort_keys=True))


@contextlib.contextmanager
def named_file(path: Path) -> Iterator[Path]:
    """Where to write one file that the user named; it replaces an earlier one when it is whole."""
    make_directory(path.parent)
    with named_files(path), replacing(path) as half:
        yield half


def written_by(path: Path, save: Callable[..., Any], named: bool = False, **settings: Any) -> Path:
    """A file that another library writes, such as a picture. `named`: by the user, as in named_file."""
    if named:
        with named_file(path) as half:
            save(half, **settings)
    else:
        admit(path)
        with replacing(path) as half:
            save(half, **settings)
    return path
