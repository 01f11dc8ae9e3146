"""Reference runs: the retain model's results, and whether they can be compared with ours.

Like must be compared with like. Where the reference is a run of our own that was scored by another definition
(dialect, k, ...), it is scored again by ours, from its evidence. Where that cannot be done, the number says so.

In: the retain logs that a suite names. Out: `Reference`: their scores, groupings and fingerprints of rows; what must be
known of a number that was compared with them; and such a number as a function of how often each row was drawn. Callers:
engine/evaluate.py and runs/evaluation.py before scoring, engine/scores.py, results for what a run was compared with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.prepare import Prepared
from vestige.engine.scores import (
    OTHERS,
    PERCENTILE,
    Estimate,
    NoInterval,
    Reference,
    Run,
    family,
    numbers_of,
    part_of,
)
from vestige.errors import UserError
from vestige.runs.files import read_scores, result_file
from vestige.runs.manifest import groupings, sha256
from vestige.runs.run import mixture, number_of, refuse_mixture
from vestige.secrets import expand, hide, unset
from vestige.show.progress import hushed
from vestige.stats import bootstrap, vectors
from vestige.suites.handlers.references import ref_value
from vestige.suites.registry import HANDLERS, Inputs
from vestige.suites.spec import MetricSpec, ReferenceSpec, SuiteSpec
from vestige.types import Score

log = logging.getLogger("vestige.engine")

WITHOUT_RETAIN_LOGS = (
    "No retain logs given: {without}. Evaluate the retain model first and pass its {stem}_EVAL.json "
    "(retain_logs_path=FILE or --retain-logs FILE)."
)


def load_references(
    suite: SuiteSpec,
    dialect: str,
    moved: Mapping[str, Path] | None = None,
    before: Mapping[str, str] | None = None,
    shown: Sequence[str] = (),
) -> dict[str, Reference]:
    """Every reference file the suite names, read before anything is computed: a wrong path costs nothing.

    `moved`: where a file is now, for a run that came in an archive. `before`: the sha256 of each file when the run was
    made; one that has changed since is used, and every number that rests on it says so. Neither: a new run.
    `shown`: logs whose values are shown next to the run's, also where no metric is compared with them.
    """
    wanted: dict[str, set[str]] = {path: set() for path in shown}
    for spec in suite.metrics.values():
        for r in spec.references:
            for path in r.paths:
                wanted.setdefault(path, set()).update(r.include)
    now = moved or {}
    out = {}
    for path, metrics in sorted(wanted.items()):
        if path not in now and (name := unset(path)):
            raise UserError(
                f"The retain logs of this run are named by the environment variable {name}, which is not set; set "
                "it, or give --retain-logs FILE."
            )
        file = now.get(path, Path(path))
        if moved is None and before is None:
            _check_suite(file, suite, metrics)
        out[path] = load_reference(file, suite, dialect)
        _check_steps(suite, path, out[path].results)
        if before and before.get(hide(path), "") not in ("", sha256(result_file(file))):
            out[path] = _changed(out[path], metrics, path)
    return out


def _check_suite(path: Path, suite: SuiteSpec, metrics: set[str]) -> None:
    """Another suite's run serves as long as it has what is compared; a trajectory is compared step by step."""
    file = result_file(path)
    if not (file.parent / "manifest.json").is_file() or any(spec.children for spec in suite.metrics.values()):
        return
    from vestige.runs.run import read_manifest

    theirs = str(read_manifest(file.parent)["config"]["suite"])
    found = read_scores(file)
    if theirs != suite.name and any((found.get(m) or {}).get("agg_value") is None for m in metrics):
        raise UserError(
            f"{path} is a run of suite {theirs}, this one is {suite.name}; evaluate the retain model with {suite.name}."
        )


def _check_steps(suite: SuiteSpec, path: str, results: Mapping[str, Any]) -> None:
    """A trajectory is compared step by step, or, where the logs are of an ordinary run, at its last step."""
    for spec in suite.metrics.values():
        if spec.children is None or path not in [r.path for r in spec.references]:
            continue
        wanted = {
            m: child.name for child in spec.children.metrics.values() for r in child.references for m in r.include
        }
        by_step = (results.get(spec.name) or {}).get("reference_by_step") or {}
        ours = {m for by_trajectory in by_step.values() for metrics in by_trajectory.values() for m in metrics}
        absent = [m for m in wanted if m not in (*ours, *results) and f"{m}_by_step" not in results]
        if absent:
            raise UserError(
                f"The retain logs {path} hold no values of {', '.join(absent)} for '{spec.name}'. Evaluate the retain "
                "model with the same trajectory suite and give its result, or leave out "
                f"{', '.join(dict.fromkeys(wanted[m] for m in absent))}."
            )


def _changed(reference: Reference, metrics: set[str], path: str) -> Reference:
    words = f"the retain logs {path} have changed since the run was made"
    log.warning("%s: numbers that compare with them are new ones.", words[0].upper() + words[1:])
    also = {m: "; ".join(w for w in (words, reference.caveats.get(m, "")) if w) for m in metrics}
    return replace(reference, caveats={**reference.caveats, **also})


def load_reference(path: Path, suite: SuiteSpec, dialect: str) -> Reference:
    """One run's results by our definitions of the suite's metrics."""
    file = result_file(path)
    results = read_scores(file)
    if not (file.parent / "manifest.json").is_file():
        return Reference(results)  # another tool's: taken at its word
    from vestige.runs.run import read_manifest  # most runs are compared with none

    manifest = read_manifest(file.parent)
    # Another dialect is not refused: the run is scored again by this one, or carries a caveat.
    as_ours = {**manifest, "dialect": {"name": dialect}}
    measured = {m: number_of(as_ours, m) for m in suite.metrics if m in manifest["config"]["metrics"]}
    differing = {m: difference(manifest, suite, m, dialect) for m in measured}
    differing = {m: why for m, why in differing.items() if why}
    if not differing:
        return Reference(results, measured=measured, groupings=groupings(manifest))
    try:
        again = _by_our_definition(file.parent, manifest, suite, dialect)
    except UserError as error:
        caveats = {
            m: f"the retain logs differ in {why}, and cannot be re-scored: {error}" for m, why in differing.items()
        }
        return Reference(results, caveats, measured, groupings(manifest))
    log.warning("Retain logs %s re-scored to match this run: %s.", file, "; ".join(sorted(set(differing.values()))))
    return Reference({**results, **again}, measured=measured, groupings=groupings(manifest))


def mixture_accepted(manifest: Mapping[str, Any]) -> bool:
    """Whether a finished run was made with --accept-mixture."""
    return bool(manifest["config"]["settings"].get("accept_mixture"))


def with_mixtures(
    references: Mapping[str, Reference], name: str, manifest: Mapping[str, Any], dialect: str, accept: bool
) -> dict[str, Reference]:
    """The references, with a caveat on every metric that they measured differently from this run; refused by default.

    `name`, `manifest`: of this run, finished or about to start.
    """
    ours = {**manifest, "dialect": {"name": dialect}}
    out = {}
    for path, reference in references.items():
        caveats = dict(reference.caveats)
        for metric, theirs in reference.measured.items():
            found = mixture({name: number_of(ours, metric), path: theirs}, metric)
            if note := refuse_mixture(found, accept):
                caveats[metric] = "; ".join(filter(None, (note, caveats.get(metric, ""))))
        out[path] = replace(reference, caveats=caveats)
    return out


def reads(suite: SuiteSpec, moved: Mapping[str, Path] | None = None) -> dict[str, str]:
    """The retain logs a run was compared with, and their sha256: what its manifest says of files outside it."""
    paths = {path for spec in suite.metrics.values() for r in spec.references for path in r.paths}
    found = {path: (moved or {}).get(path, Path(path)) for path in sorted(paths)}
    return {hide(path): sha256(result_file(file)) for path, file in found.items() if file.exists()}


def no_retain_logs(suite: SuiteSpec) -> str:
    """What goes without the retain model, in the words of this suite: MUSE has no forget quality."""
    every = [m for s in suite.metrics.values() for m in (s, *(s.children.metrics.values() if s.children else ()))]
    compared = {m.name: m for m in every if m.references and m.children is None}
    parts = [
        f"{name} cannot be computed" if m.handler == "ks_test" else f"{name} is compared with ref_value {ref_value(m)}"
        for name, m in compared.items()
    ]
    return WITHOUT_RETAIN_LOGS.format(without=" and ".join(parts), stem=suite.file_stem)


def retain_values(references: Mapping[str, Reference], suite: SuiteSpec) -> dict[str, list[float]]:
    """What the reference runs scored on the asked-for metrics: one value per run.

    Metrics that are themselves comparisons (privleak) are left out: that run was compared with something else.
    """
    plain = [m for m in suite.top if not suite.metrics[m].references]
    out: dict[str, list[float]] = {}
    for reference in references.values():
        for m in plain:
            entry = reference.results.get(m)
            if isinstance(entry, Mapping) and entry.get("agg_value") is not None:
                out.setdefault(m, []).append(float(entry["agg_value"]))
    return out


def difference(manifest: Mapping[str, Any], suite: SuiteSpec, metric: str, dialect: str) -> str:
    """How the reference's definition of a metric differs from ours, or nothing."""
    theirs = manifest["dialect"]["name"]
    if theirs != dialect:
        return f"dialect ({theirs}, here {dialect})"
    recorded = expand(manifest["config"]["metrics"])
    for name in family(suite, metric):
        params = {k: v for k, v in suite.metrics[name].params.items() if k in _SETTINGS}
        if name in recorded:
            other = {k: recorded[name].get(k) for k in params}
            if other != params:
                return f"{name} ({other}, here {params})"
    return ""


# The settings that change a metric's meaning. (A path to a second model does too, but is compared by its evidence.)
_SETTINGS = {"k", "p", "aggregator", "rouge_type", "class_id", "max_length", "ref_value"}


def _by_our_definition(
    directory: Path, manifest: Mapping[str, Any], suite: SuiteSpec, dialect: str
) -> dict[str, dict[str, Any]]:
    """The reference run's scores under our settings; only what its evidence can answer."""
    from vestige.engine.stored import dialect_for, stored_scores, suite_from_manifest

    recorded = manifest["config"]["metrics"]
    changes = {
        name: {k: v for k, v in spec.params.items() if k in _SETTINGS and k in recorded[name]}
        for name, spec in suite.metrics.items()
        if name in recorded
    }
    theirs = suite_from_manifest(manifest, {m: body for m, body in changes.items() if body})
    with hushed():  # what is missing there is not this run's concern
        scores = stored_scores(directory, theirs, dialect_for(manifest, dialect, directory), {})
    return {name: s.to_json() for name, s in scores.items() if s.agg_value is not None}


# ---- a score beside its references --------------------------------------------------------------------------------


def references_of(spec: MetricSpec, files: Mapping[str, Reference]) -> dict[str, dict[str, Score | None]]:
    return {r.name: _included(r, files[r.path].results if r.path and r.path in files else {}) for r in spec.references}


def _included(reference: ReferenceSpec, results: Mapping[str, Any]) -> dict[str, Score | None]:
    out: dict[str, Score | None] = {}
    for metric, access_key in reference.include.items():
        found = results.get(metric)
        out[access_key] = Score.from_json(found) if isinstance(found, dict) else None
    return out


def say_absent(spec: MetricSpec, files: Mapping[str, Reference]) -> None:
    if spec.children:  # it knows several places to look, and says itself when a step is missing
        return
    for r in spec.references:
        for metric in r.include:
            if r.path and (r.path not in files or files[r.path].results.get(metric) is None):
                log.warning("%s holds no metric '%s'.", r.path, metric)


def with_caveats(
    score: Score, inputs: Inputs, suite: SuiteSpec, files: Mapping[str, Reference], prepared: Prepared
) -> Score:
    """A score that has a value, with what must be known of the runs it was compared with."""
    if any(r.others for r in inputs.spec.references):
        score = _against_each(score, inputs, files)
    caveats = _caveats(suite, inputs.spec, files, prepared)
    return replace(score, notes=(*score.notes, *dict.fromkeys(caveats)))


def _against_each(score: Score, inputs: Inputs, references: Mapping[str, Reference]) -> Score:
    """The same comparison with every retain model given: how much of it is the choice of that model."""
    values = {r.path: score.agg_value for r in inputs.spec.references if r.path}
    for path in (p for r in inputs.spec.references for p in r.others):
        spec = replace(inputs.spec, references=tuple(replace(r, path=path, others=()) for r in inputs.spec.references))
        other = replace(inputs, spec=spec, references=references_of(spec, references))
        values[path] = HANDLERS[spec.handler].score(other).agg_value
    known = [v for v in values.values() if v is not None]
    note = f"against {len(known)} retain models: {min(known):.4g} to {max(known):.4g}; the value is that of the first"
    return replace(score, extra={**score.extra, "by_reference": values}, notes=(*score.notes, note))


def _caveats(suite: SuiteSpec, spec: MetricSpec, files: Mapping[str, Reference], prepared: Prepared) -> Iterator[str]:
    """What a reader must know about the references a metric was compared with."""
    for r in spec.references:
        if r.path is None or r.path not in files:
            continue
        file = files[r.path]
        for metric in r.include:
            if metric in file.caveats:
                yield file.caveats[metric]
        if not file.measured:
            yield from _other_counts(suite, r, file, prepared)


def _other_counts(suite: SuiteSpec, r: ReferenceSpec, file: Reference, prepared: Prepared) -> Iterator[str]:
    """Another tool's logs say no more about their rows than how many there were."""
    for metric in r.include:
        entry = file.results.get(metric)
        if metric not in suite.metrics or not isinstance(entry, Mapping):
            continue
        theirs = _row_counts(entry)
        ours = {len(rows) for name in family(suite, metric) for rows in prepared.data(name).values()}
        if theirs and ours and not theirs <= ours:
            counts = " and ".join(map(str, sorted(theirs)))
            yield f"the retain logs hold {counts} rows of {metric}, this run {' and '.join(map(str, sorted(ours)))}"


def _row_counts(entry: Mapping[str, Any]) -> set[int]:
    parts = [entry, *(v for v in entry.values() if isinstance(v, Mapping))]
    return {len(p["value_by_index"]) for p in parts if p.get("value_by_index")}


# ---- intervals of what is composed of other metrics ---------------------------------------------------------------


def composed(run: Run, spec: MetricSpec) -> Estimate | None:
    """A metric made of others, as a function of counts; None: it has values for single rows of its own."""
    build = _COMPOSED.get(spec.handler)
    return build(run, spec) if build else None


def _reference(run: Run, spec: MetricSpec, parent: str) -> tuple[Score | None, str]:
    """The retain model's score of a parent, and the prefix of its rows: none when they are ours."""
    scores = references_of(spec, run.references)
    score = next((s["retain"] for s in scores.values() if "retain" in s), None)
    if score is None or score.agg_value is None:
        return None, ""
    # The same rows under two models are drawn together. Another tool's logs do not say which rows they read;
    # equal row numbers must do then.
    files = [run.references[r.path] for r in spec.references if r.path and r.path in run.references]
    from vestige.runs.run import data_fingerprints

    known = [f.measured[parent].rows for f in files if parent in f.measured and f.measured[parent].rows]
    same = all(k == data_fingerprints(run.manifest, parent) for k in known)
    same = same and _row_numbers(score) == _row_numbers(run.scores[parent])
    return score, "" if same else OTHERS


def _row_numbers(score: Score) -> list[set[str]]:
    parts = [score.value_by_index, *(part_of(score, k) for k in ("forget", "holdout"))]
    return [set(p or {}) for p in parts]


BAND = "bootstrap band of the two distribution functions"


def _harmonic(run: Run, spec: MetricSpec) -> Estimate:
    parts = [run.estimate(parent) for parent in spec.parents.values()]
    samples = tuple(s for p in parts for s in p.samples)
    value = float(run.scores[spec.name].agg_value or 0.0)
    return Estimate(value, bootstrap.harmonic_mean([p.statistic for p in parts]), samples)


def _relative(run: Run, spec: MetricSpec) -> Estimate:
    parent = spec.parents["forget"]
    formula = {"privleak": vectors.privleak, "rel_diff": vectors.rel_diff}[spec.handler]
    value, mine = float(run.scores[spec.name].agg_value or 0.0), run.estimate(parent)
    score, prefix = _reference(run, spec, parent)
    try:
        if score is None:
            raise NoInterval("no reference")
        theirs = run.plain(run.suite.metrics[parent], score, prefix)
    except NoInterval:
        fixed = ref_value(spec) if score is None else float(score.agg_value or 0.0)
        both = bootstrap.combined(formula, mine.statistic, bootstrap.constant(fixed))
        return Estimate(value, both, mine.samples, f"{PERCENTILE}; the reference value is taken as exact")
    both = bootstrap.combined(formula, mine.statistic, theirs.statistic)
    return Estimate(value, both, (*mine.samples, *theirs.samples))


def _ks(run: Run, spec: MetricSpec) -> Estimate:
    """The interval of the KS distance D: the p-value is a verdict on it, and verdicts have no interval."""
    parent = spec.parents["forget"]
    score, prefix = _reference(run, spec, parent)
    if score is None:
        raise NoInterval("no reference")
    group = run.group(parent)
    mine = run.sample(group, numbers_of(run.scores[parent].value_by_index or {}, "score"))
    theirs = run.sample(prefix + group, numbers_of(score.value_by_index or {}, "score"))
    extra: Mapping[str, Any] = run.scores[spec.name].extra
    return Estimate(
        float(extra["ks_statistic"]),
        bootstrap.ks_distance(mine, theirs),
        (mine, theirs),
        BAND,
        bootstrap.ks_deviation(mine, theirs),
        "ks_statistic",
    )


_COMPOSED = {"hm_aggregate": _harmonic, "privleak": _relative, "rel_diff": _relative, "ks_test": _ks}
