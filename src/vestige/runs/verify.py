"""`vestige verify`: every file as it was finished, and every number made of its evidence again. Nothing is written.

    manifest.json --hashes--> files        evidence --the same code as scoring--> numbers == those in the files

A finding is something wrong (exit status 1), with what to delete. A note is something that could not be looked at.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path

from vestige.errors import MissingPluginError, UserError
from vestige.io import DamagedError
from vestige.runs.archive import PACK, extract, is_archive
from vestige.runs.directory import temporary
from vestige.runs.files import read_ours
from vestige.runs.manifest import MANIFEST, Manifest, check_files, read_run, runs_in
from vestige.runs.run import kind_of, of

NO_DIGESTS = f"its {MANIFEST} has no digests of files: only its numbers are checked"


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
        manifest = read_run(path)
    except DamagedError as error:
        verdict.findings.append(str(error))
        return verdict
    known = kind_of(path)
    if known is None and (manifest is None or manifest.state == "open"):
        return _folder(path, again)
    if manifest is not None and manifest.unfinished:
        verdict.findings.append(f"{path} is not finished: rerun the same command to resume.")
        return verdict
    if manifest is None or not manifest.root:
        verdict.notes.append(f"{path}: {NO_DIGESTS}")
    else:
        verdict.root, verdict.files = manifest.root, len(manifest.sha256)
        verdict.findings += check_files(path, manifest)
    for inner in runs_in(path):
        verdict.add(verify(path / inner, again))
    if known is not None and not verdict.findings:  # numbers of broken files would only say the same again
        _numbers(path, manifest, verdict, again)
    return verdict


def _archive(path: Path, again: bool) -> Verdict:
    """The runs of an archive; what they were compared with is in it, and is checked, too."""
    with temporary() as scratch:
        runs = extract(path, scratch)
        verdict = _folder(scratch, again)
        roots = read_ours(scratch / PACK)["runs"]
        for name, run in runs.items():
            manifest = None if verdict.findings else read_run(run)
            if manifest is not None and manifest.root != roots[name]:
                verdict.findings.append(f"{path}: run {name} is not the one that was packed; get the archive again.")
            verdict.notes += [f"{name}: root {manifest.root}"] if manifest else []
    verdict.path = path
    verdict.findings = [words.replace(f"{scratch}/", f"{path}: ") for words in verdict.findings]
    verdict.notes = [words.replace(f"{scratch}/", f"{path}: ") for words in verdict.notes]
    return verdict


def _folder(path: Path, again: bool) -> Verdict:
    """Every run below a folder: what a sweep made, or saves/eval."""
    verdict = Verdict(path)
    inside = runs_in(path)
    if not inside:
        raise UserError(f"{path} holds no run and no report: neither {MANIFEST} nor report.json is in it.")
    for inner in inside:
        verdict.add(verify(path / inner, again))
    return verdict


def _report(path: Path, again: bool) -> Verdict:
    try:
        module = importlib.import_module("vestige.report.verify")
    except ModuleNotFoundError:
        raise UserError(f"{path} is a report, which this version cannot verify; verify the runs behind it.") from None
    checked = module.check_report(path, again)
    return Verdict(path, "", 0, checked.numbers, checked.findings, checked.notes, checked.checks)


def _numbers(path: Path, manifest: Manifest | None, verdict: Verdict, again: bool) -> None:
    try:
        run = of(path)
        if again and run.check is None:
            verdict.notes.append(f"{path}: a {run.name} run keeps no evidence of its own; its files were compared only")
        check = run.check if again else run.sources
        for found in check(path, manifest) if check is not None else ():
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
    words = f"{verdict.files} files as they were finished, {verdict.numbers:,} values made again and equal{root}"
    return "\n".join([f"{verdict.path}: whole: {words}", *lines])
