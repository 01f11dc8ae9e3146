"""The same numbers in another order: the same sum, to the last bit, wherever it ends in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from vestige import numeric
from vestige.meta.axes import guarded_mean, plain_mean
from vestige.metrics.depth import LayerScore, weighted
from vestige.metrics.memorisation import loss
from vestige.metrics.trajectory import distribution
from vestige.runs.files import write_json
from vestige.stats import bootstrap, vectors
from vestige.suites import handlers  # noqa: F401 - registers them
from vestige.suites.handlers.common import mean_score, row_mean
from vestige.suites.spec import Named, read_suite
from vestige.types import stats

Values = list[float]


def _layers(values: Values) -> float | None:
    return weighted({i: LayerScore(v, 1 / (1 + v)) for i, v in enumerate(values)})


def _interval(values: Values) -> list[float]:
    rows = bootstrap.Sample("g", tuple(str(int(1e6 * v)) for v in values), np.asarray(values))
    return bootstrap.Resampler([rows], 20).draws({"x": bootstrap.mean(rows)})["x"].tolist()


REDUCTIONS: dict[str, Callable[[Values], Any]] = {
    "total": numeric.total,
    "mean": numeric.mean,
    "spread": numeric.spread,
    "harmonic_mean": vectors.harmonic_mean,
    "guarded_mean": guarded_mean,
    "plain_mean": plain_mean,
    "rows": lambda v: mean_score({str(i): {"score": x} for i, x in enumerate(v)}, "score").agg_value,
    "answers": lambda v: row_mean({"score": v}, "score"),
    "layers": _layers,
    "steps": lambda v: {k: a.tolist() for k, a in distribution([[x, x / 3] for x in v]).items()},
    "resampled": _interval,
}


@pytest.mark.processors
@pytest.mark.parametrize("name", REDUCTIONS)
def test_order_does_not_matter(name: str) -> None:
    draw = Random(7)
    values = [draw.random() for _ in range(41)]
    found = {json.dumps(REDUCTIONS[name](draw.sample(values, len(values)))) for _ in range(50)}
    assert len(found) == 1


def test_sums_say_what_addition_would() -> None:
    assert math.isnan(numeric.mean([])) and math.isnan(numeric.total([1.0, math.nan]))
    assert math.isnan(numeric.total([math.inf, -math.inf])) and numeric.total([math.inf, 1.0]) == math.inf
    with np.errstate(over="ignore"):
        assert numeric.total([1e308, 1e308]) == math.inf and numeric.total([-1e308, -1e308]) == -math.inf


def test_how_an_array_lies_in_memory_does_not_matter() -> None:
    """Steps by tokens, read from disk or cut out of something larger."""
    table = np.random.default_rng(0).normal(-2, 1, (3, 200)).astype(np.float32)
    across = np.asfortranarray(table)
    a, b = (loss(stats(logprob=x)) for x in (table, across))
    assert a.tolist() == b.tolist()


def test_a_manifest_gives_parents_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    """Keys are sorted in the file; a suite read from it must meet the same parents in the same order."""
    leaf = {"handler": "probability", "datasets": {"d": {"handler": "QADataset"}}}
    parents = ("wf", "retain", "ra", "aa")
    metrics = {
        **dict.fromkeys(parents, leaf),
        "u": {"handler": "hm_aggregate", "pre_compute": {p: {} for p in parents}},
    }
    write_json(tmp_path / "manifest.json", metrics)
    stored = json.loads((tmp_path / "manifest.json").read_text())
    first, second = (read_suite("s", {"metrics": m}, Named(m), only=["u"]) for m in (metrics, stored))
    assert list(first.metrics["u"].parents) == list(second.metrics["u"].parents)
    assert list(first.metrics) == list(second.metrics)
