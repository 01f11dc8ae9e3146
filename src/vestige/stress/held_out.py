"""Data of a sweep whose relearning holds rows out: every suite measures only rows that no lesson teaches.

Before and after the attack the same rows are measured. The folders are named by the content of what they are made of,
so that shards and later runs find them, and other rows never hide under an old name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.io import make_directory
from vestige.models.fingerprint import digests
from vestige.runs.directory import install, scratch
from vestige.stress.copies import measured_half, taught_keys, write_untaught
from vestige.types import content_key


def held_paths(suites: Mapping[str, Mapping[str, Any]], teaching: Path, place: Path) -> dict[str, str]:
    """Where each suite's remaining rows are to be; suites without data of their own are left alone."""
    out = {}
    for name, flags in suites.items():
        if flags.get("data"):
            data = Path(str(flags["data"])).expanduser()
            key = content_key(*(part.encode() for part in _content([data, teaching])))[:12]
            out[name] = str(place / f"{name}-{key}{'' if data.is_dir() else '.jsonl'}")
    return out


def _content(places: Sequence[Path]) -> list[str]:
    files = [f for p in places for f in (sorted(p.iterdir()) if p.is_dir() else [p]) if f.is_file()]
    return [f"{file.name}={digest}" for file, digest in zip(files, digests(files), strict=True)]


def write_held(suites: Mapping[str, Mapping[str, Any]], teaching: Path, held: Mapping[str, str]) -> None:
    """Writes what is not there yet. Another shard may do so at the same time: both are alike."""
    taught = taught_keys(teaching)
    for name, where in held.items():
        target, data = Path(where), Path(str(suites[name]["data"])).expanduser()
        if target.exists():
            continue
        make_directory(target.parent)
        with scratch(target.parent) as made:
            if data.is_dir():
                measured_half(data, made / target.name, taught)
            else:
                write_untaught(data, taught, made / target.name)
            if not target.exists():
                install(made / target.name, target)
