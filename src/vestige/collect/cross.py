"""The cross matrix: every reasoning under every prompt, token by token.

Each distinct prompt is read once (and what it shares with the one before it not even that); all distinct reasonings
follow it as one prefix tree in packed rows; the output layer sees scored positions only. A few cells are also scored
the plain way, one whole sequence at a time; on a mismatch the plain way is used for all, with a note.

In: prompts and reasonings as token ids, and a model (or a function that scores pairs). Out: CrossLogProbs, from which
metrics/collapse.py computes mutual information. Caller: collapse/detector.py, for `vestige collapse` and for trainers.

The matrix is what makes this expensive: n reasonings under m prompts are n x m sequences, of which all but the diagonal
never occurred. Shared, a column costs one prompt and one tree of reasonings, whose openings are often alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from vestige.collect.answering import Cost
from vestige.collect.answers import default_limits
from vestige.collect.forward import logits_at, score_plain
from vestige.collect.prompts import PromptCache, PromptStretch, continue_prompt, layers_of, read_prompt, stretches
from vestige.collect.reduce import token_logprobs
from vestige.collect.safety import Halving, allowed, batch_noise, check_fit, check_tokens, exact
from vestige.collect.tree import PackedRow, Tree, build_tree, split_rows
from vestige.errors import UserError, named, out_of_memory, reraise_ours
from vestige.models.attention import send
from vestige.sums import distances
from vestige.types import Array, Target

TokenIds = tuple[int, ...]
Progress = Callable[[int, int], None]  # prompts done, prompts in all
PairLogProbs = Callable[[Sequence[TokenIds], Sequence[TokenIds]], Iterable[Iterable[float] | torch.Tensor]]
CHECKED_TOKENS = 4096  # of a reasoning, in the self check: a prefix has the same log-probabilities


class Mismatch(Exception):  # noqa: N818 - it is a finding, not a failure
    """The fast way disagrees with the plain way."""


@dataclass(frozen=True)
class CrossLogProbs:
    """Per-token log-probabilities: `tokens[i]` is (prompts, tokens of reasoning i)."""

    tokens: tuple[Array, ...]

    @property
    def sums(self) -> Array:
        """(reasonings, prompts), summed in float64: differences of sums over thousands of tokens are what is read."""
        return np.stack([t.sum(axis=-1, dtype=np.float64) for t in self.tokens])

    @property
    def lengths(self) -> Array:
        return np.asarray([t.shape[-1] for t in self.tokens])


# Tokens of a packed row on a CPU: what lies between the layers then stays in its cache (8 % faster than 1,024 tokens).
CPU_ROW = 640


class CrossScorer:
    """Scores reasonings under prompts with one model."""

    def __init__(
        self, model: Any, *, temperature: float = 1.0, row_tokens: int | None = None,
        rows_together: int | None = None, cost: Cost | None = None,
    ) -> None:  # fmt: skip
        if not temperature > 0:
            raise UserError(f"The temperature must be above 0, it is {temperature}.")
        self.model = model
        self.vocab = int(model.get_input_embeddings().num_embeddings)
        self.temperature = temperature
        on_gpu = model.device.type == "cuda"
        limits = default_limits(self.vocab, on_gpu, row_tokens or (None if on_gpu else CPU_ROW))
        # Nearly every token of a row is scored here, so the budget of logits limits the row, not only the batch.
        self.row_tokens = max(1, min(limits.tokens, limits.logit_cells // self.vocab))
        self.rows_together = rows_together  # at most so many reasonings in one packed row
        self.plain = False  # one sequence per pair: when the shared way does not fit the model
        self.cost = cost or Cost()
        self.progress: Progress = lambda done, total: None  # for those who want to watch

    def __call__(self, prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> CrossLogProbs:
        """The matrix of `reasonings` x `prompts`; equal ones are scored once."""
        self.check(prompts, reasonings)
        # Sorted: neighbours share the longest beginnings, and the cache keeps only what the next prompt shares with
        # this one. Sets: a collapsed policy repeats itself, and a group of rollouts has one prompt.
        xs = sorted(set(prompts))
        zs = sorted(set(reasonings))
        cells = self._cells(xs, zs)
        at_x, at_z = {x: i for i, x in enumerate(xs)}, {z: i for i, z in enumerate(zs)}
        columns = np.asarray([at_x[x] for x in prompts])
        return CrossLogProbs(tuple(cells[at_z[z]][columns] for z in reasonings))

    def check(self, prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> None:
        """Refuses what the model cannot read, before anything is scored."""
        _check(prompts, reasonings)
        check_fit(self.model, max(map(len, prompts)) + max(map(len, reasonings)) - 1, "A prompt with a reasoning")
        check_tokens(self.model, (*prompts, *reasonings))

    def _cells(self, xs: Sequence[TokenIds], zs: Sequence[TokenIds]) -> list[Array]:
        try:
            columns = dict(self.columns(xs, zs))
        except Exception as error:  # whatever a foreign architecture does with a cache, the plain way is there
            reraise_ours(error)
            self.fall_back(error)
            columns = dict(self.columns(xs, zs))
        return [np.stack([columns[j][i] for j in range(len(xs))]) for i in range(len(zs))]

    def fall_back(self, error: Exception) -> None:
        """From now on one sequence per pair, where the shared way was at fault; other errors are raised again."""
        if self.plain or out_of_memory(error) or isinstance(error, UserError):
            raise error
        problem = str(error) if isinstance(error, Mismatch) else named(error)
        self.cost.say(f"shared-prompt scoring does not fit this model ({problem}); using one sequence per pair, slower")
        self.plain = True

    def columns(
        self, xs: Sequence[TokenIds], zs: Sequence[TokenIds], done: frozenset[int] = frozenset()
    ) -> Iterator[tuple[int, list[Array]]]:
        """Prompt by prompt the log-probabilities of every reasoning; both are distinct and sorted.

        `done`: prompts whose column is there already. Whatever is raised but memory and users' errors says that the
        shared way does not fit the model: none of the columns counts then (`fall_back`).
        """
        if self.plain:
            for j, x in enumerate(xs):
                if j not in done:
                    yield j, [self._sequence(x, z) for z in zs]
                self.progress(j + 1, len(xs))
            return
        checks = _cells_to_check(xs, zs)
        limit = self.row_tokens
        if self.rows_together is not None:
            limit = min(limit, self.rows_together * max(map(len, zs)))
        forest = Forest(zs, limit)
        cache = PromptCache(layers_of(self.model))
        # Column by column, since only one prompt's keys are in memory. Cells are checked as soon as their column is
        # there: a model that this does not fit should not first score a whole matrix.
        last = max((j for j in range(len(xs)) if j not in done), default=-1)
        for j, x in enumerate(xs[: last + 1]):
            if j in done and j not in checks:
                # Read all the same: what the next prompt shares with it comes out of the cache, to the last bit.
                self.cost.score_tokens += read_prompt(self.model, cache, x[:-1])
            else:
                column = self._column(cache, x, forest)
                for i in checks.get(j, ()):
                    self._verify(x, zs[i], column[i])
                if j not in done:
                    yield j, column
            self.progress(j + 1, len(xs))

    def _column(self, cache: PromptCache, x: TokenIds, forest: Forest) -> list[Array]:
        """One prompt's column; the rows are halved when memory runs out."""
        column: list[Array] = []
        for attempt in Halving():
            if attempt.again:
                forest.cut(forest.limit // 2)  # for the columns to come as well: the next prompt has no more memory
                self.cost.say(f"out of memory: rows halved to {forest.limit} tokens")
            with attempt:
                attempt.size = 1 if forest.single else forest.limit
                # Without the prompt's last token: that is the root of the tree, because its logits predict the first
                # token of every reasoning, and a cached token has no logits any more.
                self.cost.score_tokens += read_prompt(self.model, cache, x[:-1])
                column = self._rows(cache, x, forest)
        return column

    def _rows(self, cache: PromptCache, x: TokenIds, forest: Forest) -> list[Array]:
        out: list[Array] = [np.zeros(0)] * len(forest.tree.labels)  # every reasoning is in one part, so all are filled
        tree = forest.tree.under(x[-1])
        for part in forest.parts:
            logits = continue_prompt(self.model, cache, tree, part.row, part.plan, part.scored)
            device = logits.device
            where, label = send(torch.stack([part.where, part.label]), device)
            lp = token_logprobs(logits, where, label, self.temperature)
            for i, values in zip(part.members, np.split(lp.cpu().numpy(), part.cuts), strict=True):
                out[i] = values
            self.cost.score_tokens += len(part.row.nodes)
            self.cost.score_forwards += 1
        return out

    def _verify(self, x: TokenIds, z: TokenIds, fast: Array) -> None:
        z = z[:CHECKED_TOKENS]
        plain = self._sequence(x, z)
        if np.isnan(plain).any():  # a NaN model: nothing to compare
            return
        gap = float(np.mean(distances(plain, fast[: len(z)])))
        # `not <=` also holds for NaN: numbers in the plain way and NaN in the fast one are a mismatch. A temperature
        # below 1 multiplies the logits, and their rounding with them.
        noise = 0.0
        if not exact(self.model):  # plain, at temperature 1: what sharing a batch does to it
            same = [Target((*x, *z), len(x))] * 4
            noise = batch_noise(self.model, same, [score_plain(self.model, same[:1])[0].logprob] * 4)
        if not gap <= allowed(self.model, noise, len(z)) / min(1.0, self.temperature):
            raise Mismatch(f"log-probabilities differ by {gap:.2g} on average")

    @torch.inference_mode()
    def _sequence(self, x: TokenIds, z: TokenIds) -> Array:
        """One pair, one ordinary forward over the whole sequence."""
        ids = send(torch.tensor([[*x, *z[:-1]]]), self.model.device)
        index = torch.arange(len(x) - 1, ids.shape[1])
        logits = logits_at(self.model, index, input_ids=ids, use_cache=False)
        self.cost.score_tokens += ids.shape[1]
        self.cost.score_forwards += 1
        label = send(torch.tensor(z), logits.device)
        where = torch.arange(len(z), device=logits.device)
        found: Array = token_logprobs(logits, where, label, self.temperature).cpu().numpy()
        return found


def pairwise_scorer(log_prob_fn: PairLogProbs, micro_batch_size: int = 128) -> Callable[..., CrossLogProbs]:
    """A scorer from any teacher-forcing function: (prompts, reasonings) of equal length -> log-probs of each pair.

    `log_prob_fn` gets at most `micro_batch_size` pairs at a time and returns for each its reasoning's tokens'
    log-probabilities (longer ones, from padded batches, are cut). Equal pairs are asked for once.
    """

    def score(prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> CrossLogProbs:
        _check(prompts, reasonings)
        pairs = list(dict.fromkeys((x, z) for z in reasonings for x in prompts))
        found: dict[tuple[TokenIds, TokenIds], Array] = {}
        for start in range(0, len(pairs), micro_batch_size):
            chunk = pairs[start : start + micro_batch_size]
            answers = log_prob_fn([x for x, _ in chunk], [z for _, z in chunk])
            for pair, values in zip(chunk, answers, strict=True):
                found[pair] = _row(values, len(pair[1]))
        return CrossLogProbs(tuple(np.stack([found[x, z] for x in prompts]) for z in reasonings))

    return score


def _row(values: Any, count: int) -> Array:
    row = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, float).reshape(-1)
    if len(row) < count:
        raise UserError(f"log_prob_fn returned {len(row)} log-probabilities for a reasoning of {count} tokens.")
    return row[:count]


def _check(prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> None:
    if not prompts or not reasonings:
        raise UserError("A cross matrix needs at least one prompt and one reasoning.")
    if not all(prompts):
        raise UserError("A prompt has no tokens; every prompt needs at least one (a bos token will do).")
    if not all(reasonings):
        raise UserError("A reasoning has no tokens; leave empty reasonings out before scoring.")


def _cells_to_check(xs: Sequence[TokenIds], zs: Sequence[TokenIds]) -> dict[int, set[int]]:
    """prompt -> reasonings scored twice: the longest pair (a window shows beyond its width), and the pair that shares
    most with its neighbours (a wrong mask or position shows there). Of equally long ones, the one that shares most, so
    that one pair will often do for both."""
    shared_x, shared_z = _shared_with_previous(xs), _shared_with_previous(zs)
    longest = (_argmax(zip(map(len, xs), shared_x, strict=True)), _argmax(zip(map(len, zs), shared_z, strict=True)))
    closest = (_argmax(zip(shared_x, map(len, xs), strict=True)), _argmax(zip(shared_z, map(len, zs), strict=True)))
    out: dict[int, set[int]] = {}
    for j, i in (longest, closest):
        out.setdefault(j, set()).add(i)
    return out


def _shared_with_previous(sorted_ids: Sequence[TokenIds]) -> list[int]:
    """How many tokens each shares with the one before it."""
    later = [
        next((n for n, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))
        for a, b in pairwise(sorted_ids)
    ]
    return [0, *later]


def _argmax(values: Iterable[tuple[int, int]]) -> int:
    found = list(values)
    return max(range(len(found)), key=found.__getitem__)


@dataclass(frozen=True)
class _Trunk:
    """The reasonings' tree below a root that stands for the prompt's last token.

    Its shape is that of the reasonings alone, so it is built and cut once, and only the root's token changes by prompt.
    """

    tree: Tree

    @property
    def labels(self) -> Sequence[Array]:
        return self.tree.labels

    def under(self, last: int) -> Tree:
        """The tree with that root: its logits predict every reasoning's first token."""
        token = self.tree.token.copy()
        token[0] = last
        return Tree(token, self.tree.hidden, self.tree.parent, self.tree.depth, self.tree.predictors, self.tree.labels)


@dataclass(frozen=True)
class CrossPart:
    """One packed row, which of its positions are scored, and for which tokens of which reasonings."""

    row: PackedRow
    plan: list[PromptStretch]
    scored: list[int]
    members: list[int]
    where: torch.Tensor
    label: torch.Tensor
    cuts: list[int]


class Forest:
    """All reasonings as packed rows; the same for every prompt."""

    def __init__(self, zs: Sequence[TokenIds], limit: int) -> None:
        self.tree = _Trunk(build_tree([Target((0, *z), 1) for z in zs]))  # 0: any token, `under` replaces it
        self.cut(limit)

    @property
    def single(self) -> bool:
        """Every row is one path already: it cannot be cut further."""
        return all(len(p.members) == 1 for p in self.parts)

    def cut(self, limit: int) -> None:
        self.limit = limit
        tree = self.tree.tree
        rows = split_rows(tree, limit)
        # As in tree.pack: any row that holds the last node of a path holds the path, and the first such row is taken.
        home = np.full(len(tree), -1)
        for number, row in enumerate(rows):
            home[row.nodes[home[row.nodes] < 0]] = number
        members: list[list[int]] = [[] for _ in rows]
        for i, nodes in enumerate(tree.predictors):
            members[int(home[nodes[-1]])].append(i)
        self.parts = [_part(tree, row, own) for row, own in zip(rows, members, strict=True) if own]


def _part(tree: Tree, row: PackedRow, members: list[int]) -> CrossPart:
    place = {int(node): n for n, node in enumerate(row.nodes)}
    wanted = [np.asarray([place[int(node)] for node in tree.predictors[i]]) for i in members]
    # A shared position has one row of logits and several labels: `where` says which row each label reads.
    scored = np.unique(np.concatenate(wanted))
    where = torch.from_numpy(np.searchsorted(scored, np.concatenate(wanted)))
    label = torch.from_numpy(np.concatenate([tree.labels[i] for i in members]).astype(np.int64))
    cuts = np.cumsum([len(w) for w in wanted])[:-1].tolist()
    return CrossPart(row, stretches(row), scored.tolist(), members, where, label, cuts)
