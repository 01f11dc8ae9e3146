"""The files of a run: JSON that is whole or not there, results in open-unlearning's shape, and the tokenised rows.

In: plain data, Scores, Rows and a path. Out: sorted JSON without secrets, NAME_EVAL.json and NAME_SUMMARY.json, which
open-unlearning's scripts read, and evidence/examples.json.gz, so that scoring needs neither tokenizer nor data files;
and what such files hold, else a DamagedError with the file's name. Callers: every room with files of its own. The bytes
go through runs/directory.py, which knows whose files they are.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from vestige.errors import MANY, UserError
from vestige.guard import read_bytes, read_json
from vestige.io import damaged, decode_data, json_pieces, misfit
from vestige.runs.directory import write_bytes, write_pieces
from vestige.secrets import hide
from vestige.types import Example, Prompt, Rows, Score, Target

T = TypeVar("T")
BLOCK = 1 << 16  # characters


def write_json(path: Path, data: Any, indent: int | None = 4) -> None:
    """Sorted keys and fixed indentation: equal results are equal bytes. NaN is refused: missing is null.

    Numbers in keys count as numbers: row 2 and step_2 come before 10, and rows of two files pair by position.
    Secrets are replaced (secrets.py). The text is made while it is written: that of all rows is larger than they are.
    """
    write_pieces(path, lambda: (hide(block).encode("utf-8") for block in _blocks(json_pieces(data, indent))))


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces put together into larger ones: to look for secrets costs something each time."""
    block: list[str] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size > BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def read_ours(path: Path, form: Any = Any) -> Any:
    """JSON that we wrote, of a form. If it is none, it is damaged, and the sentence says what to delete."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise damaged(path, str(error)) from None
    if words := misfit(found, form):
        raise damaged(path, words)
    return found


def relative(path: Path, base: Path) -> str:
    """A path as seen from another, so that a report and its runs can move together."""
    return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()


# ---- results ------------------------------------------------------------------------------------------------------


class MadeByName(Mapping[str, T]):
    """Things by name, each made when it is asked for and not kept."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = tuple(names), make

    def __getitem__(self, name: str) -> T:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write_results(directory: Path, stem: str, scores: Mapping[str, Score], top: Iterable[str]) -> tuple[Path, Path]:
    """NAME_EVAL.json holds every metric and parent; NAME_SUMMARY.json the asked-for metrics that have a value."""
    details, summary = directory / f"{stem}_EVAL.json", directory / f"{stem}_SUMMARY.json"
    write_json(details, MadeByName(scores, lambda name: scores[name].to_json()))  # one metric at a time
    write_json(summary, {name: scores[name].to_json()["agg_value"] for name in top if not scores[name].missing})
    return details, summary


def result_file(path: Path) -> Path:
    """A result file; a run directory stands for the one result file in it."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*_EVAL.json"))
    if not found:
        below = runs_below(path, "*_EVAL.json") or "it holds no *_EVAL.json; give the directory of a finished run"
        raise UserError(f"{path} is not a run: {below}.")
    if len(found) > 1:
        raise UserError(f"{path} holds {len(found)} *_EVAL.json files; name the one to use as retain logs.")
    return found[0]


def runs_below(path: Path, mark: str) -> str:
    """What to say of a folder that is not a run but holds runs, known by a file in each; nothing if it holds none."""
    files = (*path.glob(f"*/{mark}"), *path.glob(f"*/*/{mark}"))
    found = sorted({file.parent.relative_to(path).as_posix() for file in files})
    if not found:
        return ""
    more = f" and {len(found) - MANY} more" if len(found) > MANY else ""
    return f"it holds runs ({', '.join(found[:MANY])}{more}); give one of them, as {path / found[0]}"


def read_results(path: Path) -> dict[str, Any]:
    """A result file, ours or open-unlearning's."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"Retain logs {path} do not exist; evaluate the retain model first and give its *_EVAL.json."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"Retain logs {path} are not a result file ({error}); give the retain model's run directory or its "
            "*_EVAL.json."
        ) from None
    if not isinstance(data, dict):
        raise UserError(f"Retain logs {path} must hold an object of metrics, not {type(data).__name__}.")
    return data


def read_scores(path: Path) -> dict[str, Any]:
    """The metrics of a result file, each of the form that scoring reads; other entries are passed over."""
    scores = {}
    for name, body in read_results(path).items():
        if isinstance(body, dict):
            scores[name] = _check_result(body, name, path)
    return scores


ROW_NUMBERS = ("score", "prob", "avg_loss", "rouge1_recall", "rougeL_recall", "rougeL_f1")
Cell = float | list[float | None] | None  # of a row: one value, or one for each of its answers


def _check_result(body: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """One metric of a file that another tool may have written, if its number and its rows can be read as such.

    A trajectory has curves in place of a number; the two data sets of a membership attack have rows of their own.
    """
    value = {name: {"agg_value": body.get("agg_value")}}
    decode_data(value, dict[str, dict[str, float | dict[str, Any] | None]], str(path))
    parts = [(f"{name}.{part}", body.get(part) or {}) for part in ("forget", "holdout")]
    for where, part in [(name, body), *parts]:
        place = f"{where}.value_by_index"
        rows = part.get("value_by_index") if isinstance(part, dict) else None
        rows = decode_data({place: rows or {}}, dict[str, dict[str, dict[str, Any]]], str(path))[place]
        numbers = {}
        for index, row in rows.items():
            numbers[index] = {field: row[field] for field in ROW_NUMBERS if field in row}
        decode_data({place: numbers}, dict[str, dict[str, dict[str, Cell]]], str(path))
    return body


# ---- tokenised rows -----------------------------------------------------------------------------------------------

GZIP = 31  # zlib's window of 15 bits, and 16 for gzip's header


def save_rows(path: Path, data: Mapping[str, Rows]) -> None:
    """One gzipped JSON file."""
    write_packed(path, dict(zip(data, map(_rows_to_json, data.values()), strict=True)))


def load_rows(path: Path) -> dict[str, Rows]:
    return {key: _rows_from_json(item) for key, item in read_packed(path).items()}


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
    packed = []
    for piece in _pieces(body):
        packed.append(packer.compress(piece.encode("utf-8", "surrogatepass")))
    write_bytes(path, b"".join([*packed, packer.flush()]))


def _pieces(body: Any, depth: int = 3) -> Iterator[str]:
    """What json.dumps(sort_keys=True) writes, entry by entry of the outer objects and lists; records as objects.

    >>> "".join(_pieces({"b": [1, {"c": 2}], "a": []}))
    '{"a": [], "b": [1, {"c": 2}]}'
    """
    named = isinstance(body, dict) and set(map(type, body)) <= {str}
    if depth == 0 or not (named or isinstance(body, (list, Iterator))):
        yield json.dumps(body, ensure_ascii=False, sort_keys=True, default=_named)
        return
    yield "{" if named else "["
    for i, item in enumerate(sorted(body) if named else body):
        yield (", " if i else "") + (json.dumps(item, ensure_ascii=False) + ": " if named else "")
        yield from _pieces(body[item] if named else item, depth - 1)
    yield "}" if named else "]"


def _rows_to_json(rows: Rows) -> dict[str, Any]:
    out = {"name": rows.name, "many": rows.many, "source": rows.source, "fingerprint": rows.fingerprint}
    facts = {"facts": map(dict, rows.facts)} if any(rows.facts) else {}
    return {**out, **facts, "examples": iter(rows.examples)}


def _named(record: Any) -> dict[str, Any]:
    """The fields of a record. dataclasses.asdict would also copy every token id, one by one."""
    found = {}
    for field in fields(record):
        found[field.name] = getattr(record, field.name)
    return found


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
