"""Rows from wherever they live: a JSONL/JSON/Parquet file, a directory, or a hub id.

One function, `load_rows`, takes the `hf_args` of a data-set config (path, name, split, data_files, ...).
Local files are read here; only hub ids and unusual layouts go through `datasets`.

What a suite says of its files and the folder that --data names become the mapping `local` of a RunConfig (`local_data`,
called by engine/friendly.py and unlearn/flags.py); readers of rows follow it with `redirect`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies
from weakref import WeakValueDictionary

from vestige.data.clusters import rows_fingerprint
from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.guard import TwiceError, is_there, most_bytes, parse_json, read_text, unique_names
from vestige.secrets import hide

if TYPE_CHECKING:
    from vestige.in_memory import Place, RowsInMemory, RowTables

Row = dict[str, Any]

SUFFIXES = (".jsonl", ".json", ".parquet", ".jsonl.gz", ".json.gz", ".csv", ".txt")
# Formats that plug-ins bring, by suffix (".toml"): a file in, its rows out.
READERS: dict[str, Callable[[Path], list[Row]]] = {}
GIVEN = "memory:"  # begins the path of rows that are in memory (below)
# `datasets` spells "these local files" as path=<format> with data_files.
FILE_FORMATS = {"json", "parquet", "csv", "text"}
_SLICE = re.compile(r"^(?P<split>[^\[\]]+)(?:\[(?P<low>-?\d*%?):(?P<high>-?\d*%?)\])?$")


def suffixes() -> tuple[str, ...]:
    """What a file of rows may end in, formats of plug-ins included."""
    return (*SUFFIXES, *READERS)


class MissingData(UserError):  # noqa: N818 - it reads as a noun in the notes it ends up in
    """A file or column that is not there. A suite may go on without it, and says what it could not compute."""


def load_rows(hf_args: Mapping[str, Any], limit: int | None = None) -> tuple[list[Row], str]:
    """The rows and, for people, where they came from.

    `limit` keeps the first rows only; it is applied before anything is tokenised.
    """
    args = {k: v for k, v in hf_args.items() if v is not None}
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UserError(f"A data set must keep at least one row; the limit (max_samples) is {limit}.")
    _check_args(args)
    path = str(args.get("path", ""))
    if not path:
        raise UserError("A data set needs hf_args.path (a file, a directory or a hub id); it is empty.")
    split = _SLICE.match(str(args.get("split", "train")))
    if not split:
        raise UserError(f"Cannot read the split '{args['split']}'; write train, train[:100] or train[10%:20%].")
    found = _from_memory(path, args) if path.startswith(GIVEN) else _from_files(path, args, split["split"])
    if found is None:
        rows, source = rows_of_hub(path, args)
    else:
        rows, source = found
    if found and rows and (split["low"] or split["high"]):
        count = len(rows)
        rows = rows[_bound(split["low"], count, 0) : _bound(split["high"], count, count)]
        if not rows:
            raise UserError(f"{source} has {count} rows, of which the split '{args['split']}' keeps none; widen it.")
    if not rows:
        raise UserError(f"{source} holds no rows; give a file with at least one row.")
    return (rows if limit is None else rows[:limit]), hide(source)


def _from_memory(path: str, args: Mapping[str, Any]) -> tuple[list[Row], str]:

    return given_rows(path).read(str(args.get("name") or "forget"))


def _from_files(path: str, args: Mapping[str, Any], split: str) -> tuple[list[Row], str] | None:
    """Rows of local files; None when this is a matter for `datasets`."""
    try:
        files = _local_files(Path(path).expanduser(), path, args, split)
    except (OSError, ValueError, RuntimeError, NotImplementedError) as error:  # a name that no file can have
        raise UserError(
            f"Data set {path}: its files cannot be looked for ({error}); check path and data_files."
        ) from None
    return None if files is None else (list(chain.from_iterable(map(read_file, files))), ", ".join(map(str, files)))


def _check_args(args: Mapping[str, Any]) -> None:
    """hf_args come from configuration files, where a number or a list is easily written for a name."""
    for key in ("path", "name", "split"):
        if key in args and not isinstance(args[key], (str, Path)):
            raise UserError(f"hf_args.{key} must be text, it is {args[key]!r}.")
    if "data_files" not in args:
        return
    files = args["data_files"]
    for part in files.values() if isinstance(files, Mapping) else [files]:
        listed = part if isinstance(part, (list, tuple)) else [part]
        if not listed or not all(isinstance(name, (str, Path)) and str(name) for name in listed):
            raise UserError("hf_args.data_files must be a file name, a list of them, or a mapping of splits to them.")


def _bound(text: str | None, count: int, default: int) -> int:
    if not text:
        return default
    return round(count * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def _local_files(place: Path, path: str, args: Mapping[str, Any], split: str) -> list[Path] | None:
    """The local files meant, or None when this is a matter for `datasets`."""
    if "://" in str(args.get("data_files", "")):
        return None
    if path in FILE_FORMATS and "data_files" in args:
        return _listed(Path(), args["data_files"], split)
    if place.is_file():
        return [place]
    if place.is_dir():
        if "data_files" in args:
            return _listed(place, args["data_files"], split)
        found = find_in_directory(place, args.get("name"), split)
        if found or (place / "README.md").exists() or list(place.glob("*.py")):
            return found or None  # a data card may map names to files: `datasets` reads it
        wanted = f"'{args['name']}'" if args.get("name") else f"split '{split}'"
        have = ", ".join(sorted(p.name for p in place.iterdir())[:20]) or "nothing"
        ends = ", ".join(suffixes())
        raise MissingData(f"{place} has no file for {wanted} (looked for {ends}); it holds: {have}.")
    if path.startswith((".", "/", "~")) or path.endswith(suffixes()):
        raise MissingData(f"Data file {place} does not exist; check the path.")
    return None


def _listed(root: Path, data_files: Any, split: str) -> list[Path]:
    if isinstance(data_files, Mapping):
        if split not in data_files:
            raise MissingData(f"data_files has no split '{split}'; it has: {', '.join(map(str, data_files))}.")
        data_files = data_files[split]
    names = [data_files] if isinstance(data_files, (str, Path)) else list(data_files)
    out: list[Path] = []
    for name in names:
        pattern = Path(str(name)).expanduser()
        place = root / pattern
        if place.is_file() or not has_magic(str(name)):
            hits = [place]
        else:
            base = Path(pattern.anchor) if pattern.is_absolute() else root
            hits = sorted(base.glob(str(pattern.relative_to(pattern.anchor))))
        if not hits or not all(h.is_file() for h in hits):
            raise MissingData(f"Data file {place} does not exist; check data_files.")
        out += hits
    return out


def find_in_directory(root: Path, name: str | None, split: str) -> list[Path]:
    """Files for a (name, split) in a directory laid out like a hub data set; [] if there are none.

    Looked for in order: NAME.ext, NAME_SPLIT.ext, NAME/SPLIT.ext, NAME/SPLIT-*.parquet; without a name, SPLIT.ext.
    """
    bases = [root, root / "data"]
    stems: list[Path] = []
    for base in bases:
        if name:
            stems += [base / name, base / f"{name}_{split}", base / name / split]
        else:
            stems += [base / split]
    for stem in stems:
        for suffix in suffixes():
            candidate = stem.with_name(stem.name + suffix)
            if candidate.is_file():
                return [candidate]
        shards = _shards(stem)
        if shards:
            return shards
    return []


def _shards(stem: Path) -> list[Path]:
    """The files STEM-00000-of-00002.parquet, ...: all of them, and nothing that merely begins alike."""
    named = re.compile(re.escape(stem.name) + r"-\d+-of-(\d+)\.parquet")
    found = {}
    for path in stem.parent.glob("*.parquet"):
        if match := named.fullmatch(path.name):
            found[path] = match
    for match in found.values():
        if int(match[1]) != len(found):
            raise MissingData(
                f"{stem.parent} has {len(found)} of the {int(match[1])} files {stem.name}-*.parquet; copy the rest."
            )
    return sorted(found)


def read_file(path: Path) -> list[Row]:
    """All rows of one local file, by its suffix."""
    if path.suffix in READERS:
        return READERS[path.suffix](path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    text = _read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty; give a file with at least one row.")
    if path.suffix == ".csv":
        return _read_csv(text, path)
    if path.suffix == ".txt":
        return [{"text": line.rstrip("\r")} for line in text.split("\n") if line.strip()]
    if text.lstrip().startswith("["):
        return _read_array(text, path)
    return list(_read_lines(text, path))


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def _read_csv(text: str, path: Path) -> list[Row]:
    rows: list[Row] = []
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if None in row:
                raise UserError(
                    f"{path} line {reader.line_num} has more fields than line 1 has names; quote fields with commas."
                )
            rows.append(dict(row))
    except csv.Error as error:
        raise UserError(
            f"{path} line {reader.line_num} is not valid CSV ({error}); quote fields with commas in them."
        ) from None
    return rows


def _read_parquet(path: Path) -> list[Row]:
    from pyarrow import ArrowException, parquet

    rows: list[Row] = []
    size, most = 0, most_bytes()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):  # a few bytes of Parquet can stand for a billion rows
                size += batch.nbytes + 64 * batch.num_rows
                if size > most:
                    raise ValueError(f"its rows take more than {most / 2**20:,.0f} MB (VESTIGE_MAX_BYTES)")
                rows += batch.to_pylist()
    except (OSError, ValueError, OverflowError, MemoryError, ArrowException) as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"{path} cannot be read as Parquet: {words[0]}.") from None
    return rows


def _read_array(text: str, path: Path) -> list[Row]:
    rows = _json(text, path, None)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path} row {number} is not an object with named fields but {type(row).__name__}.")
    return list(rows)


def _read_lines(text: str, path: Path) -> Iterator[Row]:
    # Split at newlines only: str.splitlines would also cut at U+2028 and friends inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _json(line, path, number)
        if not isinstance(row, dict):
            raise UserError(f"{path} line {number} is not an object with named fields but {type(row).__name__}.")
        yield row


def _json(text: str, path: Path, line: int | None) -> Any:
    """A line of JSON, or a whole file of it, with its place in the sentence about what is wrong."""
    try:
        return parse_json(text, unique=True)
    except TwiceError as error:
        raise UserError(f"{path} line {line or second_line(text, error.key)}: {error}.") from None
    except json.JSONDecodeError as error:
        column = "" if line is None else f" (column {error.colno})"
        raise UserError(
            f"{path} line {line or error.lineno} is not valid JSON: {error.msg}{column}; correct it."
        ) from None
    except ValueError as error:
        where = "" if line is None else f" line {line}"
        raise UserError(f"{path}{where} cannot be used: {error}.") from None


def second_line(text: str, key: str) -> int:
    """The line on which an object of an array says a key for the second time.

    >>> second_line('[{"a": 1},\\n {"a": 2,\\n "a": 3}]', "a")
    3
    """
    decoder = json.JSONDecoder(object_pairs_hook=unique_names)
    named = re.compile(re.escape(json.dumps(key)) + r"\s*:")
    at = text.index("[") + 1
    try:
        while True:  # whole rows are passed over; the first that is not is the one
            start = at + len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
            _, at = decoder.raw_decode(text, start)
    except TwiceError:
        second = next(islice(named.finditer(text, start), 1, None), None)
        return text.count("\n", 0, second.start() if second else start) + 1
    except ValueError:
        return 1


# ---- a folder of the user's, or rows in memory, in the place of a hub's data set ---------------------------------


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
    if str(place["path"]).startswith(GIVEN):
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


def file_in(folder: str, stem: str) -> str | None:
    """The file of rows called `stem` in a folder, whatever its format; None: there is none."""
    for suffix in suffixes():
        file = Path(folder).expanduser() / f"{stem}{suffix}"
        if file.is_file():
            return str(file)
    return None


def local_data(suite: str, layout: Any, data: str) -> dict[str, Any]:
    """Where a suite's data sets are in a folder. `layout` is what its YAML says under `local_data`."""
    if not layout:
        raise UserError(f"The suite '{suite}' does not say how a folder stands in for its data; use data.local=...")
    pairs = [(str(f["name"]), str(f["file"])) for f in layout["files"]]
    hub = str(layout["hub"])
    if data.startswith(GIVEN):
        given_rows(data).check_names(file for pair in pairs for file in pair)
        return {hub: {"path": data, "names": dict(pairs)}}
    root = Path(data).expanduser()
    stems = dict.fromkeys(chain.from_iterable(pairs))
    if not is_there(root):
        raise UserError(
            f"Data directory {root} does not exist; --data takes a folder with forget.jsonl, retain.jsonl, ..."
        )
    if not root.is_dir():
        instead = f"put {root.name} into one as forget.jsonl (or .json, .csv, .parquet)"
        if any(root.name == f"{stem}{suffix}" for stem in stems for suffix in suffixes()):
            instead = f"give --data {root.parent}"
        raise UserError(f"--data takes a folder; {instead}.")
    if not any((root / f"{stem}{suffix}").exists() for stem in stems for suffix in suffixes()):
        have = ", ".join(sorted(p.name for p in root.iterdir())[:12]) or "nothing"
        wanted = ", ".join(f"{file}.jsonl" for file in dict.fromkeys(file for _, file in pairs))
        raise UserError(f"{root} has none of {wanted}; it holds: {have}.")
    return {hub: {"path": str(root), "names": dict(pairs)}}


# ---- Rows of a data set on a hub, or of a local directory with a data card, through `datasets` ----
#
# In: the `hf_args` of a data-set config. Out: rows, and where they came from, for people; or one sentence.
# Caller: data/rows.py, for what is not a local file.


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Without a network, answer from the cache at once: `datasets` would retry for half a minute first."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not _hub_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _hub_reachable(endpoint: str) -> bool:
    if getproxies():  # then we do not reach the hub ourselves, and cannot tell
        return True
    place = urlsplit(endpoint)
    try:
        port = place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection((place.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def rows_of_hub(path: str, args: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Rows of a hub data set (or a local directory with a data card), through `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    label = " / ".join(str(args[k]) for k in ("path", "name", "split") if k in args)
    options = {"split": "train", **args}
    try:
        with _no_waiting():
            loaded = datasets.load_dataset(**options)
    except Exception as error:  # datasets names many causes: the hub, the network, the files, their script
        reraise_ours(error)
        raise _explain(path, label, error) from None
    return [dict(row) for row in loaded], label


def _explain(path: str, label: str, error: Exception) -> UserError:
    kind, text = type(error).__name__, " ".join(str(error).split())
    if "gated" in text.lower() or kind == "GatedRepoError":
        return UserError(f"Data set {path} is gated: accept its terms on its hub page, then run `hf auth login`.")
    if "BuilderConfig" in text or "Unknown split" in text:
        return MissingData(f"Data set {label}: {text} (check hf_args.name and hf_args.split).")
    if kind in {
        "ConnectionError",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ConnectTimeout",
        "ConnectError",
    }:
        return UserError(
            f"The hub could not be reached for data set {path}; go online, or give a local directory "
            "with the same files (--data DIR)."
        )
    if kind in {"DatasetNotFoundError", "RepositoryNotFoundError", "FileNotFoundError"}:
        return UserError(
            f"Data set {path} was not found, neither as a local directory nor on the hub "
            "(or the hub could not be reached); check the name, or give a local directory."
        )
    return UserError(f"Data set {label} could not be loaded ({kind}): {text[:300]}")


# ---- Rows that are in memory already: data sets of `datasets`, frames of pandas, lists of dictionaries ----
#
#     {"forget": Dataset, "retain": DataFrame} --GivenRows--> "memory:KEY", a path that load_rows understands
#
# In: objects. Out: plain rows, named by their content: other rows, another path, other fingerprints. Callers: the rooms
# api and watch make them, data/rows.py and engine/flags.py read them. They are forgotten with the object that holds
# them, and nothing is written.


class GivenRows:
    """Tables of rows by the names that files would have. Keep it as long as its path is in use."""

    def __init__(self, tables: RowTables) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.kinds: dict[str, str] = {}
        for name, rows in tables.items():
            self.tables[str(name)] = plain_rows(rows, str(name))
            self.kinds[str(name)] = type(rows).__name__
        if not self.tables:
            raise UserError('data is an empty mapping; give at least {"forget": rows}.')
        self.path = f"{GIVEN}{rows_fingerprint([self.tables])}"
        _HELD[self.path] = self

    def check_names(self, known: Iterable[str]) -> None:
        """A misspelt name would silently leave metrics out."""
        names = list(dict.fromkeys(known))
        for name in self.tables:
            if name not in names:
                raise unknown_name("rows", name, names, "(data maps these names to rows)")

    def read(self, name: str) -> tuple[list[Row], str]:
        """One table, and where it comes from, for people."""
        rows = self.tables[name]
        return [dict(row) for row in rows], f"{name} ({self.kinds[name]} in memory, {len(rows)} rows)"


_HELD: WeakValueDictionary[str, GivenRows] = WeakValueDictionary()


def given_rows(path: str) -> GivenRows:
    """The rows behind a path of ours."""
    found = _HELD.get(path)
    if found is None:
        raise UserError(
            "The rows of this run were objects in Python, which are not kept; give them again (data=...), or write "
            "them to files for what reads rows a second time."
        )
    return found


def as_given(data: Place | RowTables | None) -> GivenRows | None:
    """Rows in memory, if that is what `data` is."""
    if data is None or isinstance(data, (str, bytes)) or hasattr(data, "__fspath__"):
        return None
    if not hasattr(data, "items") or hasattr(data, "columns"):
        raise UserError(
            f"data is a {type(data).__name__}; give a folder, or say which rows it holds: "
            'data={"forget": rows, "retain": others}.'
        )
    return GivenRows(data)


def plain_rows(rows: RowsInMemory, name: str) -> list[Row]:
    """Rows as dictionaries of plain values, whatever holds them."""
    found: Any = rows
    if isinstance(found, Mapping):
        splits = ", ".join(map(str, found))
        raise UserError(f"'{name}' is a mapping ({splits}), not rows; give one of its parts.")
    if hasattr(found, "to_dict") and hasattr(found, "columns"):  # a frame of pandas
        found = found.to_dict("records")
    elif hasattr(found, "with_format") and hasattr(found, "column_names"):  # of datasets: not as tensors
        found = found.with_format(None)
    try:
        listed = list(found)
    except TypeError:
        raise UserError(f"'{name}' is a {type(rows).__name__}, not rows; give a data set or a list.") from None
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise UserError(f"'{name}' row {number} is not a dictionary with named fields but {type(row).__name__}.")
    if not listed:
        raise UserError(f"'{name}' holds no rows; give at least one.")
    return [{str(key): plain_value(value) for key, value in row.items()} for row in listed]


def plain_value(value: Any) -> Any:
    """As JSON would have it: no numpy types, and None where pandas says that a cell is empty.

    >>> import numpy as np
    >>> plain_value({"a": np.float32(0.5), "b": [np.int64(2)], "c": float("nan"), "d": np.array(["x", "y"])})
    {'a': 0.5, 'b': [2], 'c': None, 'd': ['x', 'y']}
    """
    if isinstance(value, Mapping):
        return {str(k): plain_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(v) for v in value]
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):  # of numpy
        return plain_value(value.tolist())
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
