"""Membership inference: scores by which an attacker would tell trained-on text from fresh text.

For every attack a higher score means less member-like, so that AUC(forget = 0, holdout = 1) is 1 when the model
still knows the forget set, 0.5 when an attacker cannot tell, below 0.5 when it looks stranger than fresh text.
"""

from __future__ import annotations

import zlib

import numpy as np

from vestige.metrics.cards import metric
from vestige.metrics.memorisation import loss
from vestige.types import Array, TokenStats


@metric(knows="low", source="Yeom et al. 2018")
def mia_loss(t: TokenStats) -> Array:
    """The mean loss itself: members have a lower one."""
    return loss(t)


@metric(knows="low", source="Carlini et al. 2021")
def mia_zlib(t: TokenStats, text: str) -> Array:
    """Loss over the length of the zlib-compressed text: a low loss on text that is hard to compress is suspicious.

    >>> from vestige.types import stats
    >>> round(float(mia_zlib(stats(logprob=[-2.0]), "abc")), 4)
    0.1818
    """
    return loss(t) / len(zlib.compress(text.encode("utf-8")))


def _lowest_share(values: Array, k: float) -> Array:
    """Minus the mean of the max(1, int(k n)) smallest values."""
    n = values.shape[-1]
    if n == 0:
        return np.full(values.shape[:-1], np.nan)
    count = max(1, int(n * k))  # rounded down, as published: 0.4 of 7 tokens are 2
    # sort, not partition: NaN must come out as NaN, and partition would hide it behind the smallest
    smallest = np.sort(values.astype(np.float64), axis=-1)[..., :count]
    lowest = -smallest.mean(axis=-1)
    return np.where(np.isnan(values).any(axis=-1), np.nan, lowest)


@metric(knows="low", source="Shi et al. 2024")
def mia_min_k(t: TokenStats, k: float = 0.4) -> Array:
    """Minus the mean log-probability of the k least likely tokens: members have no very surprising token.

    >>> from vestige.types import stats
    >>> float(mia_min_k(stats(logprob=[-1.0, -5.0, -3.0]), k=0.7))
    4.0
    """
    return _lowest_share(t.logprob, k)


@metric(knows="low", source="Zhang et al. 2024")
def mia_min_k_plus_plus(t: TokenStats, k: float = 0.4) -> Array:
    """min-k on log-probabilities standardised by their mean and deviation over the vocabulary.

    >>> from vestige.types import stats
    >>> float(mia_min_k_plus_plus(stats(logprob=[-1.0, -5.0], mean=-3.0, std=2.0), k=0.5))
    1.0
    """
    # The floor on the deviation is part of the published definition (variance at least 1e-6).
    return _lowest_share((t.logprob - t.mean) / np.maximum(t.std, 1e-3), k)


@metric(knows="low", source="Mireshghallah et al. 2022")
def mia_reference(loss_of_model: Array, loss_of_reference: Array) -> Array:
    """Loss under the model minus loss under a reference model that never saw the text."""
    return np.asarray(loss_of_model) - np.asarray(loss_of_reference)


@metric(knows="low", source="Wang et al. 2024")
def mia_gradnorm(norm: float) -> float:
    """The mean norm of the loss's gradient per weight tensor: members pull less. Measured in collect/gradients."""
    return norm
