"""Models that look their positions up in a learned table cannot read past its end."""

from __future__ import annotations

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
