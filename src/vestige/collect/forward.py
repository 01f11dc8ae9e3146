"""Two ways through the model with the same meaning: packed tree rows (fast), padded sequences (plain).

Both hand `reduce_logits` the logits of scored positions only: a hook narrows what reaches the output layer, so
that the vocabulary axis is never made for positions nobody asked about.

In: one batch of a Packing, or some Targets. Out: TokenStats of each target. Caller: collect/answers.py; `logits_at` and
the masks are also used by everything else in this room that runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vestige.collect.reduce import reduce_logits
from vestige.collect.sparse import tree_attention
from vestige.collect.tree import Batch, Tree
from vestige.models import flex
from vestige.models.logits import additive, logits_at, send
from vestige.types import ARRAY_FIELDS, Array, Target, TokenStats


@torch.inference_mode()
def score_packed(model: Any, tree: Tree, batch: Batch) -> dict[int, TokenStats]:
    """One forward over packed rows; the statistics of every target the batch answers."""
    width, device = batch.width, model.device
    ids = np.zeros((len(batch.rows), width), np.int64)
    position = np.zeros((len(batch.rows), width), np.int64)
    end = np.zeros((len(batch.rows), width), np.int64)
    hidden = np.zeros((len(batch.rows), width), np.int64)
    flat_index: list[Array] = []  # scored positions in the flattened batch
    pairs: list[tuple[int, Array]] = []  # (target, its rows in the reduced logits)
    labels: list[Array] = []
    offset = 0
    for r, (row, members) in enumerate(zip(batch.rows, batch.targets, strict=True)):
        nodes, n = row.nodes, len(row)
        ids[r, :n] = tree.token[nodes]
        position[r, :n] = tree.depth[nodes]
        end[r, :n] = row.end
        hidden[r, :n] = tree.hidden[nodes]
        wanted = [np.searchsorted(nodes, tree.predictors[t]) for t in members]
        scored = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.int64)
        flat_index.append(scored + r * width)
        for t, where in zip(members, wanted, strict=True):
            pairs.append((t, np.searchsorted(scored, where) + offset))
            labels.append(tree.labels[t])
        offset += len(scored)
    tokens, positions, ends, unseen = send(np.stack([ids, position, end, hidden]), device)
    by_rule = flex.wanted(model)
    with flex.flexing() if by_rule else tree_attention(model, [row.end for row in batch.rows], width):
        logits = logits_at(
            model,
            torch.from_numpy(np.concatenate(flat_index)),
            input_ids=tokens,
            position_ids=positions,
            attention_mask=flex.tree_blocks(ends, unseen.bool()) if by_rule else _dense(model, ends, unseen.bool()),
            use_cache=False,
        )
    return _per_target(reduce_logits(logits, *_places(logits.device, pairs, labels)), pairs) if pairs else {}


def _dense(model: Any, end: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return additive(tree_mask(end, hidden), model.dtype)


def tree_mask(end: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """allowed[r, j, i]: may position j of a row look at position i? Its ancestors and itself, less hidden tokens.

    From two numbers per position (0 as the end: padding, at which nobody looks), where the model is: a whole mask is
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
    width = max(len(t.ids) for t in targets) - 1
    ids = np.zeros((len(targets), width), np.int64)
    mask = np.zeros((len(targets), width), np.int64)
    index, pairs, labels, offset = [], [], [], 0
    for r, target in enumerate(targets):
        n = len(target.ids) - 1
        ids[r, :n] = target.ids[:-1]
        mask[r, :n] = 1
        mask[r, [h for h in target.hidden if h < n]] = 0
        count = len(target.labels)
        index.append(np.arange(target.start - 1, n) + r * width)
        pairs.append((r, np.arange(count) + offset))
        labels.append(np.asarray(target.labels))
        offset += count
    logits = logits_at(
        model,
        torch.from_numpy(np.concatenate(index)),
        input_ids=send(ids, model.device),
        attention_mask=send(mask, model.device),
        use_cache=False,
    )
    return _per_target(reduce_logits(logits, *_places(logits.device, pairs, labels)), pairs) if pairs else {}


def _places(
    device: torch.device, pairs: Sequence[tuple[int, Array]], labels: Sequence[Array]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which row of the logits is read for each label, and the labels, on the logits' device."""
    where = np.concatenate([w for _, w in pairs])
    both = send(np.stack([where, np.concatenate(labels)]).astype(np.int64), device)
    return both[0], both[1]


def _per_target(reduced: Mapping[str, Array], pairs: Sequence[tuple[int, Array]]) -> dict[int, TokenStats]:
    out, at = {}, 0
    for target, rows in pairs:
        n = len(rows)
        out[target] = causal_stats({name: reduced[name][at : at + n] for name in ARRAY_FIELDS})
        at += n
    return out


def causal_stats(arrays: dict[str, Array]) -> TokenStats:
    """Statistics of a left-to-right model: tokens are decided in the order they stand."""
    n = arrays["label"].shape[-1]
    return TokenStats(**arrays, order=np.arange(n), steps=n)
