"""Evidence on disk, by content key: what was collected is never collected again.

A bank is one file per kind and identity (weights, dtype, attention, device kind). While collecting, each batch is a
part file of its own beside a journal that lists what is being collected; a killed run finds both, packs the same
batches again and runs only those without a part. When all is there the parts are folded into the bank.

Every file carries a digest of its content. One that does not fit is treated as not there while collecting (it is
collected again), and refused by name when scores are made of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import numpy as np

from vestige.errors import first_line, named, reraise_ours
from vestige.guard import is_there
from vestige.journal import adopt_file, is_ours, ours_below
from vestige.schema import misfit
from vestige.store.files import damaged, read_json, read_ours, write_bytes, write_json
from vestige.types import ARRAY_FIELDS, Array, Text, TokenStats, Trace, content_key
from vestige.writing import remove, remove_empty

log = logging.getLogger("vestige.store")

T = TypeVar("T")


class Altered(ValueError):  # noqa: N818 - named for what was found
    """The content is not what its digest says."""


def _pack_arrays(arrays: Mapping[str, Array], keys: Sequence[str]) -> bytes:
    """safetensors, so no pickles. One metadata entry only: their order in the file is not fixed."""
    from safetensors.numpy import save

    return save(dict(arrays), metadata={"bank": json.dumps({"keys": list(keys), "sha256": _digest(arrays, keys)})})


class _Header(TypedDict):
    __metadata__: dict[str, str]


class _BankHeader(TypedDict):
    keys: list[str]
    sha256: str


class _Plan(TypedDict):
    keys: list[str]
    settings: dict[str, Any]


class _TextRow(TypedDict):
    key: str
    ids: list[int]
    text: str
    proven: int


def _formed(text: str | bytes, form: Any) -> Any:
    """JSON of a certain form; ValueError for anything else."""
    found = json.loads(text)
    if words := misfit(found, form):
        raise Altered(words)
    return found


def _unpack_arrays(data: bytes, needs: Iterable[str]) -> tuple[dict[str, Array], list[str]]:
    from safetensors.numpy import load

    header = _formed(data[8 : 8 + int.from_bytes(data[:8], "little")], _Header)["__metadata__"]
    try:
        arrays = load(data)
    except Exception as error:  # safetensors has a type of its own for what it cannot read
        reraise_ours(error)
        raise Altered(named(error)) from None
    if strays := [name for name in needs if name not in arrays]:
        raise Altered(f"it lacks the array {strays[0]}")
    if "bank" not in header:  # written before there were digests
        return arrays, list(_formed(header.get("keys", ""), list[str]))
    bank = _formed(header["bank"], _BankHeader)
    if bank["sha256"] != _digest(arrays, bank["keys"]):
        raise Altered("its content does not fit its digest")
    return arrays, list(bank["keys"])


def _digest(arrays: Mapping[str, Array], keys: Sequence[str]) -> str:
    out = hashlib.sha256(json.dumps(list(keys)).encode())
    for name, array in sorted(arrays.items()):
        out.update(f"{name} {array.dtype.str} {array.shape}".encode())
        out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()


class Format(Protocol[T]):
    """How one kind of evidence becomes bytes and back."""

    suffix: str

    def dump(self, items: Mapping[str, T]) -> bytes: ...
    def load(self, data: bytes) -> dict[str, T]: ...


class AnswerFormat:
    """Ragged TokenStats of causal models: arrays laid end to end, with offsets.

    A leading axis (patched layers) is the same for all items of a bank and stays in front.
    """

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, TokenStats]) -> bytes:
        keys = sorted(items)
        lengths = [items[k].tokens for k in keys]
        arrays = {
            name: np.ascontiguousarray(
                np.concatenate([getattr(items[k], name) for k in keys] or [np.zeros(0)], axis=-1)
            )
            for name in ARRAY_FIELDS
        }
        arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return _pack_arrays(arrays, keys)

    def load(self, data: bytes) -> dict[str, TokenStats]:
        arrays, keys = _unpack_arrays(data, (*ARRAY_FIELDS, "offsets"))
        if arrays["offsets"].shape != (len(keys) + 1,) or arrays["offsets"].dtype.kind != "i":
            raise Altered("its offsets do not fit its keys")
        out = {}
        for i, key in enumerate(keys):
            a, b = arrays["offsets"][i], arrays["offsets"][i + 1]
            cut = {name: arrays[name][..., a:b] for name in ARRAY_FIELDS}
            out[key] = TokenStats(**cut, order=np.arange(b - a), steps=int(b - a))
        return out


TRACE_AXES = {  # of each field of a Trace; s: passes, l: positions, k: answers watched
    "final": "l", "fixed": "l", "committed": "s", "canvas": "sl", "proposal": "sl", "top1": "sl", "mean": "sl",
    "std": "sl", "labels": "kl", "logprob": "ksl",
}  # fmt: skip


class TraceFormat:
    """Traces of diffusion models: every field laid end to end, with the size of each trace beside it."""

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, Trace]) -> bytes:
        keys = sorted(items)
        sizes = [[items[k].steps, len(items[k].final), len(items[k].labels)] for k in keys]
        arrays = {
            name: np.ascontiguousarray(
                np.concatenate([np.ravel(getattr(items[k], name)) for k in keys] or [np.zeros(0)])
            )
            for name in TRACE_AXES
        }
        for name, array in arrays.items():
            arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        arrays["sizes"] = np.asarray(sizes, np.int64).reshape(-1, 3)
        return _pack_arrays(arrays, keys)

    def load(self, data: bytes) -> dict[str, Trace]:
        arrays, keys = _unpack_arrays(data, (*TRACE_AXES, "sizes"))
        if arrays["sizes"].shape != (len(keys), 3) or arrays["sizes"].dtype.kind != "i":
            raise Altered("its sizes do not fit its keys")
        at = dict.fromkeys(TRACE_AXES, 0)
        out = {}
        for key, (s, length, k) in zip(keys, arrays["sizes"].tolist(), strict=True):
            fields = {}
            for name, axes in TRACE_AXES.items():
                shape = [{"s": s, "l": length, "k": k}[axis] for axis in axes]
                end = at[name] + int(np.prod(shape))
                fields[name] = arrays[name][at[name] : end].reshape(shape)
                at[name] = end
            out[key] = Trace(**fields)
        return out


class TextFormat:
    """Generated texts as JSON lines; the first line is the digest of those after it."""

    suffix = ".jsonl"

    def dump(self, items: Mapping[str, Text]) -> bytes:
        lines = (
            json.dumps({"key": k, "ids": list(t.ids), "text": t.text, "proven": t.proven}, ensure_ascii=False)
            for k, t in sorted(items.items())
        )
        body = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
        return json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n" + body

    def load(self, data: bytes) -> dict[str, Text]:
        head, _, body = data.partition(b"\n")
        said = _formed(head, dict[str, Any]) if head else {}
        if "sha256" in said:
            if said["sha256"] != hashlib.sha256(body).hexdigest():
                raise Altered("its content does not fit its digest")
            data = body  # otherwise: written before there were digests
        rows = [_formed(line, _TextRow) for line in data.decode("utf-8", "surrogatepass").split("\n") if line]
        return {row["key"]: Text(tuple(row["ids"]), row["text"], row["proven"]) for row in rows}


class NumberFormat:
    """One float a key (gradient norms, class probabilities) and the digest of all; NaN is written as null."""

    suffix = ".json"

    def dump(self, items: Mapping[str, float]) -> bytes:
        clean = {k: (None if np.isnan(v) else v) for k, v in items.items()}
        return json.dumps({"sha256": self._digest(clean), "values": clean}, sort_keys=True, indent=0).encode()

    def load(self, data: bytes) -> dict[str, float]:
        body = _formed(data, dict[str, Any])
        if "values" in body:  # absent: written before there were digests
            if body.get("sha256") != self._digest(body["values"]):
                raise Altered("its content does not fit its digest")
            body = body["values"]
        if words := misfit(body, dict[str, float | None]):
            raise Altered(words)
        return {k: float("nan") if v is None else float(v) for k, v in body.items()}

    def _digest(self, values: Mapping[str, float | None]) -> str:
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


FORMATS: dict[str, Format[Any]] = {
    "answers": AnswerFormat(),
    "patched": AnswerFormat(),
    "texts": TextFormat(),
    "gradients": NumberFormat(),
    "classified": NumberFormat(),
    "denoised": TraceFormat(),
    "errors": NumberFormat(),
    "visible": AnswerFormat(),
}


class Bank(Generic[T]):
    """All evidence of one kind for one identity, on disk."""

    def __init__(self, directory: Path, kind: str, identity: str) -> None:
        self.format: Format[T] = FORMATS[kind]
        self.stem = f"{kind}-{identity}"
        self.path = directory / f"{self.stem}{self.format.suffix}"
        self.parts = directory / "parts"
        self.journal = self.parts / f"{self.stem}.plan.json"

    def load(self) -> dict[str, T]:
        """What is complete. A file that cannot be read is treated as not there: it will be collected again."""
        try:
            return self._read(self.path)
        except ValueError as why:
            log.warning("%s is damaged (%s): collecting it again.", self.path, why)
            return {}

    @property
    def is_damaged(self) -> bool:
        try:
            self._read(self.path)
        except ValueError:
            return True
        return False

    def load_whole(self) -> dict[str, T]:
        """For scoring: nothing if there is no such file, and a sentence if it is damaged."""
        try:
            return self._read(self.path)
        except ValueError as why:
            raise damaged(self.path, str(why)) from None

    def _read(self, path: Path) -> dict[str, T]:
        """ValueError: the file is there, and is not what was written."""
        if not is_there(path):
            return {}
        try:
            return self.format.load(path.read_bytes())
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, arrays that do not have their size
            raise Altered(first_line(error) or type(error).__name__) from None

    def begin(self, keys: Sequence[str], settings: Mapping[str, Any]) -> dict[str, T]:
        """Notes what is about to be collected and returns what an interrupted run already has of it."""
        plan = {"keys": sorted(keys), "settings": dict(settings)}
        self._adopt_earlier()
        done = self._parts_done()
        if self.interrupted() != (plan["keys"], plan["settings"]):
            # Another question than last time: what parts there are is good evidence, but not these batches.
            if done:
                self.merge(done)
            self.discard_parts()
            write_json(self.journal, plan, indent=None)
            return {}
        return done

    def _adopt_earlier(self) -> None:
        """What a version without journals was collecting: a plan that reads as one, and batches whose digests fit."""
        if self.interrupted() is not None and not is_ours(self.journal):
            adopt_file(self.journal)
            for path in self.parts.glob(f"{self.stem}.part-*"):
                with contextlib.suppress(ValueError):
                    self._read(path)
                    adopt_file(path)

    def interrupted(self) -> tuple[list[str], dict[str, Any]] | None:
        """The keys and settings an unfinished run was after, if there is one."""
        try:
            plan = read_json(self.journal)
        except (OSError, ValueError):
            return None
        return None if misfit(plan, _Plan) else (list(plan["keys"]), dict(plan["settings"]))

    def _parts_done(self) -> dict[str, T]:
        out: dict[str, T] = {}
        for path in sorted(self.parts.glob(f"{self.stem}.part-*")):
            try:
                out.update(self._read(path))
            except ValueError as why:
                log.warning("%s is damaged (%s): that batch is collected again.", path, why)
        return out

    def add_part(self, items: Mapping[str, T]) -> None:
        """Keeps one batch."""
        name = content_key(*(k.encode() for k in sorted(items)))
        write_bytes(self.parts / f"{self.stem}.part-{name}", self.format.dump(items))

    def merge(self, items: Mapping[str, T]) -> dict[str, T]:
        """Folds items into the bank file."""
        before = self.load()
        if before:  # it reads as a bank, so it is one of a version without journals if the journal does not list it
            adopt_file(self.path)
        everything = {**before, **items}
        write_bytes(self.path, self.format.dump(everything))
        return everything

    def finish(self) -> dict[str, T]:
        """All parts are there: fold them into the bank and forget the journal."""
        everything = self.merge(self._parts_done())
        self.discard_parts()
        return everything

    def take_all(self) -> dict[str, T]:
        """All that is here, parts included; afterwards nothing is."""
        everything = {**self.load(), **self._parts_done()}
        remove(self.path)
        self.discard_parts()
        return everything

    def discard_parts(self) -> None:
        remove(*self.parts.glob(f"{self.stem}.part-*"), self.journal)  # the journal last: it says what they are
        remove_empty(self.parts)


NOTES = "notes.json"  # how evidence came about, where that must be known: batches halved, the plain way used


def remember(directory: Path, stem: str, notes: Sequence[str]) -> None:
    """Keeps notes with a bank, before the evidence they are about: a resumed run must say them, too."""
    known = _all_notes(directory)
    new = [note for note in notes if note not in known.get(stem, [])]
    if new:
        write_json(directory / NOTES, {**known, stem: [*known.get(stem, []), *new]})


def remarks(directory: Path, stem: str) -> list[str]:
    return _all_notes(directory).get(stem, [])


def _all_notes(directory: Path) -> dict[str, list[str]]:
    path = directory / NOTES
    found = read_ours(path) if path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(v, list) for v in found.values()):
        raise damaged(path, "it holds no notes")
    return found


def tidy(directory: Path) -> None:
    """Parts that were folded already: a run was killed after it wrote the bank and before it removed them."""
    for journal in sorted((directory / "parts").glob("*.plan.json")):
        kind, _, identity = journal.name.removesuffix(".plan.json").partition("-")
        if kind in FORMATS:
            bank = Bank[Any](directory, kind, identity)
            asked = bank.interrupted()
            if asked is None or set(asked[0]) <= set(bank.load()):
                bank.discard_parts()
    for part in sorted((directory / "parts").glob("*.part-*")):
        if not (part.parent / f"{part.name.partition('.part-')[0]}.plan.json").exists():
            remove(part)
    remove_empty(directory / "parts")


def discard_all(directory: Path, keep: Iterable[str] = ()) -> None:
    """Forgets the evidence of a run (overwrite=true)."""
    kept = set(keep)
    remove(*(path for path in ours_below(directory) if path.name not in kept))
