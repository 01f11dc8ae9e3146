"""An evaluation by somebody else's harness: its results in our run directory, with our kind of manifest.

In: a HarnessConfig. Out: an Outcome, as engine/evaluate.py gives one, which is also the only caller.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vestige.adapters import HARNESSES
from vestige.adapters.lm_eval import HarnessResults, Keeping
from vestige.adapters.lm_eval_kept import LoadOrAsk
from vestige.collect.backend import Cost
from vestige.engine.config import HarnessConfig
from vestige.engine.earlier import earlier_results, refuse_results, remove_results, with_earlier_tasks
from vestige.engine.evaluate import Outcome
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.engine.served import handle_for
from vestige.models.load import LoadedModel
from vestige.models.locate import locate
from vestige.runs.collect import Job, load_or_collect
from vestige.runs.directory import RunDirectory, open_run
from vestige.runs.evidence import EvidenceFolder, remove_evidence
from vestige.runs.files import write_json
from vestige.runs.manifest import config_json, manifest
from vestige.runs.team import Team
from vestige.types import Score

log = logging.getLogger("vestige.engine")
REUSED = "answered before, and not asked again: {} (--overwrite asks again)"


def evaluate_harness(config: HarnessConfig, loaded: LoadedModel | None = None, accumulate: bool = False) -> Outcome:
    """Runs the tasks in the run directory. Answers are kept task by task, so that a killed run asks only the rest."""
    started = time.perf_counter()
    with open_run(config.output_dir, "harness") as run:
        before = earlier_results(config)
        model = _model(config, loaded)
        if before is not None and accumulate:
            config = with_earlier_tasks(config, before, model.identity)

        def ready() -> Any:
            """Tasks are read; from here on the run is under way."""
            found = model.get() if model.served is None else model.served.subject()
            run.begin([*_files(config), "sweep_task.json", "evidence/"])
            if config.overwrite:
                remove_results(run)
                remove_evidence(config.output_dir / "evidence")
            return found

        evaluate = importlib.import_module(HARNESSES[config.handler]).evaluate
        keeping = Keeping(partial(_load_or_ask, config.output_dir / "evidence", model), lambda: model.identity)
        results: HarnessResults = evaluate(config.settings, ready, config.limit, config.progress, keeping)
        model.check()  # a checkpoint that was written over meanwhile has no numbers
        if before is not None and accumulate:
            _refuse_other_rows(run, config, before["data"], results.data)
        return _write(run, config, model, results, started)


@dataclass(frozen=True)
class _Requests:
    """The requests of one task, by their content."""

    key: str


def _load_or_ask(directory: Path, model: ModelHandle, identity: str) -> LoadOrAsk:
    """Answers as evidence of the run: a function that asks only what is not there."""
    folder: EvidenceFolder[dict[str, Any]] = EvidenceFolder(directory, "requests", identity)
    cost = Cost()

    def load_or_ask(key: str, ask: Callable[[], dict[str, Any]]) -> Mapping[str, Any]:
        job = Job(lambda work: [[{key: ask()}]], dict, lambda _: model.made)
        [found] = load_or_collect([_Requests(key)], [folder], job, [model], Team(), cost)
        return found[key]

    return load_or_ask


def _refuse_other_rows(
    run: RunDirectory, config: HarnessConfig, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """The rows of a task are known once it was run. Nothing was replaced, so the earlier run is finished as it was."""
    for task, rows in before.items():
        if now.get(task, {}).get("fingerprint") != rows["fingerprint"]:
            run.finish()
            refuse_results(config.output_dir, f"of other rows of task {task}")


def _model(config: HarnessConfig, loaded: LoadedModel | None) -> ModelHandle:
    if config.server:
        return handle_for(config, loaded)
    args = None if loaded else model_args(config)
    if args is not None:
        locate(args)  # finds the model, or says that there is none, before tasks are read
    return ModelHandle(args, loaded)


def _files(config: HarnessConfig) -> list[str]:
    return [f"{config.file_stem}_{part}.json" for part in ("EVAL", "SUMMARY")]


def _write(
    run: RunDirectory, config: HarnessConfig, model: ModelHandle, results: HarnessResults, started: float
) -> Outcome:
    place = config.output_dir
    files = tuple(place / name for name in _files(config)[:2])
    write_json(files[0], results.details)
    write_json(files[1], results.summary)
    reasons = [f"{key}: no value, because {why}" for key, why in results.missing.items()]
    for line in reasons:
        log.warning(line)
    notes = [*results.notes, *([] if model.served else model.get().notes), *reasons]
    about = manifest("harness", config_json(config.describe())) | {
        "harness": {"handler": config.handler, "settings": results.settings},
        "model": model.facts(),
        "data": results.data,
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "notes": notes,
    }
    run.finish(about)
    scores = scores_of(results)
    reused = [REUSED.format(", ".join(results.reused))] if results.reused else []
    return Outcome(place, scores, tuple(scores), config.file_stem, about, files, [*results.notes, *reused])


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
