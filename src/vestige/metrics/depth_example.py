"""The depth of one example: both stages of patched evidence in, what they come to out.

The one definition behind `vestige depth` (depth/scores.py) and the metric `uds` of a suite (suites/handlers/depth.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vestige.metrics import depth
from vestige.types import Array, TokenStats

MEAN_ONLY = -1  # the label of a stand-in: S1 that is known as the mean over an entity, not by token
NO_KNOWLEDGE = "at no layer do the retain model's states cost more than the threshold"


@dataclass(frozen=True)
class ExampleDepth:
    """One example: both stages by layer, and what they come to."""

    index: str
    layers: tuple[int, ...]
    s1: TokenStats
    s2: TokenStats
    tau: float

    @property
    def full_score(self) -> float:
        """From the S1 evidence: all drops of an example are measured from the same number."""
        return float(depth.layer_scores(self.s1)[0])

    @property
    def s1_scores(self) -> Array:
        return depth.layer_scores(self.s1)[1:]

    @property
    def s2_scores(self) -> Array:
        return depth.layer_scores(self.s2)[1:]

    @property
    def s1_drops(self) -> Array:
        return self.full_score - self.s1_scores

    @property
    def s2_drops(self) -> Array:
        return self.full_score - self.s2_scores

    @property
    def knowledge_layers(self) -> list[int]:
        return self._named(depth.knowledge_layers(self.s1_drops, self.tau))

    @property
    def erased_layers(self) -> list[int]:
        """Report only: knowledge layers at which the unlearned model's states cost more than the threshold, too."""
        both = depth.knowledge_layers(self.s1_drops, self.tau) & depth.knowledge_layers(self.s2_drops, self.tau)
        return self._named(both)

    def _named(self, mask: Array) -> list[int]:
        return [layer for layer, yes in zip(self.layers, mask, strict=True) if yes]

    @property
    def s1_by_token(self) -> bool:
        """Whether S1 is known for single tokens; not where a file gave its means (depth/given.py)."""
        return not bool((self.s1.label == MEAN_ONLY).all())

    @property
    def broken(self) -> bool:
        """Whether some layer's logits are NaN: then this example has no value, not even at other layers."""
        return bool(np.isnan(self.s1.logprob).any() or np.isnan(self.s2.logprob).any())

    @property
    def uds(self) -> float | None:
        return None if self.broken else _number(depth.uds(self.s1_drops, self.s2_drops, self.tau))

    @property
    def unclipped(self) -> float | None:
        return None if self.broken else _number(depth.unclipped(self.s1_drops, self.s2_drops, self.tau))


def _number(x: Any) -> float | None:
    value = float(x)
    return None if math.isnan(value) else value
