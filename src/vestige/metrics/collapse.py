"""Does reasoning still depend on its input? Functions of one matrix: every reasoning under every prompt.

    S[i, j] = log p(reasoning i | prompt j)        M[i, j] = S[i, j] / tokens of reasoning i

Two questions are asked of it. How much does reasoning vary under one prompt (conditional entropy)? And how much of it
depends on which prompt it was (mutual information, and whether the own prompt can be found again)?

The 29 numbers of `label_metrics` are RAGEN's, definition for definition. What they leave open is in collapse_extras.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vestige.errors import UserError
from vestige.types import Array

TOP_K = (2, 4, 8)
FIRST_TURN, TRAJECTORY, TURN = "collapse_first_turn_sample", "collapse_trajectory_sample", "collapse_turn_sample"
LABELS = (FIRST_TURN, TRAJECTORY, TURN)
_RETRIEVAL = ("retrieval_accuracy", "retrieval_chance_level", "retrieval_above_chance")
SUFFIXES = (
    "mi_estimate", "mi_seq_estimate", "mi_upper_bound", "matched_log_prob_mean", "marginal_log_prob_mean",
    "conditional_entropy_est", "conditional_entropy_seq_est", "reasoning_entropy_est", "reasoning_entropy_seq_est",
    *(f"{name}{k}" for k in ("", "@2", "@4", "@8") for name in _RETRIEVAL),
    "marginal_std", "marginal_std_seq", "marginal_std_ema", "marginal_std_ema_seq",
    "mi_zscore", "mi_zscore_seq", "mi_zscore_ema", "mi_zscore_ema_seq",
)  # fmt: skip


@dataclass(frozen=True)
class Cross:
    """The matrix, and who belongs to whom."""

    sums: Array  # (rows, columns) log-probability of a whole reasoning under a prompt
    lengths: Array  # (rows,) its tokens
    own: Array  # (rows,) the column of the prompt it was written for
    prompts: Array  # (columns,) equal numbers: the same prompt, token for token

    @property
    def means(self) -> Array:
        """Per token; an empty reasoning counts as one token."""
        return np.asarray(self.sums, float) / np.maximum(self.lengths, 1)[:, None]

    @property
    def own_prompt(self) -> Array:
        found: Array = np.asarray(self.prompts)[self.own]
        return found

    @property
    def copies(self) -> Array:
        """For each row, how many columns hold its own prompt."""
        found: Array = (np.asarray(self.prompts)[None, :] == self.own_prompt[:, None]).sum(axis=1)
        return found

    def distinct(self) -> Cross:
        """The same rows with every prompt once, in the order of first appearance."""
        names, first = np.unique(self.prompts, return_index=True)
        order = np.argsort(first)
        place = {int(names[o]): n for n, o in enumerate(order)}
        own = np.asarray([place[int(p)] for p in self.own_prompt], np.int64)
        return Cross(np.asarray(self.sums)[:, first[order]], self.lengths, own, np.arange(len(order)))


def cross_of(sums: Any, lengths: Any, own: Any, prompts: Any) -> Cross:
    """A Cross from lists, with prompts given as anything that can be compared (token tuples, texts)."""
    numbers: dict[Any, int] = {}
    named = [numbers.setdefault(tuple(p) if isinstance(p, list) else p, len(numbers)) for p in prompts]
    return Cross(np.asarray(sums, float), np.asarray(lengths), np.asarray(own, np.int64), np.asarray(named))


def matched(a: Array, own: Array) -> Array:
    """Each row's value under its own prompt."""
    found: Array = np.asarray(a)[np.arange(len(a)), own]
    return found


def marginal(a: Array) -> Array:
    """log of the mean over columns of exp(a): the log-probability under a prompt drawn at random.

    >>> marginal(np.log([[0.5, 0.25]])).round(4)  # log 0.375
    array([-0.9808])
    """
    top = np.max(a, axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total: Array = np.log(np.exp(a - top).sum(axis=1)) + top[:, 0] - math.log(a.shape[1])
    return total


def information(cross: Cross) -> dict[str, float]:
    """Mutual information and the two entropies it is the difference of, per token and per sequence."""
    means = cross.means
    own, mix = matched(means, cross.own), marginal(means)
    own_seq, mix_seq = matched(cross.sums, cross.own), marginal(cross.sums)
    return {
        "matched_log_prob_mean": float(own.mean()),
        "marginal_log_prob_mean": float(mix.mean()),
        "mi_estimate": float(own.mean() - mix.mean()),
        "mi_seq_estimate": float((own_seq - mix_seq).mean()),
        "mi_upper_bound": math.log(cross.sums.shape[1]),
        "conditional_entropy_est": float(-own.mean()),
        "conditional_entropy_seq_est": float(-own_seq.mean()),
        "reasoning_entropy_est": float(-mix.mean()),
        "reasoning_entropy_seq_est": float(-mix_seq.mean()),
    }


def retrieval(cross: Cross) -> dict[str, float]:
    """How often the own prompt is among the k columns that find a reasoning likeliest.

    Columns with the same prompt are equally right. The chance level for k > 1 is RAGEN's union bound; the exact one is
    in collapse_extras.py.
    """
    order = np.argsort(-cross.means, axis=1, kind="stable")  # the first column wins a tie
    right = np.asarray(cross.prompts)[order] == cross.own_prompt[:, None]
    columns = cross.sums.shape[1]
    chance = float((cross.copies / columns).mean())
    out: dict[str, float] = {}
    for k, suffix in ((1, ""), *((k, f"@{k}") for k in TOP_K)):
        used = min(k, columns)
        accuracy = float(right[:, :used].any(axis=1).mean())
        level = min(1.0, chance * used)
        out |= {f"retrieval_accuracy{suffix}": accuracy, f"retrieval_chance_level{suffix}": level}
        out[f"retrieval_above_chance{suffix}"] = accuracy - level
    return out


@dataclass
class Ema:
    """Running means of the marginal's spread, one per label and variant; they outlive a restart as JSON."""

    decay: float = 0.9
    per_token: dict[str, float] = field(default_factory=dict)
    per_seq: dict[str, float] = field(default_factory=dict)

    def update(self, label: str, spread: float, spread_seq: float) -> tuple[float, float]:
        """The first value stands for itself; every later one moves the mean by 1 - decay."""
        for values, new in ((self.per_token, spread), (self.per_seq, spread_seq)):
            old = values.get(label)
            values[label] = new if old is None else self.decay * old + (1 - self.decay) * new
        return self.per_token[label], self.per_seq[label]

    def to_json(self) -> dict[str, Any]:
        return {"decay": self.decay, "per_token": dict(self.per_token), "per_seq": dict(self.per_seq)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ema:
        try:
            tables = [{str(k): float(v) for k, v in data[name].items()} for name in ("per_token", "per_seq")]
            return cls(float(data.get("decay", 0.9)), *tables)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError("The EMA state must hold per_token and per_seq, each label -> number; delete it.") from None


def normalised(cross: Cross, label: str, ema: Ema, std_eps: float) -> dict[str, float]:
    """Mutual information in units of the marginal's spread, of this batch and of its running mean."""
    out: dict[str, float] = {}
    gains, spreads = [], []
    for a in (cross.means, np.asarray(cross.sums, float)):
        mix = marginal(a)
        gains.append(matched(a, cross.own) - mix)
        spreads.append(float(np.std(mix)))
    smoothed = ema.update(label, *spreads)
    for variant, gain, spread, smooth in zip(("", "_seq"), gains, spreads, smoothed, strict=True):
        out[f"marginal_std{variant}"] = spread
        out[f"marginal_std_ema{variant}"] = smooth
        out[f"mi_zscore{variant}"] = float((gain / (spread + std_eps)).mean())
        out[f"mi_zscore_ema{variant}"] = float((gain / (smooth + std_eps)).mean())
    return out


def label_metrics(cross: Cross, label: str, ema: Ema, std_eps: float = 1e-3) -> dict[str, float]:
    """All 29 suffixes of one label. The running means advance by this call."""
    return {**information(cross), **retrieval(cross), **normalised(cross, label, ema, std_eps)}


def row_table(cross: Cross) -> list[dict[str, Any]]:
    """For each row what lets a reader see a template: where its own prompt ranks, and which prompt beats it.

    Prompts are counted once each. Rank 0: no other prompt finds the reasoning likelier.
    """
    one = cross.distinct()
    means = one.means
    own, mix = matched(means, one.own), marginal(means)
    own_seq, mix_seq = matched(one.sums, one.own), marginal(one.sums)
    rank = (means > own[:, None]).sum(axis=1)
    others = np.where(np.arange(means.shape[1])[None, :] == one.own[:, None], -np.inf, means)
    best = np.argmax(others, axis=1)
    alone = means.shape[1] == 1
    return [
        {
            "prompt": int(one.own[i]),
            "tokens": int(one.lengths[i]),
            "matched": float(own_seq[i]),
            "marginal": float(mix_seq[i]),
            "pointwise_mi_seq": float(own_seq[i] - mix_seq[i]),
            "pointwise_mi": float(own[i] - mix[i]),
            "rank_of_own_prompt": int(rank[i]),
            "best_other_prompt": None if alone else int(best[i]),
            "best_other": None if alone else float(one.sums[i, best[i]]),
        }
        for i in range(len(means))
    ]


def should_compute(step: int, compute_freq: int, enabled: bool = True) -> bool:
    """Never at step 0, always at step 1, then at multiples.

    >>> [s for s in range(12) if should_compute(s, 5)]
    [1, 5, 10]
    """
    return enabled and step > 0 and (step == 1 or step % compute_freq == 0)


def coverage(valid_turns: Sequence[int], all_turns: Sequence[int]) -> dict[str, float]:
    """The share of turns that have reasoning, if there are any turns."""
    total = sum(all_turns)
    return {"collapse/valid_thinking_rate": sum(valid_turns) / total} if total else {}


def first_turn_coverage(lengths: Sequence[int]) -> dict[str, float]:
    """How many first turns have reasoning."""
    valid = sum(n > 0 for n in lengths)
    return {
        "collapse/first_turn_num_total": len(lengths),
        "collapse/first_turn_num_valid": valid,
        "collapse/first_turn_valid_rate": valid / len(lengths) if lengths else 0.0,
    }
