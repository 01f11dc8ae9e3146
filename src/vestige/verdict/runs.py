"""One finished evaluation as a judge reads it: which metric measures what, and its value as a function of its rows.

In: the results, intervals and manifest of an evaluation, as files hold them (another tool's have no manifest). Out:
estimates that can be drawn or left out row by row. Callers: verdict/facts.py; the room report asks for handlers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vestige.engine.scores import Estimate, NoInterval, Run
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError
from vestige.metrics.cards import CARDS
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.numeric import mean
from vestige.schema import misfit, number
from vestige.stats import bootstrap
from vestige.stats.contrast import NORMAL_95
from vestige.store.files import read_ours
from vestige.store.forms import ManifestForm
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import Score

SIDE = ("_PARA_", "_PERT_", "_para", "_pert")  # other wordings of the answer: not what a reader looks for first
ENDINGS = {
    "_rouge": "rouge",
    "_prob": "probability",
    "_truth_ratio": "truth_ratio",
    "_prob_normalised": "probability_w_options",
}
NAMED = {"forget_quality": "ks_test", "model_utility": "hm_aggregate"}


def guessed_handler(metric: str) -> str:
    """
    >>> guessed_handler("forget_Q_A_ROUGE"), guessed_handler("mia_min_k"), guessed_handler("my_own")
    ('rouge', 'mia_min_k', '')
    """
    if metric in CARDS or metric in NAMED:
        return NAMED.get(metric, metric)
    return next((h for end, h in ENDINGS.items() if metric.lower().endswith(end)), "")


def settings_in(manifest: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    return ((manifest.get("config") or {}).get("metrics") or {}).get(metric) or {}


def handler_in(manifest: Mapping[str, Any], metric: str) -> str:
    """What computed a metric. Results of another tool have no manifest; their names follow open-unlearning's."""
    return str(settings_in(manifest, metric).get("handler") or ("" if manifest else guessed_handler(metric)))


def split_of(metric: str) -> str:
    """
    >>> split_of("forget_Q_A_ROUGE"), split_of("retain_knowmem_ROUGE"), split_of("ra_Q_A_ROUGE")
    ('forget', 'retain', '')
    """
    words = metric.lower().split("_")
    return next((s for s in ("forget", "retain") if s in words), "")


@dataclass(frozen=True)
class Evaluated:
    """One evaluation. Equality and hashing are by identity: it holds whole files."""

    results: Mapping[str, Mapping[str, Any]]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def handler(self, metric: str) -> str:
        return handler_in(self.manifest, metric)

    def value(self, metric: str) -> float | None:
        v = (self.results.get(metric) or {}).get("agg_value")
        return float(v) if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) else None

    def first(self, handler: str, split: str = "forget") -> str:
        """The first metric with a value that such a handler computed on a split, in the answers' own wording."""
        for metric in self.results:
            plain = split_of(metric) == split and not any(word in metric for word in SIDE)
            if plain and self.handler(metric) == handler and self.value(metric) is not None:
                return metric
        return ""

    @cached_property
    def _run(self) -> Run:
        scores = {m: Score.from_json(body) for m, body in self.results.items()}
        if not misfit(self.manifest, ManifestForm):
            try:
                return Run(suite_from_manifest(self.manifest), scores, self.manifest, {})
            except UserError:
                pass  # by a function that is not known here: rows are told apart by their numbers
        specs = {m: MetricSpec(m, self.handler(m)) for m in self.results}
        return Run(SuiteSpec("", "", specs, ()), scores, {"data_of": {}, "data": {}}, {})

    @cached_property
    def _known(self) -> dict[str, Estimate | None]:
        return {}

    def estimate(self, metric: str) -> Estimate | None:
        """A metric as a function of how often each row is drawn; None where its rows are not known."""
        if metric not in self._known:
            try:
                known = metric in self._run.suite.metrics and metric in self._run.scores
                self._known[metric] = self._run.estimate(metric) if known else None
            except NoInterval:
                self._known[metric] = None
        return self._known[metric]


# ---- Diffusion models: what a trajectory says at its last step, and on the way there, for the judge ---------------
#
# A trajectory's results hold means over rows for each denoising step, with their 95 % intervals, and no value for
# single rows. The last step is what the model says in the end; a model may know more on the way, so the mean over the
# path is judged as well. Its interval is the mean of the steps' (as if they rose and fell together: not too narrow).
#
# In: results of a trajectory run. Out: values with intervals, and the handler that each stands for. Callers:
# verdict/runs.py, report/audits.py.

KIND = "fixation_start"  # just before each token is decided
LAST, PATH = " at the last denoising step", " over the denoising path"


def path_values(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
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
            for suffix, read in ((LAST, _last), (PATH, _mean)):
                found = {key: read(points) for key, points in curves.items()}
                if found["v"] is not None:
                    out.setdefault(f"{metric}{suffix}", found)
    return out


def _last(curve: Any) -> float | None:
    return number(curve[-1]) if isinstance(curve, list) and curve else None


def _mean(curve: Any) -> float | None:
    points = [number(x) for x in curve] if isinstance(curve, list) else []
    return mean(x for x in points if x is not None) if points and None not in points else None


def handlers(values: Mapping[str, Any]) -> dict[str, str]:
    """The handler that each value stands for.

    >>> handlers({"rouge at the last denoising step": {}, "uds": {}})
    {'rouge at the last denoising step': 'rouge'}
    """
    return {name: name.removesuffix(LAST).removesuffix(PATH) for name in values if name.endswith((LAST, PATH))}


@dataclass(frozen=True)
class AttackedRun:
    """One attacked copy, measured. Runs of other seeds have the same attack and budget."""

    attack: str
    budget: float | None
    teaches: bool
    unit: str = ""
    evaluated: Evaluated | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # where rows are not known
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
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    depth: Sequence[Mapping[str, Any]] = ()  # records of a depth run
    attacks: Sequence[AttackedRun] = ()

    def holder(self, metric: str) -> Evaluated | None:
        return next((e for e in self.evals if e.value(metric) is not None), None)

    def value(self, metric: str) -> float | None:
        found = self.holder(metric)
        return found.value(metric) if found else number((self.values.get(metric) or {}).get("v"))

    def estimate(self, metric: str) -> Estimate | None:
        found = self.holder(metric)
        return found.estimate(metric) if found else None

    def interval(self, metric: str) -> tuple[float | None, float | None]:
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
class References:
    """What a model is held against."""

    full: ModelRuns | None = None
    retain: Sequence[ModelRuns] = ()  # several: trained with other seeds


# ---- Finished runs on disk, read for a verdict: evaluations, depth runs and attacks of one model and its refer
#
# In: directories. Out: ModelRuns, and the verdict on them without a page. Callers: the bench (room meta), audit, lab.


def model_runs(places: Sequence[Path]) -> ModelRuns:
    """The evaluations of one model; of a trajectory its last step."""
    found = [evaluation(place) for place in places]
    return ModelRuns(found, {k: v for e in found for k, v in path_values(e.results).items()})


def evaluation(place: Path) -> Evaluated:
    """An evaluation by its directory."""
    file = next(iter(sorted(place.glob("*_EVAL.json"))))
    manifest, stats = place / "manifest.json", file.with_name(file.name.replace("_EVAL", "_STATS"))
    return Evaluated(
        read_ours(file, dict[str, Any]),
        read_ours(manifest, dict[str, Any]) if manifest.is_file() else {},
        read_ours(stats, dict[str, Any]) if stats.is_file() else {},
    )


def depth_records(place: Path) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = read_ours(place / "results.json", list[dict[str, Any]])
    return found


def depth_value(place: Path) -> dict[str, Any]:
    """The depth score of a run and the ends of its interval."""
    summary = read_ours(place / "summary.json", dict[str, Any])
    low, high = summary.get("interval") or (None, None)
    return {"v": summary.get("avg_uds"), "lo": low, "hi": high}


def attacked_runs(place: Path) -> dict[str, list[AttackedRun]]:
    """The attacked copies of a stress run, by model | retain, with their rows where these were kept."""
    body = read_ours(place / "stress.json", dict[str, Any])
    evals = {who: dict(attacked_evaluations(place, who)) for who in ("model", "retain")}
    return attacked_of(body, evals)


def attacked_evaluations(place: Path, who: str) -> Iterator[tuple[str, Evaluated]]:
    """The evaluations inside a stress run, by label."""
    for inner in sorted((place / "evals" / who).glob("*/")):
        if any(inner.glob("*_EVAL.json")):
            yield inner.name, evaluation(inner)


def attacked_of(
    body: Mapping[str, Any],
    evals: Mapping[str, Mapping[str, Evaluated]],
) -> dict[str, list[AttackedRun]]:
    """A stress.json's rows with the evaluations behind them."""
    out: dict[str, list[AttackedRun]] = {}
    for row in body["rows"]:
        if row["attack"] == "none":
            continue
        name, budget = str(row["attack"]), row["budget"]
        told = (body.get("attacks") or {}).get(name) or {}
        label = f"{name}-{budget:g}" if budget is not None else name
        made = AttackedRun(
            name, budget, bool(told.get("teaches")), str(told.get("unit") or ""),
            (evals.get(row["model"]) or {}).get(label), row["values"], row.get("by_row") or {},
            str(told.get("zero") or ""),
        )  # fmt: skip
        out.setdefault(str(row["model"]), []).append(made)
    return out
