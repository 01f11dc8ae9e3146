"""The clusters of a run's rows: checked as it is made; of a finished run, read from its data files.

In: Rows with a Grouping, or the manifest of a run. Out: notes; a manifest with the clusters of another column. Callers:
engine/evaluate.py, engine/rescore.py, depth/contexts.py, results/compare.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.data.clusters import AUTO, NONE, rows_fingerprint, with_clusters
from vestige.data.local import redirect
from vestige.data.rows import load_rows
from vestige.errors import UserError
from vestige.secrets import expand
from vestige.store.examples import load_rows as load_examples
from vestige.store.manifest import clusters_json
from vestige.types import Grouping, Rows

Groupings = Mapping[str, Grouping]  # by fingerprint of the rows


def check_column(column: str, data: Sequence[Rows]) -> None:
    """A column that was asked for and that no data set has is a mistake, and must not pass in silence."""
    if column not in (AUTO, NONE) and data and not any(rows.clusters for rows in data):
        raise _nowhere(column, sorted({rows.source for rows in data}))


def _nowhere(column: str, sources: Sequence[str]) -> UserError:
    return UserError(
        f"--cluster {column}: in none of these files do rows share a value of such a column: {', '.join(sources)}; "
        "name a column of theirs, or leave --cluster out."
    )


def cluster_notes(source: str, found: Grouping | None) -> list[str]:
    """What a reader of the intervals must know: how clusters are known, and whether they are too few."""
    if found is None:
        return []
    from vestige.compare.clusters import FEWEST

    count = len(set(found.of.values()))
    known = [f"{source}: clusters for intervals: {found.by}"] if found.by.startswith("every ") else []
    if count >= FEWEST:
        return known
    few = f"{source}: {count} clusters ({found.by}) are too few for intervals, which take {FEWEST}"
    return [*known, f"{few}; --cluster none takes rows for independent"]


def with_column(directory: Path, manifest: Mapping[str, Any], column: str) -> dict[str, Any]:
    """The manifest of a finished run with the clusters of another column, from the data files it names.

    The files must hold the rows they held then: their fingerprints say so.
    """
    specs, stored = dict(_data_of(manifest)), load_examples(directory / "evidence" / "examples.json.gz")
    data = {}
    for key, body in manifest["data"].items():
        plain = {name: value for name, value in body.items() if name != "clusters"}
        known = column != NONE and key in specs and key in stored
        found = _read(stored[key], specs[key], manifest["config"], column) if known else None
        data[key] = {**plain, **clusters_json(found)}
    if column not in (AUTO, NONE) and not any("clusters" in body for body in data.values()):
        raise _nowhere(column, sorted({str(body["source"]) for body in data.values()}))
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


def _read(found: Rows, said: Mapping[str, Any], config: Mapping[str, Any], column: str) -> Grouping | None:
    args = redirect(dict(said.get("hf_args") or {}), expand(config.get("local") or {}))
    limits = [n for n in (config.get("max_samples"), said.get("max_samples")) if n is not None]
    rows, source = load_rows(args, min(limits, default=None))
    if rows_fingerprint(rows) != found.fingerprint:
        raise UserError(
            f"{source} does not hold the rows that this run read, so their clusters are not known; put the file back, "
            "or evaluate the model again."
        )
    return with_clusters(found, rows, args, column).clusters
