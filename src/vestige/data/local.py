"""A folder of the user's, or rows in memory, in the place of a hub's data set.

In: what a suite says of its files (`local_data`) and the folder that --data names. Out: the mapping `local` of a
RunConfig, and by it the arguments that data/rows.py reads. Callers: engine/friendly.py and unlearn/flags.py make the
mapping; engine/prepare.py, engine/rescore.py and unlearn/rows.py follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.data.given import given_rows, is_given
from vestige.data.rows import MissingData, find_in_directory, suffixes
from vestige.errors import UserError
from vestige.guard import is_there


def redirect(hf_args: dict[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a data set, with the place that `local` gives for its hub id."""
    place = local.get(str(hf_args.get("path")))
    if not place:
        return hf_args
    if "files" in place:  # single files, each under a name of its own
        file = place["files"].get(hf_args.get("name"))
        if file is None:
            raise MissingData(f"no {hf_args.get('name')} rows were given")
        return {"path": str(Path(str(file)).expanduser())}
    name, names = hf_args.get("name"), place.get("names") or {}
    if is_given(str(place["path"])):
        tables = given_rows(str(place["path"])).tables
        name = name if name in tables else names.get(name, name)
        if name not in tables:
            raise MissingData(f"no {name} rows were given")
        return {**hf_args, "path": str(place["path"]), "name": name}
    root = Path(str(place["path"])).expanduser()
    if not root.is_dir():
        raise UserError(f"Data directory {root} does not exist; check --data.")
    split = str(hf_args.get("split", "train")).split("[")[0]
    if not find_in_directory(root, name, split):  # the hub's own name for a file comes first
        name = names.get(name, name)
    return {**hf_args, "path": str(root), "name": name}


def local_data(suite: str, layout: Any, data: str) -> dict[str, Any]:
    """Where a suite's data sets are in a folder. `layout` is what its YAML says under `local_data`."""
    if not layout:
        raise UserError(f"The suite '{suite}' does not say how a folder stands in for its data; use data.local=...")
    pairs = [(str(f["name"]), str(f["file"])) for f in layout["files"]]
    hub = str(layout["hub"])
    if is_given(data):
        given_rows(data).check_names(file for pair in pairs for file in pair)
        return {hub: {"path": data, "names": dict(pairs)}}
    root = Path(data).expanduser()
    if not is_there(root):
        raise UserError(
            f"Data directory {root} does not exist; --data takes a folder with forget.jsonl, retain.jsonl, ..."
        )
    if not root.is_dir():
        raise UserError(f"--data takes a folder; put {root.name} into one as forget.jsonl (or .json, .csv, .parquet).")
    stems = {stem for pair in pairs for stem in pair}
    if not any((root / f"{stem}{suffix}").exists() for stem in stems for suffix in suffixes()):
        have = ", ".join(sorted(p.name for p in root.iterdir())[:12]) or "nothing"
        wanted = ", ".join(f"{file}.jsonl" for file in dict.fromkeys(file for _, file in pairs))
        raise UserError(f"{root} has none of {wanted}; it holds: {have}.")
    return {hub: {"path": str(root), "names": dict(pairs)}}
