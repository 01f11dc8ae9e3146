"""The tokenised data sets of a run on disk, so that scoring needs neither tokenizer nor data files.

In: Rows by data key. Out: evidence/examples.json.gz, and the same Rows again. Callers: engine/evaluate.py writes it;
engine/stored.py, depth, results and report read it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vestige.guard import read_bytes
from vestige.schema import misfit
from vestige.store.files import damaged, write_bytes
from vestige.types import Example, Prompt, Rows, Target

GZIP = 31  # zlib's window of 15 bits, and 16 for gzip's header


def save_rows(path: Path, data: Mapping[str, Rows]) -> None:
    """One gzipped JSON file."""
    write_packed(path, {key: _rows_to_json(rows) for key, rows in sorted(data.items())})


def load_rows(path: Path) -> dict[str, Rows]:
    from vestige.store.forms import TokenRowsForm  # a new run only writes such a file

    body = read_packed(path)
    if words := misfit(body, dict[str, TokenRowsForm]):
        raise damaged(path, words)
    return {key: _rows_from_json(item) for key, item in body.items()}


_TEXTS = ("index", "answer", "input_text", "reference", "label_text", "problem")


def read_packed(path: Path) -> Any:
    """Gzipped JSON of ours; gzip has a checksum of its own."""
    try:
        return json.loads(read_bytes(path).decode("utf-8", "surrogatepass"))
    except FileNotFoundError:
        raise damaged(path, "it is not there") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise damaged(path, str(error)) from None


def write_packed(path: Path, body: Any) -> None:
    """No time stamp in it, so equal content is equal bytes. Packed piece by piece: the text of all rows is large."""
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    packed = [packer.compress(piece.encode("utf-8", "surrogatepass")) for piece in _pieces(body)]
    write_bytes(path, b"".join([*packed, packer.flush()]))


def _pieces(body: Any, depth: int = 3) -> Iterator[str]:
    """What json.dumps(sort_keys=True) writes, entry by entry of the outer objects and lists.

    >>> "".join(_pieces({"b": [1, {"c": 2}], "a": []}))
    '{"a": [], "b": [1, {"c": 2}]}'
    """
    named = isinstance(body, dict) and all(isinstance(key, str) for key in body)
    if depth == 0 or not (named or isinstance(body, (list, Iterator))):
        yield json.dumps(body, ensure_ascii=False, sort_keys=True)
        return
    yield "{" if named else "["
    for i, item in enumerate(sorted(body) if named else body):
        yield (", " if i else "") + (json.dumps(item, ensure_ascii=False) + ": " if named else "")
        yield from _pieces(body[item] if named else item, depth - 1)
    yield "}" if named else "]"


def _rows_to_json(rows: Rows) -> dict[str, Any]:
    out = {"name": rows.name, "many": rows.many, "source": rows.source, "fingerprint": rows.fingerprint}
    facts = {"facts": (dict(row) for row in rows.facts)} if any(rows.facts) else {}
    return {**out, **facts, "examples": ([_example_to_json(e) for e in row] for row in rows.examples)}


def _example_to_json(e: Example) -> dict[str, Any]:
    return {**_named(e), "target": None if e.target is None else _named(e.target), "prompt": _named(e.prompt)}


def _named(record: Example | Target | Prompt) -> dict[str, Any]:
    """Its fields. dataclasses.asdict would also copy every token id, one by one."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _rows_from_json(item: Mapping[str, Any]) -> Rows:
    examples = tuple(tuple(_example(e) for e in row) for row in item["examples"])
    facts = tuple(item.get("facts") or ())
    return Rows(item["name"], examples, item["many"], item["source"], item["fingerprint"], facts)


def _example(e: Mapping[str, Any]) -> Example:
    target, prompt = e["target"], e["prompt"]
    return Example(
        target=None if target is None else Target(tuple(target["ids"]), target["start"], tuple(target["hidden"])),
        prompt=Prompt(tuple(prompt["ids"]), tuple(prompt["hidden"])),
        **{name: e[name] for name in _TEXTS if name in e},
    )
