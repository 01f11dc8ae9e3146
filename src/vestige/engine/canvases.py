"""DiffusionGemma in a run: its own sampler where a suite names none; and what diffusion models have no value for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vestige.engine.config import RunConfig
from vestige.models.canvas import NO_LIKELIHOOD, SAMPLER, Canvases
from vestige.models.diffusion import NO_DEPTH
from vestige.suites.spec import MetricSpec
from vestige.suites.trajectory import HANDLER
from vestige.wants import Wants


def with_own_sampler(config: RunConfig, canvases: Canvases | None) -> RunConfig:
    """The configuration with every setting of the sampler said: evidence and manifest then name what was used."""
    if canvases is None:
        return config
    metrics = {name: _filled(spec, canvases) for name, spec in config.suite.metrics.items()}
    return replace(config, suite=replace(config.suite, metrics=metrics))


def _filled(spec: MetricSpec, canvases: Canvases) -> MetricSpec:
    given = spec.params.get("trajectory_config") or {}
    if spec.handler != HANDLER or not isinstance(given, dict):
        return spec
    said = {k: v for k, v in dict(given.get("sampler_kwargs") or {}).items() if v is not None}
    own: dict[str, Any] = {"sampler": SAMPLER, **canvases.sampling}
    if "steps" in said:  # a number of passes for the whole window is shared by its canvases
        own.pop("steps_per_block")
    body = {**given, "sampler_kwargs": {**own, **said}}
    return replace(spec, params={**spec.params, "trajectory_config": body})


def out_of_reach(wants: Wants, canvases: Canvases | None, diffusion: bool = False) -> str:
    """Why a model of this kind cannot give what a metric wants; empty: it can."""
    needs = wants.answers or wants.visible or wants.gradients or wants.patched
    if canvases is not None and needs:
        return NO_LIKELIHOOD
    return NO_DEPTH if diffusion and wants.patched else ""
