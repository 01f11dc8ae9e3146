"""From scores at every step to the curves and tables of a trajectory metric's result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    from vestige.suites.spec import MetricSpec

BEFORE_AGGREGATOR = (
    "step_distribution and value_by_index hold each row's ratio before the aggregator {}, "
    "agg_value holds the mean after it"
)
FIELDS = {"probability": "prob", "probability_confidence_ordered": "prob", "probability_w_options": "prob"}


def _field(spec: MetricSpec) -> str:
    """Where a child's per-row value stands."""
    return (
        str(spec.params.get("rouge_type", "rougeL_recall"))
        if spec.handler == "rouge"
        else FIELDS.get(spec.handler, "score")
    )


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


class Results:
    """Curves in the making: view -> trajectory -> metric -> its scores along the steps."""

    def __init__(self, inputs: Inputs, run: TrajectoryRun) -> None:
        self.inputs = inputs
        self.run = run
        self.scores: dict[str, dict[str, dict[str, StepScores]]] = {}

    def add(self, view: str, trajectory: str, scores: dict[str, StepScores]) -> None:
        self.scores.setdefault(view, {})[trajectory] = scores

    def score(self) -> Score:
        suite = self.inputs.spec.children
        assert suite is not None
        curves = self._each(lambda scores: {m: _numbers(scores[m].agg_value) for m in suite.top})
        spread = self._each(lambda scores: {m: d for m in suite.top if (d := self._distribution(scores[m], m))})
        extra: dict[str, Any] = {
            "step_distribution": self._flat(spread),
            "trajectory_step_metadata": self._metadata(),
            "reference_by_step": self._each(self._for_reference),
        }
        if "model_utility" in suite.metrics:
            extra["retain_mu_components_by_step"] = self._components(suite.metrics["model_utility"])
        aggregated = {name: aggregator_of(spec) for name, spec in suite.metrics.items() if name in suite.top}
        before = {name: BEFORE_AGGREGATOR.format(aggregator) for name, aggregator in aggregated.items() if aggregator}
        if before:
            extra["before_aggregator"] = before
        reasons = self._reasons(suite.top)
        if reasons:
            extra["reasons"] = reasons
        gaps = self._gaps([metric for metric in suite.top if metric not in reasons])
        if gaps:
            extra["reasons_by_step"] = gaps
        found = self._revocations()
        if found:
            extra["revocations"] = found
        missing = tuple(f"{m}: no value, because {why}" for m, why in reasons.items())
        per_row = self._per_row() if self.run.config.store_per_sample else None
        said = (*self.run.notes, *_taken_back(found), *self._about_retain(), *self._said(suite.top))
        notes = (*said, *missing)
        if len(reasons) == len(suite.top) and all(BAD_LOGITS in why for why in reasons.values()):
            return Score(None, per_row, extra, reason=next(iter(reasons.values())), notes=notes)
        return Score(None, per_row, extra, notes=notes, curves=self._flat(curves))

    def _revocations(self) -> dict[str, Any]:
        """What was accepted on the way and taken back: in the whole window, from every pass whatever is reported."""
        run = self.run
        if not run.config.denoising.takes_back or run.config.alignment != "same_position":
            return {}
        found = {}
        for row in next(iter(run.data.values())).examples:
            target = row[0].target
            if target is None:
                continue
            prompt = prompt_of(target)
            found[row[0].index] = revision(run.whole[prompt], run.stream[prompt, target.labels])
        return summary(found)

    def _about_retain(self) -> list[str]:
        """What a reader must know of the retain runs. A number gets a range over several; curves do not."""
        notes = []
        more = sum(len(r.others) for r in self.inputs.spec.references)
        if more:
            notes.append(f"compared with the first of {more + 1} retain runs given")
        inner = children(self.inputs.spec)
        compared = {name: m for name, child in inner.items() for r in child.references for m in r.include}
        last = [name for name, metric in compared.items() if at_last_step(self.inputs, metric)]
        if last:
            notes.append(
                f"the retain logs are of an ordinary run: {' and '.join(last)} are compared with them at the last step "
                "alone; evaluate the retain model with the same trajectory suite to compare every step"
            )
        return notes

    def _each(self, make: Callable[[dict[str, StepScores]], Any]) -> dict[str, Any]:
        return {v: {t: make(scores) for t, scores in by_t.items()} for v, by_t in self.scores.items()}

    def _all(self, metric: str) -> list[StepScores]:
        return [scores[metric] for by_t in self.scores.values() for scores in by_t.values()]

    def _flat(self, nested: dict[str, Any]) -> dict[str, Any]:
        """One view without its name, on request: the shape of older result files."""
        return next(iter(nested.values())) if self.run.config.legacy_flat and len(nested) == 1 else nested

    def _values(self, score: StepScores, metric: str) -> dict[str, Any]:
        """Each row's value at every step."""
        rows, name = score.value_by_index or {}, _field(children(self.inputs.spec)[metric])
        means = {i: row_mean(entry, name) for i, entry in rows.items() if name in entry}
        return {i: np.broadcast_to(np.nan if v is None else v, score.steps) for i, v in means.items()}

    def _distribution(self, score: StepScores, metric: str) -> dict[str, list[float | None]]:
        values = self._values(score, metric)
        if not values or not score.with_rows[0]:
            return {}  # one number per step: nothing is spread
        table = np.where(score.with_rows, np.stack(list(values.values())), np.nan)
        return {k: _numbers(v) for k, v in distribution(table).items()}

    def _for_reference(self, scores: dict[str, StepScores]) -> dict[str, list[dict[str, Any]]]:
        """What another model's run compares with, step by step."""
        names = {m for child in children(self.inputs.spec).values() for r in child.references for m in r.include}
        return {m: [_compact(scores[m].at(k)) for k in range(self.run.steps)] for m in sorted(names) if m in scores}

    def _components(self, spec: MetricSpec) -> dict[str, Any]:
        """What model utility is made of, by step and view, along `steps` (or the first trajectory there is)."""
        out: dict[str, Any] = {str(k): {} for k in range(self.run.steps)}
        for view, by_trajectory in self.scores.items():
            scores = by_trajectory.get("steps") or next(iter(by_trajectory.values()))
            for k in range(self.run.steps):
                out[str(k)][view] = {m: picked(scores[m].agg_value, k) for m in spec.parents.values()}
        return out

    def _reasons(self, top: Iterable[str]) -> dict[str, str]:
        """Why a metric has no value anywhere."""
        found = {m: self._all(m) for m in top}
        return {m: str(s[0].reason[0]) for m, s in found.items() if all(np.isnan(x.agg_value).all() for x in s)}

    def _gaps(self, top: Iterable[str]) -> dict[str, Any]:
        """Why single steps have no value, laid out like the values; None where there is one."""
        out: dict[str, Any] = {}
        for view, by_trajectory in self.scores.items():
            for trajectory, scores in by_trajectory.items():
                for metric in top:
                    gone = np.isnan(scores[metric].agg_value)
                    if gone.any():
                        why = [str(r) if g else None for r, g in zip(scores[metric].reason, gone, strict=True)]
                        out.setdefault(view, {}).setdefault(trajectory, {})[metric] = why
        return self._flat(out)

    def _said(self, top: Iterable[str]) -> list[str]:
        """What a metric notes at every step: that a retain model to compare with was missing, rows left out."""
        notes = {m: [n for s in self._all(m) for n in s.notes] for m in top}
        return [f"{m}: {n}" for m, found in notes.items() for n in found[0] if all(n in step for step in found)]

    def _per_row(self) -> dict[str, dict[str, Any]]:
        """Values of single rows: by view where there are several, else with the name of the one there is."""
        out: dict[str, dict[str, Any]] = {}
        suite = self.inputs.spec.children
        assert suite is not None
        several = len(self.scores) > 1
        for view, by_trajectory in self.scores.items():
            for trajectory, scores in by_trajectory.items():
                for metric in suite.top:
                    for index, value in self._values(scores[metric], metric).items():
                        row = out.setdefault(index, {})
                        if several:
                            row = row.setdefault(view, {})
                        else:
                            row["view"] = view
                        steps = row.setdefault("trajectories", {}).setdefault(trajectory, {})
                        for k in np.flatnonzero(scores[metric].with_rows).tolist():
                            steps.setdefault(f"step_{k}", {})[metric] = picked(value, k)
        return out

    def _metadata(self) -> dict[str, Any]:
        run = self.run
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


def _taken_back(found: Mapping[str, Any]) -> list[str]:
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


def _compact(score: Score) -> dict[str, Any]:
    rows = score.value_by_index or {}
    values = {i: {"score": v["score"]} for i, v in rows.items() if "score" in v}
    return {"agg_value": score.agg_value, **({"value_by_index": values} if values else {})}


def _numbers(values: Any) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in np.atleast_1d(np.asarray(values, float))]
