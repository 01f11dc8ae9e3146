"""Texts out of a sampler's windows: how one is asked for, and where it ends. No model runs here.

In: a Request, or the ids of a finished window. Out: the DenoiseWant that makes it, or its ids up to the end. Callers:
collect/diffusion.py, costs/estimate.py, integrations/lm_eval_diffusion.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vestige.types import Prompt
from vestige.wants import DenoiseWant, Denoising, Request

MOST_STEPS = 128  # of texts: one token a pass up to this many, then several


def text_want(request: Request, defaults: Mapping[str, Any]) -> DenoiseWant:
    """How a text is asked of a sampler: one token a pass, up to a limit.

    `defaults` are the model's own settings, which those of the request (its generation_args) replace.
    """
    decoding = request.decoding
    said: dict[str, Any] = {
        "max_new_tokens": decoding.max_new_tokens,
        "steps": min(decoding.max_new_tokens, MOST_STEPS),
        "temperature": 0.0 if decoding.greedy else decoding.temperature,
        "seed": 0 if decoding.greedy else decoding.seed,
        **defaults,
    }
    sampler = dict(decoding.sampler)
    if "steps" in sampler:  # they are shared by all blocks
        said.pop("steps_per_block", None)
    return DenoiseWant(Prompt(request.prompt.ids), (), Denoising(**{**said, **sampler}))


def until_end(ids: list[int], eos: Sequence[int]) -> list[int]:
    """Up to the first end token, that one included.

    >>> until_end([5, 2, 2], eos=[2])
    [5, 2]
    """
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in eos), ids)
