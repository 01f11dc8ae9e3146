"""Two ways through the model with the same meaning: packed tree rows (fast), padded sequences (plain).

Both hand `reduce_logits` the logits of scored positions only: a hook narrows what reaches the output layer, so
that the vocabulary axis is never made for positions that are not scored.

Packed rows are attended to without the masked cells. In depth-first order a stretch of queries looks at itself
and at a few ancestors before it; the rest of the row is other questions. Attending stretch by stretch to just those
keys makes a row's cost grow with its length instead of with the square of it, so rows can be as long as a batch and the
shared beginning of all prompts is pushed once per batch. The model's own attention function does the arithmetic, with
fewer keys; a model that does not use the library's attention interface never calls this and sees the whole mask.

In: one batch of a Packing, or some Targets. Out: TokenStats of each target. Callers: collect/answers.py and the checks
of fast ways in this package; collect/cross.py attends in the same way to rows that continue a cached prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np
import torch

from vestige.collect.reduce import reduce_logits
from vestige.collect.tree import Batch, PackedRow, Tree
from vestige.models.attention import additive, attending, grouped, logits_at, send, shares_keys, without_copies
from vestige.types import ARRAY_FIELDS, Array, Target, TokenStats

# Queries at a time; a question with its answers is about this long. Longer stretches look at more keys of other
# questions, shorter ones make more calls of a kernel that is then too small to be worth calling.
STRETCH = 128

Stretch = tuple[int, int, torch.Tensor]  # first query, end of queries, the keys they may look at


def stretches(end: Array, width: int) -> list[Stretch]:
    """The stretches of one row whose subtrees end at `end`; positions past the row (padding) see themselves."""
    ends = np.concatenate([end, np.arange(len(end), width) + 1])
    out = []
    for first in range(0, width, STRETCH):
        last = min(first + STRETCH, width)
        # Some query of this stretch may look at key i only if the subtree of i reaches into the stretch. That is never
        # too few; keys too many do no harm, because the mask is cut out with them and still decides cell by cell.
        keys = np.flatnonzero(ends[:last] > first)
        out.append((first, last, torch.from_numpy(keys)))
    return out


def tree_attention(model: Any, rows: Sequence[PackedRow], width: int) -> AbstractContextManager[None]:
    """While open, the library's sdpa attention goes through packed rows in stretches.

    On a CPU only: a GPU prefers one large kernel to many small ones. Only sdpa is replaced: eager attention would work
    alike, but who asks for it wants the library's own path.
    """
    if width <= STRETCH or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return without_copies(model)
    plan = [stretches(row.end, width) for row in rows]
    return attending(lambda whole: _by_stretches(grouped(whole) if shares_keys(model) else whole, plan, width))


def _by_stretches(whole: Callable[..., Any], plan: Sequence[Sequence[Stretch]], width: int) -> Callable[..., Any]:
    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        # A block that was given another mask than ours (sliding window, cross attention), or a bias that would have to
        # be cut as well, gets the whole attention: slower, and right.
        expected = (len(plan), 1, width, width)
        if attention_mask is None or attention_mask.shape != expected or options.get("position_bias") is not None:
            return whole(module, query, key, value, attention_mask, **options)
        done = []
        for r, row in enumerate(plan):  # row by row, since each has other keys; on a CPU a batch is mostly one row
            parts = []
            for first, last, keys in row:
                few = [t[r : r + 1].index_select(2, keys) for t in (key, value)]
                mask = attention_mask[r : r + 1, :, first:last].index_select(3, keys)
                parts.append(whole(module, query[r : r + 1, :, first:last], *few, mask, **options)[0])
            done.append(torch.cat(parts, dim=1))
        return torch.cat(done), None

    return attend


@torch.inference_mode()
def score_packed(model: Any, tree: Tree, batch: Batch) -> dict[int, TokenStats]:
    """One forward over packed rows; the statistics of every target the batch answers."""
    width = batch.width
    ids, position, end, hidden = columns = np.zeros((4, len(batch.rows), width), np.int64)
    flat_index: list[Array] = []  # scored positions in the flattened batch
    reads: list[Array] = []  # for each label, its row in the reduced logits
    offset = 0
    for r, (row, members) in enumerate(zip(batch.rows, batch.targets, strict=True)):
        nodes, n = row.nodes, len(row)
        ids[r, :n] = tree.token[nodes]
        position[r, :n] = tree.depth[nodes]
        end[r, :n] = row.end
        hidden[r, :n] = tree.hidden[nodes]
        # Answers that share an opening ask the same positions; each goes through the output layer once.
        wanted = np.concatenate([nodes[:0], *(tree.predictors[t] for t in members)])
        scored, read = np.unique(np.searchsorted(nodes, wanted), return_inverse=True)
        flat_index.append(scored + r * width)
        reads.append(read + offset)
        offset += len(scored)
    targets = tuple(chain.from_iterable(batch.targets))
    if not targets:
        return {}
    tokens, positions, ends, unseen = send(columns, model.device)
    with tree_attention(model, batch.rows, width):
        logits = logits_at(
            model,
            torch.from_numpy(np.concatenate(flat_index)),
            input_ids=tokens,
            position_ids=positions,
            attention_mask=additive(tree_mask(ends, unseen.bool()), model.dtype),
            use_cache=False,
        )
    labels = [tree.labels[target] for target in targets]
    pairs = send(np.stack([np.concatenate(reads), np.concatenate(labels)]).astype(np.int64), logits.device)
    return _per_target(reduce_logits(logits, *pairs), targets, labels)


def tree_mask(end: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """allowed[r, j, i]: may position j of a row look at position i? Its ancestors and itself, less hidden tokens.

    From two numbers per position (0 as the end: padding, at which no token looks), where the model is: a whole mask is
    the square of them.
    """
    at = torch.arange(end.shape[1], device=end.device)
    allowed = (at[None, :] <= at[:, None]) & (at[:, None] < end[:, None, :]) & ~hidden[:, None, :]
    # A query with nothing to look at (padding, or a hidden first token) looks at itself: softmax needs something.
    allowed.diagonal(0, 1, 2).logical_or_(~allowed.any(dim=-1))
    return allowed


@torch.inference_mode()
def score_plain(model: Any, targets: Sequence[Target]) -> dict[int, TokenStats]:
    """Padded rows with the ordinary two-dimensional mask: what everyone else runs, and our yardstick."""
    width = max(len(target.ids) for target in targets) - 1
    ids, mask = columns = np.zeros((2, len(targets), width), np.int64)
    index, labels = [], []
    for r, target in enumerate(targets):
        n, hidden = len(target.ids) - 1, np.asarray(target.hidden, np.int64)
        ids[r, :n] = target.ids[:-1]
        mask[r, :n] = 1
        mask[r, hidden[hidden < n]] = 0
        index.append(np.arange(target.start - 1, n) + r * width)
        labels.append(np.asarray(target.labels, np.int64))
    sent, flat = send(columns, model.device), np.concatenate(index)
    logits = logits_at(model, torch.from_numpy(flat), input_ids=sent[0], attention_mask=sent[1], use_cache=False)
    pairs = send(np.stack([np.arange(len(flat)), np.concatenate(labels)]), logits.device)
    return _per_target(reduce_logits(logits, *pairs), range(len(targets)), labels)


def _per_target(reduced: Mapping[str, Array], targets: Iterable[int], labels: Iterable[Array]) -> dict[int, TokenStats]:
    out, at = {}, 0
    for target, label in zip(targets, labels, strict=True):
        here = slice(at, at + len(label))
        out[target] = causal_stats({name: reduced[name][here] for name in ARRAY_FIELDS})
        at = here.stop
    return out


def causal_stats(arrays: dict[str, Array]) -> TokenStats:
    """Statistics of a left-to-right model: tokens are decided in the order they stand."""
    n = arrays["label"].shape[-1]
    return TokenStats(**arrays, order=np.arange(n), steps=n)
