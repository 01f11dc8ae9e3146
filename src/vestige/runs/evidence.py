"""Evidence on disk: one immutable file for each batch, in a folder for each kind and identity.

    evidence/answers-3f0c.../9a1b....safetensors    one batch of answers, named by the first of its keys
    evidence/answers-3f0c.../plan-77d2....json      which keys were packed together, and with which settings
    evidence/texts-81aa.../04ce....jsonl            one batch of texts: a header line, then a line for each text

    folder = EvidenceFolder(directory, kind, identity)
    folder.load() -> StoredEvidence                 items by content key; damaged files count as not there
    folder.load(strict=True)                        for scoring: a damaged file is refused by name
    folder.write(items, settings, how, notes)       one batch
    folder.write_plan(plan), folder.plans()         what was packed together
    read_evidence(run, kind)                        public: all evidence of one kind in a finished run

A file is written to a temporary name and renamed, and never changed afterwards. So a killed run is whole, a resumed
run is identical to the byte, and several processes write side by side. Arrays of unequal length lie end to end, with
`offsets`: item i of a file is `logprob[..., offsets[i]:offsets[i + 1]]`. The header has the keys in that order, the
identity, the settings of the packing, how the model was held, notes, and a digest of all of it.

Batch composition decides the last bits of a number. A resumed run must therefore pack what it finds unfinished exactly
as before, and the plan in the folder says how that was. Plans are named by their content, so those of several processes
or of later additions stand side by side.

An identity names everything the evidence depends on besides the wants (models/fingerprint.py has the table), so a
folder that exists can be trusted: there is nothing to compare.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec
import numpy as np

from vestige.errors import UserError, first_line
from vestige.io import damaged, decode
from vestige.runs.directory import listed_files, remove, write_bytes
from vestige.types import ARRAY_FIELDS, Array, Text, TokenStats, Trace, content_key

log = logging.getLogger("vestige.runs")

T = TypeVar("T")
CACHED_BYTES = 8 << 20  # of files that were read last; a file at a time is read, and mostly by its neighbours, too


@dataclass(frozen=True)
class Header:
    """What an evidence file says of itself."""

    kind: str
    identity: str
    keys: list[str]  # of its items, in their order
    settings: dict[str, Any]  # of the packing
    how: dict[str, Any]  # precision, attention, device and library versions
    notes: list[str]  # what readers of the numbers must know


@dataclass(frozen=True)
class Plan:
    """Keys that were packed together, and the settings of the packing."""

    keys: list[str]
    settings: dict[str, Any]


# ---- how items of each kind become arrays or lines ---------------------------------------------------------------


def _offsets(lengths: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def pack_stats(items: Sequence[TokenStats]) -> dict[str, Array]:
    """Leading axes (patched layers) are the same for all items of a file and stay in front."""
    arrays = {}
    for name in ARRAY_FIELDS:
        arrays[name] = np.concatenate([getattr(item, name) for item in items], axis=-1)
    return {**arrays, "offsets": _offsets([item.tokens for item in items])}


def pick_stats(arrays: Mapping[str, Array], row: int) -> TokenStats:
    first, end = arrays["offsets"][row : row + 2].tolist()
    # Copies: a view would keep all arrays of the file in memory.
    fields = {name: arrays[name][..., first:end].copy() for name in ARRAY_FIELDS}
    return TokenStats(**fields, order=np.arange(end - first), steps=end - first)


def pack_rows(items: Sequence[Array]) -> dict[str, Array]:
    """Log-probabilities of one reasoning under one prompt."""
    rows = [np.asarray(item, np.float32) for item in items]
    return {"logprob": np.concatenate(rows), "offsets": _offsets([len(row) for row in rows])}


def pick_row(arrays: Mapping[str, Array], row: int) -> Array:
    first, end = arrays["offsets"][row : row + 2].tolist()
    return arrays["logprob"][first:end].copy()


def pack_numbers(items: Sequence[float]) -> dict[str, Array]:
    return {"value": np.asarray(items, np.float64)}


def pick_number(arrays: Mapping[str, Array], row: int) -> float:
    return float(arrays["value"][row])


TRACE_AXES = {  # of each field of a Trace; s: passes, l: positions, k: answers watched
    "final": "l",
    "fixed": "l",
    "committed": "s",
    "canvas": "sl",
    "proposal": "sl",
    "top1": "sl",
    "mean": "sl",
    "std": "sl",
    "labels": "kl",
    "logprob": "ksl",
    "accepted": "sl",
}


def pack_traces(items: Sequence[Trace]) -> dict[str, Array]:
    """Every field of all traces end to end, with the size of each trace (passes, positions, answers watched)."""
    arrays = {}
    for name in TRACE_AXES:
        joined = np.concatenate([np.ravel(getattr(item, name)) for item in items])
        arrays[name] = joined.astype(np.float32 if joined.dtype.kind == "f" else np.int32)
    sizes = [[item.steps, len(item.final), len(item.labels)] for item in items]
    return {**arrays, "sizes": np.asarray(sizes, np.int64)}


def pick_trace(arrays: Mapping[str, Array], row: int) -> Trace:
    columns = dict(zip("slk", arrays["sizes"].T, strict=True))
    fields = {}
    for name, axes in TRACE_AXES.items():
        lengths = np.prod([columns[axis] for axis in axes], axis=0)
        first = int(lengths[:row].sum())
        shape = [int(columns[axis][row]) for axis in axes]
        fields[name] = arrays[name][first : first + int(lengths[row])].reshape(shape).copy()
    fields["accepted"] = fields["accepted"].astype(bool)
    return Trace(**fields)


def pack_text(text: Text) -> dict[str, Any]:
    return {"ids": list(text.ids), "text": text.text, "proven": text.proven}


def pick_text(line: Mapping[str, Any]) -> Text:
    return Text(tuple(line["ids"]), line["text"], line["proven"])


def pick_body(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "key"}


@dataclass(frozen=True)
class ArrayFile:
    """A safetensors file. It has one metadata entry only, because the order of several is not fixed."""

    pack: Callable[[Sequence[Any]], dict[str, Array]]
    pick: Callable[[Any, int], Any]
    suffix: str = ".safetensors"

    def dump(self, items: Sequence[Any], header: Mapping[str, Any]) -> bytes:
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(array) for name, array in self.pack(items).items()}
        signed = {"header": header, "sha256": self._digest(arrays, header)}
        return save(arrays, metadata={"evidence": json.dumps(signed, sort_keys=True)})

    def parse(self, path: Path) -> tuple[Mapping[str, Any], Any, int]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                signed = json.loads((file.metadata() or {})["evidence"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(first_line(error)) from None
        header = _signed_header(signed)
        if signed["sha256"] != self._digest(arrays, header):
            raise ValueError("its content does not fit its digest")
        return header, arrays, sum(array.nbytes for array in arrays.values())

    def _digest(self, arrays: Mapping[str, Array], header: Mapping[str, Any]) -> str:
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
            digest.update(arrays[name].tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class LineFile:
    """JSON lines: the header, then one line for each item."""

    pack: Callable[[Any], dict[str, Any]]
    pick_line: Callable[[Mapping[str, Any]], Any]
    suffix: str = ".jsonl"

    def dump(self, items: Sequence[Any], header: Mapping[str, Any]) -> bytes:
        lines = []
        for key, item in zip(header["keys"], items, strict=True):
            line = json.dumps({"key": key, **self.pack(item)}, ensure_ascii=False, allow_nan=False)
            lines.append(line + "\n")
        body = "".join(lines).encode("utf-8", "surrogatepass")  # a broken tokenizer decodes to lone surrogates
        signed = {"header": header, "sha256": self._digest(body, header)}
        return json.dumps(signed, sort_keys=True).encode() + b"\n" + body

    def parse(self, path: Path) -> tuple[Mapping[str, Any], Any, int]:
        data = path.read_bytes()
        first, _, body = data.partition(b"\n")
        signed = json.loads(first)
        header = _signed_header(signed)
        if signed["sha256"] != self._digest(body, header):
            raise ValueError("its content does not fit its digest")
        return header, body.decode("utf-8", "surrogatepass").split("\n"), len(data)

    def pick(self, content: Any, row: int) -> Any:
        return self.pick_line(json.loads(content[row]))

    def _digest(self, body: bytes, header: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + body).hexdigest()


def _signed_header(signed: Any) -> Mapping[str, Any]:
    if not isinstance(signed, dict) or not isinstance(signed.get("header"), dict) or "sha256" not in signed:
        raise ValueError("it has no header")
    header: Mapping[str, Any] = signed["header"]
    return header


STATS, NUMBERS = ArrayFile(pack_stats, pick_stats), ArrayFile(pack_numbers, pick_number)
FORMATS: dict[str, ArrayFile | LineFile] = {
    "answers": STATS,
    "visible": STATS,
    "patched": STATS,
    "cross": ArrayFile(pack_rows, pick_row),
    "denoised": ArrayFile(pack_traces, pick_trace),
    "gradients": NUMBERS,
    "errors": NUMBERS,  # standard errors of answers that were scored by a bound
    "classified": NUMBERS,
    "texts": LineFile(pack_text, pick_text),
    "requests": LineFile(dict, pick_body),  # answers to another harness's tasks
}


# ---- folders -----------------------------------------------------------------------------------------------------


class StoredEvidence(Mapping[str, T]):
    """The items of a folder by content key, read when they are asked for.

    An index is kept in memory, not an object for each item: as objects they would take several times the space.
    """

    def __init__(self, folder: EvidenceFolder) -> None:
        self.format = folder.format
        self.files: list[Path] = []
        self.how: dict[str, Any] = {}  # how the model was held, as the first file says
        self.notes: list[str] = []
        self.damaged: list[Path] = []
        self._cache: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._keys, self._files, self._rows = np.zeros(0, "S1"), np.zeros(0, np.int32), np.zeros(0, np.int32)

    def index(self, headers: Sequence[tuple[Path, Header]]) -> None:
        keys: list[bytes] = []
        rows: list[tuple[int, int]] = []
        for number, (path, header) in enumerate(headers):
            self.files.append(path)
            self.how = self.how or header.how
            self.notes += [note for note in header.notes if note not in self.notes]
            for row, key in enumerate(header.keys):
                keys.append(key.encode())
                rows.append((number, row))
        if not keys:
            return
        # A key that is in two files (both were collected at once by two runs) is taken from the first.
        self._keys, places = np.unique(np.asarray(keys), return_index=True)
        self._files, self._rows = np.asarray(rows, np.int32)[places].T

    def _find(self, key: object) -> int:
        """The place of a key in the index; -1: it is not there."""
        wanted = key.encode() if isinstance(key, str) else b""
        if len(wanted) > self._keys.itemsize:  # numpy would compare a part of it
            return -1
        place = int(np.searchsorted(self._keys, wanted))
        return place if place < len(self._keys) and self._keys[place] == wanted else -1

    def _content(self, number: int) -> Any:
        """The content of a file; those read last are kept."""
        if number not in self._cache:
            path = self.files[number]
            try:
                _, content, size = self.format.parse(path)
            except (OSError, ValueError) as error:  # it was whole when it was indexed
                raise damaged(path, first_line(error)) from None
            self._cache[number] = content, size
            while len(self._cache) > 1 and sum(size for _, size in self._cache.values()) > CACHED_BYTES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number][0]

    def __getitem__(self, key: str) -> T:
        place = self._find(key)
        if place < 0:
            raise KeyError(key)
        item: T = self.format.pick(self._content(int(self._files[place])), int(self._rows[place]))
        return item

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in self._keys.tolist())

    def __len__(self) -> int:
        return len(self._keys)


class EvidenceFolder(Generic[T]):
    """All evidence of one kind for one identity."""

    def __init__(self, directory: Path, kind: str, identity: str) -> None:
        self.kind, self.identity = kind, identity
        self.format = FORMATS[kind]
        self.name = f"{kind}-{identity}"
        self.path = directory / self.name

    def load(self, strict: bool = False) -> StoredEvidence[T]:
        """What is there. A damaged file counts as not there and will be collected again; `strict`, it is refused.

        To lose evidence costs time. To score without noticing that some is lost costs a wrong number.
        """
        stored: StoredEvidence[T] = StoredEvidence(self)
        headers = []
        for path in sorted(self.path.glob(f"*{self.format.suffix}")):
            try:
                headers.append((path, self._header(path)))
            except (OSError, ValueError, RecursionError) as error:
                problem = first_line(error) or type(error).__name__
                if strict:
                    raise damaged(path, problem) from None
                log.warning("%s is damaged (%s): collecting it again.", path, problem)
                stored.damaged.append(path)
        stored.index(headers)
        return stored

    def _header(self, path: Path) -> Header:
        """The header of a whole file of this folder; else ValueError."""
        body, _, _ = self.format.parse(path)
        header = msgspec.convert(body, Header)
        if (header.kind, header.identity) != (self.kind, self.identity):  # copied or renamed: whole, and wrong
            raise ValueError(f"it is evidence of something else ({header.kind}-{header.identity})")
        return header

    def write(
        self,
        items: Mapping[str, T],
        settings: Mapping[str, Any] | None = None,
        how: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Adds one batch."""
        if not items:
            return
        keys = sorted(items)
        header = Header(self.kind, self.identity, keys, dict(settings or {}), dict(how or {}), list(notes))
        data = self.format.dump([items[key] for key in keys], asdict(header))
        write_bytes(self.path / f"{keys[0]}{self.format.suffix}", data)

    def write_plan(self, plan: Plan) -> None:
        data = json.dumps(asdict(plan), sort_keys=True).encode()
        write_bytes(self.path / f"plan-{content_key(data)[:16]}.json", data)

    def plans(self) -> list[Plan]:
        """What was packed together, in a fixed order. One that cannot be read is passed over: what it lists will be
        packed anew, and differ by rounding."""
        found = []
        for path in sorted(self.path.glob("plan-*.json")):
            try:
                found.append(decode(path, Plan))
            except (OSError, UserError) as error:
                log.warning("%s", error)
        return found

    def remove(self, files: Sequence[Path] | None = None) -> None:
        """Takes away some files of ours, or all that are here."""
        every = [*self.path.glob(f"*{self.format.suffix}"), *self.path.glob("plan-*.json")]
        remove(*(every if files is None else files))

    def files_of(self, keys: Iterable[str]) -> list[Path]:
        """The files that are named by one of these keys."""
        return [self.path / f"{key}{self.format.suffix}" for key in keys]


def open_folder(directory: Path, name: str) -> EvidenceFolder[Any]:
    """The folder of a name such as answers-3f0c9a1b77d204ce."""
    kind, _, identity = name.partition("-")
    return EvidenceFolder(directory, kind, identity)


def evidence_files(directory: Path) -> list[Path]:
    """The files of all evidence folders in a directory."""
    folders = [path for path in sorted(directory.glob("*-*")) if path.is_dir() and path.name.split("-")[0] in FORMATS]
    return [file for folder in folders for file in sorted(folder.iterdir()) if file.is_file()]


def remove_evidence(directory: Path, keep: Sequence[str] = ()) -> None:
    """Removes all evidence of a run that is ours, for --overwrite."""
    remove(*(path for path in listed_files(directory) if path.name not in keep))


# ---- for users ---------------------------------------------------------------------------------------------------


@overload
def read_evidence(run: str | Path, kind: Literal["answers", "visible", "patched"]) -> Mapping[str, TokenStats]: ...
@overload
def read_evidence(run: str | Path, kind: Literal["texts"]) -> Mapping[str, Text]: ...
@overload
def read_evidence(run: str | Path, kind: Literal["denoised"]) -> Mapping[str, Trace]: ...
@overload
def read_evidence(run: str | Path, kind: Literal["gradients", "errors", "classified"]) -> Mapping[str, float]: ...
@overload
def read_evidence(run: str | Path, kind: str) -> Mapping[str, object]: ...
def read_evidence(run: str | Path, kind: str) -> Mapping[str, object]:
    """The evidence of one kind in a run directory, by content key: TokenStats, Text, Trace, arrays or numbers.

    `kind` is one of answers, texts, visible, denoised, gradients, errors, classified, patched, cross and requests. In a
    run with several models, name the folder instead: read_evidence(run, "patched-3f0c9a1b77d204ce").
    """
    place = Path(run).expanduser() / "evidence"
    folders = sorted(path.name for path in place.glob("*-*") if path.is_dir() and path.name.split("-")[0] in FORMATS)
    chosen = [name for name in folders if kind in (name, name.split("-", 1)[0])]
    if len(chosen) > 1 and (own := _own_folder(Path(run).expanduser(), kind)) in chosen:
        chosen = [own]
    if len(chosen) != 1:
        there = ", ".join(chosen or folders) or "nothing"
        raise UserError(f"{place} has {len(chosen)} folders of '{kind}'; give the name of one. There is {there}.")
    return open_folder(place, chosen[0]).load(strict=True)


@dataclass(frozen=True)
class _EvidenceNames:
    evidence: dict[str, str]


def _own_folder(run: Path, kind: str) -> str:
    """The folder of the evaluated model's own evidence, where the manifest names one."""
    try:
        return decode(run / "manifest.json", _EvidenceNames).evidence.get(kind, "")
    except (OSError, UserError):
        return ""
