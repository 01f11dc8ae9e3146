"""The two handlers of denoising paths, by name. What they do is imported when a run has a trajectory to follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.suites.handlers.common import by_index, mean_score, one_stat, wants_answers
from vestige.suites.registry import DECIDED, TRAJECTORY, Inputs, handler
from vestige.suites.steps import Scored
from vestige.types import Rows, Score
from vestige.wants import Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec


@handler(DECIDED, wants_answers, steps=True, settings=("normalised",))
def extraction_strength_decided(inputs: Inputs) -> Scored:
    """Share of the denoising steps after which every token that was decided is right."""
    normalised = bool(inputs.spec.params.get("normalised", False))
    value = one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, normalised=normalised)})
    return mean_score(by_index(inputs.rows, value), "score")


def wants_trajectory(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    from vestige.suites.handlers.trajectory_scores import denoised_wants

    return denoised_wants(spec, data, dialect)


@handler(
    TRAJECTORY,
    wants_trajectory,
    settings=("metrics", "trajectory_config", "include_metrics", "store_per_sample", "legacy_flat"),
)
def trajectory_metrics(inputs: Inputs) -> Score:
    """Metrics at each step of a diffusion model's denoising path."""
    from vestige.suites.handlers.trajectory_scores import score_along

    return score_along(inputs)
