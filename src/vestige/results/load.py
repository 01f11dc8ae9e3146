"""A finished evaluation read back as it was reported: `vestige.load_run`. No model runs, nothing is written.

In: a run directory. Out: the Outcome that engine/evaluate.py returned when the run was made. Caller: api.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.adapters.lm_eval import HarnessResults
from vestige.engine.evaluate import Outcome, retain_values
from vestige.engine.harness import scores_of
from vestige.engine.references import load_references
from vestige.engine.scores import stats_file
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError
from vestige.io import damaged
from vestige.runs.files import read_ours, result_file
from vestige.runs.manifest import read_run, sha256
from vestige.runs.run import read_manifest
from vestige.store.archive import moved
from vestige.suites.postprocess import with_more
from vestige.types import Score

log = logging.getLogger("vestige.results")


def load_outcome(directory: Path) -> Outcome:
    """The run's numbers, from result files that must be those that were finished.

    Files, not evidence: runs of an evaluator's own code and of a harness have no evidence that gives their numbers
    again, and retain logs may have moved since.
    """
    manifest = read_manifest(directory)
    run = _FinishedFiles(directory)
    return _harness(run, manifest) if "harness" in manifest else _evaluation(run, manifest)


class _FinishedFiles:
    """The files of a finished run, checked where its manifest has their digests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        manifest = read_run(directory)
        if manifest is not None and manifest.unfinished:
            raise UserError(f"{directory} is not finished; run the command that made it again, it goes on from there.")
        self.digests = {} if manifest is None else manifest.sha256

    def read(self, file: Path, form: Any) -> Any:
        if not file.is_file():
            raise UserError(f"{self.directory} has no {file.name}; run the command that made it again.")
        if self.digests.get(file.name, "") not in ("", sha256(file)):
            raise damaged(file, "its checksum does not fit")
        return read_ours(file, form)


def _evaluation(run: _FinishedFiles, manifest: Mapping[str, Any]) -> Outcome:
    suite, place = suite_from_manifest(manifest), run.directory
    details, summary = (place / f"{suite.file_stem}_{part}.json" for part in ("EVAL", "SUMMARY"))
    scores = {name: Score.from_json(body) for name, body in run.read(details, dict[str, dict[str, Any]]).items()}
    suite = with_more(suite, scores)
    dialect = manifest["dialect"]["name"]
    try:
        references = load_references(suite, dialect, moved(place), manifest.get("retain_logs"))
    except UserError as error:  # their values are only shown beside the run's own
        log.warning("%s: %s", place, error)
        references = {}
    intervals = stats_file(place, suite)
    stats = run.read(intervals, dict[str, dict[str, Any]]) if intervals.is_file() else {}
    files = tuple(file for file in (details, summary, intervals) if file.is_file())
    retain = retain_values(references, suite)
    return Outcome(
        place, scores, suite.top, dialect, manifest, files, retain=retain, stats=stats, metrics=suite.metrics
    )


def _harness(run: _FinishedFiles, manifest: Mapping[str, Any]) -> Outcome:
    """What had no value is in the manifest's notes only."""
    file = result_file(run.directory)
    stem = file.name.removesuffix("_EVAL.json")
    files = (file, file.with_name(f"{stem}_SUMMARY.json"))
    details, values = (run.read(one, dict[str, Any]) for one in files)
    scores = scores_of(HarnessResults(details, values, manifest["data"], manifest["harness"]["settings"]))
    return Outcome(run.directory, scores, tuple(scores), stem, manifest, files, list(manifest["notes"]))
