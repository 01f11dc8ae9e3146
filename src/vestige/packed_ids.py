"""Records that take little memory, since an evaluation keeps some for every answer of every row.

Token ids in four bytes each, a key without a dictionary for it, facts by column, arrays made when they are asked for.
Callers: types.py, data/datasets.py, collect/tree.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

if TYPE_CHECKING:  # types.py is made of what is here
    from vestige.types import Array, Target

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
        packed = self.slot.__get__(record)
        return struct.unpack(f">{len(packed) // 4}i", packed) if isinstance(packed, bytes) else packed

    def __set__(self, record: Any, ids: Sequence[int]) -> None:
        try:
            packed: Any = struct.pack(f">{len(ids)}i", *ids)
        except struct.error:  # no vocabulary has such a number: kept as it is, and refused by who knows the model
            packed = ids
        self.slot.__set__(record, packed)


def packing(*names: str) -> Callable[[type[Record]], type[Record]]:
    """A class decorator: these fields of a dataclass with slots hold token ids."""

    def wrap(cls: type[Record]) -> type[Record]:
        for name in names:
            setattr(cls, name, _Packed(cls.__dict__[name]))
        return cls

    return wrap


def sorting(record: Any, name: str) -> bytes:
    """A field of token ids as bytes that sort as the ids do; where they fit into four bytes, nothing is copied."""
    packed = vars(type(record))[name].slot.__get__(record)
    return packed if isinstance(packed, bytes) else np.asarray(packed, ">i8").tobytes()


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


class LazySequence(Sequence[T]):
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


class Facts(LazySequence[Mapping[str, Any]]):
    """Facts of many rows, kept by column: a mapping for each row would take more than some texts."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        filled = {name: values for name, values in columns.items() if any(v is not None for v in values)}
        super().__init__(count, lambda row: {name: v[row] for name, v in filled.items() if v[row] is not None})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of any list of mappings


# ---- What token sequences share from their start on: sorted, each has to be compared with its neighbour only --------
# In: Targets. Out: sequences in order, with how much of each was there before. Callers: collect/tree.py, which makes a
# tree of it; runs/collect.py and costs, which count.


def codes_of(ids: Sequence[int], hidden: Iterable[int]) -> Array:
    """Token ids as numbers of nodes: the same token, hidden or not, is two different nodes.

    No token attends to a hidden one, so all later states differ from those after the same token in sight. Two
    targets that shared such a node would read each other's numbers.
    """
    codes = 2 * np.asarray(ids, np.int64)
    seen = [h for h in hidden if h < len(codes)]  # the last token may be hidden, but is not an input
    codes[seen] += 1
    return codes


def in_turn(codes: Sequence[Array]) -> Iterator[tuple[int, Array, int]]:
    """Sequences in sorted order: the number of each, itself, and how much of it the one before has shown.

    In that order a sequence shares with all before it exactly what it shares with the last one: whatever shares more
    sorts in between. So one comparison with the neighbour replaces a search through a tree for every token.
    """
    before = np.zeros(0, np.int64)
    # Bytes, the highest first: they sort as the numbers do, and take a tenth of the memory of lists of them.
    for i in sorted(range(len(codes)), key=lambda i: codes[i].astype(">u4").tobytes()):
        mine = codes[i]
        yield i, mine, common_prefix(before, mine)
        before = mine


def common_prefix(a: Sequence[int] | Array, b: Sequence[int] | Array) -> int:
    """How many tokens two sequences begin with alike.

    >>> common_prefix((5, 6, 7), (5, 6)), common_prefix((1,), (2,))
    (2, 0)
    """
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


def path_end(parent: Array, first: int, last: int, count: int) -> Array:
    """The last `count` nodes of a path that ends with the nodes from `first` to `last`."""
    end = np.arange(max(first, last - count + 1), last + 1)
    shared, node = [], int(parent[end[0]]) if len(end) else last
    for _ in range(count - len(end)):  # an opening that answers share: few nodes, mostly none
        shared.append(node)
        node = int(parent[node])
    return np.concatenate([np.asarray(shared[::-1], np.int64), end])


def count_nodes(targets: Iterable[Target]) -> int:
    """Distinct prefixes among the whole sequences asked for: what sharing alone could not go below.

    (The last token of a sequence is never pushed, so that we may even do better.)
    """
    listed = list(targets)
    codes = LazySequence(len(listed), lambda i: codes_of(listed[i].ids, listed[i].hidden))
    return sum(len(mine) - shared for _, mine, shared in in_turn(codes))
