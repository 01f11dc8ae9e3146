"""Which tokens the model must see: a prefix tree over all targets, cut into rows, rows into batches.

Seven answers to one question share the question; all questions share the system prompt. In the tree every
distinct prefix is one node. A node goes through the model once, except that each row repeats the path from
the root to what it holds. Rows are filled so that this path is a few per cent of a row.

Nothing here runs a model; the result depends on the targets and the limits alone, so a plan is reproducible.

In: Targets (token ids, where the labels begin, which tokens are hidden) and Limits. Out: a Packing, which
collect/forward.py turns into tensors. Callers: collect/answers.py for the answers of a run, collect/cross.py for the
reasonings below one prompt, runs/plan.py for what a run would cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from vestige.packed_ids import LazySequence, codes_of, in_turn, path_end
from vestige.types import Array, Target


@dataclass(frozen=True)
class Tree:
    """Nodes in creation order: a parent comes before its children. Node -1 is the (empty) root.

    The loops below rely on that order: depths are found in one pass from the front, subtree sizes in one from the back.
    Nodes are columns of arrays, not objects: they become tensors, and a benchmark has hundreds of thousands of them.
    A node also comes before everything that is not below it and sorts later: ascending numbers are depth-first order.
    """

    token: Array
    hidden: Array
    parent: Array
    depth: Array  # 0 for first tokens: the position id
    predictors: Sequence[Array]  # for each target, the nodes whose logits predict its labels
    labels: Sequence[Array]  # for each target, those labels

    def __len__(self) -> int:
        return len(self.token)

    def path(self, target: int) -> Array:
        """The nodes from the root to a target's last input."""
        out, node = [], int(self.predictors[target][-1])
        while node >= 0:
            out.append(node)
            node = int(self.parent[node])
        return np.asarray(out[::-1], np.int64)


@dataclass(frozen=True)
class PackedRow:
    """One packed row: nodes in depth-first order, so that a subtree is a contiguous stretch.

    Kept as stretches of numbers, since an answer's nodes are consecutive; arrays are made for the row that runs.
    """

    stretches: tuple[range, ...]  # ascending
    depths: Array  # of all nodes of the tree

    def __len__(self) -> int:
        return sum(map(len, self.stretches))

    @property
    def nodes(self) -> Array:
        return np.concatenate([np.arange(s.start, s.stop) for s in self.stretches])

    @property
    def end(self) -> Array:
        """For each position, where its subtree ends: j attends to i iff i <= j < end[i].

        These ends are the whole attention mask, one number per token instead of a row of cells.
        """
        depth = self.depths[self.nodes]
        out = np.full(len(depth), len(depth))
        open_ = np.zeros(int(depth.max()) + 2, np.int64)  # by depth: the position on the path to where we are
        starts = np.flatnonzero(np.diff(depth) != 1) + 1  # where a path is left for another one
        for first, last in pairwise([0, *starts.tolist(), len(depth)]):
            top, before = int(depth[first]), int(depth[first - 1]) if first else -1
            out[open_[top : before + 1]] = first  # what is as deep as the newcomer, or deeper, is complete
            open_[top : top + last - first] = np.arange(first, last)
        return out


def build_tree(targets: Sequence[Target]) -> Tree:
    """The prefix tree of all inputs. A target's last token is never an input: nothing is predicted from it."""
    codes = LazySequence(len(targets), lambda i: codes_of(targets[i].ids[:-1], targets[i].hidden))
    token, hidden, parents, depths = array("i"), array("b"), array("i"), array("i")  # of the nodes, target by target
    own = np.zeros((len(targets), 2), np.int32)  # of each target: its first new node, and its last node
    path = np.zeros(0, np.int32)  # the nodes from the root to a target's last input
    for i, mine, shared in in_turn(codes):
        new = np.arange(len(token), len(token) + len(mine) - shared, dtype=np.int32)
        path = np.concatenate([path[:shared], new])
        own[i] = len(token) if len(new) else path[-1] + 1, path[-1]
        for column, values in (
            (token, mine[shared:] // 2),
            (hidden, mine[shared:] % 2),
            (parents, np.concatenate([[-1], path])[shared : len(mine)]),
            (depths, np.arange(shared, len(mine))),
        ):
            column.frombytes(values.astype(column.typecode).tobytes())
    parent = np.asarray(parents)

    def predictors(i: int) -> Array:
        # The logits at a token predict the token after it: labels from `start` on are read one place earlier.
        count = len(targets[i].ids) - targets[i].start
        first, last = own[i].tolist()
        return path_end(parent, first, last, count)

    return Tree(
        np.asarray(token),
        np.asarray(hidden).view(bool),
        parent,
        np.asarray(depths),
        LazySequence(len(targets), predictors),
        LazySequence(len(targets), lambda i: np.asarray(targets[i].labels)),
    )


@dataclass(slots=True)
class _Bin:
    """Some subtrees that will share a row, and how many tokens they are (shared ancestors not counted).

    Nodes are kept as stretches of numbers: an answer's are consecutive, and there are as many as tokens.
    """

    size: int
    parts: list[range | _Bin]

    def add(self, first: int, behind: int) -> None:
        """More nodes, which come before all that are in it."""
        self.size += behind - first
        last = self.parts[-1] if self.parts else None
        if isinstance(last, range) and last.start == behind:
            self.parts[-1] = range(first, last.stop)
        else:
            self.parts.append(range(first, behind))


def split_rows(tree: Tree, limit: int) -> list[PackedRow]:
    """Cuts the tree into rows of at most `limit` tokens (or one path, if a path alone is longer).

    Bottom up: at each node the bins of its children are packed, first fit by decreasing size, into as few
    bins as the room below this depth allows. Cutting near the root repeats short paths only.

    Each bin that leaves a node contains the node itself, so every row ends up with whole paths from the root: a target
    can be read off one row, and its position ids and its context are those of the unpacked sequence.
    """
    if not len(tree):
        return []
    longest = int(tree.depth.max()) + 1
    limit = max(limit, longest)  # a path cannot be cut: its last token needs the keys of all before it
    waiting: dict[int, list[_Bin]] = {}  # node -> bins of children that were already dealt with
    for first, behind in reversed(list(pairwise(_chains(tree)))):  # children have larger numbers than their parents
        bins = waiting.pop(behind - 1, [])
        for node in range(behind - 1, first - 1, -1):
            room = limit - int(tree.depth[node]) - 1  # the path down to this node is in the row as well
            bins = _first_fit(bins, room) or [_Bin(0, [])]
            if len(bins) == 1:  # nothing to choose up to the next fork
                bins[0].add(first, node + 1)
                break
            for b in bins:
                b.add(node, node + 1)
        waiting.setdefault(int(tree.parent[first]), []).extend(bins)
    rows = [_row(tree, b) for b in _first_fit(waiting[-1], limit)]
    # Longest first, because a batch is padded to its first row; ties by content, so that a resumed run packs alike.
    return sorted(rows, key=lambda r: (-len(r), r.stretches[0].start))


def _chains(tree: Tree) -> list[int]:
    """Where each chain of nodes begins that are their parents' only children; and the end of the last one."""
    follows = tree.parent == np.arange(-1, len(tree) - 1, dtype=np.int32)
    follows[0] = False
    forked = np.zeros(len(tree) + 1, bool)
    forked[tree.parent[~follows]] = True  # a first child is the next number: any other has a sister
    return [*np.flatnonzero(~follows | forked[tree.parent]).tolist(), len(tree)]


def _first_fit(bins: list[_Bin], room: int) -> list[_Bin]:
    """As few bins as a greedy pass finds. Exact packing is NP-hard, and a row more or less costs only one path."""
    if len(bins) <= 1:  # most nodes have one child: no work there, or long answers would make this quadratic
        return bins
    total = sum(b.size for b in bins)
    if total <= room:
        return [_Bin(total, list(reversed(bins)))]
    out: list[_Bin] = []
    for b in sorted(bins, key=lambda b: -b.size):
        home = next((o for o in out if o.size + b.size <= room), None)
        if home is None:
            out.append(_Bin(b.size, [b]))
        else:
            home.size += b.size
            home.parts.append(b)
    return out


def _row(tree: Tree, top: _Bin) -> PackedRow:
    """A bin's nodes as a row. Bins that met again above a fork both hold the path to it, which counts once."""
    # A stack instead of recursion: bins nest as deep as an answer is long, Python's limit is 1,000.
    parts: list[range] = []
    stack: list[range | _Bin] = [top]
    while stack:
        item = stack.pop()
        if isinstance(item, _Bin):
            stack.extend(item.parts)
        else:
            parts.append(item)
    out: list[range] = []
    for part in sorted(parts, key=lambda r: r.start):
        if out and part.start <= out[-1].stop:
            out[-1] = range(out[-1].start, max(out[-1].stop, part.stop))
        else:
            out.append(part)
    return PackedRow(tuple(out), tree.depth)


@dataclass(frozen=True)
class Limits:
    """What one forward may hold. Two budgets, because either may be what fills the memory."""

    tokens: int  # padded tokens in a batch: they determine the memory of the blocks
    logit_cells: int  # scored positions x vocabulary: they determine that of the output layer
    row_tokens: int = 512  # attention costs the square of a row, the repeated path its inverse

    def halved(self) -> Limits:
        """For a machine that ran out of memory."""
        return replace(self, tokens=self.tokens // 2, logit_cells=self.logit_cells // 2)


@dataclass(frozen=True)
class Batch:
    """Rows that go through the model together, padded to the longest, and the targets they answer."""

    rows: tuple[PackedRow, ...]
    targets: tuple[tuple[int, ...], ...]  # for each row, the targets read off it

    @property
    def width(self) -> int:
        return max(map(len, self.rows))

    @property
    def tokens(self) -> int:
        return self.width * len(self.rows)


@dataclass(frozen=True)
class Packing:
    """The whole plan of scoring: the tree, and the batches in the order they run (longest rows first)."""

    tree: Tree
    batches: tuple[Batch, ...]

    @property
    def tokens(self) -> int:
        return sum(b.tokens for b in self.batches)


def pack(targets: Sequence[Target], limits: Limits, vocab: int) -> Packing:
    """Tree, rows, batches. Each row holds whole paths, so a target is read off one row and belongs to one batch."""
    tree = build_tree(targets)
    # A row is also a batch of one: where the batch budget was halved below the length of a row, rows shrink with it.
    rows = split_rows(tree, min(limits.row_tokens, limits.tokens))
    # A node near the root is in many rows; the first one serves. Whichever row holds a target's last predictor holds
    # the path to it, so all its labels come from one forward, and a batch answers its targets completely.
    home = np.full(len(tree), -1, np.int32)
    for number, row in enumerate(rows):
        for stretch in row.stretches:
            here = home[stretch.start : stretch.stop]
            here[here < 0] = number
    members: list[list[int]] = [[] for _ in rows]
    for i, predictors in enumerate(tree.predictors):
        members[int(home[predictors[-1]])].append(i)
    return Packing(tree, tuple(_batches(tree, rows, members, limits, vocab)))


def _batches(tree: Tree, rows: list[PackedRow], members: list[list[int]], limits: Limits, vocab: int) -> list[Batch]:
    groups: list[list[int]] = []  # of rows that go through the model together
    cells = 0
    for number in range(len(rows)):  # longest first: running out of memory shows at once, padding is small
        # Answers that share an opening also share its logits: each position goes through the output layer once.
        scored = np.unique(np.concatenate([tree.predictors[t] for t in members[number]] or [np.zeros(0)]))
        new = len(scored) * vocab
        group = groups[-1] if groups else []
        width = len(rows[group[0]]) if group else 0  # a batch is padded to its first row
        if not group or width * (len(group) + 1) > limits.tokens or cells + new > limits.logit_cells:
            groups.append([number])  # a row beyond the limits alone is a batch of its own: it cannot be smaller
            cells = new
        else:
            group.append(number)
            cells += new
    return [Batch(tuple(rows[r] for r in g), tuple(tuple(members[r]) for r in g)) for g in groups]
