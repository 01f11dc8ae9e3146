"""The step axis of trajectories: a handler is called once for all steps, and says what it says of each step alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffusion_tools import save_lab_bert
from vestige.engine import stored
from vestige.engine.config import make_config
from vestige.engine.evaluate import evaluate_config
from vestige.engine.scores import Reference
from vestige.runs.run import read_manifest
from vestige.suites.registry import HANDLERS, Inputs
from vestige.types import BAD_LOGITS, Trace

DATA = Path(__file__).parents[1] / "golden" / "lab" / "data"
KEY = "eval.tofu_trajectory.metrics.trajectory_metrics"
CONFIG = f"{KEY}.trajectory_config"
STEPS, LENGTH, PLACES = 4, 8, 2 * 4  # views and trajectories
METRICS = (
    "{probability:{},probability_confidence_ordered:{},loss:{},exact_memorization:{},extraction_strength:{},"
    "decided:{handler:extraction_strength,order:decided},rouge:{},bleu:{},mia_loss:{},mia_zlib:{},mia_min_k:{},"
    "mia_min_k_plus_plus:{},privleak:{},rel:{handler:rel_diff,pre_compute:{mia_min_k:{access_key:forget}}},"
    "truth_ratio:{},ks_test:{},hm_aggregate:{}}"
)


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[None]:
    before = dict(HANDLERS)
    yield
    HANDLERS.clear()
    HANDLERS.update(before)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=256)


def run(bert: Path, out: Path, metrics: str = METRICS, *more: str) -> Any:
    said = [
        f"{CONFIG}.sampler_kwargs.steps={STEPS}", f"{CONFIG}.sampler_kwargs.max_new_tokens={LENGTH}",
        f"{CONFIG}.sampler_kwargs.trajectory_sample_interval=1", f"{KEY}.metrics={metrics}",
        f"+{CONFIG}.store_per_sample=true", "stats.resamples=0", *more,
    ]  # fmt: skip
    ask = {
        "suite": "tofu_trajectory",
        "model": str(bert),
        "data": str(DATA),
        "out": str(out),
        "limit": 3,
        "progress": False,
        "overrides": said,
    }
    evaluate_config(make_config(**ask))
    return json.loads((out / "TOFU_EVAL.json").read_text())["trajectory_metrics"]


@pytest.fixture(scope="module")
def finished(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(bert, out)
    return out


def counted(calls: Counter[str]) -> None:
    """Wraps every handler so that its calls are counted under the metric's name."""
    for name, kind in list(HANDLERS.items()):

        def call(inputs: Inputs, function: Any = kind.function) -> Any:
            calls[inputs.spec.name] += 1
            return function(inputs)

        HANDLERS[name] = replace(kind, function=call)


def scored(directory: Path) -> dict[str, Any]:
    """A finished run scored again, against itself as its retain model."""
    manifest = read_manifest(directory)
    suite = stored.suite_from_manifest(manifest)
    retain = Reference(json.loads((directory / "TOFU_EVAL.json").read_text()))
    metric = suite.metrics["trajectory_metrics"]
    assert metric.children is not None
    children = {
        name: replace(child, references=tuple(replace(r, path="retain") for r in child.references))
        for name, child in metric.children.metrics.items()
    }
    compared = tuple(replace(r, path="retain") for r in metric.references)
    metric = replace(metric, references=compared, children=replace(metric.children, metrics=children))
    suite = replace(suite, metrics={"trajectory_metrics": metric}, top=("trajectory_metrics",))
    dialect = stored.dialect_for(manifest, None, directory)
    return stored.stored_scores(directory, suite, dialect, {"retain": retain})["trajectory_metrics"].to_json()


def broken(passes: Mapping[int, int], every: int) -> Any:
    """Evidence in which some traces have NaN logits: pass -> position."""
    load = stored.load_evidence

    def doctored(directory: Path, manifest: Any) -> Any:
        evidence = load(directory, manifest)
        kept = dict(evidence.denoised.items())
        for key in sorted(kept)[::every]:
            kept[key] = _broken(kept[key], passes)
        return replace(evidence, denoised=kept)

    return doctored


def _broken(trace: Trace, passes: Mapping[int, int]) -> Trace:
    planes = {name: np.array(getattr(trace, name)) for name in ("top1", "mean", "std", "logprob")}
    for number, position in passes.items():
        planes["top1"][number, position] = -1
        for name in ("mean", "std", "logprob"):
            planes[name][..., number, position] = np.nan
    return replace(trace, **planes)


def same(a: Any, b: Any) -> bool:
    """Equal in everything, numbers up to the last bits."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-12, nan_ok=True)
    return bool(a == b)


@pytest.mark.parametrize("passes", [{}, {0: 1}, {2: 1}, dict.fromkeys(range(STEPS), 1)])
@pytest.mark.parametrize("every", [1, 3])
def test_all_steps_at_once_say_what_single_steps_say(
    finished: Path, passes: dict[int, int], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same handlers, once with the axis and once step by step, on whole and on broken logits."""
    monkeypatch.setattr(stored, "load_evidence", broken(passes, every))
    together = scored(finished)
    for name, kind in list(HANDLERS.items()):
        HANDLERS[name] = replace(kind, steps=False)
    calls: Counter[str] = Counter()
    counted(calls)
    apart = scored(finished)
    assert calls["probability"] == PLACES * STEPS  # so that this is another way
    assert set(together) == set(apart)
    for part in together:
        assert same(together[part], apart[part]), part
    if passes:
        assert BAD_LOGITS in json.dumps(together) or None in together["agg_value"]["full"]["steps"]["probability"]
