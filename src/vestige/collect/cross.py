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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.collect.answers import default_limits
from vestige.collect.backend import Cost
from vestige.collect.forward import STRETCH, logits_at, score_plain, tree_mask
from vestige.collect.reduce import token_logprobs
from vestige.collect.safety import Halving, allowed, batch_noise, check_fit, check_tokens, exact
from vestige.collect.tree import PackedRow, Tree, build_tree, split_rows
from vestige.errors import UserError, named, out_of_memory, reraise_ours
from vestige.models.args import text_config
from vestige.models.attention import additive, attending, send, without_copies
from vestige.numeric import distances
from vestige.packed_ids import common_prefix
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
        limits = default_limits(on_gpu, row_tokens or (None if on_gpu else CPU_ROW))
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
        try:
            columns = dict(self.columns(xs, zs))
        except Exception as error:  # whatever a foreign architecture does with a cache, the plain way is there
            reraise_ours(error)
            self.fall_back(error)
            columns = dict(self.columns(xs, zs))
        cells = {z: np.stack([columns[j][i] for j in range(len(xs))]) for i, z in enumerate(zs)}
        place = {x: j for j, x in enumerate(xs)}
        wanted = np.asarray([place[x] for x in prompts])
        return CrossLogProbs(tuple(cells[z][wanted] for z in reasonings))

    def check(self, prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> None:
        """Refuses what the model cannot read, before anything is scored."""
        _refuse_empty(prompts, reasonings)
        check_fit(self.model, max(map(len, prompts)) + max(map(len, reasonings)) - 1, "A prompt with a reasoning")
        check_tokens(self.model, (*prompts, *reasonings))

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
        cache = PromptCache(int(text_config(self.model.config).num_hidden_layers))
        # Column by column, since only one prompt's keys are in memory. Cells are checked as soon as their column is
        # there: a model that this does not fit should not first score a whole matrix.
        last = max((j for j in range(len(xs)) if j not in done), default=-1)
        for j, x in enumerate(xs[: last + 1]):
            if j in done:
                # Read all the same: what the next prompt shares with it comes out of the cache, to the last bit. Its
                # cells were checked before it was kept.
                self.cost.score_tokens += read_prompt(self.model, cache, x[:-1])
            else:
                column = self._column(cache, x, forest)
                for i in checks.get(j, ()):
                    self._verify(x, zs[i], column[i])
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
                column = [np.zeros(0)] * len(forest.tree.labels)  # every reasoning is in one part, so all are filled
                tree = forest.under(x[-1])
                for part in forest.parts:
                    logits = continue_prompt(self.model, cache, tree, part.row, part.plan, part.scored)
                    where, label = send(torch.stack([part.where, part.label]), logits.device)
                    logprob = token_logprobs(logits, where, label, self.temperature).cpu().numpy()
                    for i, values in zip(part.members, np.split(logprob, part.cuts), strict=True):
                        column[i] = values
                    self.cost.score_tokens += len(part.row.nodes)
                    self.cost.score_forwards += 1
        return column

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
        logprobs: Array = token_logprobs(logits, where, label, self.temperature).cpu().numpy()
        return logprobs


def pairwise_scorer(log_prob_fn: PairLogProbs, micro_batch_size: int = 128) -> Callable[..., CrossLogProbs]:
    """A scorer from any teacher-forcing function: (prompts, reasonings) of equal length -> log-probs of each pair.

    `log_prob_fn` gets at most `micro_batch_size` pairs at a time and returns for each its reasoning's tokens'
    log-probabilities (longer ones, from padded batches, are cut). Equal pairs are asked for once.
    """

    def score(prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> CrossLogProbs:
        _refuse_empty(prompts, reasonings)
        pairs = list(dict.fromkeys((x, z) for z in reasonings for x in prompts))
        logprobs: dict[tuple[TokenIds, TokenIds], Array] = {}
        for start in range(0, len(pairs), micro_batch_size):
            chunk = pairs[start : start + micro_batch_size]
            answers = log_prob_fn([x for x, _ in chunk], [z for _, z in chunk])
            for (x, z), values in zip(chunk, answers, strict=True):
                on_host = values.detach().cpu() if isinstance(values, torch.Tensor) else values
                row = np.asarray(on_host, float).reshape(-1)
                if len(row) < len(z):
                    raise UserError(
                        f"log_prob_fn returned {len(row)} log-probabilities for a reasoning of {len(z)} tokens."
                    )
                logprobs[x, z] = row[: len(z)]
        return CrossLogProbs(tuple(np.stack([logprobs[x, z] for x in prompts]) for z in reasonings))

    return score


def _refuse_empty(prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> None:
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
    longest, closest = [], []
    for ids in (xs, zs):
        shared = [0, *(common_prefix(a, b) for a, b in pairwise(ids))]  # with the one before it: they are sorted
        longest.append(max(range(len(ids)), key=lambda i: (len(ids[i]), shared[i])))
        closest.append(max(range(len(ids)), key=lambda i: (shared[i], len(ids[i]))))
    out: dict[int, set[int]] = {}
    for j, i in (longest, closest):
        out.setdefault(j, set()).add(i)
    return out


@dataclass(frozen=True)
class CrossPart:
    """One packed row, which of its positions are scored, and for which tokens of which reasonings."""

    row: PackedRow
    plan: list[PromptStretch]
    scored: list[int]
    members: list[int]
    where: torch.Tensor  # a shared position has one row of logits and several labels: which row each label reads
    label: torch.Tensor
    cuts: list[int]


class Forest:
    """All reasonings as packed rows below a root that stands for the prompt's last token; the same for every prompt.

    Its shape is that of the reasonings alone, so it is built and cut once, and only the root's token changes by prompt.
    """

    def __init__(self, zs: Sequence[TokenIds], limit: int) -> None:
        self.tree = build_tree([Target((0, *z), 1) for z in zs])  # 0: any token, `under` replaces it
        self.cut(limit)

    def under(self, last: int) -> Tree:
        """The tree below a prompt's last token: its logits predict every reasoning's first token."""
        token = self.tree.token.copy()
        token[0] = last
        return replace(self.tree, token=token)

    @property
    def single(self) -> bool:
        """Every row is one path already: it cannot be cut further."""
        return all(len(p.members) == 1 for p in self.parts)

    def cut(self, limit: int) -> None:
        self.limit = limit
        tree = self.tree
        rows = split_rows(tree, limit)
        # As in tree.pack: any row that holds the last node of a path holds the path, and the first such row is taken.
        home = np.full(len(tree), -1)
        for number, row in enumerate(rows):
            home[row.nodes[home[row.nodes] < 0]] = number
        members: list[list[int]] = [[] for _ in rows]
        for i, nodes in enumerate(tree.predictors):
            members[int(home[nodes[-1]])].append(i)
        self.parts = []
        for row, own in zip(rows, members, strict=True):
            if not own:
                continue
            place = {int(node): n for n, node in enumerate(row.nodes)}
            wanted = [np.asarray([place[int(node)] for node in tree.predictors[i]]) for i in own]
            scored = np.unique(np.concatenate(wanted))
            where = torch.from_numpy(np.searchsorted(scored, np.concatenate(wanted)))
            label = torch.from_numpy(np.concatenate([tree.labels[i] for i in own]).astype(np.int64))
            cuts = np.cumsum([len(w) for w in wanted])[:-1].tolist()
            self.parts.append(CrossPart(row, stretches(row), scored.tolist(), own, where, label, cuts))


# ---- One prompt read once, then many continuations of it as one packed row that looks back at its keys --------------
# The keys and values of the prompt stand in a cache of one row. The continuations form a prefix tree, laid out depth
# first as in tree.py; every token looks at the whole prompt and at its own ancestors. Nothing is copied per
# continuation, and the next prompt keeps what it shares with this one.

SHORT = STRETCH // 2  # a stretch shorter than this costs more in calls than it saves in keys


class PromptLayer(DynamicLayer):
    """One layer's keys and values. Only while `growing` is what passes through also kept."""

    keys: torch.Tensor
    values: torch.Tensor
    growing = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        if self.growing:
            self.keys, self.values = keys, values
        return keys, values


class PromptCache(Cache):
    """The keys of one prompt, and the prompt."""

    def __init__(self, layers: int) -> None:
        self.own = [PromptLayer() for _ in range(layers)]
        self.ids: tuple[int, ...] = ()
        super().__init__(layers=list(self.own))

    def grow(self, growing: bool) -> None:
        for layer in self.own:
            layer.growing = growing

    def keep(self, count: int) -> None:
        """Forgets everything after the first `count` tokens."""
        self.ids = self.ids[:count]
        for layer in self.own:
            if layer.is_initialized and layer.keys.numel():
                layer.keys, layer.values = layer.keys[..., :count, :], layer.values[..., :count, :]


@torch.inference_mode()
def read_prompt(model: Any, cache: PromptCache, ids: Sequence[int]) -> int:
    """Makes the cache hold `ids`; what it holds of them already is not pushed again. Returns the tokens pushed."""
    shared = common_prefix(cache.ids, ids)
    cache.keep(shared)
    new = list(ids[shared:])
    if new:
        cache.grow(True)
        position = torch.arange(shared, len(ids), device=model.device)[None]
        with without_copies(model):
            logits_at(
                model, torch.tensor([len(new) - 1]), input_ids=send(torch.tensor([new]), model.device),
                position_ids=position, past_key_values=cache, use_cache=True,
            )  # fmt: skip
        cache.ids = tuple(ids)
    return len(new)


@dataclass(frozen=True)
class PromptStretch:
    """Some queries of a packed row, the keys of the row they may look at, and which of them each may."""

    first: int
    last: int
    keys: torch.Tensor
    allowed: torch.Tensor  # (queries, keys)
    fills: tuple[tuple[int, int, int], ...]  # (place among the keys, position in the row, how many): see `_attend`


def stretches(row: PackedRow) -> list[PromptStretch]:
    """The row cut into stretches; the same for every prompt, so it is made once.

    A cut goes where a branch ends if one does: the next branch has no use for the keys of this one.
    """
    out = []
    before, end = np.zeros(0, np.int64), row.end
    for first, last in pairwise(_cuts(end)):
        keys = np.flatnonzero(end[:last] > first)
        queries = np.arange(first, last)
        allowed = (keys[None, :] <= queries[:, None]) & (queries[:, None] < end[keys][None, :])
        fills = _fills(before, keys)
        out.append(PromptStretch(first, last, torch.from_numpy(keys), torch.from_numpy(allowed), fills))
        before = keys
    return out


def _fills(before: Array, keys: Array) -> tuple[tuple[int, int, int], ...]:
    """What must be copied to have `keys` where the last stretch had its own: all after what both begin with."""
    at = common_prefix(before, keys)
    out = []
    for run in np.split(keys[at:], np.flatnonzero(np.diff(keys[at:]) != 1) + 1):
        if len(run):
            out.append((at, int(run[0]), len(run)))
            at += len(run)
    return tuple(out)


def _cuts(end: Array) -> list[int]:
    """Where stretches begin, and the row's end: at branch ends, if that makes neither scraps nor long stretches."""
    width = len(end)
    # A token whose subtree is itself alone is the end of a branch.
    ends = [i + 1 for i in range(width) if end[i] == i + 1]
    cuts = [0]
    while cuts[-1] < width:
        start = cuts[-1]
        fitting = [e for e in ends if start + SHORT <= e <= start + STRETCH]
        cuts.append(fitting[0] if fitting else min(start + STRETCH, width))
        ends = [e for e in ends if e > cuts[-1]]
    return cuts


@torch.inference_mode()
def continue_prompt(
    model: Any, cache: PromptCache, tree: Tree, row: PackedRow, plan: Sequence[PromptStretch], scored: Sequence[int]
) -> torch.Tensor:
    """The logits at positions `scored` of a packed row that continues the cached prompt."""
    cache.grow(False)
    before, width = len(cache.ids), len(row.nodes)
    ids, depth, end = send(np.stack([tree.token[row.nodes], tree.depth[row.nodes], row.end]), model.device)
    # As in forward.py: a CPU gains by leaving masked cells out, a GPU prefers one large kernel.
    skipping = model.device.type == "cpu" and model.config._attn_implementation == "sdpa"
    if skipping:  # attention goes by stretches and reads nothing but the mask's shape
        mask = torch.zeros((), dtype=model.dtype).expand(1, 1, width, before + width)
    else:
        row_mask = tree_mask(end[None], torch.zeros_like(end, dtype=torch.bool)[None])
        mask = additive(torch.nn.functional.pad(row_mask, (before, 0), value=True), model.dtype)
    with attending(lambda whole: _attend(whole, plan, before, width)) if skipping else nullcontext():
        return logits_at(
            model, torch.tensor(scored), input_ids=ids[None], position_ids=(depth + before)[None],
            past_key_values=cache, use_cache=True, attention_mask=mask,
        )  # fmt: skip


class _NoGroups:
    """In a module's place: the library then takes queries, keys and values as they are."""

    is_causal = False


def _attend(whole: Callable[..., Any], plan: Sequence[PromptStretch], before: int, width: int) -> Callable[..., Any]:
    """The library's attention over each stretch's own keys.

    The prompt's keys stand at the front of one buffer; a stretch's keys follow them, and only those that the stretch
    before it did not have are copied. Query heads that share a key head are laid one after another as more queries of
    that head: the library would copy the keys for each of them instead.
    """
    masks: list[torch.Tensor] = []  # made in the first layer

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if query.shape[2] != width or key.shape[2] != before + width or options.get("position_bias") is not None:
            raise ValueError("attention of another kind than a packed row needs")  # the plain way is taken then
        heads, key_heads, size = query.shape[1], key.shape[1], query.shape[3]
        sharers = heads // key_heads  # query heads that share one key head
        if not masks:
            for s in plan:  # all of the prompt and some of the row, once for each query head that shares the keys
                free = torch.ones((s.last - s.first, before), dtype=torch.bool)
                mask = additive(torch.cat([free, s.allowed], dim=1)[None], query.dtype)
                masks.append(mask.repeat(1, 1, sharers, 1))
        most = before + max(len(s.keys) for s in plan)
        buffers = [(t, torch.empty_like(t[:, :, :most])) for t in (key, value)]
        for source, buffer in buffers:
            buffer[:, :, :before] = source[:, :, :before]
        parts = []
        for s, mask in zip(plan, masks, strict=True):
            for source, buffer in buffers:
                for at, start, count in s.fills:
                    buffer.narrow(2, before + at, count).copy_(source.narrow(2, before + start, count))
            stretch_keys = [buffer.narrow(2, 0, before + len(s.keys)) for _, buffer in buffers]
            queries = query[0, :, s.first : s.last].reshape(1, key_heads, -1, size)
            done = whole(_NoGroups(), queries, *stretch_keys, mask, **options)[0]  # (1, sharers x queries, kept, size)
            done = done.view(sharers, s.last - s.first, key_heads, -1).permute(1, 2, 0, 3)
            parts.append(done.reshape(1, s.last - s.first, heads, -1))
        return torch.cat(parts, dim=1), None

    return attend
