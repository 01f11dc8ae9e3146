"""Which tokens the model must see: a prefix tree over all targets, cut into rows, rows into batches.

Seven answers to one question share the question; all questions share the system prompt. In the tree every
distinct prefix is one node. A node goes through the model once, except that each row repeats the path from
the root to what it holds. Rows are filled so that this path is a few per cent of a row.

Nothing here runs a model; the result depends on the targets and the limits alone, so a plan is reproducible.

In: Targets (token ids, where the labels begin, which tokens are hidden) and Limits. Out: a Packing, which
collect/forward.py turns into tensors. Callers: collect/answers.py for the answers of a run, collect/cross.py for the
reasonings below one prompt, costs/answers.py for what a run would cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vestige.types import Array, Target


@dataclass(frozen=True)
class Tree:
    """Nodes in creation order: a parent comes before its children. Node -1 is the (empty) root.

    The loops below rely on that order: depths are found in one pass from the front, subtree sizes in one from the back.
    Nodes are columns of arrays, not objects: they become tensors, and a benchmark has hundreds of thousands of them.
    """

    token: Array
    hidden: Array
    parent: Array
    depth: Array  # 0 for first tokens: the position id
    predictors: list[Array]  # for each target, the nodes whose logits predict its labels
    labels: list[Array]  # for each target, those labels

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
    """One packed row: nodes in depth-first order, so that a subtree is a contiguous stretch."""

    nodes: Array
    end: Array  # for each position, where its subtree ends: j attends to i iff i <= j < end[i]


def _codes(target: Target) -> Array:
    """A target's inputs as numbers: the same token, hidden or not, is two different nodes.

    Nobody attends to a hidden token, so all states behind it differ from those behind the same token in sight. Two
    targets that shared such a node would read each other's numbers.
    """
    codes = 2 * np.asarray(target.ids[:-1], np.int64)
    seen = [h for h in target.hidden if h < len(codes)]  # the last token may be hidden, but is not an input
    codes[seen] += 1
    return codes


def build_tree(targets: Sequence[Target]) -> Tree:
    """The prefix tree of all inputs. A target's last token is never an input: nothing is predicted from it.

    In sorted order a target shares with the tree exactly what it shares with the target before it: whatever shares more
    sorts in between. So one comparison with the neighbour replaces a search through the tree for every token.
    """
    codes = [_codes(t) for t in targets]
    # Bytes, the highest first: they sort as the numbers do, and take a fifth of the memory of lists of them.
    order = sorted(range(len(targets)), key=lambda i: codes[i].astype(">i8").tobytes())
    pieces: list[Array] = []  # the codes of new nodes, target by target
    parents: list[Array] = []
    depths: list[Array] = []
    predictors: list[Array] = [np.zeros(0, np.int64)] * len(targets)
    before, path, count = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for i in order:
        shared = _common(before, codes[i])
        new = np.arange(count, count + len(codes[i]) - shared)
        path = np.concatenate([path[:shared], new])  # the nodes from the root to this target's last input
        before, count = codes[i], count + len(new)
        pieces.append(codes[i][shared:])
        depths.append(np.arange(shared, len(codes[i])))
        parents.append(np.concatenate([[-1], path])[shared:-1] if len(new) else new)
        # The logits at a token predict the token behind it: labels from `start` on are read one place earlier.
        predictors[i] = path[targets[i].start - 1 :]
    code, parent = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (pieces, parents))
    depth = np.concatenate([np.zeros(0, np.int64), *depths])
    return Tree(code // 2, code % 2 == 1, parent, depth, predictors, [np.asarray(t.labels) for t in targets])


def _common(a: Array, b: Array) -> int:
    """The length of the common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


@dataclass(slots=True)
class _Bin:
    """Some subtrees that will share a row, and how many tokens they are (shared ancestors not counted).

    Nodes are kept as stretches of numbers: an answer's are consecutive, and there are as many as tokens.
    """

    size: int
    parts: list[range | _Bin]

    def add(self, node: int) -> None:
        """One more node, which comes before all that are in it."""
        self.size += 1
        last = self.parts[-1] if self.parts else None
        if isinstance(last, range) and last.start == node + 1:
            self.parts[-1] = range(node, last.stop)
        else:
            self.parts.append(range(node, node + 1))


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
    for node in range(len(tree) - 1, -1, -1):  # children have larger numbers than their parents
        below = waiting.pop(node, [])
        room = limit - int(tree.depth[node]) - 1  # the path down to this node is in the row as well
        bins = _first_fit(below, room) or [_Bin(0, [])]
        for b in bins:
            b.add(node)
        waiting.setdefault(int(tree.parent[node]), []).extend(bins)
    rows = [_row(tree, b) for b in _first_fit(waiting[-1], limit)]
    # Longest first, because a batch is padded to its first row; ties by content, so that a resumed run packs alike.
    return sorted(rows, key=lambda r: (-len(r.nodes), int(r.nodes[0])))


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
    """A bin's nodes as a row, and where each subtree ends."""
    # Stacks instead of recursion, here and below: bins nest as deep as an answer is long, Python's limit is 1,000.
    nodes: set[int] = set()
    stack: list[range | _Bin] = [top]
    while stack:
        item = stack.pop()
        if isinstance(item, _Bin):
            stack.extend(item.parts)
        else:
            nodes.update(item)
    # Depth first, children by node number: then a subtree is one stretch, and its end says who may attend to its root.
    kids: dict[int, list[int]] = {}
    for node in sorted(nodes, reverse=True):  # reversed: the stack below pops the smallest first
        kids.setdefault(int(tree.parent[node]), []).append(node)
    order: list[int] = []
    open_ = list(kids.get(-1, ()))
    while open_:
        node = open_.pop()
        order.append(node)
        open_.extend(kids.get(node, ()))
    place = {node: i for i, node in enumerate(order)}
    # From the back: a node's subtree is complete before its end is handed on to the parent. These ends are the whole
    # attention mask, one number per token instead of a row of cells.
    end = np.arange(1, len(order) + 1)
    for i in range(len(order) - 1, -1, -1):
        parent = int(tree.parent[order[i]])
        if parent >= 0:
            end[place[parent]] = max(end[place[parent]], end[i])
    return PackedRow(np.asarray(order, np.int64), end)


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
        return max(len(r.nodes) for r in self.rows)

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
    home = np.full(len(tree), -1)
    for number, row in enumerate(rows):
        fresh = row.nodes[home[row.nodes] < 0]
        home[fresh] = number
    members: list[list[int]] = [[] for _ in rows]
    for i, predictors in enumerate(tree.predictors):
        members[int(home[predictors[-1]])].append(i)
    return Packing(tree, tuple(_batches(tree, rows, members, limits, vocab)))


def _batches(tree: Tree, rows: list[PackedRow], members: list[list[int]], limits: Limits, vocab: int) -> list[Batch]:
    groups: list[list[int]] = []  # of rows that go through the model together
    cells = 0
    for number, row in enumerate(rows):  # longest first: running out of memory shows at once, padding is small
        # Answers that share an opening also share its logits: each position goes through the output layer once.
        scored = np.unique(np.concatenate([tree.predictors[t] for t in members[number]] or [row.nodes[:0]]))
        new = len(scored) * vocab
        group = groups[-1] if groups else []
        width = len(rows[group[0]].nodes) if group else 0  # a batch is padded to its first row
        if not group or width * (len(group) + 1) > limits.tokens or cells + new > limits.logit_cells:
            groups.append([number])  # a row beyond the limits alone is a batch of its own: it cannot be smaller
            cells = new
        else:
            group.append(number)
            cells += new
    return [Batch(tuple(rows[r] for r in g), tuple(tuple(members[r]) for r in g)) for g in groups]


def count_nodes(targets: Iterable[Target]) -> int:
    """Distinct prefixes among the whole sequences asked for: what sharing alone could not go below.

    (The last token of a sequence is never pushed, so that we may even do better.)
    """
    return len(build_tree([Target((*t.ids, 0), t.start, t.hidden) for t in targets]))
