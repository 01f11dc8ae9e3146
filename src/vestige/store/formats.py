"""How each kind of evidence becomes bytes and back.

A file has three parts: the evidence by key; a head that names what the evidence is of and how it was made; and a
digest of both.

In: evidence by key, or the bytes of a bank. Out: the other one. Caller: store/evidence.py; FORMATS has one entry per
kind of evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar

import numpy as np

from vestige.errors import named, reraise_ours
from vestige.schema import misfit
from vestige.store.arrays import MadeByName, OnDisk, array_pieces
from vestige.store.laid_out import LaidOut, fields_of
from vestige.types import ARRAY_FIELDS, Array, Text, TokenStats, Trace

T = TypeVar("T")
Head = Mapping[str, Any]  # of, version, made, ...


class Altered(ValueError):  # noqa: N818 - named for what was found
    """The content is not what its digest says."""


def _packed(arrays: Mapping[str, Array], keys: Sequence[str], head: Head) -> Iterator[bytes]:
    """safetensors, so no pickles. One metadata entry only: their order in the file is not fixed.

    The arrays are asked for twice, one after the other, so that all of them need not be there at once.
    """
    bank = {"keys": list(keys), "sha256": _digest(arrays, keys, head), **({"head": dict(head)} if head else {})}
    return array_pieces(arrays, {"bank": json.dumps(bank)})


class _Header(TypedDict):
    __metadata__: dict[str, str]


class _BankHeader(TypedDict):
    keys: list[str]
    sha256: str
    head: NotRequired[dict[str, Any]]


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


def _head_in(body: Mapping[str, Any]) -> Head:
    head = body.get("head", {})
    if not isinstance(head, dict):
        raise Altered("its head is not an object")
    return head


def _unpack_arrays(data: bytes, needs: Iterable[str]) -> tuple[dict[str, Array], list[str], Head]:
    from safetensors.numpy import load

    header = _formed(data[8 : 8 + int.from_bytes(data[:8], "little")], _Header)["__metadata__"]
    try:
        arrays = load(data)
    except Exception as error:  # safetensors has a type of its own for what it cannot read
        reraise_ours(error)
        raise Altered(named(error)) from None
    if strays := [name for name in needs if name not in arrays]:
        raise Altered(f"it lacks the array {strays[0]}")
    return arrays, *_vouched(arrays, header.get("bank", ""))


def _vouched(arrays: Mapping[str, Array], said: str) -> tuple[list[str], Head]:
    """The keys and the head of arrays that are what their digest says."""
    bank = _formed(said, _BankHeader)
    head: Head = bank.get("head", {})
    if bank["sha256"] != _digest(arrays, bank["keys"], head):
        raise Altered("its content does not fit its digest")
    return list(bank["keys"]), head


def _head_bytes(head: Head) -> bytes:
    return json.dumps(head, sort_keys=True).encode() if head else b""


def _digest(arrays: Mapping[str, Array], keys: Sequence[str], head: Head) -> str:
    out = hashlib.sha256(json.dumps(list(keys)).encode())
    out.update(_head_bytes(head))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        out.update(f"{name} {array.dtype.str} {array.shape}".encode())
        out.update(array.reshape(-1).data)
    return out.hexdigest()


class Format(Protocol[T]):
    """How one kind of evidence becomes bytes and back."""

    suffix: str

    def pieces(self, items: Mapping[str, T], head: Head) -> Iterable[bytes]: ...
    def dump(self, items: Mapping[str, T], head: Head) -> bytes: ...
    def load(self, data: bytes) -> tuple[Mapping[str, T], Head]: ...
    def read(self, path: Path, stays: bool) -> tuple[Mapping[str, T], Head]: ...


class _Whole(Generic[T]):
    """A format that is made and read in one piece."""

    def pieces(self, items: Mapping[str, T], head: Head) -> Iterable[bytes]:
        return [self.dump(items, head)]

    def read(self, path: Path, stays: bool) -> tuple[Mapping[str, T], Head]:
        """What a file holds. `stays`: it is not removed or written over while that is in use."""
        return self.load(path.read_bytes())

    def dump(self, items: Mapping[str, T], head: Head) -> bytes:
        raise NotImplementedError

    def load(self, data: bytes) -> tuple[Mapping[str, T], Head]:
        raise NotImplementedError


class AnswerFormat:
    """Ragged TokenStats of causal models: arrays laid end to end, with offsets.

    A leading axis (patched layers) is the same for all items of a bank and stays in front.
    """

    suffix = ".safetensors"

    def pieces(self, items: Mapping[str, TokenStats], head: Head) -> Iterator[bytes]:
        keys = sorted(items)

        def made(name: str) -> Array:
            fields = fields_of(items, keys, "label" if name == "offsets" else name)
            if name == "offsets":
                return np.concatenate([[0], np.cumsum([f.shape[-1] for f in fields])]).astype(np.int64)
            return np.ascontiguousarray(np.concatenate(fields or [np.zeros(0)], axis=-1))

        return _packed(MadeByName((*ARRAY_FIELDS, "offsets"), made), keys, head)

    def dump(self, items: Mapping[str, TokenStats], head: Head) -> bytes:
        return b"".join(self.pieces(items, head))

    def load(self, data: bytes) -> tuple[Mapping[str, TokenStats], Head]:
        arrays, keys, head = _unpack_arrays(data, (*ARRAY_FIELDS, "offsets"))
        return _laid_out(arrays, keys), head

    def read(self, path: Path, stays: bool) -> tuple[Mapping[str, TokenStats], Head]:
        """Read from the file answer by answer, as they are asked for. What is not of today's form is read whole."""
        arrays = OnDisk.of(path, stays)
        known = arrays is not None and all(name in arrays for name in (*ARRAY_FIELDS, "offsets"))
        if arrays is None or not known or "bank" not in arrays.metadata:
            return self.load(path.read_bytes())
        keys, head = _vouched(arrays, arrays.metadata["bank"])
        return _laid_out(arrays, keys), head


def _laid_out(arrays: Mapping[str, Array], keys: list[str]) -> LaidOut:
    offsets = arrays["offsets"]
    if offsets.shape != (len(keys) + 1,) or offsets.dtype.kind != "i":
        raise Altered("its offsets do not fit its keys")
    return LaidOut(arrays, keys)


class CrossFormat(_Whole[Array]):
    """One row of log-probabilities per key, laid end to end, with offsets."""

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, Array], head: Head) -> bytes:
        keys = sorted(items)
        rows = [np.asarray(items[k], np.float32) for k in keys]
        offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        joined = np.concatenate(rows or [np.zeros(0, np.float32)])
        return b"".join(_packed({"logprob": joined, "offsets": offsets}, keys, head))

    def load(self, data: bytes) -> tuple[dict[str, Array], Head]:
        arrays, keys, head = _unpack_arrays(data, ("logprob", "offsets"))
        offsets = arrays["offsets"]
        if offsets.shape != (len(keys) + 1,) or offsets.dtype.kind != "i":
            raise Altered("its offsets do not fit its keys")
        return {key: arrays["logprob"][offsets[i] : offsets[i + 1]] for i, key in enumerate(keys)}, head


TRACE_AXES = {  # of each field of a Trace; s: passes, l: positions, k: answers watched
    "final": "l", "fixed": "l", "committed": "s", "canvas": "sl", "proposal": "sl", "top1": "sl", "mean": "sl",
    "std": "sl", "labels": "kl", "logprob": "ksl", "accepted": "sl",
}  # fmt: skip


class TraceFormat(_Whole[Trace]):
    """Traces of diffusion models: every field laid end to end, with the size of each trace beside it."""

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, Trace], head: Head) -> bytes:
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
        return b"".join(_packed(arrays, keys, head))

    def load(self, data: bytes) -> tuple[dict[str, Trace], Head]:
        arrays, keys, head = _unpack_arrays(data, (*TRACE_AXES, "sizes"))
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
            fields["accepted"] = fields["accepted"].astype(bool)
            out[key] = Trace(**fields)
        return out, head


class TextFormat(_Whole[Text]):
    """Generated texts as JSON lines; the first line is the head and the digest of both."""

    suffix = ".jsonl"

    def dump(self, items: Mapping[str, Text], head: Head) -> bytes:
        lines = (
            json.dumps({"key": k, "ids": list(t.ids), "text": t.text, "proven": t.proven}, ensure_ascii=False)
            for k, t in sorted(items.items())
        )
        body = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
        first = {"sha256": self._digest(body, head), **({"head": dict(head)} if head else {})}
        return json.dumps(first).encode() + b"\n" + body

    def load(self, data: bytes) -> tuple[dict[str, Text], Head]:
        first, _, body = data.partition(b"\n")
        said = _formed(first, dict[str, Any]) if first else {}
        head = _head_in(said)
        if said.get("sha256") != self._digest(body, head):
            raise Altered("its content does not fit its digest")
        rows = [_formed(line, _TextRow) for line in body.decode("utf-8", "surrogatepass").split("\n") if line]
        return {row["key"]: Text(tuple(row["ids"]), row["text"], row["proven"]) for row in rows}, head

    def _digest(self, body: bytes, head: Head) -> str:
        return hashlib.sha256(_head_bytes(head) + body).hexdigest()


class NumberFormat(_Whole[float]):
    """One float per key (gradient norms, class probabilities) and the digest of all; NaN is written as null."""

    suffix = ".json"

    def dump(self, items: Mapping[str, float], head: Head) -> bytes:
        clean = {k: (None if np.isnan(v) else v) for k, v in items.items()}
        body = {"sha256": self._digest(clean, head), "values": clean, **({"head": dict(head)} if head else {})}
        return json.dumps(body, sort_keys=True, indent=0).encode()

    def load(self, data: bytes) -> tuple[dict[str, float], Head]:
        body = _formed(data, dict[str, Any])
        head = _head_in(body)
        values = body.get("values")
        if words := misfit(values, dict[str, float | None]):
            raise Altered(words)
        if body.get("sha256") != self._digest(values, head):
            raise Altered("its content does not fit its digest")
        return {k: float("nan") if v is None else float(v) for k, v in values.items()}, head

    def _digest(self, values: Mapping[str, float | None], head: Head) -> str:
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode() + _head_bytes(head)).hexdigest()


FORMATS: dict[str, Format[Any]] = {
    "answers": AnswerFormat(),
    "patched": AnswerFormat(),
    "texts": TextFormat(),
    "gradients": NumberFormat(),
    "classified": NumberFormat(),
    "denoised": TraceFormat(),
    "errors": NumberFormat(),
    "visible": AnswerFormat(),
    "cross": CrossFormat(),
}
