"""Records that take little memory, since an evaluation keeps some for every answer of every row.

Token ids in four bytes each, a key without a dictionary for it, facts by column, arrays made when they are asked for.
Callers: types.py, prefixes.py, data/datasets.py, collect/tree.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

Record = TypeVar("Record")
T = TypeVar("T")


class _Packed:
    """A field of token ids, kept in four bytes each and read as a tuple, which takes eight and a number for each.

    The highest byte comes first, so that packed ids sort as the ids do.
    """

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None:
            return self
        kept = self.slot.__get__(record)
        return struct.unpack(f">{len(kept) // 4}i", kept) if isinstance(kept, bytes) else kept

    def __set__(self, record: Any, ids: Sequence[int]) -> None:
        try:
            kept: Any = struct.pack(f">{len(ids)}i", *ids)
        except struct.error:  # no vocabulary has such a number: kept as it is, and refused by who knows the model
            kept = ids
        self.slot.__set__(record, kept)


def packing(*names: str) -> Callable[[type[Record]], type[Record]]:
    """A class decorator: these fields of a dataclass with slots hold token ids."""

    def wrap(cls: type[Record]) -> type[Record]:
        for name in names:
            setattr(cls, name, _Packed(cls.__dict__[name]))
        return cls

    return wrap


def sorting(record: Any, name: str) -> bytes:
    """A field of token ids as bytes that sort as the ids do; where they fit into four bytes, nothing is copied."""
    kept = vars(type(record))[name].slot.__get__(record)
    return kept if isinstance(kept, bytes) else np.asarray(kept, ">i8").tobytes()


class Keyed:
    """What has a content key, made once."""

    __slots__ = ("_key",)
    _key: str

    @property
    def key(self) -> str:
        try:
            return self._key
        except AttributeError:
            object.__setattr__(self, "_key", self._content())
            return self._key

    def _content(self) -> str:
        raise NotImplementedError


class MadeWhenAsked(Sequence[T]):
    """A sequence of things that follow from others: kept, they would take more than what they are made of."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> list[T]: ...
    def __getitem__(self, i: int | slice) -> T | list[T]:
        if isinstance(i, slice):
            return [self._make(n) for n in range(self._count)[i]]
        return self._make(range(self._count)[i])

    def __len__(self) -> int:
        return self._count


class Facts(MadeWhenAsked[Mapping[str, Any]]):
    """Facts of many rows, kept by column: a mapping for each row would take more than some texts."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        kept = {name: values for name, values in columns.items() if any(v is not None for v in values)}
        super().__init__(count, lambda row: {name: v[row] for name, v in kept.items() if v[row] is not None})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of any list of mappings
