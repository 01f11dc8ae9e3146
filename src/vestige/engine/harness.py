"""An evaluation by somebody else's harness: its results in our run directory, with our kind of manifest."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from vestige.engine.config import HarnessConfig
from vestige.engine.evaluate import Outcome, check_directory
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.integrations import HARNESSES
from vestige.integrations.lm_eval import HarnessResults
from vestige.models.load import LoadedModel
from vestige.models.locate import locate
from vestige.show.tables import number, table
from vestige.store.checksums import begin, seal
from vestige.store.files import write_json
from vestige.store.lock import writing
from vestige.store.manifest import config_json, manifest
from vestige.types import Score

log = logging.getLogger("vestige.engine")


def evaluate_harness(config: HarnessConfig, loaded: LoadedModel | None = None) -> Outcome:
    """Runs the tasks in the run directory. Nothing is kept between runs: the harness has no evidence to resume from."""
    started = time.perf_counter()
    with writing(config.output_dir):
        check_directory(config)
        args = None if loaded else model_args(config)
        if args is not None:
            locate(args)  # finds the model, or says that there is none, before tasks are read
        model = ModelHandle(args, loaded)
        evaluate = importlib.import_module(HARNESSES[config.handler]).evaluate
        results: HarnessResults = evaluate(config.settings, model.get, config.limit, config.progress)
        return _write(config, model, results, started)


def _write(config: HarnessConfig, model: ModelHandle, results: HarnessResults, started: float) -> Outcome:
    place, stem = config.output_dir, config.file_stem
    files = (place / f"{stem}_EVAL.json", place / f"{stem}_SUMMARY.json")
    begin(place, "harness", [*(f.name for f in files), "manifest.json", "sweep_task.json"])
    write_json(files[0], results.details)
    write_json(files[1], results.summary)
    reasons = [f"{key}: no value, because {why}" for key, why in results.missing.items()]
    for line in reasons:
        log.warning(line)
    notes = [*results.notes, *(model.get().notes), *reasons]
    about = manifest("harness", config_json(config.describe())) | {
        "harness": {"handler": config.handler, "settings": results.settings},
        "model": model.facts(),
        "data": results.data,
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "notes": notes,
    }
    write_json(place / "manifest.json", about)
    seal(place, "harness")
    scores = scores_of(results)
    return Outcome(place, scores, tuple(scores), config.file_stem, about, files, results.notes)


def scores_of(results: HarnessResults) -> dict[str, Score]:
    """The summary as Scores, so that Python's Result reads a harness run like any other."""
    out = {}
    for key, value in results.summary.items():
        task, _, metric = key.partition("/")
        rows = results.details[task].get("value_by_index")
        out[key] = Score(
            value, None if rows is None else {i: {metric: r[metric]} for i, r in rows.items() if metric in r}
        )
    return out | {key: Score(None, reason=why) for key, why in results.missing.items()}


def summary(scores: Mapping[str, Score]) -> str:
    """One line per task and metric, its standard error beside it."""
    rows = []
    for key, score in scores.items():
        name, comma, kind = key.partition(",")
        if name.endswith("_stderr"):
            continue
        error = scores.get(f"{name}_stderr{comma}{kind}")
        rows.append([key, number(score.agg_value), number(error.agg_value if error else None)])
    return table(rows, ["task/metric", "value", "stderr"], right=(1, 2))


def report(outcome: Outcome) -> str:
    """What the command line prints of a harness run."""
    manifest: Mapping[str, Any] = outcome.manifest
    documents = sum(d["rows"] for d in manifest["data"].values())
    version = manifest["versions"].get("lm_eval", "")
    head = f"{manifest['model']['name']}  (lm-evaluation-harness {version}, {documents} documents)"
    notes = [f"note: {note}" for note in outcome.notes]
    files = f"files: {', '.join(str(f) for f in outcome.files)}"
    return "\n".join(
        ["", head, "", summary(outcome.scores), *notes, "", files, f"time:  {manifest['seconds']['total']:.1f} s"]
    )
