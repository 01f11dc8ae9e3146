"""Does a model that is to be scored from left to right look at later tokens?

Code that a checkpoint brings may attend to a whole block (block diffusion), and a configuration may make an encoder of
a decoder. Their log-probabilities read as those of a causal model say how well the model copies, not what it knows.
"""

from __future__ import annotations

from typing import Any

from vestige.errors import UserError
from vestige.models.checks import context_length

LENGTH = 23  # tokens of a row; they change from an odd place on, where no block of an even size ends
# Of the effect that the changed tokens have on their own places. Both rows go through the same products, so causal
# models gave exactly 0 in float32, float16 and bfloat16; random models that look ahead gave 0.008 to 1.2.
SHARE = 0.005
LEAST, LEAST_LOW_PRECISION = 1e-4, 1e-2  # rounding, where a quantised layer or an expert shares numbers between tokens


def check_causal(model: Any, name: str) -> None:
    """Refuses a model whose log-probabilities change when later tokens do. One forward over two short rows."""
    import torch

    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        return  # not a model of transformers
    vocabulary = getattr(config.get_text_config(), "vocab_size", 0)
    length = min(LENGTH, context_length(config.to_dict()) or LENGTH)
    cut = length // 2 | 1
    if vocabulary < 4 or length <= cut:
        return
    row = (torch.arange(length) * 7 + vocabulary // 3) % vocabulary
    other = row.clone()
    other[cut:] = (row[cut:] + vocabulary // 2) % vocabulary
    ids = torch.stack([row, other]).to(model.device)
    with torch.no_grad():  # not inference mode: what a model keeps from its first forward may be trained later
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    moved = (logprobs[0] - logprobs[1]).abs().mean(dim=-1)
    before, after = float(moved[:cut].max()), float(moved[cut:].mean())
    whole = logits.dtype in (torch.float32, torch.float64)
    least = LEAST if whole else LEAST_LOW_PRECISION
    if before > max(least, SHARE * after):
        raise UserError(
            f"'{name}' attends to later tokens: changing them changed the log-probabilities of earlier ones by "
            f"{before:.2g} on average, so they cannot be scored from left to right. If it is a causal model adapted to "
            "masked diffusion, say so with model.model_args.diffusion=adapted; block-diffusion models with code of "
            "their own cannot be evaluated."
        )
