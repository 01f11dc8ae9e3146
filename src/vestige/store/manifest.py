"""manifest.json, the head of every run directory: which kind of run it is, how it was asked for, and what made it.

Comes in: a kind and what its room knows. Goes out: one mapping, the same keys first in every kind. Each room calls
`manifest` when a run is finished; `store/kinds.py` reads it back to know which kind a directory holds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.secrets import masked, without_secrets
from vestige.store.files import read_json, write_json
from vestige.store.results import versions
from vestige.types import content_key

NAME = "manifest.json"
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
