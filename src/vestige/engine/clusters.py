"""The clusters of a run's rows: kept in its manifest, read from it, and for an older run from its data files.

In: Rows with a Grouping, or the manifest of a run. Out: what the manifest keeps; the cluster of each row by data set.
Callers: engine/evaluate.py, engine/references.py, engine/rescore.py, engine/statistics.py, results/compare.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.data.clusters import AUTO, NONE, rows_fingerprint, with_clusters
from vestige.data.rows import load_rows
from vestige.engine.prepare import redirect
from vestige.errors import UserError
from vestige.schema import misfit
from vestige.secrets import expand
from vestige.store.examples import load_rows as load_examples
from vestige.types import Grouping, Rows

Groupings = Mapping[str, Grouping]  # by fingerprint of the rows


def kept(found: Grouping | None) -> dict[str, Any]:
    """A grouping as a manifest has it: names once, and for each row the number of its name."""
    if found is None:
        return {}
    names = list(dict.fromkeys(found.of.values()))
    place = {name: i for i, name in enumerate(names)}
    return {"clusters": {"by": found.by, "names": names, "of": {row: place[c] for row, c in found.of.items()}}}


def groupings(manifest: Mapping[str, Any]) -> dict[str, Grouping]:
    """The groupings of a finished run, by fingerprint of the rows. Runs of older versions and other tools have none."""
    data = manifest.get("data")
    if not isinstance(data, Mapping) or not any(isinstance(b, Mapping) and "clusters" in b for b in data.values()):
        return {}
    from vestige.store.forms import Rowset  # the forms of every kind of run: most runs have no clusters

    if misfit(data, dict[str, Rowset]):
        return {}
    return {
        str(body["fingerprint"]): Grouping(said["by"], {row: said["names"][i] for row, i in said["of"].items()})
        for body in data.values()
        if (said := body.get("clusters"))
    }


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
        data[key] = {**plain, **(kept(_read(stored[key], specs[key], manifest["config"], column)) if known else {})}
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
