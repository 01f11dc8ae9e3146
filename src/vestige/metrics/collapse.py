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
from math import comb, log
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


# ---- What RAGEN's 29 collapse numbers leave open: distinct prompts, exact chance, what is attainable, and chan
#
# Here every prompt is one column, however often it was sampled, so that the bound is log of the prompts there are.

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


# ---- Collapse numbers in words: a verdict, and the caveats that apply to the numbers at hand ----------------------

SIGNIFICANT = 0.05
STRONG = 0.5  # of the way from chance to certainty
NOISE = {"mi_estimate": 0.05, "mi_seq_estimate": 1.0}  # nats; below zero by less than this may be noise
EPS_SHARE = 10.0  # a spread below so many std_eps leaves the z-score to std_eps
FLAT = 0.1  # nats per token: hardly any choice left

CollapseNumbers = Mapping[str, float | None]
Spans = Mapping[str, tuple[float, float]]


def dependence(metrics: CollapseNumbers) -> str:
    """Across inputs: does the reasoning say which prompt it was written for?"""
    accuracy = metrics.get("retrieval_accuracy")
    chance = metrics.get("retrieval_chance_exact@1", metrics.get("retrieval_chance_level"))
    if accuracy is None or chance is None:
        return "cannot tell"
    if chance >= 1:
        return "cannot tell: there is only one prompt to choose from"
    p = _least(metrics.get("retrieval_null_p"), metrics.get("mi_seq_null_p"))
    share = (accuracy - chance) / (1 - chance)
    words = f"own prompt found for {accuracy:.0%} of rows, chance {chance:.0%}"
    if p is not None:
        words += f", p = {p:.2g}"
    if p is not None and p > SIGNIFICANT and 2 * (metrics.get("null_p_smallest") or 0) > SIGNIFICANT:
        return f"too few rows to tell ({words})"
    if p is not None and p > SIGNIFICANT:
        return f"no dependence on the prompt can be seen ({words})"
    if share >= STRONG:
        return f"reasoning depends on its prompt ({words})"
    if p is None and share <= 0:
        return f"no dependence on the prompt can be seen ({words})"
    return f"reasoning depends weakly on its prompt ({words})"


def _least(*values: float | None) -> float | None:
    """The smaller of two p-values, doubled for having looked twice."""
    known = [v for v in values if v is not None]
    return min(1.0, len(known) * min(known)) if known else None


def variability(metrics: CollapseNumbers) -> str:
    """Within one input: is there still a choice?"""
    entropy = metrics.get("conditional_entropy_est")
    if entropy is None:
        return "cannot tell"
    if entropy < FLAT:
        return f"nearly fixed text for each prompt ({entropy:.3f} nats per token)"
    return f"varies under one prompt ({entropy:.2f} nats per token)"


def verdict(metrics: CollapseNumbers) -> str:
    """Both quantities in one sentence."""
    return f"{dependence(metrics)}; {variability(metrics)}"


def caveats(metrics: CollapseNumbers, std_eps: float, spans: Spans | None = None) -> list[str]:
    """What must be known to read these numbers, only where it applies."""
    spans = spans or {}
    out = []
    out += _negative(metrics, spans)
    for variant in ("", "_seq"):
        spread = metrics.get(f"marginal_std{variant}")
        if spread is not None and spread < EPS_SHARE * std_eps:
            out.append(
                f"mi_zscore{variant} is dominated by std_eps (marginal_std{variant} is {spread:.2g}, "
                f"std_eps {std_eps:.2g}); read marginal_std{variant} and mi_estimate instead"
            )
    token, seq = metrics.get("mi_estimate"), metrics.get("mi_seq_estimate")
    if token is not None and seq is not None and token * seq < 0:
        out.append(
            f"mi_estimate ({token:.3g}) and mi_seq_estimate ({seq:.3g}) have different signs: only the latter "
            "estimates mutual information; the per-token one is a length-normalised score"
        )
    columns, prompts = metrics.get("n_columns"), metrics.get("n_prompts_distinct")
    if columns and prompts and prompts < columns:
        out.append(
            f"{columns:.0f} columns hold only {prompts:.0f} distinct prompts: at most "
            f"{metrics.get('mi_bound_attainable') or 0:.3g} nats can be reached, not mi_upper_bound"
        )
    return out


def _negative(metrics: CollapseNumbers, spans: Spans) -> list[str]:
    """Below zero: noise if a little, a sign of foreign text if surely and by much."""
    out = []
    for name in ("mi_estimate", "mi_seq_estimate"):
        value = metrics.get(name)
        if value is None or value >= 0:
            continue
        if value > -NOISE[name]:
            out.append(
                f"{name} is {value:.3g}: a small negative value is noise around no dependence, "
                "not a violation of information theory"
            )
        elif name == "mi_seq_estimate" and name in spans and spans[name][1] < 0:
            out.append(
                f"{name} is {value:.3g}, surely below zero: the reasoning is unlikely under its own prompts, so this "
                "model probably did not write it"
            )
    return out
