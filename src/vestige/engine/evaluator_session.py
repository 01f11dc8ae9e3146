"""Code of the user's in a run: evaluators that have the say, and metrics that run a model themselves.

In: classes and functions that a plug-in registered. Out: scores, as from our own metrics. Caller: engine/evaluate.py,
in runs whose suite names such code; no other run imports this file.

Evidence is collected for the model that a metric is called with. Where the class could have changed that model, the
evidence is filed under its weights in memory and under the source of the class, so that changed code finds none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.adapters.evaluators import (
    METRICS_REGISTRY,
    Evaluator,
    UnlearningMetric,
    evaluator_class,
    own_methods,
    register_metric,
    run_method,
    session,
    source_of,
)
from vestige.adapters.open_unlearning import CausalRows, TorchRows, plain, run_live
from vestige.engine.config import RunConfig, spec_to_json
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import Prepared
from vestige.engine.scores import Live, Scoring
from vestige.errors import UserError
from vestige.runs.files import write_json
from vestige.suites.postprocess import reported, suite_of
from vestige.suites.registry import HANDLERS, AtStep, Evidence, Inputs
from vestige.suites.spec import DataSpec, MetricSpec, Named, SuiteSpec, read_suite
from vestige.types import Rows, Score, content_key

if TYPE_CHECKING:
    from vestige.runs.collect import Collector

References = Mapping[str, Mapping[str, Score | None]]

TOUCHES_MODEL = {"prepare_model", "evaluate"}  # a class with one of its own may run another model than was loaded
GIVEN = ("tokenizer", "template_args", "cache", "metric_name")  # what evaluators hand on besides the configuration


def make_evaluator(config: RunConfig) -> Evaluator | None:
    """The evaluator that a suite's handler names, if a plug-in brought a class of that name."""
    found = evaluator_class(config.suite.handler)
    if found is None:
        return None
    from omegaconf import OmegaConf

    suite = config.suite
    body = {k: v for k, v in config.settings.items() if k != "metrics"}
    metrics = {name: spec_to_json(suite.metrics[name]) for name in suite.top}
    body |= {"metrics": metrics, "output_dir": str(config.output_dir), "overwrite": config.overwrite}
    cfg = OmegaConf.create(json.loads(json.dumps(body, default=str)))
    made: Evaluator = run_method(found, "__init__", lambda: found(cfg))  # type: ignore[call-arg]
    if not isinstance(getattr(made, "name", None), str):
        raise UserError(f"Evaluator {found.__name__} has no name; call super().__init__(NAME, eval_cfg) in __init__.")
    return made


def overrides_evaluate(evaluator: Evaluator | None, suite: SuiteSpec) -> bool:
    """Whether a class does more than name its files."""
    if evaluator is None:
        return False
    asked = {name: METRICS_REGISTRY[suite.metrics[name].handler] for name in suite.top}
    return bool(own_methods(type(evaluator))) or getattr(evaluator, "metrics", None) != asked


class LateModel:
    """The attributes of a handle's model, which is loaded when one is asked for."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def eval(self) -> LateModel:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle.get().model, name)


@dataclass
class EvaluatorSession:
    """Answers metrics that are called with a model, in the run at hand."""

    config: RunConfig
    prepared: Prepared
    collector: Collector
    model: ModelHandle  # as loaded
    second: Callable[[str], ModelHandle]
    scoring: Callable[[Prepared, Evidence, ModelHandle], Scoring]
    prepare: Callable[[RunConfig], Prepared]
    source: str = ""  # of the code that may change the model; empty: none does
    asked: ModelHandle | None = None  # the last model that metrics were called with
    measured: dict[str, Score] = field(default_factory=dict)
    saved: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _known: dict[str, Scoring] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.late = LateModel(self.model)
        self.suite = self.config.suite

    # ---- what evaluators and metrics call ---------------------------------------------------------------------

    def measure(
        self, metric: UnlearningMetric, model: Any, name: str, cache: dict[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        if metric.name not in HANDLERS:
            register_metric(metric)
        self._configure(name, given, metric)
        spec = self.suite.metrics[name]
        for parent in spec.parents.values():
            if parent not in cache:
                theirs = self.suite.metrics[parent]
                self.measure(METRICS_REGISTRY[theirs.handler], model, parent, cache, spec_to_json(theirs))
        parents = {key: Score.from_json(plain(cache[parent])) for key, parent in spec.parents.items()}
        score = self._scoring(model).score(name, parents)
        self.measured[name] = score
        cache[name] = json.loads(json.dumps(score.to_json()))
        return dict(cache[name])

    def call(self, metric: UnlearningMetric, model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """One of our metrics on rows at hand, as a function: for metrics that build on it."""
        kind = HANDLERS[metric.name]
        data = given.get("data")
        sets = dict(data) if isinstance(data, Mapping) else {} if data is None else {"data": data}
        if kind.classify or not all(isinstance(rows, TorchRows) for rows in sets.values()):
            raise UserError(
                f"Metric '{metric.name}' can be called on the data that a metric is handed (kwargs['data']) only; name "
                "it under pre_compute instead."
            )
        rows: dict[str, Rows] = {key: found.rows for key, found in sets.items()}
        reserved = ("data", "collators", "generation_args", "pre_compute", "reference_logs", *GIVEN)
        spec = MetricSpec(
            metric.name,
            metric.name,
            tuple(DataSpec(key, key, {}) for key in rows),
            generation=dict(given.get("generation_args") or {}),
            params={k: v for k, v in given.items() if k not in reserved},
        )
        dialect = self.prepared.dialect
        evidence = self.collector.collect(kind.wants(spec, rows, dialect), self._handle(model), self.second)
        parents = {k: Score.from_json(plain(v)) for k, v in (given.get("pre_compute") or {}).items()}
        logs = {
            name: {k: None if v is None else Score.from_json(plain(v)) for k, v in found.items()}
            for name, found in (given.get("reference_logs") or {}).items()
        }
        score = kind.score(Inputs(spec, dialect, rows, evidence, parents, logs))
        return dict(json.loads(json.dumps(score.to_json())))

    def save(self, logs: Mapping[str, Any], file: str) -> None:
        body = dict(sorted(plain(_container(logs)).items()))
        self.saved[Path(file).resolve()] = body
        write_json(Path(file), body)

    def stale(self, file: str) -> bool:
        path = Path(file).resolve()
        return path in self._files() and path not in self.saved

    # ---- behind them ------------------------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        stem = self.suite.file_stem
        return [(self.config.output_dir / f"{stem}_{part}.json").resolve() for part in ("EVAL", "SUMMARY")]

    def _configure(self, name: str, given: Mapping[str, Any], metric: UnlearningMetric) -> None:
        """Takes a metric's configuration as the evaluator hands it over: another one is another metric."""
        body = {k: _container(v) for k, v in given.items() if k not in GIVEN}
        known = self.suite.metrics.get(name)
        if known and (not body or _text(body) == _text(spec_to_json(known))):
            return
        body.setdefault("handler", metric.name)
        every = {n: spec_to_json(spec) for n, spec in self.suite.metrics.items()}
        suite = read_suite(self.suite.name, {"metrics": {name: body}}, Named({**every, name: body}), [name])
        more = self.prepare(replace(self.config, suite=suite))
        self.prepared.rows.update(more.rows)
        self.prepared.unavailable = {k: v for k, v in self.prepared.unavailable.items() if k != name}
        self.prepared.unavailable.update(more.unavailable)
        self.prepared.data_of.update(more.data_of)
        self.prepared.wants.add(more.wants)
        self.suite = replace(self.suite, metrics={**self.suite.metrics, **suite.metrics})
        self._known.clear()

    def _scoring(self, model: Any) -> Scoring:
        handle = self._handle(model)
        key = f"{handle.fingerprint} {id(model)} {_hooks(model)}"
        if key not in self._known:
            evidence = self.collector.collect(self.prepared.wants, handle, self.second)
            self._known[key] = self.scoring(self.prepared, evidence, handle)
        return replace(self._known[key], suite=self.suite)

    def _handle(self, model: Any) -> ModelHandle:
        """Who is asked: the model as loaded, or the one that the evaluator made of it, by its weights as they are."""
        if isinstance(model, CausalRows):
            model = model.model
        loaded = model is self.late or (self.model.is_loaded and model is self.model.get().model)
        if loaded and not self.source:
            self.asked = self.model
            return self.model
        from vestige.models.load import wrap_model

        if not callable(getattr(model, "state_dict", None)):
            raise UserError(f"A {type(model).__name__} is not a model: metrics are called with a torch module.")
        before = self.model.get()
        made = wrap_model(model, before.tokenizer, before.name)
        made.model = model  # eval() of a wrapper may return what it wraps
        made.notes = list(before.notes)
        made.quantization = before.quantization
        made.fingerprint = content_key(made.fingerprint.encode(), self.source.encode(), type(model).__name__.encode())
        self.asked = ModelHandle(None, made)
        return self.asked


def _container(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _text(body: Any) -> str:
    return json.dumps(plain(body), sort_keys=True, default=str)


def _hooks(model: Any) -> str:
    """Hooks change what a model computes, and no weight shows it."""
    modules = model.modules() if hasattr(model, "modules") else ()
    found = [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in modules]
    return content_key(repr(found).encode())[:8]


# ---- metrics that run a model themselves ---------------------------------------------------------------------------


def run_with_model(prepared: Prepared, model: ModelHandle, batch_size: int) -> Live:
    def live(spec: MetricSpec, parents: Mapping[str, Score], references: References) -> Score:
        data = prepared.data(spec.name)
        return run_live(HANDLERS[spec.handler], spec, model.get(), data, parents, references, batch_size)

    return live


def run_at_steps(prepared: Prepared, model: ModelHandle, tokenizer: Any, batch_size: int) -> AtStep:
    """Inside a trajectory: each step's logits are the metric's model."""
    from vestige.adapters.step_model import run_at_step
    from vestige.collect.denoise import Windows
    from vestige.collect.diffusion import predictor_of

    windows = Windows(prepared.wants.denoised, lambda: predictor_of(model.get()))
    late = LateModel(model)

    def run(spec: MetricSpec, moment: Any, parents: Mapping[str, Score], references: References) -> Score:
        return run_at_step(spec, moment, windows, late, tokenizer, parents, references, batch_size)

    return run


# ---- what an evaluator reports -------------------------------------------------------------------------------------


def evaluated(
    evaluator: Evaluator, run: EvaluatorSession, given: Mapping[str, Any]
) -> tuple[dict[str, Score], SuiteSpec, dict[str, Any]]:
    """Lets an evaluator evaluate. Returns its scores, the suite as it turned out, and what the manifest says of it."""
    cls = type(evaluator)
    own, source = own_methods(cls), source_of(cls, run.config.plugins)
    run.source = source if TOUCHES_MODEL & set(own) else ""
    model = run.model.get().model if run.source else run.late
    with session(run):
        summary = run_method(cls, "evaluate", lambda: evaluator.evaluate(model=model, **given))
    details, brief = run._files()
    logs = run.saved.get(details) or next((v for p, v in run.saved.items() if p.name.endswith("_EVAL.json")), None)
    logs = {name: score.to_json() for name, score in run.measured.items()} if logs is None else logs
    if not isinstance(summary, Mapping):
        summary = run.saved.get(brief, {})
    scores = reported(cls.__name__, run.measured, logs, plain(_container(summary)))
    suite = suite_of(run.suite, scores, [str(name) for name in summary if str(name) in scores])
    return scores, suite, {"evaluator": {"class": cls.__name__, "own": own, "source": source}}
