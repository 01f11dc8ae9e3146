"""Reference runs: the retain model's results, and whether they can be compared with ours.

Like must be compared with like. Where the reference is a run of our own that was scored by another definition
(dialect, k, ...), it is scored again by ours, from its evidence. Where that cannot be done, the number says so.

In: the retain logs that a suite names. Out: `Reference`: their scores, groupings and fingerprints of rows. Callers:
engine/evaluate.py and engine/rescore.py before scoring, and results for what a run was compared with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.scores import Reference, family
from vestige.errors import UserError
from vestige.secrets import expand, hide, unset
from vestige.show.progress import hushed
from vestige.store.checksums import sha256
from vestige.store.manifest import data_fingerprints, groupings, read_manifest
from vestige.store.results import read_scores, result_file
from vestige.suites.spec import SuiteSpec

log = logging.getLogger("vestige.engine")


def load_references(
    suite: SuiteSpec, dialect: str, moved: Mapping[str, Path] | None = None, before: Mapping[str, str] | None = None
) -> dict[str, Reference]:
    """Every reference file the suite names, read before anything is computed: a wrong path costs nothing.

    `moved`: where a file is now, for a run that came in an archive. `before`: the sha256 of each file when the run was
    made; one that has changed since is used, and every number that rests on it says so.
    """
    wanted: dict[str, set[str]] = {}
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
        out[path] = load_reference(file, suite, metrics, dialect)
        _check_steps(suite, path, out[path].results)
        if before and before.get(hide(path), "") not in ("", sha256(result_file(file))):
            out[path] = _changed(out[path], metrics, path)
    return out


def _check_steps(suite: SuiteSpec, path: str, results: Mapping[str, Any]) -> None:
    """A trajectory is compared step by step: one value of an ordinary run is not the value of any step."""
    for spec in suite.metrics.values():
        if spec.children is None or path not in [r.path for r in spec.references]:
            continue
        wanted = {
            m: child.name for child in spec.children.metrics.values() for r in child.references for m in r.include
        }
        by_step = (results.get(spec.name) or {}).get("reference_by_step") or {}
        ours = {m for by_trajectory in by_step.values() for metrics in by_trajectory.values() for m in metrics}
        absent = [m for m in wanted if m not in ours and (by_step or f"{m}_by_step" not in results)]
        if absent:
            kind = "of an ordinary run, one value for each metric" if absent[0] in results else "without these metrics"
            raise UserError(
                f"The retain logs {path} hold no values by step of {', '.join(absent)} for '{spec.name}': they are "
                f"{kind}. Evaluate the retain model with the same trajectory suite and give its result, or leave out "
                f"{', '.join(dict.fromkeys(wanted[m] for m in absent))}."
            )


def _changed(reference: Reference, metrics: set[str], path: str) -> Reference:
    words = f"the retain logs {path} have changed since the run was made"
    log.warning("%s: numbers that compare with them are new ones.", words[0].upper() + words[1:])
    also = {m: "; ".join(w for w in (words, reference.caveats.get(m, "")) if w) for m in metrics}
    return replace(reference, caveats={**reference.caveats, **also})


def load_reference(path: Path, suite: SuiteSpec, metrics: set[str], dialect: str) -> Reference:
    """One run's results by our definitions of some metrics."""
    file = result_file(path)
    results = read_scores(file)
    if not (file.parent / "manifest.json").is_file():
        return Reference(results)  # another tool's: taken at its word
    manifest = read_manifest(file.parent)
    fingerprints = {m: data_fingerprints(manifest, m) for m in metrics}
    differing = {m: difference(manifest, suite, m, dialect) for m in metrics if m in suite.metrics}
    differing = {m: why for m, why in differing.items() if why}
    if not differing:
        return Reference(results, fingerprints=fingerprints, groupings=groupings(manifest))
    try:
        again = _by_our_definition(file.parent, manifest, suite, dialect)
    except UserError as error:
        caveats = {
            m: f"the retain logs differ in {why}, and cannot be re-scored: {error}" for m, why in differing.items()
        }
        return Reference(results, caveats, fingerprints, groupings(manifest))
    log.warning("Retain logs %s re-scored to match this run (%s).", file, "; ".join(sorted(set(differing.values()))))
    return Reference({**results, **again}, fingerprints=fingerprints, groupings=groupings(manifest))


def reads(suite: SuiteSpec, moved: Mapping[str, Path] | None = None) -> dict[str, str]:
    """The retain logs a run was compared with, and their sha256: what its seal says of files outside it."""
    paths = {path for spec in suite.metrics.values() for r in spec.references for path in r.paths}
    found = {path: (moved or {}).get(path, Path(path)) for path in sorted(paths)}
    return {hide(path): sha256(result_file(file)) for path, file in found.items() if file.exists()}


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
