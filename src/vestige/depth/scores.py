"""From the examples of a depth run to the scores of a model, with intervals. No model runs here.

In: patched TokenStats (engine/patches.py). Out: depth scores by example, and their mean with an interval. Callers:
depth/run.py, and depth/kept.py for a finished run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vestige.metrics.depth import MEAN_ONLY, NO_KNOWLEDGE, ExampleDepth
from vestige.numeric import mean
from vestige.stats import bootstrap
from vestige.stats.clusters import cluster_mean
from vestige.types import BAD_LOGITS, Grouping, TokenStats

__all__ = [
    "MEAN_ONLY",
    "ROUNDING",
    "ExampleDepth",
    "cluster_facts",
    "cluster_of",
    "examples_of",
    "model_depth",
    "profile",
]

LOST, KEPT = "LOST", "KEPT"
# What scores move by in half precision (measured against float32): next to it a small threshold means nothing.
ROUNDING = {"bfloat16": 0.08, "float16": 0.01}


def status(drop: float, tau: float) -> str:
    return LOST if drop > tau else KEPT


def exact_match(stats: TokenStats) -> list[float]:
    """Share of entity tokens that are the first choice, for each patched layer."""
    return [float(x) for x in np.asarray(stats.hit, float).mean(axis=-1)[1:]]


Clusters = Mapping[str, str] | None  # example -> cluster; None: examples are independent


def model_depth(
    examples: Sequence[ExampleDepth], resamples: int = 2000, seed: int = 0, clusters: Clusters = None
) -> dict[str, Any]:
    """The model's score: the mean over examples that have one, with an interval; null with a reason if none has."""
    values = {e.index: e.uds for e in examples}
    good = {k: v for k, v in values.items() if v is not None}
    out: dict[str, Any] = {"uds": None, "interval": None, "unclipped": None, "n": len(good), "evaluable": len(values)}
    broken = [e.index for e in examples if e.broken]
    if broken:  # leaving these examples out would flatter a broken model
        out["reason"] = f"{BAD_LOGITS} on {len(broken)} of {len(examples)} rows (first: {broken[0]})"
        return out
    if not good:
        out["reason"] = NO_KNOWLEDGE if values else "no example could be evaluated"
        return out
    sample = bootstrap.Sample("rows", tuple(good), np.array(list(good.values())))
    out["uds"] = mean(sample.values)
    out["unclipped"] = mean(e.unclipped for e in examples if e.unclipped is not None)
    ends = _intervals({"uds": sample}, resamples, seed, clusters)["uds"]
    out["interval"] = None if ends is None else list(bootstrap.within_unit((ends[0], ends[1])))
    return out


def _intervals(
    samples: Mapping[str, bootstrap.Sample], resamples: int, seed: int, clusters: Clusters
) -> dict[str, list[float] | None]:
    """Intervals of means: examples are drawn, or clusters of them are the unit."""
    if not resamples:
        return dict.fromkeys(samples)
    if clusters is not None:
        found = {n: cluster_mean(s.values, [clusters.get(i, f"row {i}") for i in s.rows]) for n, s in samples.items()}
        ends = {name: spread.interval() for name, spread in found.items()}
    else:
        statistics = {name: bootstrap.mean(s) for name, s in samples.items()}
        draws = bootstrap.Resampler(list(samples.values()), resamples, seed).draws(statistics)
        ends = {name: bootstrap.interval(draws[name], len(s)) for name, s in samples.items()}
    return {name: None if e is None else list(e) for name, e in ends.items()}


def cluster_of(example: ExampleDepth, found: Grouping | None) -> dict[str, str]:
    """The cluster of one example, as its record has it."""
    return {"cluster": found.of[example.index]} if found and example.index in found.of else {}


def cluster_facts(examples: Sequence[ExampleDepth], found: Grouping | None) -> dict[str, Any]:
    """What a summary says of clusters, if its examples have some: the column, and how many there are."""
    if found is None:
        return {}
    count = len({found.of.get(e.index, f"row {e.index}") for e in examples if e.uds is not None})
    return {"cluster": found.by, "clusters": count}


def profile(
    examples: Sequence[ExampleDepth], resamples: int = 2000, seed: int = 0, clusters: Clusters = None
) -> list[dict[str, Any]]:
    """For each layer the mean drop of both stages over examples, with intervals: where the knowledge sits.

    Nothing when some example's logits are broken: a mean over the others would flatter a broken model.
    """
    if not examples or any(e.broken for e in examples):
        return []
    layers = examples[0].layers
    rows = tuple(e.index for e in examples)
    samples: dict[str, bootstrap.Sample] = {}
    for i, layer in enumerate(layers):
        for stage in ("s1", "s2"):
            values = np.array([getattr(e, f"{stage}_drops")[i] for e in examples])
            samples[f"{stage}-{layer}"] = bootstrap.Sample("rows", rows, values)
    ends = _intervals(samples, resamples, seed, clusters)
    out = []
    for i, layer in enumerate(layers):
        entry: dict[str, Any] = {"layer": layer}
        for stage in ("s1", "s2"):
            name = f"{stage}-{layer}"
            entry[f"{stage}_drop"] = mean(samples[name].values)
            entry[f"{stage}_interval"] = ends[name]
        entry["knowledge_examples"] = sum(bool(e.s1_drops[i] > e.tau) for e in examples)
        out.append(entry)
    return out


def examples_of(
    indices: Mapping[str, str],
    layers: Sequence[int],
    s1: Mapping[str, TokenStats],
    s2: Mapping[str, TokenStats],
    tau: float,
) -> list[ExampleDepth]:
    """One record per example; `indices` maps its index to the key of its evidence."""
    return [ExampleDepth(index, tuple(layers), s1[key], s2[key], tau) for index, key in indices.items()]
