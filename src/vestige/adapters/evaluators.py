"""Benchmarks and metrics written for open-unlearning, run unchanged: its classes, registries and import names.

A class that derives from `evals.base.Evaluator` decides how a model is prepared, which metrics are collected, how they
are summarised and reported. The metrics are ours: an evaluator calls them with its model, and the run in progress (the
session) measures them.

    Evaluator, TOFUEvaluator, MUSEEvaluator     the classes to derive from
    UnlearningMetric, unlearning_metric         a metric as an object, and the decorator that makes one of a function
    session(current)                            the run that answers metrics inside the block
    evaluator_class, own_methods, source_of     what the engine asks of a class; run_method calls one of its methods
    install_import_names                        makes `from evals.metrics.base import unlearning_metric` work
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vestige.suites.handlers  # noqa: F401 - registers the metrics that can be imported from `evals.metrics`
from vestige.adapters import open_unlearning
from vestige.adapters.plugins import with_siblings
from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.models.fingerprint import digests
from vestige.suites.registry import EVALUATOR_CLASSES, HANDLERS, Handler, Inputs, canonical
from vestige.types import IGNORE, Score, content_key

logger = logging.getLogger("evaluator")

# The runs in which evaluators work, the innermost last (engine/evaluator_session.py). A session has four methods:
# measure(metric, model, name, cache, settings) and call(metric, model, settings) give a metric's result as a
# dictionary, save(logs, file) writes results, stale(file) tells whether an earlier run left the file.
_sessions: list[Any] = []


@contextmanager
def session(current: Any) -> Iterator[None]:
    """Metrics and evaluators that are called inside the block belong to this run."""
    _sessions.append(current)
    try:
        yield
    finally:
        _sessions.pop()


def _current_session(what: str) -> Any:
    if not _sessions:
        raise UserError(f"{what} works only inside a run: give the file to `vestige eval ... --plugin FILE`.")
    return _sessions[-1]


# ---- metrics --------------------------------------------------------------------------------------------------------


class UnlearningMetric:
    """A metric as an object: what `@unlearning_metric` makes of a function, and what evaluators call."""

    def __init__(self, name: str, metric_fn: Callable[..., Any]) -> None:
        self.name = name
        self._metric_fn = metric_fn
        self.data: Any = None
        self.collators: Any = None
        self.pre_compute_metrics: dict[str, Any] = {}
        self.__doc__ = metric_fn.__doc__

    def set_pre_compute_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.pre_compute_metrics.update(metrics)

    def evaluate_metric(self, model: Any, metric_name: str, **kwargs: Any) -> Any:
        """The function itself, with data, collators and parents' results at hand."""
        return self._metric_fn(model, **kwargs)

    def evaluate(self, model: Any, metric_name: str, cache: dict[str, Any], **kwargs: Any) -> Any:
        """From a metric's configuration to its result, which is also put into `cache`; so are its parents'."""
        return _current_session(f"Metric '{metric_name}'").measure(self, model, metric_name, cache, kwargs)

    def __call__(self, model: Any, **kwargs: Any) -> Any:
        if "metric_name" in kwargs:
            kwargs.setdefault("cache", {})
            return self.evaluate(model, **kwargs)
        return self._metric_fn(model, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name}"


def unlearning_metric(name: str | None = None) -> Callable[[Callable[..., Any]], UnlearningMetric]:
    """Makes a metric of a function of (model, **kwargs), and registers it under its name."""

    def decorate(metric_fn: Callable[..., Any]) -> UnlearningMetric:
        metric = UnlearningMetric(name or metric_fn.__name__, metric_fn)
        register_metric(metric)
        return metric

    return decorate


def register_metric(metric: UnlearningMetric) -> None:
    """Makes a metric known under its name. Registering one of ours, as open-unlearning's files do, changes nothing."""
    if isinstance(metric, BuiltIn):
        return
    doc = (metric._metric_fn.__doc__ or "").strip().splitlines()

    def live(model: Any, **kwargs: Any) -> Any:
        return metric.evaluate_metric(model, metric.name, **kwargs)

    def score(inputs: Inputs) -> Score:
        raise AssertionError("a live metric is run with its model, not scored from evidence")

    live.__module__ = metric._metric_fn.__module__  # errors in this module are the plug-in's, not ours
    HANDLERS[metric.name] = Handler(metric.name, score, doc=doc[0] if doc else "a plug-in", live=live)
    METRICS_REGISTRY[metric.name] = metric


class BuiltIn(UnlearningMetric):
    """One of our handlers as a metric object: `from evals.metrics.memorization import probability`."""

    def __init__(self, name: str) -> None:
        def call(model: Any, **kwargs: Any) -> dict[str, Any]:
            """One of vestige's own metrics."""
            return _current_session(f"Metric '{name}'").call(self, model, kwargs)

        super().__init__(name, call)


class Registry(dict[str, Any]):
    """Metrics by handler name: those of plug-ins, and ours as soon as they are looked up."""

    def __missing__(self, name: str) -> UnlearningMetric:
        known = canonical(name)
        if known not in HANDLERS:
            raise unknown_name("metric handler", name, HANDLERS, "(one of your own: --plugin FILE)")
        self[name] = BuiltIn(known)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if canonical(name) in HANDLERS else default


METRICS_REGISTRY = Registry()


def get_metrics(metric_cfgs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
    """A metric object for every configured metric."""
    return {str(name): METRICS_REGISTRY[str(config["handler"])] for name, config in metric_cfgs.items()}


# ---- evaluators -----------------------------------------------------------------------------------------------------

EVALUATOR_REGISTRY: dict[str, type[Evaluator]] = EVALUATOR_CLASSES


def register_evaluator(evaluator: type[Evaluator]) -> None:
    """Makes a benchmark known under its class's name: the `handler` of a suite."""
    EVALUATOR_REGISTRY[evaluator.__name__] = evaluator


class Evaluator:
    """A benchmark in code. A class that derives from it is known by its name as soon as it is defined."""

    name: str
    eval_cfg: Any
    metrics: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_evaluator(cls)

    def __init__(self, name: str, eval_cfg: Any, **kwargs: Any) -> None:
        self.name = name
        self.eval_cfg = eval_cfg
        self.metrics_cfg = eval_cfg.metrics
        self.metrics = self.load_metrics(self.metrics_cfg)

    def get_logs_file_path(self, output_dir: str, suffix: str = "EVAL") -> str:
        return str(Path(output_dir) / f"{self.name}_{suffix}.json")

    def load_logs_from_file(self, file: str) -> dict[str, Any]:
        """The results in a file, if there is one.

        Results that an earlier run left in the run directory are not reused; its evidence is, where it still fits.
        """
        if not Path(file).exists() or _current_session("load_logs_from_file").stale(file):
            return {}
        return dict(json.loads(Path(file).read_text(encoding="utf-8")))

    def save_logs(self, logs: Mapping[str, Any], file: str) -> None:
        _current_session("save_logs").save(logs, file)

    def prepare_model(self, model: Any) -> Any:
        model.eval()
        return model

    def load_metrics(self, metrics_cfg: Any) -> dict[str, Any]:
        return get_metrics(metrics_cfg)

    def summarize(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """The one number of each metric that was asked for."""
        summary = {}
        for name, entry in logs.items():
            if name in self.metrics and entry.get("agg_value") is not None:
                summary[name] = entry["agg_value"]
        return summary

    def evaluate(
        self, model: Any, output_dir: str | None = None, overwrite: bool | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Runs every metric that has no result yet; saves results and their summary after each."""
        if overwrite is None:
            overwrite = bool(self.eval_cfg.overwrite)
        model = self.prepare_model(model)
        output_dir = str(output_dir or self.eval_cfg.output_dir)
        details_file = self.get_logs_file_path(output_dir)
        summary_file = self.get_logs_file_path(output_dir, suffix="SUMMARY")
        logs = {} if overwrite else self.load_logs_from_file(details_file)
        settings = {key: kwargs.get(key) for key in ("tokenizer", "template_args")}
        for name, metric in self.metrics.items():
            if overwrite or not logs.get(name):
                logs.pop(name, None)
                metric(model, metric_name=name, cache=logs, **settings, **self.eval_cfg.metrics[name])
            self.save_logs(logs, details_file)
            self.save_logs(self.summarize(logs), summary_file)
        return self.summarize(logs)


class TOFUEvaluator(Evaluator):
    """The TOFU benchmark, to derive from."""

    def __init__(self, eval_cfg: Any, **kwargs: Any) -> None:
        super().__init__("TOFU", eval_cfg, **kwargs)


class MUSEEvaluator(Evaluator):
    """The MUSE benchmark, to derive from."""

    def __init__(self, eval_cfg: Any, **kwargs: Any) -> None:
        super().__init__("MUSE", eval_cfg, **kwargs)


OURS = (TOFUEvaluator, MUSEEvaluator)


def evaluator_class(handler: str) -> type[Evaluator] | None:
    """The class that a suite's handler names, if a plug-in brought one."""
    evaluator = EVALUATOR_REGISTRY.get(handler)
    return None if evaluator in OURS else evaluator


def own_methods(evaluator: type[Evaluator]) -> list[str]:
    """The names that a class defines itself. A class that defines none besides its name is run as any suite is.

    >>> own_methods(TOFUEvaluator)
    []
    """
    plain = {"__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__firstlineno__",
             "__static_attributes__"}  # fmt: skip
    names: set[str] = set()
    for cls in evaluator.__mro__:
        if cls not in (*OURS, Evaluator, object):
            names |= set(vars(cls))
    return sorted(names - plain)


def run_method(cls: type[Evaluator], what: str, call: Callable[[], Any]) -> Any:
    """Calls a method of the user's class; an error in it is reported with the line that raised it."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:  # the class is the user's code, and may fail in any way
        reraise_ours(error, cls.__module__)
        file = inspect.getsourcefile(cls)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        where = f" at line {lines[-1]} of {file}" if lines else ""
        raise UserError(f"Evaluator {cls.__name__} failed in {what}{where}: {type(error).__name__}: {error}.") from None


def source_of(evaluator: type[Evaluator], plugins: tuple[str, ...]) -> str:
    """A digest of an evaluator's code: its file, its plug-ins, and the files next to them that they import."""
    files = [Path(plugin).expanduser() for plugin in plugins]
    for cls in evaluator.__mro__:
        is_users = cls is not object and not cls.__module__.startswith("vestige.")
        if is_users and (source := inspect.getsourcefile(cls)):
            files.append(Path(source))
    resolved = dict.fromkeys(f.resolve() for file in files for f in with_siblings(file))
    return content_key(*(digest.encode() for digest in sorted(digests(list(resolved)))))[:16]


# ---- the modules that such files import ------------------------------------------------------------------------------

MEMORISATION = ("probability", "probability_w_options", "rouge", "truth_ratio", "extraction_strength",
                "exact_memorization")  # fmt: skip
PRIVACY = ("ks_test", "privleak", "rel_diff")
UTILITY = ("hm_aggregate", "classifier_prob")
MIA = ("mia_loss", "mia_min_k", "mia_min_k_plus_plus", "mia_gradnorm", "mia_zlib", "mia_reference")
HELPERS = ("aggregate_to_1D", "dict_transpose", "eval_text_similarity", "evaluate_probability", "run_batchwise_evals",
           "tokenwise_logprobs", "tokenwise_vocab_logprobs")  # fmt: skip

# The last lines of such a file call these: in open-unlearning they stand in a module that has the names.
REGISTERS: dict[str, Any] = {
    "_register_metric": register_metric,
    "_register_evaluator": register_evaluator,
    "_register_benchmark": register_evaluator,
}


def install_import_names() -> None:
    """Lets plug-in files say `from evals.metrics.base import unlearning_metric`, as in open-unlearning."""
    if "evals" in sys.modules:
        return
    objects = {
        "UnlearningMetric": UnlearningMetric,
        "unlearning_metric": unlearning_metric,
        "logger": logging.getLogger("metrics"),
    }
    ours = {name: METRICS_REGISTRY[name] for name in (*MEMORISATION, *PRIVACY, *UTILITY, *MIA)}
    helpers = {name: getattr(open_unlearning, name) for name in HELPERS}
    benchmarks = {"Evaluator": Evaluator, "TOFUEvaluator": TOFUEvaluator, "MUSEEvaluator": MUSEEvaluator}
    registries = {"EVALUATOR_REGISTRY": EVALUATOR_REGISTRY, "BENCHMARK_REGISTRY": EVALUATOR_REGISTRY}
    metrics = {"METRICS_REGISTRY": METRICS_REGISTRY, "get_metrics": get_metrics, **objects, **ours}
    # Every metric can be imported from each module of metrics; files name the one that holds it in open-unlearning.
    modules = {
        "evals": {**registries, **benchmarks, **REGISTERS},
        "evals.base": {**benchmarks, "get_metrics": get_metrics, "logger": logger},
        "evals.tofu": benchmarks,
        "evals.muse": benchmarks,
        "evals.metrics": {**metrics, **REGISTERS},
        "evals.metrics.base": objects,
        "evals.metrics.utils": {**helpers, "IGNORE_INDEX": IGNORE},
        "evals.metrics.memorization": {**objects, **ours, **helpers},
        "evals.metrics.privacy": {**objects, **ours},
        "evals.metrics.utility": {**objects, **ours},
        "evals.metrics.mia": ours,
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
