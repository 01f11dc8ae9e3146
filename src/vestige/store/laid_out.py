"""Evidence of many answers without an object for each: long arrays with a place for every key, and mappings joined.

In: arrays in memory or in a file (store/arrays.py). Out: TokenStats, made when they are asked for. Callers:
store/formats.py and store/evidence.py; engine/obtain.py and store/trust.py, which pick some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from vestige.store.arrays import OnDisk
from vestige.types import ARRAY_FIELDS, Array, TokenStats

T = TypeVar("T")


class LaidOut(Mapping[str, TokenStats]):
    """The TokenStats of many answers in a few long arrays, in memory or in a file. One is made when it is asked for:
    as objects of their own they would take three times the memory."""

    def __init__(self, arrays: Mapping[str, Array], keys: Sequence[str]) -> None:
        self.arrays, self._offsets = arrays, arrays["offsets"]
        self._keys = np.asarray([key.encode() for key in keys] or np.zeros(0, "S1"))
        # Banks are written in this order; somebody else's file may not be.
        self._order = np.argsort(self._keys, kind="stable") if (self._keys[1:] < self._keys[:-1]).any() else None

    def _find(self, key: object) -> int:
        """The place of a key among the answers; -1: it is not there."""
        said = key.encode() if isinstance(key, str) else b""
        if not said or len(said) > self._keys.itemsize:
            return -1
        at = int(np.searchsorted(self._keys, said, sorter=self._order))
        if at == len(self._keys):
            return -1
        i = at if self._order is None else int(self._order[at])
        return i if self._keys[i] == said else -1

    def place(self, key: str) -> tuple[int, int]:
        """Where an answer's tokens begin and end in the arrays."""
        i = self._find(key)
        if i < 0:
            raise KeyError(key)
        a, b = self._offsets[i : i + 2].tolist()
        return a, b

    def __getitem__(self, key: str) -> TokenStats:
        a, b = self.place(key)
        cut = {name: self._cut(name, a, b) for name in ARRAY_FIELDS}
        return TokenStats(**cut, order=np.arange(b - a), steps=b - a)

    def _cut(self, name: str, a: int, b: int) -> Array:
        if isinstance(self.arrays, OnDisk):
            return self.arrays.cut(name, a, b)
        return self.arrays[name][..., a:b]

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in self._keys.tolist())

    def __len__(self) -> int:
        return len(self._keys)


class Joined(Mapping[str, T]):
    """Several mappings as one, nothing copied; what comes later counts."""

    def __init__(self, *parts: Mapping[str, T]) -> None:
        self._of = {key: part for part in parts for key in part}

    def source(self, key: str) -> Mapping[str, T]:
        return self._of[key]

    def __getitem__(self, key: str) -> T:
        return self._of[key][key]

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def only(self, keys: Iterable[str]) -> Joined[T]:
        """Some of them."""
        return self.chosen(self, keys)

    @classmethod
    def chosen(cls, items: Mapping[str, T], keys: Iterable[str]) -> Joined[T]:
        """Some of what a mapping has."""
        out: Joined[T] = cls()
        for key in keys:
            if key not in items:
                raise KeyError(key)
            out._of[key] = items
        return out


def fields_of(items: Mapping[str, TokenStats], keys: Iterable[str], name: str) -> list[Array]:
    """One field of some answers. What is laid out is read whole, once, and not answer by answer."""
    whole: dict[int, Array] = {}

    def one(key: str) -> Array:
        part = items
        while isinstance(part, Joined):
            part = part.source(key)
        if not isinstance(part, LaidOut):
            return np.asarray(getattr(part[key], name))
        if id(part) not in whole:
            whole[id(part)] = part.arrays[name]
        return whole[id(part)][..., slice(*part.place(key))]

    return [one(key) for key in keys]
