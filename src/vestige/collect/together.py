"""Padded batches of a mask predictor, compared with single rows before they are trusted.

Rows of a batch have unequal lengths, and what fills them up must be seen by nobody. A model whose code forgets the mask
somewhere would give a row other numbers in other company. So the longest and the shortest row of what is asked for are
looked at together and alone, once for each model; on a mismatch rows go alone from then on, and a note says so.
The looks are few and not counted as costs.

In: a mask predictor and the rows it is about to be asked. Out: the predictor knows whether rows may share a batch.
Callers: collect/denoise.py and collect/bound.py, before their first batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vestige.collect.backend import Cost
from vestige.collect.reduce import reduce_logits
from vestige.collect.safety import tolerance
from vestige.models.attention import send
from vestige.models.diffusion import MaskPredictor
from vestige.numeric import distances
from vestige.types import Array

LivingRow = Sequence[int]


@torch.inference_mode()
def verify_padding(predictor: MaskPredictor, rows: Sequence[LivingRow], tokens: int, cost: Cost) -> None:
    """Sets `predictor.alone` where a padded row's log-probabilities are not those of the row alone.

    Rows of which not even two fit into a batch of so many tokens go alone anyway.
    """
    rows = [row for row in rows if 1 < len(row) <= tokens // 2]
    pair = [max(rows, key=len), min(rows, key=len)] if rows else []
    if predictor.checked or not pair or len(pair[0]) == len(pair[1]):
        return
    predictor.checked = True
    spent = predictor.forwards, predictor.tokens
    together, alone = _look(predictor, pair), [_look(predictor, [row])[0] for row in pair]
    predictor.forwards, predictor.tokens = spent
    gap = max(float(np.mean(distances(a, b))) for a, b in zip(together, alone, strict=True))
    if not gap <= tolerance(predictor.model) and not np.isnan(np.concatenate(alone)).any():
        predictor.alone = True
        cost.say(
            f"padded batches do not fit this model (log-probabilities differ by {gap:.2g} on average); "
            "using one row at a time, slower"
        )


def _look(predictor: MaskPredictor, rows: Sequence[LivingRow]) -> list[Array]:
    """The log-probabilities of the last half of each row, hidden, in one padded batch."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), predictor.pad_id, np.int64)
    where, labels = [], []
    for r, row in enumerate(rows):
        half = len(row) // 2
        ids[r, : len(row)] = row
        ids[r, half : len(row)] = predictor.mask_id
        where.append(np.arange(half, len(row)) + r * width)
        labels.append(np.asarray(row[half:]))
    keep = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    device = predictor.device
    flat = send(np.concatenate(where), device)
    logits = predictor.logits(send(ids, device), send(keep, device), flat)
    asked = send(np.concatenate(labels), logits.device)
    found = reduce_logits(logits, torch.arange(len(flat), device=logits.device), asked)["logprob"]
    return np.split(found, np.cumsum([len(w) for w in where])[:-1])
