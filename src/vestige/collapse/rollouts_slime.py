"""slime's debug rollouts: exact token ids, read with torch's weights-only loader."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_rows import integer, token_ids
from vestige.errors import UserError, named, reraise_ours
from vestige.guard import check_zip


def slime(path: Path) -> list[Rollout]:
    """The samples of one rollout file; tokens the environment wrote (loss_mask 0) part the turns."""
    import torch

    try:
        check_zip(path)
        data = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch names many causes, all of them: this is not such a file, or not a safe one
        reraise_ours(error, "torch", "zipfile")
        raise UserError(f"{path} cannot be read as plain data ({named(error)[:200]}).") from None
    samples = data.get("samples") if isinstance(data, Mapping) else None
    if not isinstance(samples, list) or not samples:
        raise UserError(f"{path} has no list of samples; it is not a slime rollout.")
    step = integer(data.get("rollout_id"), "rollout_id", str(path))
    return [r for n, s in enumerate(samples) for r in _turns(s, n, step, f"{path} sample {n + 1}")]


def _turns(sample: Any, number: int, step: int | None, where: str) -> list[Rollout]:
    if not isinstance(sample, Mapping):
        raise UserError(f"{where} is not a set of named fields.")
    tokens = token_ids(sample.get("tokens"), "tokens", where) or ()
    count = integer(sample.get("response_length"), "response_length", where) or 0
    if not 0 <= count <= len(tokens):
        raise UserError(f"{where}: response_length is {count}, but there are {len(tokens)} tokens.")
    index, group, reward = sample.get("index"), sample.get("group_index"), sample.get("reward")
    base: dict[str, Any] = {
        "trajectory": f"row {number}" if index is None else str(index),
        "group": None if group is None else str(group),
        "reward": float(reward) if isinstance(reward, (int, float)) else None,
        "step": step,
        "where": where,
    }
    start = len(tokens) - count
    if not count:
        return [Rollout(prompt_ids=tokens, **base)]
    mask = token_ids(sample.get("loss_mask"), "loss_mask", where) or (1,) * count
    if len(mask) != count:
        raise UserError(f"{where}: loss_mask has {len(mask)} places for {count} response tokens.")
    runs, at = [], start
    for own, places in groupby(mask):
        length = len(list(places))
        if own:
            runs.append((at, at + length))
        at += length
    return [Rollout(turn=t, prompt_ids=tokens[:a], response_ids=tokens[a:b], **base) for t, (a, b) in enumerate(runs)]
