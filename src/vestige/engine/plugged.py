"""Metrics of plug-ins that run a model themselves: with the run's model, or with a step of its denoising path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vestige.engine.handles import LateModel, ModelHandle
from vestige.engine.prepare import Prepared
from vestige.engine.scores import Live
from vestige.suites.registry import HANDLERS, AtStep
from vestige.suites.spec import MetricSpec
from vestige.types import Score

References = Mapping[str, Mapping[str, Score | None]]


def run_with_model(prepared: Prepared, model: ModelHandle, batch_size: int) -> Live:
    from vestige.integrations.open_unlearning import run_live

    def live(spec: MetricSpec, parents: Mapping[str, Score], references: References) -> Score:
        data = prepared.data(spec.name)
        return run_live(HANDLERS[spec.handler], spec, model.get(), data, parents, references, batch_size)

    return live


def run_at_steps(prepared: Prepared, model: ModelHandle, tokenizer: Any, batch_size: int) -> AtStep:
    """Inside a trajectory: each step's logits are the metric's model."""
    from vestige.collect.diffusion import predictor_of
    from vestige.collect.step_logits import Windows
    from vestige.integrations.step_model import run_at_step

    windows = Windows(prepared.wants.denoised, lambda: predictor_of(model.get()))
    late = LateModel(model)

    def run(spec: MetricSpec, moment: Any, parents: Mapping[str, Score], references: References) -> Score:
        return run_at_step(spec, moment, windows, late, tokenizer, parents, references, batch_size)

    return run
