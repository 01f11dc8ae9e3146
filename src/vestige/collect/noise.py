"""How far two ways to the same log-probabilities may differ before one of them is wrong.

In float32 that is a constant: rounding is far below what a wrong mask or position does. In bfloat16 it is not: a logit
of 20 is rounded to steps of 0.125, and the plain way itself moves when rows share a batch. So the fast way is judged
against that: the same rows, plain, alone and together. The mean over all labels is used, because few labels (a short
answer) say little.

In: a model, Targets with their plain log-probabilities. Out: how far a fast way may be off. Callers: answers.py,
cross.py, patch.py and staircase.py of this room, each before it trusts its fast way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vestige.collect.forward import score_plain
from vestige.models.four_bit import precision
from vestige.types import Array, Target

# A mean over labels; a wrong mask or position is off by far more.
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
LOW_PRECISION_TOLERANCE = 0.05
# Beyond this the plain way is too far from itself to judge anything by.
CEILING = 0.5


def exact(model: Any) -> bool:
    """Whether rounding is small enough for a constant."""
    return precision(model) in TOLERANCE


def tolerance(model: Any) -> float:
    return TOLERANCE.get(precision(model), LOW_PRECISION_TOLERANCE)


def allowed(model: Any, noise: float, labels: int) -> float:
    """How far the mean over `labels` may be off, where the plain way moves by `noise` on average.

    Twice the noise, because both ways have it, and more where the mean is one of few.
    """
    if exact(model):
        return tolerance(model)
    bound = noise * (2 + 4 / math.sqrt(max(1, labels))) if math.isfinite(noise) else 0.0
    return max(LOW_PRECISION_TOLERANCE, min(bound, CEILING))


def batch_noise(model: Any, targets: Sequence[Target], alone: Sequence[Array]) -> float:
    """The mean change of plain log-probabilities when the targets share one padded batch; 0 where it is not needed."""
    if exact(model) or not targets:
        return 0.0
    together = score_plain(model, targets)
    return float(np.mean(np.abs(np.concatenate([together[i].logprob - a for i, a in enumerate(alone)]))))
