"""`vestige verify`: every file as it was sealed, and every number made of its evidence again. Nothing is written.

    checksums.json --hashes--> files        evidence --the same code as scoring--> numbers == those in the files

A finding is something wrong (exit status 1), with what to delete. A note is something that could not be looked at.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path

from vestige.errors import MissingPluginError, UserError
from vestige.store import directories
from vestige.store.archive import PACK, extract, is_archive
from vestige.store.directories import SEAL, Seal, read_seal
from vestige.store.files import read_ours
from vestige.store.kinds import kind_of, of
from vestige.writing import temporary

NO_SEAL = f"{SEAL} is missing (the run was made before there was one): only its numbers are checked"


@dataclass
class Verdict:
    """What was found of one run, runs inside it included."""

    path: Path
    root: str = ""
    files: int = 0
    numbers: int = 0  # values made again and compared
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # what was looked at, with counts, where files alone do not say

    def add(self, other: Verdict) -> None:
        self.files += other.files
        self.numbers += other.numbers
        self.findings += other.findings
        self.notes += other.notes
        self.checks += other.checks


def verify(path: Path, again: bool = True) -> Verdict:
    """Checks a run, a folder of runs, a directory of meta-evaluation or a report. `again`: also make numbers again."""
    if is_archive(path):
        return _archive(path, again)
    if not path.is_dir():
        raise UserError(f"{path} is not a run directory or an archive; give a run, a report or a .zip of vestige pack.")
    if (path / "report.json").is_file():
        return _report(path, again)
    verdict = Verdict(path)
    try:
        seal = read_seal(path)
    except ValueError as error:
        verdict.findings.append(f"{path / SEAL} is damaged ({error}); delete it, then run the same command again.")
        return verdict
    if seal is None and kind_of(path) is None:
        return _folder(path, again)
    if seal is not None and not seal.finished:
        verdict.findings.append(f"{path} is not finished: run the same command again, and it goes on.")
        return verdict
    if seal is None:
        verdict.notes.append(f"{path}: {NO_SEAL}")
    else:
        verdict.root, verdict.files = seal.root, len(seal.files)
        verdict.findings += directories.check(path, seal)
    for inner in _sealed_below(path):
        verdict.add(verify(inner, again))
    if not verdict.findings:  # numbers of broken files would only say the same again
        _numbers(path, seal, verdict, again)
    return verdict


def _archive(path: Path, again: bool) -> Verdict:
    """The runs of an archive; what they were compared with is in it, and is checked, too."""
    with temporary() as scratch:
        runs = extract(path, scratch)
        verdict = _folder(scratch, again)
        roots = read_ours(scratch / PACK)["runs"]
        for name, run in runs.items():
            seal = None if verdict.findings else read_seal(run)
            if seal is not None and seal.root != roots[name]:
                verdict.findings.append(f"{path}: run {name} is not the one that was packed; get the archive again.")
            verdict.notes += [f"{name}: root {seal.root}"] if seal else []
    verdict.path = path
    verdict.findings = [words.replace(f"{scratch}/", f"{path}: ") for words in verdict.findings]
    verdict.notes = [words.replace(f"{scratch}/", f"{path}: ") for words in verdict.notes]
    return verdict


def _folder(path: Path, again: bool) -> Verdict:
    """Every run below a folder: what a sweep made, or saves/eval."""
    verdict = Verdict(path)
    outer = _sealed_below(path)
    if not outer:
        raise UserError(f"{path} holds no run and no report: none of {SEAL}, manifest.json and report.json is in it.")
    for place in outer:
        verdict.add(verify(place, again))
    return verdict


def _report(path: Path, again: bool) -> Verdict:
    try:
        module = importlib.import_module("vestige.report.verify")
    except ModuleNotFoundError:
        raise UserError(f"{path} is a report, which this version cannot verify; verify the runs behind it.") from None
    checked = module.check_report(path, again)
    return Verdict(path, "", 0, checked.numbers, checked.findings, checked.notes, checked.checks)


def _sealed_below(path: Path) -> list[Path]:
    """The sealed runs inside a directory; those inside them are theirs to name."""
    found = sorted(p.parent for p in path.rglob(SEAL) if p.parent != path)
    return [p for p in found if not any(q in p.parents for q in found)]


def _numbers(path: Path, seal: Seal | None, verdict: Verdict, again: bool) -> None:
    try:
        run = of(path)
        if again and run.check is None:
            verdict.notes.append(f"{path}: a {run.name} run keeps no evidence of its own; its files were compared only")
        check = run.check if again else run.sources
        for found in check(path, seal) if check is not None else ():
            verdict.numbers += found.compared
            said = verdict.checks if found.check else verdict.notes if found.note else verdict.findings
            said.extend([found.words] if found.words else [])
    except MissingPluginError as error:
        verdict.notes.append(f"{path}: its files were compared only. {error}")
    except UserError as error:
        verdict.findings.append(str(error))
    except (ValueError, OSError) as error:  # a file that is not there, or not in its format
        why = f"{type(error).__name__}: {error}"
        verdict.findings.append(f"{path} cannot be scored again ({why}); run the command that made it again.")


def show(verdict: Verdict) -> str:
    """What a terminal shows: a line for each thing found, or that all is well."""
    lines = [f"checked: {check}" for check in verdict.checks] + [f"note: {note}" for note in verdict.notes]
    if verdict.findings:
        return "\n".join([f"{verdict.path}: {len(verdict.findings)} wrong", *verdict.findings, *lines])
    if not verdict.files and verdict.checks:
        made = f": {verdict.numbers:,} values made again and equal" if verdict.numbers else ""
        return "\n".join([f"{verdict.path}: whole{made}", *lines])
    root = f", root {verdict.root}" if verdict.root else ""
    words = f"{verdict.files} files as they were sealed, {verdict.numbers:,} values made again and equal{root}"
    return "\n".join([f"{verdict.path}: whole: {words}", *lines])
