"""From scores at every step to the curves and tables of a trajectory metric's result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.metrics.revocation import revision, summary
from vestige.metrics.trajectory import view_length
from vestige.metrics.trajectory_report import distribution, extend
from vestige.suites.handlers.common import row_mean
from vestige.suites.handlers.trajectory_reading import TrajectoryRun, children, prompt_of
from vestige.suites.registry import Inputs
from vestige.suites.trajectory import TrajectoryConfig
from vestige.types import BAD_LOGITS, Score, Trace

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

FIELDS = {"probability": "prob", "probability_confidence_ordered": "prob", "probability_w_options": "prob"}


def _field(spec: MetricSpec) -> str:
    """Where a child's per-row value stands."""
    return (
        str(spec.params.get("rouge_type", "rougeL_recall"))
        if spec.handler == "rouge"
        else FIELDS.get(spec.handler, "score")
    )


def protocol(config: TrajectoryConfig) -> dict[str, Any]:
    """What two runs must have in common for their steps to be the same steps."""
    sampling = {k: list(v) if isinstance(v, tuple) else v for k, v in config.denoising.settings().items()}
    return {"trajectory_sample_interval": config.interval, "logit_alignment": config.alignment, **sampling}


class Results:
    """Curves in the making: view -> trajectory -> metric -> one score per step."""

    def __init__(self, inputs: Inputs, run: TrajectoryRun) -> None:
        self.inputs = inputs
        self.run = run
        self.scores: dict[str, dict[str, list[dict[str, Score]]]] = {}

    def add(self, view: str, trajectory: str, scores: dict[str, Score]) -> None:
        self.scores.setdefault(view, {}).setdefault(trajectory, []).append(scores)

    def score(self) -> Score:
        suite = self.inputs.spec.children
        assert suite is not None
        curves = self._each(lambda steps: {m: [s[m].agg_value for s in steps] for m in suite.top})
        spread = self._each(lambda steps: {m: d for m in suite.top if (d := self._distribution(steps, m))})
        extra: dict[str, Any] = {
            "step_distribution": self._flat(spread),
            "trajectory_step_metadata": self._metadata(),
            "reference_by_step": self._each(self._for_reference),
        }
        if "model_utility" in suite.metrics:
            extra["retain_mu_components_by_step"] = self._components(suite.metrics["model_utility"])
        reasons = self._reasons(suite.top)
        if reasons:
            extra["reasons"] = reasons
        found = self._revocations()
        if found:
            extra["revocations"] = found
        missing = tuple(f"{m}: no value, because {why}" for m, why in reasons.items())
        per_row = self._per_row() if self.run.config.store_per_sample else None
        said = (*self.run.notes, *_taken_back(found), *self._several_retain(), *self._said(suite.top))
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

    def _several_retain(self) -> list[str]:
        """One number gets a range over retain models; curves do not, and a note says so when several were given."""
        more = sum(len(r.others) for r in self.inputs.spec.references)
        return [f"compared with the first of {more + 1} retain runs given"] if more else []

    def _each(self, make: Callable[[list[dict[str, Score]]], Any]) -> dict[str, Any]:
        return {v: {t: make(steps) for t, steps in by_t.items()} for v, by_t in self.scores.items()}

    def _flat(self, nested: dict[str, Any]) -> dict[str, Any]:
        """One view without its name, on request: the shape of older result files."""
        return next(iter(nested.values())) if self.run.config.legacy_flat and len(nested) == 1 else nested

    def _values(self, scores: Mapping[str, Score], metric: str) -> dict[str, float | None]:
        spec, rows = children(self.inputs.spec)[metric], scores[metric].value_by_index or {}
        return {i: row_mean(entry, _field(spec)) for i, entry in rows.items() if _field(spec) in entry}

    def _distribution(self, steps: list[dict[str, Score]], metric: str) -> dict[str, list[float | None]]:
        by_step = [self._values(s, metric) for s in steps]
        if not by_step or not by_step[0]:
            return {}  # one number per step: nothing is spread
        table = [extend([b.get(i) for b in by_step], len(steps)) for i in by_step[0]]
        return {k: _numbers(v) for k, v in distribution(np.asarray(table, float)).items()}

    def _for_reference(self, steps: list[dict[str, Score]]) -> dict[str, list[dict[str, Any]]]:
        """What another model's run compares with, step by step."""
        names = {m for child in children(self.inputs.spec).values() for r in child.references for m in r.include}
        return {m: [_compact(s[m]) for s in steps] for m in sorted(names) if m in steps[0]}

    def _components(self, spec: MetricSpec) -> dict[str, Any]:
        """What model utility is made of, by step and view, along `steps` (or the first trajectory there is)."""
        out: dict[str, Any] = {}
        for view, by_trajectory in self.scores.items():
            steps = by_trajectory.get("steps") or next(iter(by_trajectory.values()))
            for k, scores in enumerate(steps):
                out.setdefault(str(k), {})[view] = {m: scores[m].agg_value for m in spec.parents.values()}
        return out

    def _reasons(self, top: Iterable[str]) -> dict[str, str]:
        """Why a metric has no value anywhere."""
        all_steps = [s for by_t in self.scores.values() for steps in by_t.values() for s in steps]
        return {m: all_steps[0][m].reason for m in top if all(s[m].agg_value is None for s in all_steps)}

    def _said(self, top: Iterable[str]) -> list[str]:
        """What a metric notes at every step: that a retain model to compare with was missing, rows left out."""
        all_steps = [s for by_t in self.scores.values() for steps in by_t.values() for s in steps]
        return [f"{m}: {n}" for m in top for n in all_steps[0][m].notes if all(n in s[m].notes for s in all_steps)]

    def _per_row(self) -> dict[str, dict[str, Any]]:
        """Values of single rows, in the first view."""
        out: dict[str, dict[str, Any]] = {}
        suite = self.inputs.spec.children
        assert suite is not None
        for trajectory, steps in next(iter(self.scores.values())).items():
            for k, scores in enumerate(steps):
                for metric in suite.top:
                    for i, value in self._values(scores, metric).items():
                        row = out.setdefault(i, {"trajectories": {}})["trajectories"]
                        row.setdefault(trajectory, {}).setdefault(f"step_{k}", {})[metric] = value
        return out

    def _metadata(self) -> dict[str, Any]:
        run = self.run
        rows = next(iter(run.data.values()))
        by_index = {row[0].index: run.traces.get(prompt_of(row[0].prompt)) for row in rows.examples}
        traces = {i: t for i, t in by_index.items() if t is not None}
        longest = max(run.traces.values(), key=lambda t: t.steps)
        return {
            "num_trajectory_steps": run.steps,
            **protocol(run.config),
            "step_meaning": "unmasked_tokens: how many tokens stood decided before the pass",
            "step_values": [int(n) for n in longest.committed],
            "num_steps_by_index": {i: t.steps for i, t in traces.items()},
            "never_fixed_by_index": {i: n for i, t in traces.items() if (n := int((_looked(t) & (t.fixed < 0)).sum()))},
            "never_reached_by_index": {i: n for i, t in traces.items() if (n := int((~_looked(t)).sum()))},
            "effective_length_by_index": {i: view_length("eos", t.final, run.eos_ids) for i, t in traces.items()},
            "prompt_len_by_index": {row[0].index: len(row[0].prompt.ids) for row in rows.examples},
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


def _looked(trace: Trace) -> Any:
    """Positions the sampler came to: a block sampler stops after the block with the end token."""
    return (trace.proposal >= 0).any(axis=0)


def _compact(score: Score) -> dict[str, Any]:
    rows = score.value_by_index or {}
    values = {i: {"score": v["score"]} for i, v in rows.items() if "score" in v}
    return {"agg_value": score.agg_value, **({"value_by_index": values} if values else {})}


def _numbers(values: Any) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in np.atleast_1d(np.asarray(values, float))]
