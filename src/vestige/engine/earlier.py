"""Results that are in a run directory already: new ones of the same model and data join them, others are refused.

In: a configuration, and the manifest of the results that are there. Out: the configuration with their metrics or tasks
added to its own. The run is then evaluated as if all had been asked for at once: what is in evidence is read, so
earlier metrics cost no forward pass, and results and manifest describe one run. Callers: engine/evaluate.py
and engine/harness.py.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.config import AnyConfig, HarnessConfig, RunConfig, spec_to_json
from vestige.errors import UserError
from vestige.io import DamagedError
from vestige.runs.directory import RunDirectory, is_listed, listed_files, remove
from vestige.runs.manifest import config_json, read_run, refuse_other_kind
from vestige.runs.run import read_manifest
from vestige.secrets import expand
from vestige.suites.postprocess import FROM_CODE
from vestige.suites.spec import Named, read_suite


def earlier_results(config: AnyConfig) -> dict[str, Any] | None:
    """The manifest of the results in the run directory. None: there are none, or they are to be replaced."""
    refuse_other_kind(config.output_dir, "harness" if isinstance(config, HarnessConfig) else "eval")
    if config.overwrite:
        return None
    try:
        before = read_run(config.output_dir, strict=False)
        if before is None or "config" not in before.facts:  # none, or a run that was killed before it had results
            return None
        return read_manifest(config.output_dir)
    except DamagedError:
        if isinstance(config, HarnessConfig):
            raise
        return None  # evidence says itself what it is of; the manifest is written again


def refuse_results(directory: Path, what: str) -> None:
    raise UserError(
        f"{directory} holds results {what}; choose another --out (or task_name), or add --overwrite to replace them."
    )


def remove_results(run: RunDirectory) -> None:
    """Removes our results of an earlier run, which the new manifest would not describe. Evidence stays."""
    results = listed_files(run.directory / "scores")
    for part in ("EVAL", "SUMMARY", "STATS"):
        results += [file for file in run.directory.glob(f"*_{part}.json") if is_listed(file)]
    remove(*results)
    run.forget()  # last: until then the manifest says what the others are


# ---- metrics ---------------------------------------------------------------------------------------------------------


def with_earlier_metrics(config: RunConfig, before: Mapping[str, Any]) -> RunConfig:
    """The configuration with the metrics of an earlier run of the same suite, and with its retain logs."""
    suite, about = config.suite, before["config"]
    plugins = dict.fromkeys([*(about.get("plugins") or []), *config.plugins])
    named = {Path(file).name for file in config.plugins}
    for file in plugins:
        if Path(file).name not in named:
            refuse_results(config.output_dir, f"made with the plug-in {file}, which --plugin does not name here")
    metrics = _metrics_of(before)
    # One run has one retain model: its logs serve every metric, whichever command named them.
    settings = dict(config.settings)
    logs = settings.get("retain_logs_path")
    if logs is not None:
        _name_retain_logs(metrics, logs, again=True)
    else:
        logs = settings["retain_logs_path"] = expand(about["settings"].get("retain_logs_path"))
    for name, spec in suite.metrics.items():
        metrics[name] = spec_to_json(spec)
    _name_retain_logs(metrics, logs)
    read = read_suite(suite.name, {"metrics": metrics, "handler": suite.handler}, Named(metrics))
    top = tuple(name for name in dict.fromkeys([*about["top"], *suite.top]) if name in metrics)
    joined = replace(suite, metrics=read.metrics, top=top)
    return replace(config, suite=joined, settings=settings, plugins=tuple(plugins))


def _metrics_of(before: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of an earlier run, except for those that its code returns again."""
    metrics = {}
    for name, body in expand(before["config"]["metrics"]).items():
        if body["handler"] != FROM_CODE:
            metrics[name] = copy.deepcopy(body)
    return metrics


def _name_retain_logs(metrics: Mapping[str, Any], logs: Any, again: bool = False) -> None:
    """Writes the retain logs into metrics that name none; `again`: into all."""
    for body in metrics.values():
        for reference in body["reference_logs"].values():
            if again or reference.get("path") is None:
                reference["path"] = logs
        if "children" in body:
            _name_retain_logs(body["children"]["metrics"], logs, again)


def metrics_difference(
    config: RunConfig, before: Mapping[str, Any], now: Mapping[str, Any], evaluator: str = ""
) -> str:
    """Why new results cannot stand in one file with those of an earlier run; empty: they can.

    `before`, `now`: the manifests. `evaluator`: the class whose code reports the new results, if there is one.
    """
    if before["config"]["suite"] != config.suite.name:
        return f"of suite {before['config']['suite']}"
    made_by = (before.get("evaluator") or {}).get("class", "")
    if made_by != evaluator:
        return f"that the code of {made_by} reported" if made_by else f"without the code of {evaluator}"
    if evaluator:
        # Its code may have asked another model than the one it was given, and only the name is the same.
        if before["model"]["name"] != now["model"]["name"]:
            return f"of another model ({before['model']['name']})"
        return ""
    if before["dialect"] != now["dialect"]:
        return f"in the dialect {before['dialect']['name']}"
    if before["model"]["evidence"] != now["model"]["evidence"]:
        return _other_model(before["model"], now["model"])
    for key, what in (("template", "another chat template or system prompt"), ("tokenizer", "another tokenizer")):
        if before.get(key) != now[key]:
            return f"with {what}"
    if before["config"].get("max_samples") != config.limit:
        return f"with --limit {before['config'].get('max_samples') or 'off'}"
    if before["config"]["settings"].get("postprocess") != config.settings.get("postprocess"):
        return "with another postprocess function"
    for key, rows in before["data"].items():
        if now["data"].get(key, {}).get("fingerprint") != rows["fingerprint"]:
            return f"of other rows of {rows['name']} ({rows['source']})"
    recorded = config_json({"metrics": {name: spec_to_json(spec) for name, spec in config.suite.metrics.items()}})
    for name, body in before["config"]["metrics"].items():
        if name in recorded["metrics"] and _definition(body) != _definition(recorded["metrics"][name]):
            return f"of {name} with other settings ({_changed_settings(body, recorded['metrics'][name])})"
    logs, logs_now = before.get("retain_logs") or {}, now["retain_logs"]
    if logs and sorted(logs) != sorted(logs_now) and sorted(logs.values()) != sorted(logs_now.values()):
        return f"compared with other retain logs ({', '.join(logs)})"
    return ""


def _other_model(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if before["fingerprint"] != now["fingerprint"]:
        return f"of another model ({before['name']}, with other weights or settings than {now['name']})"
    held = [str(before[key]) for key in ("dtype", "attention", "device", "quantization") if before.get(key)]
    how = ", ".join(held)
    return (
        f"of this model held differently ({how}): in another precision, on another device, by other libraries, or with "
        "hooks or code of its own"
    )


def _definition(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a metric computes, without the files that it is compared with."""
    definition = {key: value for key, value in body.items() if key != "reference_logs"}
    if "children" in body:
        children = body["children"]["metrics"]
        definition["children"] = {name: _definition(child) for name, child in children.items()}
    return definition


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    changes = []
    for key in sorted({*_definition(before), *_definition(now)}):
        old, new = before.get(key), now.get(key)
        if old != new:
            plain = not isinstance(old, (dict, list)) and not isinstance(new, (dict, list))
            changes.append(f"{key}: {old}, now {new}" if plain else key)
    return "; ".join(changes)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def with_earlier_tasks(config: HarnessConfig, before: Mapping[str, Any], evidence: str) -> HarnessConfig:
    """The configuration with the tasks of an earlier run. `evidence`: the identity of the model."""
    about = before["config"]
    settings, earlier = dict(config.settings), dict(expand(about["settings"]))
    if about["suite"] != config.name:
        refuse_results(config.output_dir, f"of {about['suite']}")
    if before["model"]["evidence"] != evidence:
        refuse_results(
            config.output_dir,
            f"of another model, or of this one in another precision or on another device ({before['model']['name']})",
        )
    if about.get("max_samples") != config.limit:
        refuse_results(config.output_dir, f"with --limit {about.get('max_samples') or 'off'}")
    settings["include_path"] = settings.get("include_path") or earlier.get("include_path")
    plain = config_json({"settings": settings})["settings"]
    for key in sorted({*plain, *about["settings"]}):
        if key not in ("tasks", "output_dir", "overwrite") and plain.get(key) != about["settings"].get(key, plain[key]):
            refuse_results(config.output_dir, f"with other settings (eval.{config.name}.{key})")
    if not settings.get("tasks"):
        return config  # reading the tasks says that there are none
    tasks = _as_list(earlier["tasks"])
    known = [json.dumps(task, sort_keys=True) for task in tasks]
    tasks += [task for task in _as_list(settings.get("tasks")) if json.dumps(task, sort_keys=True) not in known]
    return replace(config, settings={**settings, "tasks": tasks})


def _as_list(tasks: Any) -> list[Any]:
    if isinstance(tasks, str):
        return [name.strip() for name in tasks.split(",") if name.strip()]
    return [tasks] if isinstance(tasks, Mapping) else list(tasks or [])
