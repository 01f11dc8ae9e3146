"""A finished run read back: its suite, its rows, its evidence, and scores from them. No model, no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.engine.obtain import Found
from vestige.engine.prepare import Prepared, make_words
from vestige.engine.scores import Reference, score_suite
from vestige.errors import UserError, unknown_name
from vestige.metrics.dialects import Dialect, get_dialect
from vestige.metrics.names import full_name
from vestige.schema import misfit
from vestige.secrets import expand, unset
from vestige.store.evidence import Bank
from vestige.store.examples import load_rows
from vestige.store.files import damaged, read_ours
from vestige.store.forms import HarnessManifest, Manifest, Result
from vestige.store.manifest import kind_in
from vestige.suites.registry import HANDLERS, Evidence, Words
from vestige.suites.spec import RESERVED, Config, Named, SuiteSpec, merged, read_suite
from vestige.types import Score, TokenStats

Changes = Mapping[str, Mapping[str, Any]]  # metric -> setting -> value


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / "manifest.json"
    if not path.is_file():
        raise UserError(f"{directory} is not a run directory: it has no manifest.json. Give the directory of a run.")
    found = read_ours(path)
    kind = kind_in(directory)
    if kind not in (None, "eval", "trajectory", "harness"):
        raise UserError(f"{directory} is a {kind} run, not an evaluation; give the directory of an evaluation.")
    if words := _manifest_misfit(found):
        raise damaged(path, words)
    return dict(found)


def _manifest_misfit(found: Any) -> str:
    """What is wrong with a manifest: a field of another form, or a name that it should explain and does not."""
    harness = isinstance(found, Mapping) and "harness" in found
    if words := misfit(found, HarnessManifest if harness else Manifest):
        return words
    if harness:
        return ""
    metrics = found["config"]["metrics"]
    parents = {p for body in metrics.values() for p in body.get("pre_compute") or {}}
    unknown = next((m for m in (*found["config"]["top"], *parents) if m not in metrics), None)
    if unknown is not None:
        return f"it has no metric {unknown}"
    keys = _read_by_metrics(found)
    lost = next((key for key in sorted(keys) if key not in found["data"]), None)
    if lost is not None:
        return f"it has no data {lost}"
    known = {**found["data_of"], **found["unavailable"]}
    without = next((m for m, body in metrics.items() if body.get("datasets") and not known.get(m)), None)
    return "" if without is None else f"it does not say which rows {without} read"


def _read_by_metrics(manifest: Mapping[str, Any]) -> set[str]:
    """The data that were read; metrics without a value may name some that were not there (a run without holdout)."""
    by_metric = {m: by for m, by in manifest["data_of"].items() if m not in manifest["unavailable"]}
    return {key for by_access in by_metric.values() for key in by_access.values()}


def suite_from_manifest(manifest: Mapping[str, Any], changes: Changes | None = None) -> SuiteSpec:
    """The suite a run used, with `changes` laid over it."""
    config = manifest["config"]
    if "harness" in manifest:
        raise UserError(f"A run of '{config['suite']}' keeps no evidence to score again; evaluate the model again.")
    said = {name if name in config["metrics"] else full_name(name): body for name, body in (changes or {}).items()}
    _check_changes(config["metrics"], said)
    metrics = merged(_from_environment(config["metrics"]), said)
    body = {"metrics": metrics, "handler": config["settings"].get("handler", config["suite"])}
    suite = read_suite(config["suite"], body, Named(metrics))
    return SuiteSpec(suite.name, suite.handler, suite.metrics, tuple(config["top"]))


def _from_environment(metrics: Mapping[str, Config]) -> dict[str, Config]:
    """Settings that a manifest keeps as ${oc.env:NAME}, as the environment has them now.

    Data sets are not read again, and retain logs may be in an archive: whether those are set is asked where needed.
    """
    out = expand(metrics)
    for name, body in out.items():
        for key, value in body.items():
            if key not in RESERVED and isinstance(value, str) and (variable := unset(value)):
                raise UserError(
                    f"The setting {name}.{key} of this run is the environment variable {variable}, which is not set; "
                    "set it and run the same command again."
                )
    return dict(out)


def _check_changes(metrics: Mapping[str, Config], changes: Changes) -> None:
    for metric, body in changes.items():
        if metric not in metrics:
            raise unknown_name("metric of this run", metric, metrics)
        settings = [k for k in metrics[metric] if k not in RESERVED]
        for key, value in body.items():
            if key not in settings:
                raise unknown_name(f"setting of {metric}", key, settings)
            if isinstance(value, (dict, list)):
                raise UserError(f"{metric}.{key} takes one value, not {type(value).__name__}.")


def dialect_for(manifest: Mapping[str, Any], name: str | None, directory: Path) -> Dialect:
    """The dialect to score a run in; one that needs other evidence than was collected is refused."""
    before = manifest["dialect"]
    chosen = get_dialect(name or before["name"])
    if chosen.mask != before["mask"] and manifest["hidden_tokens"]:
        raise UserError(
            f"{directory} was collected with the attention mask of '{before['name']}', which hides tokens in "
            f"{manifest['hidden_tokens']} answers; '{chosen.name}' needs a new collection: "
            f"run `vestige eval ... dialect={chosen.name}`."
        )
    return chosen


def stored_scores(
    directory: Path, suite: SuiteSpec, dialect: Dialect, references: Mapping[str, Reference]
) -> dict[str, Score]:
    """The scores of a run's evidence under a suite and a dialect. Nothing is written."""
    manifest = read_manifest(directory)
    rows = load_rows(directory / "evidence" / "examples.json.gz")
    if lost := sorted(_read_by_metrics(manifest) - set(rows)):
        raise damaged(directory / "evidence" / "examples.json.gz", f"it has no data {lost[0]}")
    prepared = Prepared(dialect, rows, manifest["data_of"], dict(manifest["unavailable"]))
    evidence = load_evidence(directory, manifest)
    scores = score_suite(
        suite, prepared, evidence, references, words=words_of(directory) if evidence.denoised else None
    )
    _keep_live(directory, suite, scores)
    return scores


def words_of(directory: Path) -> Words | None:
    """How to read token ids, from the tokenizer kept with the run's traces."""
    from vestige.models.tokenizer import tokenizer_in

    place = directory / "evidence" / "tokenizer"
    return make_words(tokenizer_in(place)) if place.is_dir() else None


def _keep_live(directory: Path, suite: SuiteSpec, scores: dict[str, Score]) -> None:
    """Metrics that run the model themselves keep the value the run gave them."""
    path = directory / f"{suite.file_stem}_EVAL.json"
    old = read_ours(path, dict[str, Any]) if path.is_file() else {}
    for name, spec in suite.metrics.items():
        if HANDLERS[spec.handler].live is not None and name in old:
            if words := misfit(old[name], Result):
                raise damaged(path, f"{name}: {words}")
            scores[name] = Score.from_json(old[name])


def _classifiers(place: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The banks of this run's classifiers. Runs of older versions do not name them: all that there are."""
    if "classifiers" in manifest:
        return sorted(set(manifest["classifiers"].values()))
    return sorted(path.stem.removeprefix("classified-") for path in place.glob("classified-*.json"))


def load_evidence(directory: Path, manifest: Mapping[str, Any]) -> Evidence:
    """What the run's own model said, by its identity; the reference model's by the identity the manifest notes."""
    place, identity = directory / "evidence", manifest["model"]["evidence"]
    classified: dict[str, float] = {}
    for name in _classifiers(place, manifest):
        classified |= Bank[float](place, "classified", name).load_whole()
    references = {
        path: Found(Bank[TokenStats](place, "answers", other).load_whole())
        for path, other in expand(manifest.get("references") or {}).items()
    }
    return Evidence(
        answers=Found(Bank[Any](place, "answers", identity).load_whole()),
        texts=Found(Bank[Any](place, "texts", identity).load_whole()),
        gradients=Found(Bank[Any](place, "gradients", identity).load_whole()),
        reference=references,
        classified=Found(classified),
        denoised=Found(Bank[Any](place, "denoised", identity).load_whole()),
        visible=Found(Bank[Any](place, "visible", identity).load_whole()),
        errors=Bank[float](place, "errors", identity).load_whole(),
        patched=Found(
            {
                label: Found(Bank[TokenStats](place, "patched", bank).load_whole())
                for label, bank in (manifest.get("patched") or {}).items()
            }
        ),
    )
