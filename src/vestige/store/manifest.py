"""manifest.json, the head of every run directory: which kind of run it is, how it was asked for, and what made it.

Comes in: a kind and what its room knows. Goes out: one mapping, the same keys first in every kind. Each room calls
`manifest` when a run is finished; `store/kinds.py` reads it back to know which kind a directory holds,
`read_manifest` to use what an evaluation says of itself.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.schema import misfit
from vestige.secrets import masked, without_secrets
from vestige.store.files import damaged, read_json, read_ours, write_json
from vestige.store.results import versions
from vestige.types import Grouping, content_key

NAME = "manifest.json"
EVALUATIONS = ("eval", "trajectory", "harness")  # kinds of runs that `vestige eval` writes
SCHEMA = 1  # goes up when a reader of the version before could misread a manifest


def manifest(kind: str, config: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The keys that all kinds have; `facts` are the kind's own, and may replace `versions`."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"schema": SCHEMA, "kind": kind, "created": now, "versions": versions(), "config": dict(config), **facts}


def config_json(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of an evaluation's configuration: plain data, without secrets (secrets.py).

    Where a value came from the environment, `environment` is a digest of the whole: another value is another run.
    """
    plain = dict(json.loads(json.dumps(described, default=str)))
    shown = {k: masked(v, k) if k not in ("suite", "top") else v for k, v in plain.items()}
    open_ = without_secrets(plain)
    if "${oc.env:" in json.dumps(shown):
        shown["environment"] = content_key(json.dumps(open_, sort_keys=True).encode())[:16]
    return shown


def write_manifest(directory: Path, kind: str, config: Mapping[str, Any], **facts: Any) -> Path:
    """The manifest of a run whose settings were not masked yet."""
    write_json(directory / NAME, manifest(kind, masked(dict(config)), **facts))
    return directory / NAME


def kind_in(directory: Path) -> str | None:
    """The kind that a manifest states. None: the manifest is missing, cannot be read, or is older than kinds."""
    try:
        found = read_json(directory / NAME)
    except (OSError, ValueError, UserError):
        return None
    if not isinstance(found, Mapping):
        return None
    schema = found.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(
            f"{directory / NAME} was written by a newer version of vestige (schema {schema}, this one reads "
            f"{SCHEMA}); install that version to read it."
        )
    kind = found.get("kind")
    return kind if isinstance(kind, str) else None


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a finished evaluation; one of another kind of run, or of another form, is refused."""
    path = directory / NAME
    if not path.is_file():
        raise UserError(f"{directory} is not a run directory: it has no manifest.json. Give the directory of a run.")
    found = read_ours(path)
    kind = kind_in(directory)
    if kind not in (None, *EVALUATIONS):
        raise UserError(f"{directory} is a {kind} run, not an evaluation; give the directory of an evaluation.")
    if words := _manifest_misfit(found):
        raise damaged(path, words)
    return dict(found)


def _manifest_misfit(found: Any) -> str:
    """What is wrong with a manifest: a field of another form, or a name that it should explain and does not."""
    from vestige.store.forms import HarnessManifest, ManifestForm  # of every kind of run: a new run reads none

    harness = isinstance(found, Mapping) and "harness" in found
    if words := misfit(found, HarnessManifest if harness else ManifestForm):
        return words
    if harness:
        return ""
    metrics = found["config"]["metrics"]
    parents = {p for body in metrics.values() for p in body.get("pre_compute") or {}}
    unknown = next((m for m in (*found["config"]["top"], *parents) if m not in metrics), None)
    if unknown is not None:
        return f"it has no metric {unknown}"
    keys = keys_read(found)
    lost = next((key for key in sorted(keys) if key not in found["data"]), None)
    if lost is not None:
        return f"it has no data {lost}"
    known = {**found["data_of"], **found["unavailable"]}
    without = next((m for m, body in metrics.items() if body.get("datasets") and not known.get(m)), None)
    return "" if without is None else f"it does not say which rows {without} read"


def keys_read(manifest: Mapping[str, Any]) -> set[str]:
    """The data that were read; metrics without a value may name some that were not there (a run without holdout)."""
    by_metric = {m: by for m, by in manifest["data_of"].items() if m not in manifest["unavailable"]}
    return {key for by_access in by_metric.values() for key in by_access.values()}


def clusters_json(found: Grouping | None) -> dict[str, Any]:
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


def data_fingerprints(manifest: Mapping[str, Any], metric: str) -> frozenset[str]:
    """The rows behind a metric, its parents' included."""
    recorded = manifest["config"]["metrics"]
    if metric not in recorded:
        return frozenset()
    keys = manifest["data_of"].get(metric, {}).values()
    mine = frozenset(manifest["data"][k]["fingerprint"] for k in keys if k in manifest["data"])
    parents = recorded[metric].get("pre_compute") or {}
    return mine.union(*(data_fingerprints(manifest, p) for p in parents))
