"""What RAGEN's 29 collapse numbers leave open: distinct prompts, exact chance, what is attainable, and chance itself.

Here every prompt is one column, however often it was sampled, so that the bound is log of the prompts there are.
"""

from __future__ import annotations

from math import comb, log

import numpy as np

from vestige.metrics.collapse import TOP_K, Cross, marginal, matched
from vestige.types import Array

LEVEL = 0.95
RESAMPLES = 1000


def exact_chance(cross: Cross, k: int) -> float:
    """The expected top-k accuracy of a blind guess: 1 - C(N - c, k) / C(N, k), c columns holding the own prompt.

    >>> cross = Cross(np.zeros((1, 4)), np.ones(1), np.zeros(1, int), np.arange(4))
    >>> exact_chance(cross, 2)
    0.5
    """
    columns = cross.sums.shape[1]
    used = min(k, columns)
    return float(np.mean([1 - comb(columns - int(c), used) / comb(columns, used) for c in cross.copies]))


def balance(cross: Cross) -> Array:
    """Weights that make every prompt count the same, however many rows it has."""
    _, where, counts = np.unique(cross.own_prompt, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / (len(counts) * counts[where])
    return weights


def gains(cross: Cross) -> tuple[Array, Array]:
    """Pointwise information of each row, per token and per sequence, with every prompt once."""
    one = cross.distinct()
    return tuple(matched(a, one.own) - marginal(a) for a in (one.means, one.sums))  # type: ignore[return-value]


def extras(cross: Cross) -> dict[str, float]:
    """The counts, bounds and levels that follow from the matrix without chance."""
    token, seq = gains(cross)
    weights = balance(cross)
    out: dict[str, float] = {
        "n_rows": cross.sums.shape[0],
        "n_columns": cross.sums.shape[1],
        "n_prompts_distinct": len(np.unique(cross.prompts)),
        "mi_bound_attainable": float(np.mean([log(cross.sums.shape[1] / c) for c in cross.copies])),
        "mi_distinct_columns": float(token.mean()),
        "mi_seq_distinct_columns": float(seq.mean()),
        "mi_distinct_columns_prompt_balanced": float(token @ weights),
        "mi_seq_distinct_columns_prompt_balanced": float(seq @ weights),
    }
    return out | {f"retrieval_chance_exact@{k}": exact_chance(cross, k) for k in (1, *TOP_K)}


def _row_values(cross: Cross) -> dict[str, Array]:
    """Per-row values whose means are the numbers of the same name: an interval belongs to exactly one number."""
    means, sums = cross.means, np.asarray(cross.sums, float)
    best = np.asarray(cross.prompts)[np.argmax(means, axis=1)]
    token, seq = gains(cross)
    return {
        "mi_estimate": matched(means, cross.own) - marginal(means),
        "mi_seq_estimate": matched(sums, cross.own) - marginal(sums),
        "mi_distinct_columns": token,
        "mi_seq_distinct_columns": seq,
        "retrieval_accuracy": (best == cross.own_prompt).astype(float),
        "conditional_entropy_est": -matched(means, cross.own),
        "reasoning_entropy_est": -marginal(means),
    }


def intervals(cross: Cross, rng: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, tuple[float, float]]:
    """95 % intervals with prompts, not rows, drawn again: rows of one prompt are not independent.

    The mixture stays that of all prompts. With fewer than two prompts there is nothing to draw.
    """
    prompts, where = np.unique(cross.own_prompt, return_inverse=True)
    if len(prompts) < 2 or resamples < 1:
        return {}
    drawn = rng.multinomial(len(prompts), np.full(len(prompts), 1 / len(prompts)), size=resamples)
    weights = drawn[:, where].astype(float)
    weights /= weights.sum(axis=1, keepdims=True)
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    out = {}
    for name, values in _row_values(cross).items():
        low, high = np.quantile(weights @ values, tails)
        out[name] = (float(low), float(high))
    return out


def permutation_null(cross: Cross, rng: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, float]:
    """What the numbers are when rows are dealt to prompts at random, and how often that is at least as large."""
    one = cross.distinct()
    if one.sums.shape[1] < 2 or len(one.own) < 2 or resamples < 1:
        return {}
    dealt = rng.permuted(np.tile(one.own, (resamples, 1)), axis=1)
    rows = np.arange(len(one.own))
    mix = marginal(one.sums)
    best = np.argmax(one.means, axis=1)
    info = (one.sums[rows, dealt] - mix).mean(axis=1)
    found = (best[None, :] == dealt).mean(axis=1)
    seen_info, seen_found = float((one.sums[rows, one.own] - mix).mean()), float((best == one.own).mean())
    return {
        "mi_seq_null_mean": float(info.mean()),
        "mi_seq_null_p": _tail(info, seen_info),
        "retrieval_null_mean": float(found.mean()),
        "retrieval_null_p": _tail(found, seen_found),
        "null_p_smallest": smallest_p(one.own),
    }


def smallest_p(own: Array) -> float:
    """The smallest p-value there can be: one over the number of ways to deal the rows to the prompts.

    >>> smallest_p(np.asarray([0, 0, 1, 1]))  # six ways
    0.16666666666666666
    """
    left, ways = len(own), 1
    for count in np.unique(own, return_counts=True)[1].tolist():
        ways *= comb(left, count)
        left -= count
    return 1 / ways


def _tail(null: Array, seen: float) -> float:
    """The one-sided p-value; the observed dealing is one of the possible ones, so it is never 0."""
    slack = 1e-12 * max(1.0, abs(seen))  # the observed dealing, met again, must not be missed by rounding
    return float((1 + (null >= seen - slack).sum()) / (1 + len(null)))
