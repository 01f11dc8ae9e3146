"""Evaluations as a kind of run: by metrics, along a denoising trajectory, or by somebody else's harness.

Comes in: the directory of a finished run. Goes out: its numbers computed again (verify), its files written again
(score), what a report shows, its main numbers (compare, sweep), the retain logs it names (pack). See runs/run.py.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.config import RunConfig
from vestige.engine.references import load_references, with_mixtures
from vestige.engine.scores import Reference, Run, family, intervals, stats_file
from vestige.engine.stored import by_code, dialect_for, stored_scores, suite_from_manifest
from vestige.results.account import account_of
from vestige.results.rescore import against, rescore
from vestige.runs.files import read_ours, result_file
from vestige.runs.manifest import Manifest, sha256
from vestige.runs.run import Finding, Kind, Reader, Rescoring, RunSource, compared, read_manifest
from vestige.secrets import hide
from vestige.store.archive import moved
from vestige.suites.postprocess import with_more
from vestige.suites.spec import SuiteSpec
from vestige.types import Score

TASK = "sweep_task.json"  # what a sweep notes beside a run it made

# ---- verify -----------------------------------------------------------------------------------------------------


def _check(path: Path, finished: Manifest | None) -> Iterator[Finding]:
    manifest = read_manifest(path)
    if code := by_code(manifest):
        yield Finding(words=f"{path}: {code}: its files were compared only", note=True)
        return
    suite = suite_from_manifest(manifest)
    yield from _scored(path, path, suite, manifest["dialect"]["name"], finished)
    for file in sorted(path.glob("scores/*/definition.json")):
        said = read_ours(file, dict[str, Any])
        other = suite_from_manifest(manifest, said.get("changes") or {})
        if said.get("retain_logs"):
            other = against(other, str(Path(said["retain_logs"]).expanduser().absolute()))
        yield from _scored(path, file.parent, other, said["dialect"]["name"], finished)


def _scored(path: Path, place: Path, suite: SuiteSpec, dialect: str, finished: Manifest | None) -> Iterator[Finding]:
    """The result files of one definition: values, summary and intervals."""
    manifest = read_manifest(path)
    references, lost = yield from _references(path, suite, dialect, finished)
    scores = stored_scores(path, suite, dialect_for(manifest, dialect, path), references)
    suite = with_more(suite, scores)
    kept = {name: s for name, s in scores.items() if not lost & set(family(suite, name))}
    again = f"run `vestige score {path}`, which writes it again."
    again = again if place == path else f"delete {place}, then score the run by that definition again."
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
    path: Path, suite: SuiteSpec, dialect: str, finished: Manifest | None
) -> Generator[Finding, None, tuple[dict[str, Reference], set[str]]]:
    """The retain logs, and the metrics that need some that are gone or are others now."""
    now, read = moved(path), (finished.facts.get("reads") or {}) if finished is not None else {}
    lost: set[str] = set()
    gone: set[str] = set()
    for name, spec in suite.metrics.items():
        for file in (f for r in spec.references for f in r.paths):
            why = _changed(now.get(file, Path(file)), read.get(hide(file)))
            if why:
                lost.add(name)
                if file not in gone:
                    yield Finding(
                        words=f"{path}: the retain logs {file} {why}: what needs them is not made again", note=True
                    )
                gone.add(file)
    metrics = {n: s for n, s in suite.metrics.items() if not lost & set(family(suite, n))}
    rest = replace(suite, metrics=metrics, top=tuple(n for n in suite.top if n in metrics))
    manifest = read_manifest(path)
    references = load_references(rest, dialect, now, manifest.get("retain_logs"))
    return with_mixtures(references, str(path), manifest, dialect, accept=True), lost


def _changed(path: Path, digest: str | None) -> str:
    if not path.exists():
        return "are not there"
    if digest is not None and sha256(result_file(path)) != digest:
        return "are not those the run was compared with"
    return ""


# ---- score ------------------------------------------------------------------------------------------------------


def _score(path: Path, how: Rescoring) -> str:
    from vestige.show.tables import summary

    outcome = rescore(path, how.dialect, how.changes, how.retain_logs, how.cluster, how.accept_mixture)
    head = f"{outcome.manifest['model']['name']}  (dialect {outcome.dialect}, re-scored from evidence)"
    table = summary(outcome.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats)
    return "\n".join(["", head, "", table, "", f"files: {', '.join(str(f) for f in outcome.files)}"])


# ---- report -----------------------------------------------------------------------------------------------------


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    """Results of one or more suites, with or without a manifest: other tools write such files, too."""
    files = sorted(path.glob("*_EVAL.json"))
    results = [read(f, dict) for f in files]
    merged = {m: body for data in results for m, body in (data or {}).items() if isinstance(body, Mapping)}
    if not merged:
        return
    stats_files = sorted(path.glob("*_STATS.json"))
    stats = {m: body for f in stats_files for m, body in (read(f, dict) or {}).items()}
    file, task = path / "manifest.json", path / TASK
    manifest = (read(file, dict) if file.is_file() else None) or {}
    kind = "trajectory" if any(isinstance(body.get("agg_value"), Mapping) for body in merged.values()) else "eval"
    kept = (*files, *stats_files, *([file] if manifest else []))
    noted = dict((read(task, dict) if task.is_file() else None) or {})
    data = {"results": merged, "stats": stats, "manifest": manifest, "task": noted}
    unknown = f"{path.name} has no manifest.json: its model's weights, rows and dialect are not known."
    yield RunSource(kind, path, kept, data, _facts(manifest), () if manifest else (unknown,))


def _facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    if not manifest:
        return {}
    versions = manifest.get("versions") or {}
    config = manifest.get("config") or {}
    facts = {
        "suite": config.get("suite"),
        "dialect": (manifest.get("dialect") or {}).get("name"),
        "model": (manifest.get("model") or {}).get("name"),
        "rows read at most": config.get("max_samples"),
        "made": manifest.get("created"),
        "versions": ", ".join(f"{k} {versions[k]}" for k in ("vestige", "torch", "transformers") if k in versions),
    }
    return {k: str(v) for k, v in facts.items() if v}


# ---- compare, sweep, pack ---------------------------------------------------------------------------------------


def _values(path: Path) -> dict[str, Any]:
    """Every *_SUMMARY.json in one mapping."""
    out: dict[str, Any] = {}
    for file in sorted(path.glob("*_SUMMARY.json")):
        out |= read_ours(file, dict[str, Any])
    return out


def _outside(path: Path) -> list[str]:
    """The retain logs a run names, in its manifest and in its other definitions, that are there."""
    if not (path / "manifest.json").is_file():
        return []
    suite = suite_from_manifest(read_manifest(path))
    found = {p for spec in suite.metrics.values() for r in spec.references for p in r.paths}
    for file in sorted(path.glob("scores/*/definition.json")):
        logs = read_ours(file, dict[str, Any]).get("retain_logs")
        found |= {str(Path(logs).expanduser().absolute())} if logs else set()
    return sorted(p for p in found if Path(p).exists())


EVAL = Kind(
    "eval",
    check=_check,
    score=_score,
    gather=_gather,
    values=_values,
    account=account_of,
    outside=_outside,
    by_row=True,
)
TRAJECTORY = replace(EVAL, name="trajectory")
HARNESS = Kind(
    "harness", gather=_gather, values=_values, account=account_of
)  # its evidence is the harness's own affair
