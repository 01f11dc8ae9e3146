"""The tokenised data sets of a run on disk, so that scoring needs neither tokenizer nor data files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vestige.store.files import write_bytes
from vestige.types import Example, Prompt, Rows, Target


def save_rows(path: Path, data: Mapping[str, Rows]) -> None:
    """One gzipped JSON file; no time stamp in it, so equal content is equal bytes."""
    body = {key: _rows_to_json(rows) for key, rows in sorted(data.items())}
    text = json.dumps(body, ensure_ascii=False, sort_keys=True)
    write_bytes(path, gzip.compress(text.encode("utf-8", "surrogatepass"), compresslevel=6, mtime=0))


def load_rows(path: Path) -> dict[str, Rows]:
    body = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "surrogatepass"))
    return {key: _rows_from_json(item) for key, item in body.items()}


def _rows_to_json(rows: Rows) -> dict[str, Any]:
    out = {"name": rows.name, "many": rows.many, "source": rows.source, "fingerprint": rows.fingerprint}
    return {**out, "examples": [[_example_to_json(e) for e in row] for row in rows.examples]}


def _example_to_json(e: Example) -> dict[str, Any]:
    return {**_named(e), "target": None if e.target is None else _named(e.target), "prompt": _named(e.prompt)}


def _named(record: Example | Target | Prompt) -> dict[str, Any]:
    """Its fields. dataclasses.asdict would also copy every token id, one by one."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _rows_from_json(item: Mapping[str, Any]) -> Rows:
    examples = tuple(tuple(_example(e) for e in row) for row in item["examples"])
    return Rows(item["name"], examples, item["many"], item["source"], item["fingerprint"])


def _example(e: dict[str, Any]) -> Example:
    target, prompt = e.pop("target"), e.pop("prompt")
    return Example(
        target=None if target is None else Target(tuple(target["ids"]), target["start"], tuple(target["hidden"])),
        prompt=Prompt(tuple(prompt["ids"]), tuple(prompt["hidden"])),
        **e,
    )
