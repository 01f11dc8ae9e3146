"""`vestige score RUN`: the same scores from the evidence on disk, or others from another definition. No model.

In: a run directory. Out: new result files in it; evidence is only read. Callers: runs/evaluation.py, api.py.

A finished evaluation read back as it was reported: `vestige.load_run`. No model runs, nothing is written.

In: a run directory. Out: the Outcome that engine/evaluate.py returned when the run was made. Caller: api.py.

What an evaluation has to say, in plain data: numbers with intervals, a table per data set, curves of trajectories.

In: the directory of a finished evaluation. Out: a RunAccount (types.py). Caller: runs/evaluation.py, for publishing.
A table has a line per row of a data set: its texts, and beside them what every metric gave it.

Evaluations as a kind of run: by metrics, along a denoising trajectory, or by somebody else's harness.

Comes in: the directory of a finished run. Goes out: its numbers computed again (verify), its files written again
(score), what a report shows, its main numbers (compare, sweep), the retain logs it names (pack). See runs/run.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.adapters.lm_eval import HarnessResults
from vestige.data.clusters import AUTO, NONE, no_such_column, rows_fingerprint, with_clusters
from vestige.data.rows import load_rows as load_data_rows
from vestige.data.rows import redirect
from vestige.engine.config import RunConfig, spec_to_json
from vestige.engine.evaluate import Outcome, retain_values
from vestige.engine.harness import scores_of
from vestige.engine.references import load_references, mixture_accepted, reads, with_mixtures
from vestige.engine.scores import Reference, Run, family, intervals, stats_file, write_statistics
from vestige.engine.stored import Changes, by_code, dialect_for, stored_scores, suite_from_manifest
from vestige.errors import UserError
from vestige.io import damaged, number
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.runs.archive import moved
from vestige.runs.directory import open_run, refuse_input_in_output
from vestige.runs.files import load_rows, read_ours, result_file, write_json, write_results
from vestige.runs.manifest import Manifest, clusters_json, read_run, sha256, versions
from vestige.runs.run import Finding, Kind, Reader, Rescoring, RunSource, compared, read_manifest
from vestige.secrets import expand, hide
from vestige.suites.postprocess import with_more
from vestige.suites.spec import SuiteSpec
from vestige.types import Grouping, Rows, RunAccount, RunCurve, RunNumber, RunTable, Score


def rescore(
    directory: Path,
    dialect: str | None = None,
    changes: Changes | None = None,
    retain_logs: str | None = None,
    cluster: str | None = None,
    accept_mixture: bool = False,
) -> Outcome:
    """Scores a run again. Another dialect is possible as long as it reads the same evidence.

    `cluster`: the column that groups related rows, from the data files; intervals of the run are made with it from
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
    specs, stored = dict(_data_of(manifest)), load_rows(directory / "evidence" / "examples.json.gz")
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
    rows, source = load_data_rows(args, min(limits, default=None))
    if rows_fingerprint(rows) != found.fingerprint:
        raise UserError(
            f"{source} does not hold the rows that this run read, so their clusters are not known; put the file back, "
            "or evaluate the model again."
        )
    return with_clusters(found, rows, args, column).clusters


# ==== load ==========================================================================================================

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
            raise UserError(f"{directory} is not finished; rerun the command that made it to resume.")
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


# ==== account =======================================================================================================

TEXTS = ("input", "ground_truth", "generation")  # as open-unlearning calls them
BAND = ("ci_low", "ci_high")
Cells = dict[str, dict[str, Any]]  # row -> column -> value


def account_of(path: Path) -> RunAccount:
    """An evaluation by metrics, along a trajectory, or by a harness."""
    outcome = load_outcome(path)
    manifest = outcome.manifest
    tables = _harness_tables(outcome) if "harness" in manifest else _tables(path, outcome)
    return RunAccount(
        name=path.resolve().name,
        kind=str(manifest.get("kind", "eval")),
        model=model_name(manifest),
        suite=str((manifest.get("config") or {}).get("suite", "")),
        created=str(manifest.get("created", "")),
        numbers=dict(_numbers(outcome)),
        curves=dict(_curves(outcome.scores)),
        tables=tables,
        facts=facts_of(manifest),
        notes=tuple(map(str, manifest.get("notes") or ())),
    )


def model_name(manifest: Mapping[str, Any]) -> str:
    """A hub id as it is; of a directory its last part: where it is on this machine is left out."""
    said = str((manifest.get("model") or {}).get("name", ""))
    return Path(said).name if Path(said).is_absolute() or said.count("/") > 1 else said


def facts_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the numbers must know: definitions, weights, rows and versions."""
    model, config = manifest.get("model") or {}, manifest.get("config") or {}
    facts = {
        "dialect": (manifest.get("dialect") or {}).get("name"),
        "weights": model.get("fingerprint"),
        "precision": model.get("dtype"),
        "device": model.get("device"),
        "quantization": model.get("quantization"),
        "rows read at most": config.get("max_samples"),
        **{f"version of {k}": v for k, v in (manifest.get("versions") or {}).items()},
    }
    for data in (manifest.get("data") or {}).values():
        facts[f"rows of {data['name']}"] = f"{data['rows']} ({str(data['fingerprint'])[:12]})"
    return {k: str(v) for k, v in facts.items() if v not in (None, "")}


def _numbers(outcome: Outcome) -> Iterator[tuple[str, RunNumber]]:
    asked = [n for n in outcome.top if n in outcome.scores]
    for name in (*asked, *(n for n in outcome.scores if n not in asked)):
        score, stat = outcome.scores[name], outcome.stats.get(name) or {}
        if score.curves is not None:
            continue
        # An interval may be of another number than the one reported: of the statistic behind a p-value.
        of = str(stat.get("of") or "")
        low, high = (None, None) if of else (stat.get("interval") or (None, None))
        why = score.reason or ("" if of or low is not None else str(stat.get("reason") or ""))
        yield name, RunNumber(score.agg_value, low, high, stat.get("n"), why)
        if of:
            low, high = stat.get("interval") or (None, None)
            yield f"{name}/{of}", RunNumber(stat.get("value"), low, high, stat.get("n"), str(stat.get("reason") or ""))


# ---- rows -----------------------------------------------------------------------------------------------------------


def _tables(path: Path, outcome: Outcome) -> dict[str, RunTable]:
    data, data_of = outcome.manifest["data"], outcome.manifest["data_of"]
    cells: dict[str, Cells] = {}
    for metric, score in outcome.scores.items():
        for key, by_index in _by_data(score, data_of.get(metric) or {}):
            for index, fields in by_index.items():
                row = cells.setdefault(key, {}).setdefault(str(index), {})
                row |= {k if k in TEXTS else f"{metric}.{k}": _cell(v) for k, v in fields.items()}
    texts = _texts(path)
    names = [str(data[key]["name"]) if key in data else key for key in cells]
    out = {}
    for key, name in zip(cells, names, strict=True):
        out[name if names.count(name) == 1 else key] = _table(cells[key], texts.get(key))
    return out


def _by_data(score: Score, sets: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a score by the data set they are of. A membership attack has two sets, each under its own name."""
    if score.value_by_index and len(sets) == 1:
        yield next(iter(sets.values())), score.value_by_index
    elif score.value_by_index:
        yield "rows", score.value_by_index  # a metric of other metrics
    for name, key in sets.items():
        inner = score.extra.get(name)
        if isinstance(inner, Mapping) and inner.get("value_by_index"):
            yield key, inner["value_by_index"]


def _texts(path: Path) -> dict[str, Rows]:
    try:
        return load_rows(path / "evidence" / "examples.json.gz")
    except UserError:  # a run of another tool, or without evidence: texts are those of its metrics
        return {}


def _table(cells: Cells, rows: Rows | None) -> RunTable:
    for n, row in enumerate(rows.examples if rows else ()):
        mine = cells.get(row[0].index)
        facts: Mapping[str, Any] = rows.facts[n] if rows and n < len(rows.facts) else {}
        if mine is not None:
            mine.setdefault("input", str(facts.get("question") or row[0].input_text))
            mine.setdefault("ground_truth", "\n".join(e.answer for e in row))
    columns = dict.fromkeys(k for row in cells.values() for k in row)
    ordered = [*(t for t in TEXTS if t in columns), *(c for c in columns if c not in TEXTS)]
    return RunTable(("index", *ordered), tuple((index, *(row.get(c) for c in ordered)) for index, row in cells.items()))


def _harness_tables(outcome: Outcome) -> dict[str, RunTable]:
    """A table per task: what each document was given for every metric, its target and the responses."""
    cells: dict[str, Cells] = {}
    for score_name, score in outcome.scores.items():
        task = score_name.partition("/")[0]
        for index, fields in (score.value_by_index or {}).items():
            cells.setdefault(task, {}).setdefault(str(index), {}).update({k: _cell(v) for k, v in fields.items()})
    return {task: _table(rows, None) for task, rows in cells.items()}


def _cell(value: Any) -> Any:
    """A number, a text or nothing: trackers' tables hold nothing else. Lists are JSON."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return number(value) if isinstance(value, float) else json.dumps(value)


# ---- trajectories ---------------------------------------------------------------------------------------------------


def _curves(scores: Mapping[str, Score]) -> Iterator[tuple[str, RunCurve]]:
    for name, score in scores.items():
        if score.curves is None:
            continue
        nested: Any = score.curves
        views = nested if set(nested) <= set(VIEWS) else {"": nested}
        for view, kinds in views.items():
            for kind, metrics in kinds.items():
                for metric, values in metrics.items():
                    told = spread_of(score.extra, view, kind, metric)
                    parts = [p for p in (name, view, kind, metric) if p]
                    yield "/".join(parts), _curve(values, told)


def _curve(values: Any, spread: Mapping[str, Any]) -> RunCurve:
    low, high = (spread.get(end) or [None] * len(values) for end in BAND)
    points = [RunNumber(number(v), number(a), number(b)) for v, a, b in zip(values, low, high, strict=True)]
    return RunCurve("denoising step", tuple(float(i) for i in range(len(points))), tuple(points))


# ==== kind ==========================================================================================================

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
