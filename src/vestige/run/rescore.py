"""`vestige score RUN`: the same scores from the evidence on disk, or others from another definition. No model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.metrics.dialects import get_dialect
from vestige.run.collecting import Found
from vestige.run.evaluate import Outcome, retain_values
from vestige.run.prepare import Prepared
from vestige.run.scoring import load_references, score_suite
from vestige.store.evidence import Bank
from vestige.store.examples import load_rows
from vestige.store.files import read_json, write_json
from vestige.store.lock import writing
from vestige.store.results import versions, write_results
from vestige.suites.registry import HANDLERS, Evidence
from vestige.suites.spec import Config, SuiteSpec, merged, read_suite
from vestige.types import Score, TokenStats

log = logging.getLogger("vestige.run")


class _NoLibrary:
    """A manifest says every metric in full; nothing is looked up by name."""

    def metric(self, name: str) -> Config | None:
        return None

    def dataset(self, name: str) -> Mapping[str, Config] | None:
        return None

    def metric_names(self) -> list[str]:
        return []


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / "manifest.json"
    if not path.is_file():
        raise UserError(f"{directory} is not a run directory: it has no manifest.json. Give the directory of a run.")
    return dict(read_json(path))


def suite_from_manifest(manifest: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> SuiteSpec:
    """The suite a run used, with `changes` ({metric: {param: value}}) laid over it."""
    config = manifest["config"]
    metrics = merged(config["metrics"], changes or {})
    body = {"metrics": metrics, "handler": config["settings"].get("handler", config["suite"])}
    suite = read_suite(config["suite"], body, _Known(metrics))
    return SuiteSpec(suite.name, suite.handler, suite.metrics, tuple(config["top"]))


class _Known(_NoLibrary):
    def __init__(self, metrics: Mapping[str, Config]) -> None:
        self.metrics = metrics

    def metric(self, name: str) -> Config | None:
        return self.metrics.get(name)


def rescore(directory: Path, dialect: str | None = None, changes: Mapping[str, Any] | None = None) -> Outcome:
    """Scores a run again. Another dialect is possible as long as it reads the same evidence."""
    manifest = read_manifest(directory)
    before = manifest["dialect"]["name"]
    chosen = get_dialect(dialect or before)
    if chosen.mask != manifest["dialect"]["mask"] and manifest["hidden_tokens"]:
        raise UserError(
            f"{directory} was collected with the attention mask of '{before}', which hides tokens in "
            f"{manifest['hidden_tokens']} answers; '{chosen.name}' needs a new collection: "
            f"run `vestige eval ... dialect={chosen.name}`."
        )
    suite = suite_from_manifest(manifest, changes)
    references = load_references(suite)
    with writing(directory):
        rows = load_rows(directory / "evidence" / "examples.json.gz")
        prepared = Prepared(chosen, rows, manifest["data_of"], dict(manifest["unavailable"]))
        scores = score_suite(suite, prepared, load_evidence(directory, manifest), references)
        _keep_live(directory, suite, scores)
        place = directory / _label(chosen.name, before, changes)
        files = write_results(place, suite.file_stem, scores, suite.top)
        if place != directory:
            note = {"dialect": {"name": chosen.name, "version": chosen.version}, "changes": dict(changes or {})}
            write_json(place / "definition.json", {**note, "of": str(directory), "versions": versions()})
    retain = retain_values(references, suite.top)
    return Outcome(directory, scores, suite.top, chosen.name, manifest, files, retain=retain)


def _label(dialect: str, before: str, changes: Mapping[str, Any] | None) -> str:
    """Another definition gets a folder of its own, so that a run's files keep meaning what the manifest says."""
    changed = [f"{m}.{k}={v}" for m, body in sorted((changes or {}).items()) for k, v in sorted(body.items())]
    if dialect == before and not changed:
        return "."
    return "scores/" + "_".join([dialect, *changed])


def _keep_live(directory: Path, suite: SuiteSpec, scores: dict[str, Score]) -> None:
    """Metrics that run the model themselves keep the value the run gave them."""
    path = directory / f"{suite.file_stem}_EVAL.json"
    old = read_json(path) if path.is_file() else {}
    for name, spec in suite.metrics.items():
        if HANDLERS[spec.handler].live is not None and name in old:
            scores[name] = Score.from_json(old[name])


def load_evidence(directory: Path, manifest: Mapping[str, Any]) -> Evidence:
    """What the run's own model said, by its identity; the reference model's by the identity the manifest notes."""
    place, identity = directory / "evidence", manifest["model"]["evidence"]
    classified: dict[str, float] = {}
    for path in sorted(place.glob("classified-*.json")):
        classified |= Bank[float](place, "classified", path.stem.removeprefix("classified-")).load()
    references = {
        path: Found(Bank[TokenStats](place, "answers", other).load())
        for path, other in (manifest.get("references") or {}).items()
    }
    return Evidence(
        answers=Found(Bank[Any](place, "answers", identity).load()),
        texts=Found(Bank[Any](place, "texts", identity).load()),
        gradients=Found(Bank[Any](place, "gradients", identity).load()),
        reference=references,
        classified=Found(classified),
    )
