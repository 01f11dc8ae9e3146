"""One finished evaluation as a judge reads it: which metric measures what, and its value as a function of its rows.

In: the results, intervals and manifest of an evaluation, as files hold them (another tool's have no manifest). Out:
estimates that can be drawn or left out row by row. Callers: judging/facts.py; the room report asks for handlers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vestige.engine.scores import Estimate, NoInterval, Run
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError
from vestige.metrics.cards import CARDS
from vestige.schema import misfit
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
