"""`vestige score RUN`: the same scores from the evidence on disk, or others from another definition. No model.

In: a run directory. Out: new result files in it; evidence is only read. Callers: results/kind.py, api.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.data.clusters import AUTO, NONE, no_such_column, rows_fingerprint, with_clusters
from vestige.data.rows import load_rows, redirect
from vestige.engine.config import RunConfig, spec_to_json
from vestige.engine.evaluate import Outcome, retain_values
from vestige.engine.references import load_references, mixture_accepted, reads, with_mixtures
from vestige.engine.scores import Run, stats_file, write_statistics
from vestige.engine.stored import Changes, dialect_for, stored_scores, suite_from_manifest
from vestige.errors import UserError
from vestige.runs.directory import open_run, refuse_input_in_output
from vestige.runs.files import load_rows as load_examples
from vestige.runs.files import write_json, write_results
from vestige.runs.manifest import clusters_json, versions
from vestige.runs.run import read_manifest
from vestige.secrets import expand
from vestige.store.archive import moved
from vestige.suites.postprocess import with_more
from vestige.suites.spec import SuiteSpec
from vestige.types import Grouping, Rows


def rescore(
    directory: Path,
    dialect: str | None = None,
    changes: Changes | None = None,
    retain_logs: str | None = None,
    cluster: str | None = None,
    accept_mixture: bool = False,
) -> Outcome:
    """Scores a run again. Another dialect is possible as long as it reads the same evidence.

    `cluster`: the column whose rows hang together, from the data files; intervals of the run are made with it from
    then on.
    """
    manifest = read_manifest(directory)
    if cluster is not None:
        _refuse_more(directory, dialect, changes, retain_logs)
        manifest = with_column(directory, manifest, cluster)
    suite = suite_from_manifest(manifest, changes)
    chosen = dialect_for(manifest, dialect, directory)
    if retain_logs is not None:
        if not Path(retain_logs).expanduser().exists():
            raise UserError(f"Retain logs {retain_logs} do not exist; check the path.")
        suite = against(suite, str(Path(retain_logs).expanduser().absolute()))
    now = moved(directory)  # told by the root hash, which is gone while the run is unfinished
    references = load_references(suite, chosen.name, now, manifest.get("retain_logs"))
    accept = accept_mixture or (retain_logs is None and mixture_accepted(manifest))
    references = with_mixtures(references, str(directory), manifest, chosen.name, accept)
    with open_run(directory, "eval") as run:
        scores = stored_scores(directory, suite, chosen, references)
        suite = with_more(suite, scores)
        label = _label(chosen.name, manifest["dialect"]["name"], changes, retain_logs)
        place = directory / label
        refuse_input_in_output(place, {"--retain-logs": retain_logs})
        results = [f"{suite.file_stem}_{part}.json" for part in ("EVAL", "SUMMARY", "STATS")]
        grown = place == directory and set(suite.metrics) != set(manifest["config"]["metrics"])
        run.begin(results if place == directory else [f"{label}/"])
        if grown:  # the suite's function returned scores that it did not return before
            added = {n: spec_to_json(s) for n, s in suite.metrics.items() if n not in manifest["config"]["metrics"]}
            config = manifest["config"]
            manifest["config"] = {**config, "metrics": {**config["metrics"], **added}, "top": list(suite.top)}
        files: tuple[Path, ...] = write_results(place, suite.file_stem, scores, suite.top)
        if place != directory:
            note = {"dialect": {"name": chosen.name, "version": chosen.version}, "changes": dict(changes or {})}
            write_json(place / "definition.json", {**note, "retain_logs": retain_logs, "versions": versions()})
        resamples = manifest["config"].get("stats", {}).get("resamples", RunConfig.resamples)
        stats = write_statistics(place, Run(suite, scores, manifest, references), resamples)
        run.finish({**manifest, "reads": reads(suite_from_manifest(manifest), now)})
    files = (*files, stats_file(place, suite)) if stats else files
    retain = retain_values(references, suite)
    return Outcome(
        directory, scores, suite.top, chosen.name, manifest, files, retain=retain, stats=stats, metrics=suite.metrics
    )


def _refuse_more(directory: Path, dialect: str | None, changes: Changes | None, retain_logs: str | None) -> None:
    """Clusters belong to the run's rows, so to all of its definitions: intervals of others would be stale."""
    if dialect is not None or changes or retain_logs is not None:
        raise UserError("--cluster is about the run's own intervals; score it with --cluster alone first.")
    if any(directory.glob("scores/*/definition.json")):
        raise UserError(
            f"{directory / 'scores'} holds scores by other definitions, whose intervals would not fit --cluster; "
            "delete that folder first and score them again afterwards."
        )


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
    changed += ["other-retain-logs"] if retain_logs is not None else []
    if dialect == before and not changed:
        return "."
    return "scores/" + "_".join([dialect, *changed]).replace("/", "-")


def with_column(directory: Path, manifest: Mapping[str, Any], column: str) -> dict[str, Any]:
    """The manifest of a finished run with the clusters of another column, from the data files it names.

    The files must hold the rows they held then: their fingerprints say so.
    """
    specs, stored = dict(_data_of(manifest)), load_examples(directory / "evidence" / "examples.json.gz")
    data = {}
    for key, body in manifest["data"].items():
        plain = {name: value for name, value in body.items() if name != "clusters"}
        known = column != NONE and key in specs and key in stored
        found = _clusters_of(stored[key], specs[key], manifest["config"], column) if known else None
        data[key] = {**plain, **(clusters_json(found) if found else {})}
    if column not in (AUTO, NONE) and not any("clusters" in body for body in data.values()):
        raise no_such_column(column, sorted({str(body["source"]) for body in data.values()}))
    config = {**manifest["config"], "stats": {**(manifest["config"].get("stats") or {}), "cluster": column}}
    return {**manifest, "config": config, "data": data}


def _data_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(data key, args) of every data set that a metric of the run read."""
    metrics = expand(manifest["config"]["metrics"])
    for metric, by_access in manifest["data_of"].items():
        datasets = metrics[metric].get("datasets") or {}
        for access, key in by_access.items():
            for name, body in datasets.items():
                if access == str(body.get("access_key") or name):
                    yield key, body.get("args") or {}


def _clusters_of(found: Rows, said: Mapping[str, Any], config: Mapping[str, Any], column: str) -> Grouping | None:
    args = redirect(dict(said.get("hf_args") or {}), expand(config.get("local") or {}))
    limits = [n for n in (config.get("max_samples"), said.get("max_samples")) if n is not None]
    rows, source = load_rows(args, min(limits, default=None))
    if rows_fingerprint(rows) != found.fingerprint:
        raise UserError(
            f"{source} does not hold the rows that this run read, so their clusters are not known; put the file back, "
            "or evaluate the model again."
        )
    return with_clusters(found, rows, args, column).clusters
