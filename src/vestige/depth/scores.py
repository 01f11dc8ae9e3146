"""From patched evidence to depth scores: one example, one model. No model runs here.

In: patched TokenStats (engine/patches.py). Out: depth scores by example, and their mean with an interval. Callers:
depth/run.py, and depth/kept.py for a finished run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vestige.compare import bootstrap
from vestige.metrics import depth
from vestige.sums import mean
from vestige.types import BAD_LOGITS, Array, TokenStats

LOST, KEPT = "LOST", "KEPT"
# What scores move by in half precision (measured against float32): next to it a small threshold means nothing.
ROUNDING = {"bfloat16": 0.08, "float16": 0.01}
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


def status(drop: float, tau: float) -> str:
    return LOST if drop > tau else KEPT


def exact_match(stats: TokenStats) -> list[float]:
    """Share of entity tokens that are the first choice, for each patched layer."""
    return [float(x) for x in np.asarray(stats.hit, float).mean(axis=-1)[1:]]


def model_depth(examples: Sequence[ExampleDepth], resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
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
    if resamples:
        draws = bootstrap.Resampler([sample], resamples, seed).draws({"uds": bootstrap.mean(sample)})["uds"]
        ends = bootstrap.interval(draws, len(sample))
        out["interval"] = None if ends is None else list(ends)
    return out


def profile(examples: Sequence[ExampleDepth], resamples: int = 2000, seed: int = 0) -> list[dict[str, Any]]:
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
    statistics = {name: bootstrap.mean(s) for name, s in samples.items()}
    draws = bootstrap.Resampler(list(samples.values()), resamples, seed).draws(statistics)
    out = []
    for i, layer in enumerate(layers):
        entry: dict[str, Any] = {"layer": layer}
        for stage in ("s1", "s2"):
            name = f"{stage}-{layer}"
            ends = bootstrap.interval(draws[name], len(rows)) if resamples else None
            entry[f"{stage}_drop"] = mean(samples[name].values)
            entry[f"{stage}_interval"] = None if ends is None else list(ends)
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
