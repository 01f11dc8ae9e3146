"""Finished runs as a verdict reads them: values, intervals and rows of one model's evaluations, depth run and attacks.

    read_runs(model, full, retain, depth, stress) -> JudgedRuns      from directories
    ModelRuns      everything that was measured of one model
    Evaluated      one evaluation: which metric measures what, and its value as a function of its rows
    AttackedRun    one attacked copy of a model
    path_values    what a trajectory says at its last denoising step, and on the way there

Results of another tool have no manifest: their metrics are told by their names, as open-unlearning gives them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vestige.engine.scores import Estimate, NoInterval, Run
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError
from vestige.io import number
from vestige.metrics.cards import CARDS
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.numeric import mean
from vestige.runs.files import read_ours
from vestige.runs.run import manifest_problem
from vestige.stats import bootstrap
from vestige.stats.contrast import NORMAL_95
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import Score

SIDE = ("_PARA_", "_PERT_", "_para", "_pert")  # other wordings of the answer: not what a reader looks for first
# How open-unlearning names what a handler computes.
ENDINGS = {
    "_rouge": "rouge",
    "_prob": "probability",
    "_truth_ratio": "truth_ratio",
    "_prob_normalised": "probability_w_options",
}
NAMED = {"forget_quality": "ks_test", "model_utility": "hm_aggregate"}

JsonObject = Mapping[str, Any]


def guess_handler(metric: str) -> str:
    """
    >>> guess_handler("forget_Q_A_ROUGE"), guess_handler("mia_min_k"), guess_handler("my_own")
    ('rouge', 'mia_min_k', '')
    """
    if metric in NAMED:
        return NAMED[metric]
    if metric in CARDS:
        return metric
    return next((handler for end, handler in ENDINGS.items() if metric.lower().endswith(end)), "")


def settings_in(manifest: JsonObject, metric: str) -> JsonObject:
    return ((manifest.get("config") or {}).get("metrics") or {}).get(metric) or {}


def handler_in(manifest: JsonObject, metric: str) -> str:
    """What computed a metric."""
    if not manifest:
        return guess_handler(metric)
    return str(settings_in(manifest, metric).get("handler") or "")


def split_of(metric: str) -> str:
    """
    >>> split_of("forget_Q_A_ROUGE"), split_of("retain_knowmem_ROUGE"), split_of("ra_Q_A_ROUGE")
    ('forget', 'retain', '')
    """
    words = metric.lower().split("_")
    return next((split for split in ("forget", "retain") if split in words), "")


def of_forget_rows(metric: str) -> bool:
    """Whether a metric is about the forget rows, in the answers' own wording."""
    return split_of(metric) == "forget" and not any(word in metric for word in SIDE)


# eq=False: equality and hashing by identity, because it holds whole files.
@dataclass(frozen=True, eq=False)
class Evaluated:
    """One evaluation, from the results, intervals and manifest that its files hold."""

    results: Mapping[str, JsonObject]
    manifest: JsonObject = field(default_factory=dict)
    stats: Mapping[str, JsonObject] = field(default_factory=dict)

    def handler(self, metric: str) -> str:
        return handler_in(self.manifest, metric)

    def value(self, metric: str) -> float | None:
        value = number((self.results.get(metric) or {}).get("agg_value"))
        return value if value is not None and math.isfinite(value) else None

    def first(self, handler: str) -> str:
        """The first metric of the forget rows with a value that such a handler computed; "": there is none."""
        for metric in self.results:
            if of_forget_rows(metric) and self.handler(metric) == handler and self.value(metric) is not None:
                return metric
        return ""

    @cached_property
    def _run(self) -> Run:
        """The evaluation as scoring knows it, so that rows can be drawn or left out."""
        scores = {m: Score.from_json(body) for m, body in self.results.items()}
        if not manifest_problem(self.manifest):
            try:
                return Run(suite_from_manifest(self.manifest), scores, self.manifest, {})
            except UserError:
                pass  # by a function that is not known here: rows are told apart by their numbers
        specs = {m: MetricSpec(m, self.handler(m)) for m in self.results}
        return Run(SuiteSpec("", "", specs, ()), scores, {"data_of": {}, "data": {}}, {})

    @cached_property
    def _estimates(self) -> dict[str, Estimate | None]:
        return {}

    def estimate(self, metric: str) -> Estimate | None:
        """A metric as a function of how often each row is drawn; None where its rows are not known."""
        if metric not in self._estimates:
            found = None
            if metric in self._run.suite.metrics and metric in self._run.scores:
                with suppress(NoInterval):
                    found = self._run.estimate(metric)
            self._estimates[metric] = found
        return self._estimates[metric]


@dataclass(frozen=True)
class AttackedRun:
    """One attacked copy, measured. Runs of other seeds have the same attack and budget."""

    attack: str
    budget: float | None
    teaches: bool
    unit: str = ""
    evaluated: Evaluated | None = None
    values: JsonObject = field(default_factory=dict)  # where rows are not known
    by_row: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of attacks that ask more than once
    zero: str = ""  # what a budget of 0 stands for

    def value(self, metric: str) -> float | None:
        found = self.evaluated.value(metric) if self.evaluated else None
        return found if found is not None else number(self.values.get(metric))

    def estimate(self, metric: str, like: Estimate | None) -> Estimate | None:
        """By its own rows; values by row are taken for rows of the unattacked evaluation (`like`)."""
        if metric in self.by_row and like is not None and like.rows is not None:
            values = [self.by_row[metric].get(row) for row in like.rows.rows]
            if None not in values:
                sample = replace(like.rows, values=np.asarray(values, float))
                return Estimate(float(sample.values.mean()), bootstrap.mean(sample), (sample,), rows=sample)
        return self.evaluated.estimate(metric) if self.evaluated else None


@dataclass(frozen=True)
class ModelRuns:
    """What was measured of one model. `values`: numbers without rows, {"v", "lo", "hi"} by metric."""

    evals: Sequence[Evaluated] = ()
    values: Mapping[str, JsonObject] = field(default_factory=dict)
    depth: Sequence[JsonObject] = ()  # records of a depth run
    attacks: Sequence[AttackedRun] = ()
    handlers: Mapping[str, str] = field(default_factory=dict)  # of `values`: the handler that each stands for

    def holder(self, metric: str) -> Evaluated | None:
        """The first evaluation with a value of this metric."""
        return next((e for e in self.evals if e.value(metric) is not None), None)

    def value(self, metric: str) -> float | None:
        found = self.holder(metric)
        return found.value(metric) if found else number((self.values.get(metric) or {}).get("v"))

    def metric_of(self, handler: str) -> str:
        """The metric that speaks for a handler: measured by row if any was, else a number without rows."""
        for evaluated in self.evals:
            metric = evaluated.first(handler)
            if metric:
                return metric
        return next((m for m, h in self.handlers.items() if h == handler and self.value(m) is not None), "")

    def estimate(self, metric: str) -> Estimate | None:
        found = self.holder(metric)
        return found.estimate(metric) if found else None

    def interval(self, metric: str) -> tuple[float | None, float | None]:
        """The ends of its 95 % interval. An interval of another number (`of`) is not the metric's."""
        found = self.holder(metric)
        stat = (found.stats.get(metric) or {}) if found else {}
        if stat.get("interval") and not stat.get("of"):
            return float(stat["interval"][0]), float(stat["interval"][1])
        told = self.values.get(metric) or {}
        return (None, None) if told.get("of") else (number(told.get("lo")), number(told.get("hi")))

    def variance(self, metric: str) -> float | None:
        """From the 95 % interval, where there is one."""
        lo, hi = self.interval(metric)
        return None if lo is None or hi is None else ((hi - lo) / 2 / NORMAL_95) ** 2


@dataclass(frozen=True)
class JudgedRuns:
    """The model to judge, and what it is held against."""

    model: ModelRuns
    full: ModelRuns | None = None  # before unlearning
    retain: Sequence[ModelRuns] = ()  # never trained on the forget rows; several: trained with other seeds
    commands: Mapping[str, str] = field(default_factory=dict)  # test -> the command that would make it

    def ceiling(self, metric: str) -> float | None:
        """The full model's value; without a full model 1, the most there is."""
        return 1.0 if self.full is None else self.full.value(metric)


# ---- diffusion models ---------------------------------------------------------------------------------------------
#
# A trajectory's results hold means over rows for each denoising step, with their 95 % intervals, and no value for
# single rows. The last step is what the model says in the end; a model may know more on the way, so the mean over the
# path is judged as well. Its interval is the mean of the steps' (as if they rose and fell together: not too narrow).

KIND = "fixation_start"  # just before each token is decided
LAST, PATH = " at the last denoising step", " over the denoising path"


def path_values(results: Mapping[str, JsonObject]) -> dict[str, dict[str, Any]]:
    """Values by name, {"v", "lo", "hi"}; the whole window where there are several views."""
    out: dict[str, dict[str, Any]] = {}
    for body in results.values():
        nested = body.get("agg_value")
        if not isinstance(nested, Mapping):
            continue
        view = ""
        if set(nested) <= set(VIEWS):
            view = "full" if "full" in nested else next(iter(nested))
            nested = nested[view]
        for metric, curve in (nested.get(KIND) or {}).items():
            around = spread_of(body, view, KIND, metric)
            curves = {"v": curve, "lo": around.get("ci_low"), "hi": around.get("ci_high")}
            for suffix, read in ((LAST, _last), (PATH, _mean_of_curve)):
                found = {key: read(points) for key, points in curves.items()}
                if found["v"] is not None:
                    out.setdefault(f"{metric}{suffix}", found)
    return out


def _last(curve: Any) -> float | None:
    return number(curve[-1]) if isinstance(curve, list) and curve else None


def _mean_of_curve(curve: Any) -> float | None:
    points = [number(x) for x in curve] if isinstance(curve, list) else []
    return mean(x for x in points if x is not None) if points and None not in points else None


def path_handlers(values: Mapping[str, Any]) -> dict[str, str]:
    """The handler that each value of a trajectory stands for.

    >>> path_handlers({"rouge at the last denoising step": {}, "uds": {}})
    {'rouge at the last denoising step': 'rouge'}
    """
    return {name: name.removesuffix(LAST).removesuffix(PATH) for name in values if name.endswith((LAST, PATH))}


# ---- directories --------------------------------------------------------------------------------------------------


def read_runs(
    model: Sequence[Path],
    full: Sequence[Path] = (),
    retain: Sequence[Path] = (),
    depth: Path | None = None,
    stress: Sequence[Path] = (),
) -> JudgedRuns:
    """Runs from their directories: evaluations of the model, of the full model and of each retain model; the model's
    depth run; its attacks, with the retain model's as the control.
    """
    judged = read_model(model)
    if depth:
        summary = read_ours(depth / "summary.json", dict[str, Any])
        low, high = summary.get("interval") or (None, None)
        uds = {"v": summary.get("avg_uds"), "lo": low, "hi": high}
        records = read_ours(depth / "results.json", list[dict[str, Any]])
        judged = replace(judged, depth=records, values={**judged.values, "uds": uds})
    attacks: list[AttackedRun] = []
    controls: list[AttackedRun] = []
    for place in stress:
        body = read_ours(place / "stress.json", dict[str, Any])
        evals = {who: dict(attacked_evaluations(place, who)) for who in ("model", "retain")}
        by_model = attacked_of(body, evals)
        attacks += by_model.get("model", ())
        controls += by_model.get("retain", ())
    references = [read_model([place]) for place in retain]
    if references:
        references[0] = replace(references[0], attacks=controls)
    return JudgedRuns(replace(judged, attacks=attacks), read_model(full) if full else None, references)


def read_model(places: Sequence[Path]) -> ModelRuns:
    """The evaluations of one model; of a trajectory its last step and its path."""
    found = [read_evaluation(place) for place in places]
    values: dict[str, dict[str, Any]] = {}
    for evaluated in found:
        values |= path_values(evaluated.results)
    return ModelRuns(found, values, handlers=path_handlers(values))


def read_evaluation(place: Path) -> Evaluated:
    """An evaluation by its directory."""
    file = next(iter(sorted(place.glob("*_EVAL.json"))))
    manifest, stats = place / "manifest.json", file.with_name(file.name.replace("_EVAL", "_STATS"))
    return Evaluated(
        read_ours(file, dict[str, Any]),
        read_ours(manifest, dict[str, Any]) if manifest.is_file() else {},
        read_ours(stats, dict[str, Any]) if stats.is_file() else {},
    )


def attacked_evaluations(place: Path, who: str) -> Iterator[tuple[str, Evaluated]]:
    """The evaluations inside a stress run, by label."""
    for inner in sorted((place / "evals" / who).glob("*/")):
        if any(inner.glob("*_EVAL.json")):
            yield inner.name, read_evaluation(inner)


def attacked_of(body: JsonObject, evals: Mapping[str, Mapping[str, Evaluated]]) -> dict[str, list[AttackedRun]]:
    """The attacked copies of a stress.json, by model | retain, with the evaluations of their rows where kept."""
    out: dict[str, list[AttackedRun]] = {}
    for row in body["rows"]:
        if row["attack"] == "none":
            continue
        name, budget, who = str(row["attack"]), row["budget"], str(row["model"])
        about = (body.get("attacks") or {}).get(name) or {}
        label = f"{name}-{budget:g}" if budget is not None else name
        copy = AttackedRun(
            attack=name,
            budget=budget,
            teaches=bool(about.get("teaches")),
            unit=str(about.get("unit") or ""),
            evaluated=(evals.get(who) or {}).get(label),
            values=row["values"],
            by_row=row.get("by_row") or {},
            zero=str(about.get("zero") or ""),
        )
        out.setdefault(who, []).append(copy)
    return out
