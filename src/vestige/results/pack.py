"""`vestige pack`: runs and what they were compared with in one file; and archives where a run is asked for."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.results.publishing import NOTE, homes_in, refuse_secrets, shortened
from vestige.runs import run as kinds
from vestige.runs.directory import temporary
from vestige.runs.files import result_file
from vestige.runs.manifest import read_run
from vestige.secrets import shorten
from vestige.store.archive import Contents, extract, finished_files, is_archive, unique, write_archive

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
