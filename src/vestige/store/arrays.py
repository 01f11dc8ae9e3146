"""Arrays in safetensors files, without having all of them in memory: written one by one, read a slice at a time.

In: arrays by name, or the path of such a file. Out: the bytes that safetensors itself would write; or arrays that are
read when they are asked for. Caller: store/formats.py, which checks that they are what was written.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from vestige.schema import misfit
from vestige.types import Array

ALIGNED = 8  # bytes: the header ends at a multiple
KINDS: dict[str, np.dtype[Any]] = {
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
T = TypeVar("T")


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


def array_pieces(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """A safetensors file, array by array: what safetensors.numpy.save gives at once."""
    from safetensors.numpy import save

    forms = {name: (array.dtype, array.shape) for name in arrays for array in (arrays[name],)}
    # The library decides in which order arrays lie, and how a kind is called: it is asked with empty ones.
    empty = save({name: np.zeros(0, kind) for name, (kind, _) in forms.items()}, metadata=dict(metadata))
    said: dict[str, Any] = json.loads(empty[ALIGNED : ALIGNED + int.from_bytes(empty[:ALIGNED], "little")])
    order, at = [name for name in said if name != "__metadata__"], 0
    for name in order:
        kind, shape = forms[name]
        size = kind.itemsize * math.prod(shape)
        said[name] |= {"shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNED)
    yield len(header).to_bytes(8, "little") + header
    for name in order:
        yield np.ascontiguousarray(arrays[name]).tobytes()


class _Entry(TypedDict):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _place(entry: Mapping[str, Any], behind: int, size: int) -> tuple[np.dtype[Any], int, int]:
    """Kind, length and position of an array, from the header's entry for it."""
    if misfit(entry, _Entry) or len(entry["shape"]) != 1 or len(entry["data_offsets"]) != 2:
        raise ValueError("not arrays of one axis")
    [count], (first, last) = entry["shape"], entry["data_offsets"]
    kind = KINDS.get(entry["dtype"])
    if kind is None or not 0 <= first <= last <= size - behind or last - first != count * kind.itemsize:
        raise ValueError("an array that does not have its size")
    return kind, count, behind + first


class OnDisk(Mapping[str, Array]):
    """The arrays of a file, read when they are asked for. They must have one axis, for a slice is one stretch of bytes.

    A file that may be replaced meanwhile is held open, so that it remains the one whose content was checked. One that
    stays as it is (one of thousands) is opened for each look.
    """

    def __init__(self, path: Path, stays: bool) -> None:
        self._path, self._file = path, None if stays else path.open("rb", buffering=0)
        if self._file is not None:
            weakref.finalize(self, self._file.close)
        size = path.stat().st_size if self._file is None else os.fstat(self._file.fileno()).st_size
        behind = ALIGNED + int.from_bytes(self._read(0, ALIGNED), "little")
        if behind > size:
            raise ValueError("its header is longer than the file")
        said = json.loads(self._read(ALIGNED, behind - ALIGNED))
        if words := misfit(said, dict[str, dict[str, Any]]) or misfit(said.get("__metadata__", {}), dict[str, str]):
            raise ValueError(words)
        self.metadata: dict[str, str] = said.pop("__metadata__", {})
        self._places = {name: _place(entry, behind, size) for name, entry in said.items()}

    @classmethod
    def of(cls, path: Path, stays: bool) -> OnDisk | None:
        """The arrays of a file; None where they cannot be read in this way, or the file is not such a one at all."""
        try:
            return cls(path, stays)
        except (ValueError, RecursionError):
            return None

    def _read(self, at: int, count: int) -> bytes:
        if self._file is not None:
            return os.pread(self._file.fileno(), count, at)
        with self._path.open("rb", buffering=0) as file:
            file.seek(at)
            return file.read(count)

    def cut(self, name: str, a: int, b: int) -> Array:
        """Entries a to b of an array."""
        kind, count, at = self._places[name]
        a, b = max(0, min(a, count)), max(0, min(b, count))
        return np.frombuffer(self._read(at + a * kind.itemsize, max(0, b - a) * kind.itemsize), kind)

    def __getitem__(self, name: str) -> Array:
        return self.cut(name, 0, self._places[name][1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
