"""What token sequences share from their start on: sorted, each has to be compared with its neighbour only.

In: Targets. Out: sequences in order, with how much of each was there before. Callers: collect/tree.py, which makes a
tree of it; engine/obtain.py and costs, which count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vestige.compact import MadeWhenAsked
from vestige.types import Array, Target


def codes_of(ids: Sequence[int], hidden: Iterable[int]) -> Array:
    """Token ids as numbers of nodes: the same token, hidden or not, is two different nodes.

    Nobody attends to a hidden token, so all states behind it differ from those behind the same token in sight. Two
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
        yield i, mine, _common(before, mine)
        before = mine


def _common(a: Array, b: Array) -> int:
    """The length of the common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
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
    given = list(targets)
    codes = MadeWhenAsked(len(given), lambda i: codes_of(given[i].ids, given[i].hidden))
    return sum(len(mine) - shared for _, mine, shared in in_turn(codes))
