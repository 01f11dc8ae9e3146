"""Rows from wherever they live: a JSONL/JSON/Parquet/CSV/text file, a directory, a hub id, or memory.

    load_rows(hf_args)                 the rows of a data-set config, and their source in words
    read_file(path)                    the rows of one local file
    MemoryRows({"forget": rows})     objects in Python as a path ("memory:KEY") that load_rows understands
    local_data(suite, layout, data)    a folder (--data) in place of a suite's hub data set, as the setting `local` ...
    redirect(hf_args, local)           ... which readers of rows follow

Local files are read here; only hub ids and unusual layouts go through the library `datasets`.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies
from weakref import WeakValueDictionary

from vestige.data.clusters import rows_fingerprint
from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.guard import TwiceError, is_there, most_bytes, parse_json, read_text
from vestige.secrets import hide

if TYPE_CHECKING:
    from vestige.in_memory import Place, RowsInMemory, RowTables

Row = dict[str, Any]

SUFFIXES = (".jsonl", ".json", ".parquet", ".jsonl.gz", ".json.gz", ".csv", ".txt")
# Formats that plug-ins bring, by suffix (".toml"): a file in, its rows out.
READERS: dict[str, Callable[[Path], list[Row]]] = {}
MEMORY = "memory:"  # begins the path of rows that are in memory
# `datasets` spells "these local files" as path=<format> with data_files.
FILE_FORMATS = {"json", "parquet", "csv", "text"}
_SPLIT = re.compile(r"^(?P<split>[^\[\]]+)(?:\[(?P<low>-?\d*%?):(?P<high>-?\d*%?)\])?$")


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
    split = _SPLIT.match(str(args.get("split", "train")))
    if not split:
        raise UserError(f"Cannot read the split '{args['split']}'; write train, train[:100] or train[10%:20%].")
    files = None if path.startswith(MEMORY) else _find_files(path, args, split["split"])
    if path.startswith(MEMORY):
        rows, source = memory_rows(path).read(str(args.get("name") or "forget"))
    elif files is None:
        rows, source = _load_from_hub(path, args)
    else:
        rows = [row for file in files for row in read_file(file)]
        source = ", ".join(map(str, files))
    if not rows:
        raise UserError(f"{source} holds no rows; give a file with at least one row.")
    from_hub = files is None and not path.startswith(MEMORY)
    if not from_hub and (split["low"] or split["high"]):  # `datasets` has cut a hub's rows already
        count = len(rows)
        rows = rows[_bound(split["low"], count, 0) : _bound(split["high"], count, count)]
        if not rows:
            raise UserError(f"{source} has {count} rows, of which the split '{args['split']}' keeps none; widen it.")
    return rows[:limit], hide(source)


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
    """One end of a slice, in rows or per cent (rounded as `datasets` does)."""
    if not text:
        return default
    return round(count * int(text[:-1]) / 100) if text.endswith("%") else int(text)


# ---- local files --------------------------------------------------------------------------------------------------


def _find_files(path: str, args: Mapping[str, Any], split: str) -> list[Path] | None:
    """The local files meant, or None when this is a matter for `datasets`."""
    if "://" in str(args.get("data_files", "")):
        return None
    place = Path(path).expanduser()
    try:
        if path in FILE_FORMATS and "data_files" in args:
            return _listed_files(Path(), args["data_files"], split)
        if place.is_file():
            return [place]
        if place.is_dir() and "data_files" in args:
            return _listed_files(place, args["data_files"], split)
        if place.is_dir():
            found = find_in_directory(place, args.get("name"), split)
            # A data card or a script may map names to files: `datasets` reads those.
            if found or (place / "README.md").exists() or list(place.glob("*.py")):
                return found or None
    except (OSError, ValueError, RuntimeError, NotImplementedError) as error:  # a name that no file can have
        raise UserError(
            f"Data set {path}: its files cannot be looked for ({error}); check path and data_files."
        ) from None
    if place.is_dir():
        wanted = f"'{args['name']}'" if args.get("name") else f"split '{split}'"
        looked_for = ", ".join(suffixes())
        raise MissingData(f"{place} has no file for {wanted} (looked for {looked_for}); it holds: {_content(place)}.")
    if path.startswith((".", "/", "~")) or path.endswith(suffixes()):
        raise MissingData(f"Data file {place} does not exist; check the path.")
    return None


def _content(folder: Path) -> str:
    return ", ".join(sorted(p.name for p in folder.iterdir())[:20]) or "nothing"


def _listed_files(root: Path, data_files: Any, split: str) -> list[Path]:
    """The files of `data_files`, whose names may be patterns."""
    if isinstance(data_files, Mapping):
        if split not in data_files:
            raise MissingData(f"data_files has no split '{split}'; it has: {', '.join(map(str, data_files))}.")
        data_files = data_files[split]
    names = [data_files] if isinstance(data_files, (str, Path)) else data_files
    out: list[Path] = []
    for name in names:
        pattern = Path(str(name)).expanduser()
        place = root / pattern
        matches = [place]
        if has_magic(str(name)) and not place.is_file():
            base = Path(pattern.anchor) if pattern.is_absolute() else root
            matches = sorted(base.glob(str(pattern.relative_to(pattern.anchor))))
        if not matches or not all(match.is_file() for match in matches):
            raise MissingData(f"Data file {place} does not exist; check data_files.")
        out += matches
    return out


def find_in_directory(root: Path, name: str | None, split: str) -> list[Path]:
    """Files for a (name, split) in a directory laid out like a hub data set; [] if there are none.

    Looked for in order: NAME.ext, NAME_SPLIT.ext, NAME/SPLIT.ext, NAME/SPLIT-*.parquet; without a name, SPLIT.ext.
    """
    stems = [name, f"{name}_{split}", f"{name}/{split}"] if name else [split]
    for base in (root, root / "data"):
        for stem in stems:
            file = file_in(base, stem)
            if file is not None:
                return [Path(file)]
            shards = _find_shards(base / stem)
            if shards:
                return shards
    return []


def file_in(folder: Path | str, stem: str) -> str | None:
    """The file of rows called `stem` in a folder, whatever its format; None: there is none."""
    for suffix in suffixes():
        file = Path(folder).expanduser() / f"{stem}{suffix}"
        if file.is_file():
            return str(file)
    return None


def _find_shards(stem: Path) -> list[Path]:
    """The files STEM-00000-of-00002.parquet, ...: all of them, and nothing that merely begins alike."""
    pattern = re.compile(re.escape(stem.name) + r"-\d+-of-(\d+)\.parquet")
    found: dict[Path, int] = {}
    for path in stem.parent.glob("*.parquet"):
        match = pattern.fullmatch(path.name)
        if match:
            found[path] = int(match[1])
    for whole in found.values():
        if whole != len(found):
            raise MissingData(
                f"{stem.parent} has {len(found)} of the {whole} files {stem.name}-*.parquet; copy the rest."
            )
    return sorted(found)


def read_file(path: Path) -> list[Row]:
    """All rows of one local file, by its suffix."""
    if path.suffix in READERS:
        return READERS[path.suffix](path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    if not text.strip():
        raise UserError(f"{path} is empty; give a file with at least one row.")
    if path.suffix == ".csv":
        return _read_csv(text, path)
    # Lines end at newlines only: str.splitlines would also cut at U+2028 and friends inside a JSON string.
    lines = text.split("\n")
    if path.suffix == ".txt":
        return [{"text": line.rstrip("\r")} for line in lines if line.strip()]
    rows: list[Row] = []
    if text.lstrip().startswith("["):
        for number, row in enumerate(_parse_json(text, path)):
            rows.append(_check_row(row, f"{path} row {number}"))
        return rows
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(_check_row(_parse_json(line, path, number), f"{path} line {number}"))
    return rows


def _check_row(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{where} is not an object with named fields but {type(row).__name__}.")
    return row


def _parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """A line of JSON, or a whole file of it, with its place in the sentence about what is wrong."""
    where = str(path) if line is None else f"{path} line {line}"
    try:
        return parse_json(text, unique=True)
    except json.JSONDecodeError as error:
        if line is None:
            raise UserError(f"{path} line {error.lineno} is not valid JSON: {error.msg}; correct it.") from None
        raise UserError(f"{where} is not valid JSON: {error.msg} (column {error.colno}); correct it.") from None
    except TwiceError as error:
        raise UserError(f"{where}: {error}.") from None
    except ValueError as error:
        raise UserError(f"{where} cannot be used: {error}.") from None


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
    size, limit = 0, most_bytes()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):  # a few bytes of Parquet can stand for a billion rows
                size += batch.nbytes + 64 * batch.num_rows
                if size > limit:
                    raise ValueError(f"its rows take more than {limit / 2**20:,.0f} MB (VESTIGE_MAX_BYTES)")
                rows += batch.to_pylist()
    except (OSError, ValueError, OverflowError, MemoryError, ArrowException) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"{path} cannot be read as Parquet: {lines[0]}.") from None
    return rows


# ---- the hub ------------------------------------------------------------------------------------------------------


def _load_from_hub(path: str, args: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Rows of a hub data set (or a local directory with a data card), through `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    label = " / ".join(str(args[k]) for k in ("path", "name", "split") if k in args)
    try:
        with _offline_if_unreachable():
            loaded = datasets.load_dataset(**{"split": "train", **args})
    except Exception as error:  # datasets names many causes: the hub, the network, the files, their script
        reraise_ours(error)
        raise _explain(path, label, error) from None
    return [dict(row) for row in loaded], label


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
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


def _explain(path: str, label: str, error: Exception) -> UserError:
    """What went wrong at the hub, in one sentence. Errors are told by name: they come from several libraries."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if "gated" in text.lower() or kind == "GatedRepoError":
        return UserError(f"Data set {path} is gated: accept its terms on its hub page, then run `hf auth login`.")
    if "BuilderConfig" in text or "Unknown split" in text:
        return MissingData(f"Data set {label}: {text} (check hf_args.name and hf_args.split).")
    if kind in {"ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectTimeout", "ConnectError"}:
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


# ---- rows in memory: data sets of `datasets`, frames of pandas, lists of dictionaries -----------------------------


class MemoryRows:
    """Tables of rows by the names that files would have, as a path that names their content.

    Other rows have another path and other fingerprints. Nothing is written: keep this object as long as its path is
    in use.
    """

    def __init__(self, tables: RowTables) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.kinds: dict[str, str] = {}
        for name, rows in tables.items():
            self.tables[str(name)] = plain_rows(rows, str(name))
            self.kinds[str(name)] = type(rows).__name__
        if not self.tables:
            raise UserError('data is an empty mapping; give at least {"forget": rows}.')
        self.path = f"{MEMORY}{rows_fingerprint([self.tables])}"
        _IN_MEMORY[self.path] = self

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


# Weak: rows are forgotten with the object that holds them.
_IN_MEMORY: WeakValueDictionary[str, MemoryRows] = WeakValueDictionary()


def memory_rows(path: str) -> MemoryRows:
    """The rows that a path beginning with MEMORY stands for."""
    found = _IN_MEMORY.get(path)
    if found is None:
        raise UserError(
            "The rows of this run were objects in Python, which are not kept; give them again (data=...), or write "
            "them to files for what reads rows a second time."
        )
    return found


def as_memory_rows(data: Place | RowTables | None) -> MemoryRows | None:
    """Rows in memory, if that is what `data` is; None for a folder."""
    if data is None or isinstance(data, (str, bytes)) or hasattr(data, "__fspath__"):
        return None
    if not hasattr(data, "items") or hasattr(data, "columns"):
        raise UserError(
            f"data is a {type(data).__name__}; give a folder, or say which rows it holds: "
            'data={"forget": rows, "retain": others}.'
        )
    return MemoryRows(data)


def plain_rows(rows: RowsInMemory, name: str) -> list[Row]:
    """Rows as dictionaries of plain values, whatever holds them."""
    table: Any = rows
    if isinstance(table, Mapping):
        splits = ", ".join(map(str, table))
        raise UserError(f"'{name}' is a mapping ({splits}), not rows; give one of its parts.")
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # a frame of pandas
        table = table.to_dict("records")
    elif hasattr(table, "with_format") and hasattr(table, "column_names"):  # of datasets: not as tensors
        table = table.with_format(None)
    try:
        listed = list(table)
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


# ---- a folder of the user's, or rows in memory, in the place of a hub's data set ----------------------------------


def local_data(suite: str, layout: Any, data: str) -> dict[str, Any]:
    """Where a suite's data sets are in a folder. `layout` is what its YAML says under `local_data`."""
    if not layout:
        raise UserError(f"The suite '{suite}' does not say how a folder stands in for its data; use data.local=...")
    names = {str(f["name"]): str(f["file"]) for f in layout["files"]}  # the hub's name -> ours
    stems = [stem for pair in names.items() for stem in pair]
    hub = str(layout["hub"])
    if data.startswith(MEMORY):
        memory_rows(data).check_names(stems)
        return {hub: {"path": data, "names": names}}
    root = Path(data).expanduser()
    if not is_there(root):
        raise UserError(
            f"Data directory {root} does not exist; --data takes a folder with forget.jsonl, retain.jsonl, ..."
        )
    if not root.is_dir():
        instead = f"put {root.name} into one as forget.jsonl (or .json, .csv, .parquet)"
        if any(root.name == f"{stem}{suffix}" for stem in stems for suffix in suffixes()):
            instead = f"give --data {root.parent}"
        raise UserError(f"--data takes a folder; {instead}.")
    if not any(file_in(root, stem) for stem in stems):
        wanted = ", ".join(f"{file}.jsonl" for file in dict.fromkeys(names.values()))
        raise UserError(f"{root} has none of {wanted}; it holds: {_content(root)}.")
    return {hub: {"path": str(root), "names": names}}


def redirect(hf_args: dict[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a data set, with the place that `local` gives for its hub id."""
    place = local.get(str(hf_args.get("path")))
    if not place:
        return hf_args
    name = hf_args.get("name")
    if "files" in place:  # single files, each under a name of its own
        file = place["files"].get(name)
        if file is None:
            raise MissingData(f"no {name} rows were given")
        return {"path": str(Path(str(file)).expanduser())}
    path, names = str(place["path"]), place.get("names") or {}
    if path.startswith(MEMORY):
        tables = memory_rows(path).tables
        if name not in tables:
            name = names.get(name, name)
        if name not in tables:
            raise MissingData(f"no {name} rows were given")
        return {**hf_args, "path": path, "name": name}
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"Data directory {root} does not exist; check --data.")
    split = str(hf_args.get("split", "train")).split("[")[0]
    if not find_in_directory(root, name, split):  # the hub's own name for a file comes first
        name = names.get(name, name)
    return {**hf_args, "path": str(root), "name": name}
