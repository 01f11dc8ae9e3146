"""Faithfulness: does a metric tell models that know (pool P) from models that do not (pool N)?

Values are m, a metric turned so that high means "knows" (names.Direction). The AUC is the chance that a model of P has
a higher m than a model of N, ties counting half: 1 is always right, 0.5 a coin, below 0.5 the wrong way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vestige.meta.pools import ModelNumbers, Pools, as_m, choose_metrics, same_protocol
from vestige.metrics.cards import Direction
from vestige.numeric import mean
from vestige.runs.run import Number
from vestige.stats import bootstrap, vectors
from vestige.types import Array

RESAMPLES = 2000
Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Threshold:
    """The cut that sorts most models into their pools: above it is P."""

    m: float
    accuracy: float
    interval: Interval = None
    note: str = ""


@dataclass(frozen=True)
class Faithfulness:
    """One metric on two pools. None with a reason where a number is missing."""

    auc: float | None
    n_p: int  # models with a value
    n_n: int
    interval: Interval = None
    threshold: Threshold | None = None
    missing: tuple[str, ...] = ()  # models without a value
    reason: str = ""
    notes: tuple[str, ...] = field(default=())


def faithfulness(
    positive: Mapping[str, float | None],
    negative: Mapping[str, float | None],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Faithfulness:
    """AUC, its interval and the best threshold, from each model's m. Models without a value are left out, by name.

    >>> f = faithfulness({"a": 0.9, "b": 0.6}, {"c": 0.1, "d": 0.4, "e": None}, resamples=0)
    >>> f.auc, f.threshold.m, f.missing
    (1.0, 0.5, ('e',))
    """
    pools = {"P": positive, "N": negative}
    values = {pool: [v for v in ms.values() if v is not None and np.isfinite(v)] for pool, ms in pools.items()}
    p, n = np.array(values["P"], float), np.array(values["N"], float)
    missing = tuple(name for ms in pools.values() for name, v in ms.items() if v is None or not np.isfinite(v))
    if empty := [pool for pool in pools if not values[pool]]:
        reason = f"no model of pool {' and '.join(empty)} has a value"
        return Faithfulness(None, len(p), len(n), missing=missing, reason=reason)
    high, low = bootstrap.sample(p, "P"), bootstrap.sample(n, "N")
    cuts = candidates(p, n)
    statistics: dict[str, bootstrap.Statistic] = {"auc": bootstrap.auc(low, high)}
    if len(cuts):
        statistics["cut"] = lambda counts: best_cuts(cuts, p, n, counts(high), counts(low))
    intervals: dict[str, Interval] = {}
    # With one model on a side there is nothing to resample: an interval would claim certainty.
    fewest = min(len(p), len(n))
    if resamples and fewest > 1:
        draws = bootstrap.Resampler([high, low], resamples, seed).draws(statistics)
        intervals = {name: bootstrap.interval(drawn, fewest) for name, drawn in draws.items()}
    auc = vectors.auc(n, p)
    notes = []
    # Not turned round: which end means "knows" is part of a metric's definition.
    if auc < 0.5:
        notes.append(f"AUC below 0.5 ({auc:.3f}): the metric points the wrong way on these pools")
    if not len(cuts):
        notes.append("every model has the same value: no threshold")
    best = threshold(p, n, intervals.get("cut"))
    return Faithfulness(auc, len(p), len(n), intervals.get("auc"), best, missing, notes=tuple(notes))


def candidates(p: Array, n: Array) -> Array:
    """The cuts that can be told apart: midway between neighbouring distinct values."""
    # Between two neighbours every cut sorts alike; the midpoint is the published choice.
    both = np.unique(np.concatenate([p, n]))
    return np.asarray((both[1:] + both[:-1]) / 2)


def best_cuts(cuts: Array, p: Array, n: Array, times_p: Array, times_n: Array) -> Array:
    """For each resampling the cut that sorts most models rightly; the lowest of equals."""
    # Right are models of P above the cut and models of N at or below it, counted with the resampling's weights.
    above = times_p.sum(axis=-1, keepdims=True) - vectors.counts_up_to(p, times_p, cuts)
    right = above + vectors.counts_up_to(n, times_n, cuts)
    return np.asarray(cuts[np.argmax(right, axis=-1)])


def threshold(p: Sequence[float] | Array, n: Sequence[float] | Array, interval: Interval = None) -> Threshold | None:
    """The most accurate cut: P above, N at or below. Midpoints only; the lowest of equals; None if all are alike.

    >>> threshold([0.8, 0.4], [0.2, 0.4])  # 0.3 and 0.6 both sort three of four rightly
    Threshold(m=0.30000000000000004, accuracy=0.75, interval=None, note='')
    """
    high, low = np.asarray(p, float), np.asarray(n, float)
    cuts = candidates(high, low)
    if not len(cuts):
        return None
    m = float(best_cuts(cuts, high, low, np.ones((1, len(high))), np.ones((1, len(low))))[0])
    accuracy = float(((high > m).sum() + (low <= m).sum()) / (len(high) + len(low)))
    # A cut that is no better than a guess is kept, with a note: published tables have a threshold for every metric.
    guess = max(len(high), len(low)) / (len(high) + len(low))
    note = "" if accuracy > guess else "no better than calling every model by the larger pool's name"
    return Threshold(m, accuracy, interval, note)


# ---- every metric of two pools -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedPools:
    """Every metric's entry in meta_eval.json and in optimal_thresholds.json, and the metrics left alone."""

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)  # metric -> why


def judge_pools(pools: Pools, metrics: Sequence[str] | None = None, resamples: int = RESAMPLES) -> JudgedPools:
    """Faithfulness of these metrics; None stands for every metric with a known direction."""
    chosen, skipped = choose_metrics([*pools.positive, *pools.negative], metrics, pools.metrics)
    entries, thresholds = {}, {}
    for metric, direction in chosen.items():
        p, n = _numbers(pools.positive, metric), _numbers(pools.negative, metric)
        protocol = same_protocol({**p, **n}, metric)
        p_m, n_m = as_m(p, direction, metric), as_m(n, direction, metric)
        result = faithfulness(p_m, n_m, resamples)
        cut = result.threshold
        entry = {
            "auc_roc": result.auc,
            "auc_interval": result.interval,
            "p_mean": _mean(p),  # of the metric as it is, not of m
            "n_mean": _mean(n),
            "n_p": result.n_p,
            "n_n": result.n_n,
            "knows": direction.knows,
            "m": direction.space,
            "direction_from": direction.said_by,
            "protocol": protocol,
            "threshold_m": cut.m if cut else None,
            "accuracy": cut.accuracy if cut else None,
            "pools": {"p": p_m, "n": n_m},
        }
        more = {"missing": list(result.missing), "reason": result.reason, "notes": list(result.notes)}
        entries[metric] = {**entry, **{key: value for key, value in more.items() if value}}
        if cut is not None:
            thresholds[metric] = _threshold_entry(cut, direction, protocol)
    return JudgedPools(entries, thresholds, skipped)


def _numbers(pool: Sequence[ModelNumbers], metric: str) -> dict[str, Number]:
    return {model.name: model.numbers.get(metric, Number(None)) for model in pool}


def _mean(numbers: Mapping[str, Number]) -> float | None:
    values = [n.value for n in numbers.values() if n.value is not None]
    return mean(values) if values else None


def _threshold_entry(cut: Threshold, direction: Direction, protocol: str) -> dict[str, Any]:
    """A threshold in the metric's own values, and which side is kept."""
    out: dict[str, Any] = {
        "threshold": direction.raw(cut.m),
        "threshold_m": cut.m,
        "m": direction.space,
        "interval_m": cut.interval,
        "accuracy": cut.accuracy,
        "protocol": protocol,
    }
    if direction.knows in ("high", "low"):  # otherwise kept is what has a low m, on neither side of the value
        out["p_higher"] = direction.knows == "high"
        out["direction"] = "keep_below" if direction.knows == "high" else "keep_above"
    if cut.note:
        out["note"] = cut.note
    return out
