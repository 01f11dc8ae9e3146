"""A finished run read back: its suite, its rows, its evidence, and scores from them. No model, no tokenizer.

In: a run directory. Out: what engine/evaluate.py had in memory when it scored. Callers: runs/evaluation.py and the room
results (compare, diff, verify, pack). Whatever needs to know how a run directory is laid out goes through here.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.adapters.plugins import missing_plugins
from vestige.engine.prepare import Prepared, make_words
from vestige.engine.scores import Live, Reference, Scoring
from vestige.errors import MissingPluginError, UserError, unknown_name
from vestige.io import damaged
from vestige.metrics.cards import full_name
from vestige.metrics.dialects import Dialect, get_dialect
from vestige.runs.evidence import open_folder
from vestige.runs.files import load_rows, read_ours
from vestige.runs.run import keys_read, read_manifest
from vestige.secrets import expand, unset
from vestige.suites.handlers.trajectory import RUNS_MODEL
from vestige.suites.handlers.trajectory_reading import Moment
from vestige.suites.registry import HANDLERS, AtStep, Evidence, Found, Words
from vestige.suites.spec import RESERVED, MetricConfig, MetricSpec, Named, SuiteSpec, merged, read_suite
from vestige.types import Score

Changes = Mapping[str, Mapping[str, Any]]  # metric -> setting -> value


def suite_from_manifest(manifest: Mapping[str, Any], changes: Changes | None = None) -> SuiteSpec:
    """The suite a run used, with `changes` laid over it."""
    config = manifest["config"]
    if "harness" in manifest:
        raise UserError(f"A run of '{config['suite']}' keeps no evidence to score again; evaluate the model again.")
    said = {name if name in config["metrics"] else full_name(name): body for name, body in (changes or {}).items()}
    _check_changes(config["metrics"], said)
    metrics = merged(_from_environment(config["metrics"]), said)
    settings = config["settings"]
    body = {"metrics": metrics, "handler": settings.get("handler", config["suite"])}
    try:
        suite = read_suite(config["suite"], body | {"postprocess": settings.get("postprocess")}, Named(metrics))
    except UserError as error:
        if missing := missing_plugins(config.get("plugins") or ()):
            raise MissingPluginError(
                f"The run was made with a plug-in that is not loaded; add {' '.join(f'--plugin {m}' for m in missing)}."
            ) from error
        raise
    return replace(suite, top=tuple(config["top"]), stem=str(config.get("stem") or ""))


def _from_environment(metrics: Mapping[str, MetricConfig]) -> dict[str, MetricConfig]:
    """Settings that a manifest keeps as ${oc.env:NAME}, as the environment has them now.

    Data sets are not read again, and retain logs may be in an archive: whether those are set is asked where needed.
    """
    out = expand(metrics)
    for name, body in out.items():
        for key, value in body.items():
            if key not in RESERVED and isinstance(value, str) and (variable := unset(value)):
                raise UserError(
                    f"The setting {name}.{key} of this run is the environment variable {variable}, which is not set; "
                    "set it and rerun the same command."
                )
    return dict(out)


def _check_changes(metrics: Mapping[str, MetricConfig], changes: Changes) -> None:
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
    if code := by_code(manifest):
        raise UserError(f"{directory} cannot be scored again: {code}; evaluate the model again.")
    rows = load_rows(directory / "evidence" / "examples.json.gz")
    if lost := sorted(keys_read(manifest) - set(rows)):
        raise damaged(directory / "evidence" / "examples.json.gz", f"it has no data {lost[0]}")
    prepared = Prepared(dialect, rows, manifest["data_of"], dict(manifest["unavailable"]))
    evidence = load_evidence(directory, manifest)
    words = words_of(directory) if evidence.denoised else None
    old = _results(directory, suite)
    live = _live_of(old)
    scores = Scoring(suite, prepared, evidence, references, None, live, words, _step_of(old)).score_all()
    for name, spec in suite.metrics.items():
        if spec.children and name in old:
            scores[name] = _with_live_children(scores[name], old[name], spec.children)
    return scores


def by_code(manifest: Mapping[str, Any]) -> str:
    """Whose code made the numbers of a run, if it was an evaluator's: it had the model, which is not here."""
    found = manifest.get("evaluator") or {}
    return f"its numbers were made by the code of {found['class']}, which had the model" if found else ""


def words_of(directory: Path) -> Words | None:
    """How to read token ids, from the tokenizer kept with the run's traces."""
    from vestige.models.tokenizer import tokenizer_in

    place = directory / "evidence" / "tokenizer"
    return make_words(tokenizer_in(place)) if place.is_dir() else None


def _results(directory: Path, suite: SuiteSpec) -> dict[str, Any]:
    path = directory / f"{suite.file_stem}_EVAL.json"
    return dict(read_ours(path, dict[str, Any])) if path.is_file() else {}


def _live_of(old: Mapping[str, Any]) -> Live:
    """Metrics that run the model themselves keep the value the run gave them."""

    def find(spec: MetricSpec, parents: Any, references: Any) -> Score:
        if spec.name not in old:
            return Score(None, reason="this metric runs the model itself; it cannot be re-scored from evidence")
        return Score.from_json(old[spec.name])

    return find


def _step_of(old: Mapping[str, Any]) -> AtStep:
    """The value that a run gave a metric that runs the model itself, at one step of a trajectory."""

    def find(child: MetricSpec, moment: Moment, parents: Any, references: Any) -> Score:
        found = (old.get(moment.spec.name) or {}).get("agg_value") or {}
        found = found.get(moment.reading.view, found)  # one view may be written without its name
        values = found.get(moment.reading.trajectory, {}).get(child.name) or []
        value = values[moment.step] if moment.step < len(values) else None
        return Score(value, reason="" if value is not None else RUNS_MODEL)

    return find


def _with_live_children(score: Score, old: Mapping[str, Any], children: SuiteSpec) -> Score:
    """What a run said of its children that run the model themselves, beside their values: rows, spread, reasons."""
    inside = [m for m, child in children.metrics.items() if HANDLERS[child.handler].live]
    if not inside:
        return score
    body: dict[str, Any] = score.to_json()
    for part in ("step_distribution", "value_by_index", "reasons", "reasons_by_step"):
        _graft(body, old, part, set(inside))
    starts = tuple(f"{m}: " for m in inside)
    notes = [n for n in body.get("notes", []) if not n.startswith(starts)]
    notes += [n for n in old.get("notes", []) if n.startswith(starts)]
    order = {n: i for i, n in enumerate(old.get("notes", []))}
    body["notes"] = sorted(notes, key=lambda n: order.get(n, len(order)))
    return Score.from_json(body)


def _graft(new: Any, old: Any, key: str, names: set[str]) -> None:
    """Takes the entries under some names from `old`, however deep they are below `key`."""
    if not isinstance(old, Mapping) or not isinstance(old.get(key), Mapping):
        return
    here = new.setdefault(key, {})
    for inner, value in old[key].items():
        if inner in names:
            here[inner] = value
        elif not isinstance(value, Mapping):  # the name of a row's view
            here.setdefault(inner, value)
        else:
            _graft(here, old[key], inner, names)
    if not here:
        del new[key]


def load_evidence(directory: Path, manifest: Mapping[str, Any]) -> Evidence:
    """The evidence of a finished run, found by the folders that its manifest names."""
    place = directory / "evidence"
    own = manifest.get("evidence") or {}

    def load(name: str | None) -> Found:
        return Found(open_folder(place, name).load(strict=True) if name else {})

    denoised = [load(name) for name in (own.get("denoised"), *(manifest.get("recorded_evidence") or ()))]
    classified = [load(name) for name in (manifest.get("classifiers") or {}).values()]
    references = expand(manifest.get("reference_evidence") or {})
    return Evidence(
        answers=load(own.get("answers")),
        texts=load(own.get("texts")),
        gradients=load(own.get("gradients")),
        reference={path: load(name) for path, name in references.items()},
        classified=Found(ChainMap(*classified)),  # type: ignore[arg-type]  # only read
        denoised=Found(ChainMap(*denoised)),  # type: ignore[arg-type]
        visible=load(own.get("visible")),
        errors=load(own.get("errors")),
        patched=Found({label: load(name) for label, name in (manifest.get("patched") or {}).items()}),
    )
