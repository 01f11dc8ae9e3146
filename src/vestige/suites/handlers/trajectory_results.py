"""From scores at every step to the curves and tables of a trajectory metric's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.metrics.trajectory import distribution, revision, summary, view_length
from vestige.suites.handlers.common import row_mean
from vestige.suites.handlers.trajectory_reading import TrajectoryRun, children, prompt_of
from vestige.suites.registry import Inputs
from vestige.suites.steps import StepScores, picked
from vestige.suites.trajectory import TrajectoryConfig, last_step_key
from vestige.types import BAD_LOGITS, Score

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec, SuiteSpec

BEFORE_AGGREGATOR = (
    "step_distribution and value_by_index hold each row's ratio before the aggregator {}, "
    "agg_value holds the mean after it"
)
FIELDS = {"probability": "prob", "probability_confidence_ordered": "prob", "probability_w_options": "prob"}


def aggregator_of(spec: MetricSpec) -> str:
    """What turns a row's value before it is averaged; empty where rows are averaged as they are."""
    if spec.handler != "truth_ratio":
        return ""
    name = str(spec.params.get("aggregator", "closer_to_1_better"))
    return "" if name == "prob_mean" else name


def protocol(config: TrajectoryConfig) -> dict[str, Any]:
    """What two runs must have in common for their steps to be the same steps."""
    sampling = {k: list(v) if isinstance(v, tuple) else v for k, v in config.denoising.settings().items()}
    # Where every pass is reported the two are the same.
    counts = config.fixation_counts if config.interval > 1 else "passes"
    return {
        "trajectory_sample_interval": config.interval,
        "fixation_steps_count": counts,
        "logit_alignment": config.alignment,
        **sampling,
    }


def at_last_step(inputs: Inputs, metric: str) -> Score | None:
    """The retain model's value of a metric from an ordinary run, where its logs have none by step."""
    found = inputs.reference("trajectory")
    by_step: Any = (found.extra.get("reference_by_step") if found else None) or {}
    if inputs.reference(metric) or any(metric in names for views in by_step.values() for names in views.values()):
        return None
    last = inputs.reference(last_step_key(metric))
    return last if isinstance(last, Score) else None


# view -> trajectory -> metric -> its scores along the steps
ScoresByView = Mapping[str, Mapping[str, Mapping[str, StepScores]]]


def assemble_score(inputs: Inputs, run: TrajectoryRun, scores: ScoresByView) -> Score:
    """The result of a trajectory metric: curves, how rows are spread around them, and what a reader must know."""
    suite = inputs.spec.children
    assert suite is not None
    before_aggregator = {}
    for metric in suite.metrics:
        aggregator = aggregator_of(suite.metrics[metric])
        if aggregator and metric in suite.top:
            before_aggregator[metric] = BEFORE_AGGREGATOR.format(aggregator)
    # What another model's run compares with, step by step.
    compared = sorted({m for child in suite.metrics.values() for r in child.references for m in r.include})
    curves: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    for_reference: dict[str, Any] = {}
    gaps: dict[str, Any] = {}
    reasons = _missing_everywhere(suite.top, scores)
    for view, by_trajectory in scores.items():
        for trajectory, by_metric in by_trajectory.items():
            curves.setdefault(view, {})[trajectory] = {m: _numbers(by_metric[m].agg_value) for m in suite.top}
            around = {m: _distribution(by_metric[m], suite.metrics[m]) for m in suite.top}
            spread.setdefault(view, {})[trajectory] = {m: found for m, found in around.items() if found}
            steps = {m: _compact_steps(by_metric[m]) for m in compared if m in by_metric}
            for_reference.setdefault(view, {})[trajectory] = steps
            for metric in suite.top:
                gone = np.isnan(by_metric[metric].agg_value)
                if metric not in reasons and gone.any():  # why single steps have no value; None where there is one
                    why = [str(r) if g else None for r, g in zip(by_metric[metric].reason, gone, strict=True)]
                    gaps.setdefault(view, {}).setdefault(trajectory, {})[metric] = why

    def without_view(nested: dict[str, Any]) -> dict[str, Any]:
        """One view without its name, on request: the shape of older result files."""
        return next(iter(nested.values())) if run.config.legacy_flat and len(nested) == 1 else nested

    extra: dict[str, Any] = {
        "step_distribution": without_view(spread),
        "trajectory_step_metadata": _metadata(run),
        "reference_by_step": for_reference,
    }
    if "model_utility" in suite.metrics:
        parts = list(suite.metrics["model_utility"].parents.values())
        extra["retain_mu_components_by_step"] = _components(run, scores, parts)
    if before_aggregator:
        extra["before_aggregator"] = before_aggregator
    if reasons:
        extra["reasons"] = reasons
    if gaps:
        extra["reasons_by_step"] = without_view(gaps)
    revocations = _revocations(run)
    if revocations:
        extra["revocations"] = revocations
    notes = [*run.notes, *_revocation_notes(revocations), *_retain_notes(inputs)]
    for metric in suite.top:  # what a metric notes at every step: a missing retain model, rows left out
        every_step = [notes_of_step for s in _along(scores, metric) for notes_of_step in s.notes]
        notes += [f"{metric}: {note}" for note in every_step[0] if all(note in step for step in every_step)]
    notes += [f"{metric}: no value, because {why}" for metric, why in reasons.items()]
    per_row = _per_row(suite, scores) if run.config.store_per_sample else None
    if len(reasons) == len(suite.top) and all(BAD_LOGITS in why for why in reasons.values()):
        return Score(None, per_row, extra, reason=next(iter(reasons.values())), notes=tuple(notes))
    return Score(None, per_row, extra, notes=tuple(notes), curves=without_view(curves))


def _along(scores: ScoresByView, metric: str) -> list[StepScores]:
    """A metric's scores in every view and along every trajectory."""
    return [by_metric[metric] for by_trajectory in scores.values() for by_metric in by_trajectory.values()]


def _missing_everywhere(top: Iterable[str], scores: ScoresByView) -> dict[str, str]:
    """Why a metric has no value anywhere."""
    out = {}
    for metric in top:
        found = _along(scores, metric)
        if all(np.isnan(score.agg_value).all() for score in found):
            out[metric] = str(found[0].reason[0])
    return out


def _row_values(score: StepScores, spec: MetricSpec) -> dict[str, Any]:
    """Each row's value at every step."""
    if spec.handler == "rouge":
        name = str(spec.params.get("rouge_type", "rougeL_recall"))
    else:
        name = FIELDS.get(spec.handler, "score")
    out = {}
    for index, entry in (score.value_by_index or {}).items():
        if name in entry:
            value = row_mean(entry, name)
            out[index] = np.broadcast_to(np.nan if value is None else value, score.steps)
    return out


def _distribution(score: StepScores, spec: MetricSpec) -> dict[str, list[float | None]]:
    """How rows are spread around a curve; nothing for one number per step."""
    values = _row_values(score, spec)
    if not values or not score.with_rows[0]:
        return {}  # one number per step: nothing is spread
    table = np.where(score.with_rows, np.stack(list(values.values())), np.nan)
    return {name: _numbers(curve) for name, curve in distribution(table).items()}


def _compact_steps(scores: StepScores) -> list[dict[str, Any]]:
    """Each step's value, and its rows' scores where there are some."""
    out = []
    for step in range(scores.steps):
        score = scores.at(step)
        rows = {i: {"score": row["score"]} for i, row in (score.value_by_index or {}).items() if "score" in row}
        entry: dict[str, Any] = {"agg_value": score.agg_value}
        if rows:
            entry["value_by_index"] = rows
        out.append(entry)
    return out


def _components(run: TrajectoryRun, scores: ScoresByView, parts: Sequence[str]) -> dict[str, Any]:
    """What model utility is made of, by step and view, along `steps` (or the first trajectory there is)."""
    out: dict[str, Any] = {str(step): {} for step in range(run.steps)}
    for view, by_trajectory in scores.items():
        by_metric = by_trajectory.get("steps") or next(iter(by_trajectory.values()))
        for step in range(run.steps):
            out[str(step)][view] = {m: picked(by_metric[m].agg_value, step) for m in parts}
    return out


def _per_row(suite: SuiteSpec, scores: ScoresByView) -> dict[str, dict[str, Any]]:
    """Values of single rows: by view where there are several, else with the name of the one there is."""
    out: dict[str, dict[str, Any]] = {}
    several = len(scores) > 1
    for view, by_trajectory in scores.items():
        for trajectory, by_metric in by_trajectory.items():
            for metric in suite.top:
                for index, value in _row_values(by_metric[metric], suite.metrics[metric]).items():
                    row = out.setdefault(index, {})
                    if several:
                        row = row.setdefault(view, {})
                    else:
                        row["view"] = view
                    steps = row.setdefault("trajectories", {}).setdefault(trajectory, {})
                    for k in np.flatnonzero(by_metric[metric].with_rows).tolist():
                        steps.setdefault(f"step_{k}", {})[metric] = picked(value, k)
    return out


def _metadata(run: TrajectoryRun) -> dict[str, Any]:
    """What the steps are, how long each row's run and text are, and which positions were never decided."""
    longest = max(run.reported, key=lambda prompt: len(run.reported[prompt]))
    steps, ends, lengths = {}, {}, {}
    never_fixed, never_reached = {}, {}
    for row in next(iter(run.data.values())).examples:
        index, prompt = row[0].index, prompt_of(row[0].prompt)
        lengths[index] = len(row[0].prompt.ids)
        if prompt not in run.traces:
            continue
        trace = run.traces[prompt]
        # A block sampler stops after the block with the end token: it never looks at later positions.
        looked = (trace.proposal >= 0).any(axis=0)
        open_positions = int((looked & (trace.fixed < 0)).sum())
        if open_positions:
            never_fixed[index] = open_positions
        if not looked.all():
            never_reached[index] = int((~looked).sum())
        steps[index] = len(run.reported[prompt])
        ends[index] = view_length("eos", trace.final, run.eos_ids)
    return {
        "num_trajectory_steps": run.steps,
        "views": list(run.config.views),
        **protocol(run.config),
        "step_meaning": "unmasked_tokens: how many tokens stood decided before the pass",
        "step_values": [int(n) for n in run.traces[longest].committed[run.reported[longest]]],
        "num_steps_by_index": steps,
        "never_fixed_by_index": never_fixed,
        "never_reached_by_index": never_reached,
        "effective_length_by_index": ends,
        "prompt_len_by_index": lengths,
    }


def _revocations(run: TrajectoryRun) -> dict[str, Any]:
    """What was accepted on the way and taken back: in the whole window, from every pass whatever is reported."""
    if not run.config.denoising.takes_back or run.config.alignment != "same_position":
        return {}
    found = {}
    for row in next(iter(run.data.values())).examples:
        target = row[0].target
        if target is not None:
            prompt = prompt_of(target)
            found[row[0].index] = revision(run.whole[prompt], run.stream[prompt, target.labels])
    return summary(found)


def _revocation_notes(found: Mapping[str, Any]) -> list[str]:
    """The two numbers of `revocations` in words."""
    if not found:
        return []
    revoked, ever = found["revoked"], found["ever_accepted"]
    if revoked["share"] is None or ever["rows"] is None:
        return ["no pass accepted a token of the window, so nothing could be taken back"]
    return [
        f"revoked: {revoked['count']} acceptances were taken back, at {revoked['share']:.1%} of the accepted positions",
        f"ever_accepted: the true token was accepted and taken back again in {ever['rows']:.1%} of the rows "
        f"({ever['tokens']:.1%} of their tokens); the final text hides it in {ever['hidden_rows']:.1%} of the rows",
    ]


def _retain_notes(inputs: Inputs) -> list[str]:
    """What a reader must know of the retain runs. A number gets a range over several; curves do not."""
    notes = []
    more = sum(len(r.others) for r in inputs.spec.references)
    if more:
        notes.append(f"compared with the first of {more + 1} retain runs given")
    compared = {name: m for name, child in children(inputs.spec).items() for r in child.references for m in r.include}
    last = [name for name, metric in compared.items() if at_last_step(inputs, metric)]
    if last:
        notes.append(
            f"the retain logs are of an ordinary run: {' and '.join(last)} are compared with them at the last step "
            "alone; evaluate the retain model with the same trajectory suite to compare every step"
        )
    return notes


def _numbers(values: Any) -> list[float | None]:
    """As JSON has it: None where there is no value."""
    return [None if np.isnan(v) else float(v) for v in np.atleast_1d(np.asarray(values, float))]
