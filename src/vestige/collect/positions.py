"""Models cannot read past the end of their tables: of tokens, and where they have one, of positions.

In: a model and the token ids it is about to get. Out: nothing, or a UserError that names the length. Callers: every
collector, before its first forward: an index error inside a model says nothing, and on a GPU it ends the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from vestige.errors import UserError

TABLES = {"wpe", "embed_positions", "position_embeddings"}  # what Hugging Face models call the table


def learned_positions(model: Any) -> int | None:
    """How many positions the table has; None for models that compute positions (rotary, ALiBi) and just degrade."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rsplit(".", 1)[-1] in TABLES:
            return int(module.num_embeddings) - int(getattr(module, "offset", 0))
    return None


SHORTER = "shorten those rows (max_length, fewer few-shot turns) or leave their data set out"


def check_fit(model: Any, tokens: int, what: str, advice: str = SHORTER) -> None:
    """Says what an index error deep in the model would not: the sequence is longer than the model can read."""
    positions = learned_positions(model)
    if positions is not None and tokens > positions:
        raise UserError(f"{what} is {tokens} tokens long, but this model has only {positions} positions; {advice}.")


def check_tokens(model: Any, sequences: Iterable[Sequence[int]]) -> None:
    """A tokenizer with more tokens than the model has rows: said before the model is asked for a row it lacks."""
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):  # models with code of their own need not say where their table is
        return
    highest = max((max(ids) for ids in sequences if len(ids)), default=0)
    if rows is not None and highest >= rows:
        raise UserError(
            f"The tokenizer gives token {highest}, but this model knows only tokens 0 to {rows - 1}; give the "
            "tokenizer that belongs to it (--tokenizer PATH), or resize the model's embeddings."
        )
