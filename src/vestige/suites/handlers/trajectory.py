"""Handlers of denoising paths. Every metric at every step: the ordinary handlers, called once with an axis of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.suites.handlers.common import by_index, mean_score, one_stat, wants_answers
from vestige.suites.handlers.references import ORDINARY_RUN
from vestige.suites.handlers.texts import wants_texts
from vestige.suites.handlers.trajectory_reading import (
    Moment,
    Reading,
    TrajectoryRun,
    child_data,
    children,
    evidence_at,
    gather,
    windowed,
)
from vestige.suites.handlers.trajectory_results import Results, at_last_step, protocol
from vestige.suites.registry import DECIDED, HANDLERS, TRAJECTORY, Inputs, handler
from vestige.suites.steps import Scored, StepScores
from vestige.suites.trajectory import TrajectoryConfig, read_config
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


NEEDS_MODEL = "it needs the model's gradients or a second model, which are not followed along a trajectory"
RUNS_MODEL = "it runs the model itself (@unlearning_metric), and its values of this run are not there; evaluate again"
NO_WORDS = "texts along a trajectory need the tokenizer, which was not found"


def denoised_wants(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    config = read_config(spec.params, spec.name)
    cut = {k: windowed(r, config) for k, r in data.items()}
    asked = gather(spec, cut, dialect, config.denoising.takes_back)
    return Wants(denoised=[asked.want(prompt, config) for prompt in asked.streams])


@handler(
    TRAJECTORY,
    denoised_wants,
    settings=("metrics", "trajectory_config", "include_metrics", "store_per_sample", "legacy_flat"),
)
def trajectory_metrics(inputs: Inputs) -> Score:
    """Metrics at each step of a diffusion model's denoising path."""
    run = TrajectoryRun(inputs)
    if not run.traces:
        reasons = "; ".join(dict.fromkeys(inputs.unavailable.values()))
        return Score(None, reason=reasons or "its data sets hold no prompts")
    _check_reference(inputs, run.config)
    found = Results(inputs, run)
    for view in run.config.views:
        for trajectory in run.config.trajectories:
            found.add(view, trajectory, _score_children(inputs, Reading(run, trajectory, view)))
    return found.score()


def _score_children(inputs: Inputs, reading: Reading) -> dict[str, StepScores]:
    """All children along one trajectory in one view, parents first: each handler is called once, for all steps."""
    scores: dict[str, StepScores] = {}
    for name, child in children(inputs.spec).items():
        found = _score_child(inputs, reading, child, scores)
        scores[name] = StepScores.constant(found, reading.run.steps) if isinstance(found, Score) else found
    return scores


def _score_child(inputs: Inputs, reading: Reading, child: MetricSpec, scores: Mapping[str, StepScores]) -> Scored:
    kind, run = HANDLERS[child.handler], reading.run
    if child.name in inputs.unavailable:
        return Score(None, reason=inputs.unavailable[child.name])
    if kind.classify is not None or child.handler in ("mia_gradnorm", "mia_reference", "said_likelihood"):
        return Score(None, reason=NEEDS_MODEL)
    if kind.wants is wants_texts and run.words is None:
        return Score(None, reason=NO_WORDS)
    if kind.live is not None and inputs.at_step is None:
        return Score(None, reason=RUNS_MODEL)
    asked = Inputs(
        child,
        inputs.dialect,
        child_data(inputs.spec, run.data, child.name),
        reading.evidence(child.handler == DECIDED),
        {key: scores[parent] for key, parent in child.parents.items()},
        {r.name: {key: _reference(inputs, reading, m) for m, key in r.include.items()} for r in child.references},
    )
    if kind.steps:
        return kind.function(asked)
    return StepScores.of([_score_step(inputs, reading, asked, step) for step in range(run.steps)])


def _score_step(inputs: Inputs, reading: Reading, asked: Inputs, step: int) -> Score:
    """A metric that knows one state of a model, at one step: a plug-in's."""

    def at(score: Scored | None) -> Score | None:
        return score.at(step) if isinstance(score, StepScores) else score

    kind = HANDLERS[asked.spec.handler]
    parents = {key: found for key, score in asked.parents.items() if (found := at(score))}
    compared = {name: {key: at(score) for key, score in found.items()} for name, found in asked.references.items()}
    if kind.live is not None:
        assert inputs.at_step is not None
        return inputs.at_step(asked.spec, Moment(inputs.spec, reading, step, asked.data), parents, compared)
    evidence = evidence_at(asked.evidence, step)
    return kind.score(replace(asked, evidence=evidence, parents=parents, references=compared))


def _check_reference(inputs: Inputs, config: TrajectoryConfig) -> None:
    """Equal step numbers of runs with other windows are not the same step."""
    ours = inputs.reference("trajectory")
    theirs: Any = (ours.extra.get("trajectory_step_metadata") if ours else None) or {}
    mine = protocol(config)
    for name, value in mine.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"The retain logs of '{inputs.spec.name}' were made with {name}={theirs[name]}, this run has {value}: "
                "steps do not match; evaluate the retain model with the same settings."
            )


def _reference(inputs: Inputs, reading: Reading, metric: str) -> StepScores | None:
    """The retain model's values of a metric in the same view and trajectory, step by step. Never another step's."""
    ours, theirs = inputs.reference("trajectory"), inputs.reference(metric)
    if not any(r.path for r in inputs.spec.references):
        return None
    last = at_last_step(inputs, metric)
    if last is not None:
        before = Score(None, reason=ORDINARY_RUN)
        return StepScores.of([*[before] * (reading.run.steps - 1), last])
    if ours is not None:
        by_step: Any = ours.extra.get("reference_by_step") or {}
        known = dict(enumerate(by_step.get(reading.view, {}).get(reading.trajectory, {}).get(metric, [])))
    else:  # open-unlearning's fork keeps one list for all views and trajectories
        known = {int(k): v for k, v in (theirs.extra if theirs else {}).items() if str(k).isdigit()}
    lost = next((step for step in range(reading.run.steps) if step not in known), None)
    if lost is not None:
        have = f"have {min(known)}..{max(known)}" if known else "have none"
        raise UserError(
            f"reference_logs was provided but step-matched {metric} not found for step {lost} ({have}; view "
            f"{reading.view}, trajectory {reading.trajectory}): make the reference with equal steps, max_new_tokens "
            "and interval."
        )
    return StepScores.of([Score.from_json(known[step]) for step in range(reading.run.steps)])
