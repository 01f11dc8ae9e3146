"""Prompts through the model, before decoding begins.

Packed like answers to be scored: a beginning that prompts share (a system prompt, or all of it where one prompt is
sampled often) goes through the model once, and nothing is padded. Behind its prompt each row may carry a draft, tokens
that it probably continues with; the logits at the draft confirm them or not, under generation's own mask and positions.

In: TextRows. Out: one Filled per forward. Caller: collect/texts.py, which also checks the packed way against a plain
forward before it is used; `padded` is for models that do not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.collect.forward import logits_at, tree_attention, tree_mask
from vestige.collect.text_row import TextRow
from vestige.collect.tree import Batch, Limits, Tree, pack
from vestige.models.attention import additive, send, without_copies
from vestige.types import Array


@dataclass(frozen=True)
class Filled:
    """What one forward gave. Its keys stay where the forward put them until a cache takes them over."""

    rows: list[TextRow]
    logits: torch.Tensor
    reads: list[Array]  # for each row, the logits at its last token and at each token of its draft
    keys: Cache
    places: list[Array]  # for each row, where its tokens are in the flattened (batch x time) of the keys
    tokens: int  # pushed, padding included


@torch.inference_mode()
def packed(model: Any, rows: Sequence[TextRow], limits: Limits, vocab: int) -> Iterator[Filled]:
    """Each distinct beginning once."""
    packing = pack([row.target for row in rows], limits, vocab)
    tree = packing.tree
    for batch in packing.batches:
        yield _packed_batch(model, rows, tree, batch)


def _packed_batch(model: Any, rows: Sequence[TextRow], tree: Tree, batch: Batch) -> Filled:
    width = batch.width
    ids, position, end, hidden = columns = np.zeros((4, len(batch.rows), width), np.int64)
    members: list[int] = []
    places: list[Array] = []
    for r, (row, here) in enumerate(zip(batch.rows, batch.targets, strict=True)):
        ids[r, : len(row.nodes)] = tree.token[row.nodes]
        end[r, : len(row.nodes)] = row.end
        hidden[r, : len(row.nodes)] = tree.hidden[row.nodes]
        order = np.argsort(row.nodes)
        for t in here:
            column = order[np.searchsorted(row.nodes, tree.path(t), sorter=order)]
            position[r, column] = rows[t].positions  # those that share a node share all before it: the same number
            places.append(column + r * width)
        members += here
    reads = [place[rows[t].begin - 1 :] for t, place in zip(members, places, strict=True)]
    index, flat = np.unique(np.concatenate(reads), return_inverse=True)
    keys = Cache(layer_class_to_replicate=DynamicLayer)
    sent = send(columns, model.device)
    with tree_attention(model, batch.rows, width):
        logits = logits_at(
            model, torch.from_numpy(index), input_ids=sent[0], position_ids=sent[1],
            attention_mask=additive(tree_mask(sent[2], sent[3].bool()), model.dtype), past_key_values=keys,
            use_cache=True,
        )  # fmt: skip
    where = np.split(flat, np.cumsum([len(r) for r in reads])[:-1])
    return Filled([rows[t] for t in members], logits, where, keys, places, ids.size)


@torch.inference_mode()
def padded(model: Any, rows: Sequence[TextRow], limits: Limits, vocab: int) -> Iterator[Filled]:
    """Groups of like length, padded on the left: what every architecture with a cache can do."""
    order = sorted(rows, key=lambda r: -len(r.positions))
    while order:
        width = len(order[0].positions)
        cells = np.cumsum([len(r.draft) + 1 for r in order]) * vocab
        fitting = int(np.searchsorted(cells, limits.logit_cells, side="right"))
        group = order[: max(1, min(limits.tokens // width, fitting))]
        order = order[len(group) :]
        yield _padded_group(model, group, width)


def _padded_group(model: Any, group: list[TextRow], width: int) -> Filled:
    ids = np.zeros((len(group), width), np.int64)
    position = np.ones((len(group), width), np.int64)  # padding sits at 1, as in HF's generate
    mask = np.zeros((len(group), width), np.int64)
    places = []
    for i, row in enumerate(group):
        start = width - len(row.positions)
        ids[i, start:] = [*row.inputs, *row.draft]
        position[i, start:] = row.positions
        mask[i, start:] = 1
        mask[i, [start + h for h in row.request.prompt.hidden]] = 0
        places.append(np.arange(start, width) + i * width)
    reads = [place[row.begin - 1 :] for row, place in zip(group, places, strict=True)]
    keys = Cache(layer_class_to_replicate=DynamicLayer)
    sent = send(np.stack([ids, position, mask]), model.device)
    with without_copies(model):
        logits = logits_at(
            model, torch.from_numpy(np.concatenate(reads)), input_ids=sent[0], attention_mask=sent[2],
            position_ids=sent[1], past_key_values=keys, use_cache=True,
        )  # fmt: skip
    counts = [len(r) for r in reads]
    where = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    return Filled(group, logits, where, keys, places, ids.size)
