"""`vestige score RUN`: the same scores from the evidence on disk, or others from another definition. No model.

In: a run directory. Out: the same directory with new result files; evidence is only read. `read_outcome` reads the
result files that are there, and writes nothing. Callers: results/kind.py, api.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.config import RunConfig, spec_to_json
from vestige.engine.evaluate import Outcome, retain_values
from vestige.engine.references import load_references, reads
from vestige.engine.statistics import Run, stats_file, write_statistics
from vestige.engine.stored import Changes, dialect_for, read_manifest, stored_scores, suite_from_manifest
from vestige.errors import UserError
from vestige.ownership import keep_apart
from vestige.store.archive import moved
from vestige.store.checksums import NAME as CHECKSUMS
from vestige.store.checksums import begin, read_seal, seal, sha256
from vestige.store.files import damaged, read_ours, write_json
from vestige.store.forms import ResultsForm, Stat
from vestige.store.lock import writing
from vestige.store.results import versions, write_results
from vestige.suites.postprocess import with_more
from vestige.suites.spec import SuiteSpec
from vestige.types import Score

log = logging.getLogger("vestige.run")


def rescore(
    directory: Path, dialect: str | None = None, changes: Changes | None = None, retain_logs: str | None = None
) -> Outcome:
    """Scores a run again. Another dialect is possible as long as it reads the same evidence."""
    manifest = read_manifest(directory)
    suite = suite_from_manifest(manifest, changes)
    chosen = dialect_for(manifest, dialect, directory)
    if retain_logs is not None:
        suite = against(suite, str(Path(retain_logs).expanduser().absolute()))
    now = moved(directory)  # told by the seal, which is undone below
    references = load_references(suite, chosen.name, now, manifest.get("retain_logs"))
    with writing(directory):
        scores = stored_scores(directory, suite, chosen, references)
        suite = with_more(suite, scores)
        label = _label(chosen.name, manifest["dialect"]["name"], changes, retain_logs)
        place = directory / label
        keep_apart(place, {"--retain-logs": retain_logs})
        results = [f"{suite.file_stem}_{part}.json" for part in ("EVAL", "SUMMARY", "STATS")]
        grown = place == directory and set(suite.metrics) != set(manifest["config"]["metrics"])
        begin(directory, "eval", [*results, *["manifest.json"] * grown] if place == directory else [f"{label}/"])
        if grown:  # the suite's function returned scores that it did not return before
            added = {n: spec_to_json(s) for n, s in suite.metrics.items() if n not in manifest["config"]["metrics"]}
            config = manifest["config"]
            manifest["config"] = {**config, "metrics": {**config["metrics"], **added}, "top": list(suite.top)}
            write_json(directory / "manifest.json", manifest)
        files: tuple[Path, ...] = write_results(place, suite.file_stem, scores, suite.top)
        if place != directory:
            note = {"dialect": {"name": chosen.name, "version": chosen.version}, "changes": dict(changes or {})}
            write_json(place / "definition.json", {**note, "retain_logs": retain_logs, "versions": versions()})
        resamples = manifest["config"].get("stats", {}).get("resamples", RunConfig.resamples)
        stats = write_statistics(place, Run(suite, scores, manifest, references), resamples)
        seal(directory, "eval", reads=reads(suite_from_manifest(manifest), now))
    files = (*files, stats_file(place, suite)) if stats else files
    retain = retain_values(references, suite)
    return Outcome(
        directory, scores, suite.top, chosen.name, manifest, files, retain=retain, stats=stats, metrics=suite.metrics
    )


def read_outcome(directory: Path) -> Outcome:
    """A finished evaluation as it was reported: its result files, which must be those that were sealed.

    Files, not evidence: runs of an evaluator's own code and of a harness have no evidence that gives their numbers
    again, and retain logs may have moved since.
    """
    manifest = read_manifest(directory)
    sealed = _sealed_files(directory)

    def read(file: Path, form: Any) -> Any:
        if not file.is_file():
            raise UserError(f"{directory} has no {file.name}: the run is not finished; run the same command again.")
        if sealed.get(file.name, "") not in ("", sha256(file)):
            raise damaged(file, "its checksum does not fit")
        return read_ours(file, form)

    read(directory / "manifest.json", Any)
    if "harness" in manifest:
        from vestige.engine.harness import stored_outcome

        return stored_outcome(directory, manifest, read)
    suite = suite_from_manifest(manifest)
    details = directory / f"{suite.file_stem}_EVAL.json"
    scores = {name: Score.from_json(body) for name, body in read(details, ResultsForm).items()}
    suite = with_more(suite, scores)
    dialect = manifest["dialect"]["name"]
    try:
        references = load_references(suite, dialect, moved(directory), manifest.get("retain_logs"))
    except UserError as error:  # they are only shown beside the numbers
        log.warning("%s: %s", directory, error)
        references = {}
    file = stats_file(directory, suite)
    stats = read(file, dict[str, Stat]) if file.is_file() else {}
    files = tuple(p for p in (details, directory / f"{suite.file_stem}_SUMMARY.json", file) if p.is_file())
    retain = retain_values(references, suite)
    return Outcome(
        directory, scores, suite.top, dialect, manifest, files, retain=retain, stats=stats, metrics=suite.metrics
    )


def _sealed_files(directory: Path) -> dict[str, str]:
    """The sha256 of each file of a finished run; nothing for runs that are older than seals."""
    try:
        found = read_seal(directory)
    except (OSError, ValueError) as error:
        raise damaged(directory / CHECKSUMS, str(error)) from None
    if found is not None and not found.finished:
        raise UserError(f"{directory} is not finished; run the command that made it again, it goes on from there.")
    return {} if found is None else found.files


def against(suite: SuiteSpec, path: str) -> SuiteSpec:
    """The suite with every reference read from `path`."""
    metrics = {
        name: replace(spec, references=tuple(replace(r, path=path) for r in spec.references))
        for name, spec in suite.metrics.items()
    }
    return replace(suite, metrics=metrics)


def _label(dialect: str, before: str, changes: Changes | None, retain_logs: str | None) -> str:
    """Another definition gets a folder of its own, so that a run's files keep meaning what the manifest says."""
    changed = [f"{m}.{k}={v}" for m, body in sorted((changes or {}).items()) for k, v in sorted(body.items())]
    if retain_logs is not None:
        changed.append("other-retain-logs")
    if dialect == before and not changed:
        return "."
    return "scores/" + "_".join([dialect, *changed]).replace("/", "-")
