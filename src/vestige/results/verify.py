"""`vestige verify`: every file as it was sealed, and every number made of its evidence again. Nothing is written.

    checksums.json --hashes--> files        evidence --the same code as scoring--> numbers == those in the files

A finding is something wrong (exit status 1), with what to delete. A note is something that could not be looked at.
"""

from __future__ import annotations

import importlib
import io
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.engine.config import RunConfig
from vestige.engine.references import load_references, result_file
from vestige.engine.rescore import against
from vestige.engine.scores import Reference, family
from vestige.engine.statistics import Run, intervals, stats_file
from vestige.engine.stored import by_code, dialect_for, read_manifest, stored_scores, suite_from_manifest
from vestige.errors import UserError
from vestige.meta.files import META_EVAL, METHOD_RESULTS
from vestige.schema import misfit
from vestige.secrets import hide
from vestige.store import checksums
from vestige.store.archive import PACK, extract, is_archive, moved
from vestige.store.checksums import NAME, Seal, read_seal
from vestige.store.files import damaged, read_ours
from vestige.store.forms import Collapse, CollapseRow, Definition
from vestige.suites.postprocess import with_more
from vestige.suites.spec import SuiteSpec
from vestige.types import Score
from vestige.writing import temporary

TOLERANCE = 1e-9  # relative: another machine may add up in another order
NO_SEAL = f"{NAME} is missing (the run was made before there was one): only its numbers are checked"


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
        verdict.findings.append(f"{path / NAME} is damaged ({error}); delete it, then run the same command again.")
        return verdict
    if seal is None and _is_meta(path):
        return _meta(path, again)
    if seal is None and not _looks_like_a_run(path):
        return _folder(path, again)
    if seal is not None and not seal.finished:
        verdict.findings.append(f"{path} is not finished: run the same command again, and it goes on.")
        return verdict
    if seal is None:
        verdict.notes.append(f"{path}: {NO_SEAL}")
    else:
        verdict.root, verdict.files = seal.root, len(seal.files)
        verdict.findings += checksums.check(path, seal)
        for inner in seal.runs:
            if (path / inner).is_dir():
                verdict.add(verify(path / inner, again))
    if again and not verdict.findings:  # numbers of broken files would only say the same again
        _numbers(path, seal, verdict)
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


def _looks_like_a_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("manifest.json", "summary.json", "metrics.json", "stress.json"))


def _folder(path: Path, again: bool) -> Verdict:
    """Every run below a folder: what a sweep made, or saves/eval."""
    verdict = Verdict(path)
    found = sorted(p.parent for p in path.rglob(NAME))
    outer = [p for p in found if not any(q in p.parents for q in found)]
    if not outer:
        raise UserError(f"{path} holds no run and no report: none of {NAME}, manifest.json and report.json is in it.")
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


def _is_meta(path: Path) -> bool:
    return any((path / name).is_file() for name in (META_EVAL, METHOD_RESULTS))


def _meta(path: Path, again: bool) -> Verdict:
    """What `vestige meta` or `vestige import` wrote; runs in the same directory (as of demo-meta) are checked too."""
    module = importlib.import_module("vestige.results.meta_checks")
    checked = module.check_meta(path, again)
    verdict = Verdict(path, "", 0, checked.numbers, checked.findings, checked.notes, checked.checks)
    if any(path.rglob(NAME)):
        verdict.add(_folder(path, again))
    return verdict


def _numbers(path: Path, seal: Seal | None, verdict: Verdict) -> None:
    kind = seal.kind if seal is not None else _kind_of(path)
    check: Callable[[Path, Seal | None], Iterator[Finding]] | None = KINDS.get(kind)
    if check is None:
        verdict.notes.append(f"{path}: a {kind} run keeps no evidence of its own; its files were compared only")
        return
    try:
        for found in check(path, seal):
            verdict.numbers += found.compared
            (verdict.notes if found.note else verdict.findings).extend([found.words] if found.words else [])
    except UserError as error:
        verdict.findings.append(str(error))
    except (ValueError, OSError) as error:  # a file that is not there, or not in its format
        why = f"{type(error).__name__}: {error}"
        verdict.findings.append(f"{path} cannot be scored again ({why}); run the command that made it again.")


def _kind_of(path: Path) -> str:
    if (path / "manifest.json").is_file():
        return "harness" if "harness" in read_manifest(path) else "eval"
    return "depth" if (path / "summary.json").is_file() else "collapse" if (path / "metrics.json").is_file() else "old"


@dataclass(frozen=True)
class Finding:
    """One comparison: how many values, and what is wrong, if anything is."""

    compared: int = 0
    words: str = ""
    note: bool = False


def compared(file: Path, expected: Any, got: Any, repair: str) -> Finding:
    """Two results, value by value; the first difference is named."""
    count, first = _differences(expected, got, "")
    if first is None:
        return Finding(count)
    where, made, stands = first
    return Finding(count, f"{file}: {where} is {_short(stands)}, its evidence gives {_short(made)}; {repair}")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


Difference = tuple[str, Any, Any]


def _differences(expected: Any, got: Any, where: str) -> tuple[int, Difference | None]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        pairs = [(str(k), expected.get(k, "(absent)"), got.get(k, "(absent)")) for k in {**expected, **got}]
    elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)) and len(expected) == len(got):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    else:
        return 1, None if _same(expected, got) else (where or "it", expected, got)
    count, first = 0, None
    for key, a, b in pairs:
        n, difference = _differences(a, b, f"{where}/{key}" if where else key)
        count, first = count + n, first or difference
    return count, first


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool) | isinstance(b, bool):
        return a == b or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


# ---- evaluations ----------------------------------------------------------------------------------------------------


def _eval(path: Path, seal: Seal | None) -> Iterator[Finding]:
    manifest = read_manifest(path)
    if code := by_code(manifest):
        yield Finding(words=f"{path}: {code}: its files were compared only", note=True)
        return
    suite = suite_from_manifest(manifest)
    yield from _scored(path, path, suite, manifest["dialect"]["name"], seal)
    for file in sorted(path.glob("scores/*/definition.json")):
        said = read_ours(file, Definition)
        other = suite_from_manifest(manifest, said.get("changes") or {})
        if said.get("retain_logs"):
            other = against(other, str(Path(said["retain_logs"]).expanduser().absolute()))
        yield from _scored(path, file.parent, other, said["dialect"]["name"], seal)


def _scored(path: Path, place: Path, suite: SuiteSpec, dialect: str, seal: Seal | None) -> Iterator[Finding]:
    """The result files of one definition: values, summary and intervals."""
    manifest = read_manifest(path)
    references, lost = yield from _references(path, suite, dialect, seal)
    scores = stored_scores(path, suite, dialect_for(manifest, dialect, path), references)
    suite = with_more(suite, scores)
    kept = {name: s for name, s in scores.items() if not lost & set(family(suite, name))}
    again = f"delete it, then run `vestige score {path}`."
    details, summary = (place / f"{suite.file_stem}_{part}.json" for part in ("EVAL", "SUMMARY"))
    stands = _some(read_ours(details, dict[str, Any]), kept, suite)
    yield compared(details, {n: _plain(s.to_json()) for n, s in kept.items()}, stands, again)
    top = {n: _plain(kept[n].to_json()["agg_value"]) for n in suite.top if n in kept and not kept[n].missing}
    yield compared(summary, top, _some(read_ours(summary, dict[str, Any]), kept, suite), again)
    stats = stats_file(place, suite)
    if stats.is_file():
        resamples = manifest["config"].get("stats", {}).get("resamples", RunConfig.resamples)
        made = intervals(Run(suite, scores, manifest, references), resamples)
        made = {n: _plain(v) for n, v in made.items() if n in kept}
        yield compared(stats, made, _some(read_ours(stats, dict[str, Any]), kept, suite), again)


def _some(results: Mapping[str, Any], kept: Mapping[str, Score], suite: SuiteSpec) -> dict[str, Any]:
    """What a file says, less the metrics that cannot be made again here."""
    return {n: v for n, v in results.items() if n in kept or n not in suite.metrics}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _references(
    path: Path, suite: SuiteSpec, dialect: str, seal: Seal | None
) -> Generator[Finding, None, tuple[dict[str, Reference], set[str]]]:
    """The retain logs, and the metrics that need some that are gone or are others now."""
    now, sealed = moved(path), (seal.facts.get("reads") or {}) if seal is not None else {}
    lost: set[str] = set()
    gone: set[str] = set()
    for name, spec in suite.metrics.items():
        for file in (f for r in spec.references for f in r.paths):
            why = _changed(now.get(file, Path(file)), sealed.get(hide(file)))
            if why:
                lost.add(name)
                if file not in gone:
                    yield Finding(
                        words=f"{path}: the retain logs {file} {why}: what needs them is not made again", note=True
                    )
                gone.add(file)
    metrics = {n: s for n, s in suite.metrics.items() if not lost & set(family(suite, n))}
    rest = replace(suite, metrics=metrics, top=tuple(n for n in suite.top if n in metrics))
    return load_references(rest, dialect, now, read_manifest(path).get("retain_logs")), lost


def _changed(path: Path, sealed: str | None) -> str:
    if not path.exists():
        return "are not there"
    if sealed is not None and checksums.sha256(result_file(path)) != sealed:
        return "are not those the run was compared with"
    return ""


# ---- depth, collapse ------------------------------------------------------------------------------------------------


def _depth(path: Path, seal: Seal | None) -> Iterator[Finding]:
    from vestige.depth.files import detailed, table_of
    from vestige.depth.kept import KEPT, score_again

    if not (path / "evidence" / KEPT).is_file():
        yield Finding(
            words=f"{path}: evidence/{KEPT} is not there (an older run); its numbers are not made again", note=True
        )
        return
    repair = "delete it, then run the same `vestige depth` again."
    for made in score_again(path):
        place = path / made.folder
        yield compared(place / "results.json", made.records, read_ours(place / "results.json"), repair)
        summary = read_ours(place / "summary.json", dict[str, Any])
        yield compared(place / "summary.json", made.summary, {k: summary.get(k) for k in made.summary}, repair)
        for name, data in (
            ("results_detailed.jsonl", detailed(made.records)),
            ("layer_details.csv", table_of(made.records)),
        ):
            if (place / name).read_bytes() != data:
                yield Finding(1, f"{place / name} is not what its evidence gives; {repair}")


def _collapse(path: Path, seal: Seal | None) -> Iterator[Finding]:
    import numpy as np

    from vestige.collapse.detector import CollapseSettings
    from vestige.metrics.collapse import LABELS, Cross, Ema, row_table
    from vestige.metrics.collapse_extras import LATER_INTERVALS

    body = read_ours(path / "metrics.json", Collapse)
    with np.load(io.BytesIO((path / "cross.npz").read_bytes()), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = {f.name for f in CollapseSettings.__dataclass_fields__.values()}
    settings = CollapseSettings(**{k: v for k, v in body["settings"].items() if k in names})
    ema = Ema.from_json(body.get("ema") or {"per_token": {}, "per_seq": {}})
    ema.decay = settings.ema_decay
    repair = "delete it, then run the same `vestige collapse` again."
    rows = [json.loads(line) for line in (path / "rows.jsonl").read_text("utf-8", "surrogatepass").splitlines() if line]
    if words := misfit(rows, list[CollapseRow]):
        raise damaged(path / "rows.jsonl", words)
    for step in body["steps"]:
        for label in (n for n in (LABELS[1], LABELS[2], LABELS[0]) if f"{step['step']}/{n}/sums" in arrays):
            parts = {k: arrays[f"{step['step']}/{label}/{k}"] for k in ("sums", "lengths", "own", "prompts")}
            cross = Cross(**parts)
            made = _collapse_numbers(cross, label, step["step"], settings, ema)
            later = {f"{name}_ci_{end}" for name in LATER_INTERVALS for end in ("low", "high")}
            if not any(f"{label}/{k}" in step["metrics"] for k in later):
                made = {k: v for k, v in made.items() if k not in later}
            stands = {k: step["metrics"].get(f"{label}/{k}") for k in made}
            yield compared(path / "metrics.json", made, stands, repair)
            mine = [r for r in rows if r["step"] == step["step"] and r["label"] == label]
            table = row_table(cross)
            yield compared(path / "rows.jsonl", table, [{k: r.get(k) for k in table[0]} for r in mine], repair)


def _collapse_numbers(cross: Any, label: str, step: int, settings: Any, ema: Any) -> dict[str, Any]:
    from vestige.collapse.detector import numbers_of

    metrics, _ = numbers_of(cross, label, step, settings, ema, settings.seed)
    return {k: v for k, v in metrics.items() if v is not None}


KINDS: dict[str, Callable[[Path, Seal | None], Iterator[Finding]]] = {
    "eval": _eval,
    "depth": _depth,
    "collapse": _collapse,
}


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
