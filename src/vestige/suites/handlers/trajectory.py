"""Every metric at every step of a denoising path: the ordinary handlers, fed with what the model thought just then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vestige.errors import UserError
from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.suites.handlers.common import by_index, mean_score, one_stat, wants_answers
from vestige.suites.handlers.trajectory_reading import (
    Moment,
    Reading,
    TrajectoryRun,
    child_data,
    children,
    gather,
    windowed,
)
from vestige.suites.handlers.trajectory_results import Results, protocol
from vestige.suites.registry import HANDLERS, Inputs, handler
from vestige.suites.trajectory import DECIDED, HANDLER, TrajectoryConfig, read_config
from vestige.types import Rows, Score
from vestige.wants import Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

NEEDS_MODEL = "it needs the model's gradients or a second model, which are not followed along a trajectory"
RUNS_MODEL = "it runs the model itself (@unlearning_metric), and its values of this run are not there; evaluate again"
NO_WORDS = "texts along a trajectory need the tokenizer, which was not found"


@handler(DECIDED, wants_answers)
def extraction_strength_decided(inputs: Inputs) -> Score:
    """Share of the denoising steps after which every token that was decided is right."""
    normalised = bool(inputs.spec.params.get("normalised", False))
    value = one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, normalised=normalised)})
    return mean_score(by_index(inputs.rows, value), "score")


def wants_trajectory(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    config = read_config(spec.params, spec.name)
    asked = gather(spec, {k: windowed(r, config) for k, r in data.items()}, dialect)
    return Wants(denoised=[asked.want(prompt, config) for prompt in asked.streams])


@handler(HANDLER, wants_trajectory)
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
            reading = Reading(run, trajectory, view)
            for step in range(run.steps):
                refs = _references(inputs, view, trajectory, step)
                found.add(view, trajectory, _score_children(inputs, run, reading, step, refs))
    return found.score()


def _score_children(
    inputs: Inputs, run: TrajectoryRun, reading: Reading, step: int, references: Callable[[str], Score | None]
) -> dict[str, Score]:
    """All children at one step, parents first."""
    scores: dict[str, Score] = {}
    for name, child in children(inputs.spec).items():
        scores[name] = _score_child(inputs, run, reading, step, child, scores, references)
    return scores


def _score_child(
    inputs: Inputs,
    run: TrajectoryRun,
    reading: Reading,
    step: int,
    child: MetricSpec,
    scores: Mapping[str, Score],
    references: Callable[[str], Score | None],
) -> Score:
    kind = HANDLERS[child.handler]
    if child.name in inputs.unavailable:
        return Score(None, reason=inputs.unavailable[child.name])
    if kind.classify is not None or child.handler in ("mia_gradnorm", "mia_reference"):
        return Score(None, reason=NEEDS_MODEL)
    if child.handler in ("rouge", "bleu") and run.words is None:
        return Score(None, reason=NO_WORDS)
    data = child_data(inputs.spec, run.data, child.name)
    parents = {key: scores[parent] for key, parent in child.parents.items()}
    compared = {r.name: {key: references(m) for m, key in r.include.items()} for r in child.references}
    if kind.live is not None:
        if inputs.at_step is None:
            return Score(None, reason=RUNS_MODEL)
        return inputs.at_step(child, Moment(inputs.spec, reading, step, data), parents, compared)
    evidence = reading.evidence(step, child.handler == DECIDED)
    return kind.score(Inputs(child, inputs.dialect, data, evidence, parents, compared))


def _check_reference(inputs: Inputs, config: TrajectoryConfig) -> None:
    """Equal step numbers of runs with other windows are not the same step."""
    ours = inputs.reference("trajectory")
    theirs = (ours.extra.get("trajectory_step_metadata") if ours else None) or {}
    mine = protocol(config)
    for name, value in mine.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"The retain logs of '{inputs.spec.name}' were made with {name}={theirs[name]}, this run has {value}: "
                "steps do not match; evaluate the retain model with the same settings."
            )


def _references(inputs: Inputs, view: str, trajectory: str, step: int) -> Callable[[str], Score | None]:
    """The retain model's value of a metric at the same view, trajectory and step. Never another step's."""
    ours = inputs.reference("trajectory")
    by_step = (ours.extra.get("reference_by_step") if ours else None) or {}

    def find(metric: str) -> Score | None:
        theirs = inputs.reference(metric)  # open-unlearning's fork keeps one list for all views and trajectories
        if not any(r.path for r in inputs.spec.references):
            return None
        if ours is not None:
            known = dict(enumerate(by_step.get(view, {}).get(trajectory, {}).get(metric, [])))
        else:
            known = {int(k): v for k, v in (theirs.extra if theirs else {}).items() if str(k).isdigit()}
        if step not in known:
            have = f"have {min(known)}..{max(known)}" if known else "have none"
            raise UserError(
                f"reference_logs was provided but step-matched {metric} not found for step {step} ({have}; view "
                f"{view}, trajectory {trajectory}): make the reference with equal steps, max_new_tokens and interval."
            )
        return Score.from_json(known[step])

    return find
