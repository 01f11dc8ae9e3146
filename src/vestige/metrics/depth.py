"""How deep unlearning went: scores of patched runs and of representations. 1 is like the retain model, 0 like the full.

Patched runs come as log-probabilities whose last axes are (1 + layers, tokens): row 0 is the full model as it is, the
others have one layer's states taken from another model. S1 takes them from the retain model, S2 from the unlearned one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vestige.metrics.cards import metric
from vestige.numeric import total
from vestige.types import Array, TokenStats

TAU = 0.05  # a layer counts when the retain model's states cost more than this, in nats per token
EPS = 1e-8
PAPER = "Unlearning Depth Score (gnueaj/unlearning-depth-score)"
TOP_SHARES = (0.01, 0.03, 0.05)
MASK_SHARES = (0.0001, 0.001, 0.01)


def layer_scores(stats: TokenStats) -> Array:
    """Mean log-probability of the entity tokens, for the clean run and each patched layer: (..., 1 + layers)."""
    return np.asarray(stats.logprob, np.float64).mean(axis=-1)


def drops(scores: Array) -> Array:
    """How far each patched layer falls below the clean run. What was missing in the source shows as a drop.

    >>> drops(np.array([-1.0, -3.0, -0.5])).tolist()
    [2.0, -0.5]
    """
    x = np.asarray(scores, np.float64)
    return np.asarray(x[..., :1] - x[..., 1:])


def knowledge_layers(s1: Array, tau: float = TAU) -> Array:
    """The layers that hold what the retain model lacks: its states cost more than tau there."""
    return np.asarray(np.asarray(s1) > tau)


@metric("low", PAPER)
def uds(s1: Array, s2: Array, tau: float = TAU) -> Array:
    """Share of the retain model's drop that the unlearned model shows too, over the layers that hold the knowledge.

    NaN where no layer does: such an example shows nothing, and 0 would mean "all still there".

    >>> float(uds(np.array([2.0, 1.0, 0.0]), np.array([1.0, 3.0, 5.0])))
    0.6666666666666666
    """
    return _share(s1, np.clip(s2, 0.0, np.maximum(s1, 0.0)), tau)


def unclipped(s1: Array, s2: Array, tau: float = TAU) -> Array:
    """The same share without cutting each layer to 0..1: above 1 means more was broken than the retain model lacks.

    >>> float(unclipped(np.array([2.0, 1.0, 0.0]), np.array([1.0, 3.0, 5.0])))
    1.3333333333333333
    """
    return _share(s1, np.asarray(s2, np.float64), tau)


def _share(s1: Array, part: Array, tau: float) -> Array:
    d1 = np.asarray(s1, np.float64)
    counts = knowledge_layers(d1, tau)
    total = np.where(counts, d1, 0.0).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(counts, part, 0.0).sum(axis=-1) / total
    return np.asarray(np.where(counts.any(axis=-1), share, np.nan))


# ---- representation baselines -------------------------------------------------------------------------------------


def cka(x: Array, y: Array) -> float:
    """Linear CKA of two sets of states (positions, width): 1 when they are the same up to rotation and scale.

    >>> x = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    >>> round(cka(x, -2 * x), 6)
    1.0
    """
    a, b = (np.asarray(m, np.float64) - np.asarray(m, np.float64).mean(axis=0) for m in (x, y))
    below = np.sqrt(_frobenius(a, a) * _frobenius(b, b))
    return 0.0 if below < EPS else float(_frobenius(a, b) / below)


def _frobenius(a: Array, b: Array) -> float:
    """||a^T b||^2, by whichever of the two Gram forms is smaller."""
    if a.shape[0] < a.shape[1]:
        return float(((a @ a.T) * (b @ b.T)).sum())
    return float(np.square(a.T @ b).sum())


@dataclass(frozen=True)
class LayerScore:
    """One layer's share of a representation baseline."""

    erasure: float
    weight: float


def weighted(layers: Mapping[int, LayerScore], eps: float = EPS) -> float | None:
    """The weighted mean over layers that have a weight; None when none has."""
    kept = [x for x in layers.values() if x.weight > eps]
    return total(x.weight * x.erasure for x in kept) / total(x.weight for x in kept) if kept else None


def cka_layer(full_retain: float, unlearned_retain: float) -> LayerScore:
    """How far the unlearned model has come from the full model's likeness to the retain model towards 1."""
    erasure = np.clip((unlearned_retain - full_retain) / (1 - full_retain + EPS), 0.0, 1.0)
    return LayerScore(float(erasure), max(1 - full_retain, 0.0))


def logit_lens(full: Array, retain: Array, unlearned: Array, tau: float = TAU) -> Array:
    """Score of each example from mean entity log-probabilities (examples, layers) read off by the full model's head."""
    lost, gone = (np.asarray(full, np.float64) - np.asarray(x, np.float64) for x in (retain, unlearned))
    counts = lost > tau
    ratio = lens_ratio(lost, gone)
    total = np.where(counts, lost, 0.0).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(counts, lost * ratio, 0.0).sum(axis=-1) / total
    return np.asarray(np.where(total > EPS, score, np.nan))


def lens_ratio(lost: Array, gone: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.clip(gone / (lost + EPS), 0.0, 1.0))


def masked_excess(full: Array, retain: Array, unlearned: Array, share: float) -> tuple[float, float]:
    """One block's Fisher information where the retain model's exceeds the full model's most (the top `share`).

    The retain model finds the entity surprising, so its gradients are large; unlearning should bring them back.
    Returned is what the full and the unlearned model lack of the retain model's.
    """
    mask = top_mask(np.maximum(retain - full, 0.0), share)
    base, theirs, ours = (float(np.asarray(f)[mask].mean(dtype=np.float64)) for f in (full, retain, unlearned))
    return theirs - base, theirs - ours


def plain_excess(full: Array, retain: Array, unlearned: Array, share: float | None = None) -> tuple[float, float]:
    """The same from one number per block: log(1 + mean), of all weights or of the top `share` of each model's own."""
    f, r, u = (fisher_level(x, share) for x in (full, retain, unlearned))
    return max(r - f, 0.0), max(r - u, 0.0)


def top_mask(values: Array, share: float) -> Array:
    """Indices of the largest `share` of the values, at least one."""
    count = max(1, int(len(values) * share))
    return np.argpartition(values, len(values) - count)[len(values) - count :]


def fisher_level(values: Array, share: float | None) -> float:
    chosen = values if share is None else np.asarray(values)[top_mask(values, share)]
    return float(np.log1p(np.asarray(chosen).mean(dtype=np.float64)))


def excess_scores(excess: Sequence[tuple[float, float]]) -> tuple[float | None, dict[int, LayerScore]]:
    """The score of all blocks from (full, unlearned) excesses: how much of the full model's gap is closed.

    Squared gradients can be tiny in every block, so the smallest excess that counts is never more than a small part of
    the largest.

    >>> excess_scores([(2.0, 1.0), (0.0, 5.0)])[0]
    0.5000000025
    """
    eps = min(EPS, 1e-5 * max((f for f, _ in excess), default=1.0))
    layers = {}
    for i, (full, unlearned) in enumerate(excess):
        gap = 0.0 if full <= eps else float(np.clip(unlearned / (full + eps), 0.0, 1.0))
        layers[i] = LayerScore(1 - gap, full)
    return weighted(layers, eps), layers


# ---- The depth of one example: both stages of patched evidence in, what they come to out --------------------------
#
# The one definition behind `vestige depth` (depth/scores.py) and the metric `uds` of a suite
# (suites/handlers/depth.py).

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
        return float(layer_scores(self.s1)[0])

    @property
    def s1_scores(self) -> Array:
        return layer_scores(self.s1)[1:]

    @property
    def s2_scores(self) -> Array:
        return layer_scores(self.s2)[1:]

    @property
    def s1_drops(self) -> Array:
        return self.full_score - self.s1_scores

    @property
    def s2_drops(self) -> Array:
        return self.full_score - self.s2_scores

    @property
    def knowledge_layers(self) -> list[int]:
        return self._named(knowledge_layers(self.s1_drops, self.tau))

    @property
    def erased_layers(self) -> list[int]:
        """Report only: knowledge layers at which the unlearned model's states cost more than the threshold, too."""
        both = knowledge_layers(self.s1_drops, self.tau) & knowledge_layers(self.s2_drops, self.tau)
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
        return None if self.broken else _number(uds(self.s1_drops, self.s2_drops, self.tau))

    @property
    def unclipped(self) -> float | None:
        return None if self.broken else _number(unclipped(self.s1_drops, self.s2_drops, self.tau))


def _number(x: Any) -> float | None:
    value = float(x)
    return None if math.isnan(value) else value
