"""Benchmark evaluators written for open-unlearning, unchanged: classes that derive from `evals.base.Evaluator`.

Such a class decides how a model is prepared, which metrics are collected, how they are summarised and reported. The
metrics themselves are ours: an evaluator calls them with its model, and the run in progress (a `Session`) answers.
"""

from __future__ import annotations

import inspect
import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.integrations.plugin_files import with_siblings
from vestige.models.fingerprint import digests
from vestige.suites.registry import EVALUATOR_CLASSES, HANDLERS, Handler, Inputs, canonical
from vestige.types import Score, content_key

logger = logging.getLogger("evaluator")


class EvalSession(Protocol):
    """The run in which an evaluator works."""

    def measure(
        self, metric: UnlearningMetric, model: Any, name: str, cache: dict[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]: ...
    def call(self, metric: UnlearningMetric, model: Any, given: Mapping[str, Any]) -> dict[str, Any]: ...
    def save(self, logs: Mapping[str, Any], file: str) -> None: ...
    def stale(self, file: str) -> bool: ...


_session: list[EvalSession] = []  # the innermost last


@contextmanager
def session(current: EvalSession) -> Iterator[None]:
    _session.append(current)
    try:
        yield
    finally:
        _session.pop()


def _current(what: str) -> EvalSession:
    if not _session:
        raise UserError(f"{what} works only inside a run: give the file to `vestige eval ... --plugin FILE`.")
    return _session[-1]


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
        return _current(f"Metric '{metric_name}'").measure(self, model, metric_name, cache, kwargs)

    def __call__(self, model: Any, **kwargs: Any) -> Any:
        if "metric_name" in kwargs:
            kwargs.setdefault("cache", {})
            return self.evaluate(model, **kwargs)
        return self._metric_fn(model, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name}"


class unlearning_metric:  # noqa: N801 - the name plug-ins import
    """Makes a metric of a function of (model, **kwargs), and registers it under its name."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def __call__(self, metric_fn: Callable[..., Any]) -> UnlearningMetric:
        metric = UnlearningMetric(self.name or metric_fn.__name__, metric_fn)
        register_metric(metric)
        return metric


def register_metric(metric: UnlearningMetric) -> None:
    """Makes a metric known under its name. Registering one of ours, as files do at home, changes nothing."""
    if isinstance(metric, BuiltIn):
        return
    doc = (metric._metric_fn.__doc__ or "").strip().splitlines()

    def live(model: Any, **kwargs: Any) -> Any:
        return metric.evaluate_metric(model, metric.name, **kwargs)

    live.__module__ = metric._metric_fn.__module__  # whose mistakes are the user's
    HANDLERS[metric.name] = Handler(metric.name, _never, doc=doc[0] if doc else "a plug-in", live=live)
    METRICS_REGISTRY[metric.name] = metric


def _never(inputs: Inputs) -> Score:
    raise AssertionError("a live metric is run with its model, not scored from evidence")


class BuiltIn(UnlearningMetric):
    """One of our handlers as such an object: `from evals.metrics.memorization import probability`."""

    def __init__(self, name: str) -> None:
        def call(model: Any, **kwargs: Any) -> dict[str, Any]:
            """One of vestige's own metrics."""
            return _current(f"Metric '{name}'").call(self, model, kwargs)

        super().__init__(name, call)


class Registry(dict[str, Any]):
    """Metrics by handler name: those of plug-ins, and ours when they are asked for."""

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

        Results that an earlier run left in the run directory are not taken over: its evidence is, as far as it fits.
        """
        if not Path(file).exists() or _current("load_logs_from_file").stale(file):
            return {}
        return dict(json.loads(Path(file).read_text(encoding="utf-8")))

    def save_logs(self, logs: Mapping[str, Any], file: str) -> None:
        _current("save_logs").save(logs, file)

    def prepare_model(self, model: Any) -> Any:
        model.eval()
        return model

    def load_metrics(self, metrics_cfg: Any) -> dict[str, Any]:
        return get_metrics(metrics_cfg)

    def summarize(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """The one number of each metric that was asked for."""
        asked = {name: logs[name] for name in logs if name in self.metrics}
        values = {name: entry.get("agg_value") for name, entry in asked.items()}
        return {name: value for name, value in values.items() if value is not None}

    def evaluate(
        self, model: Any, output_dir: str | None = None, overwrite: bool | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Runs every metric that has no result yet; saves results and their summary after each."""
        again = bool(self.eval_cfg.overwrite) if overwrite is None else overwrite
        model = self.prepare_model(model)
        place = str(output_dir or self.eval_cfg.output_dir)
        details, summary = self.get_logs_file_path(place), self.get_logs_file_path(place, suffix="SUMMARY")
        logs = {} if again else self.load_logs_from_file(details)
        given = {key: kwargs.get(key) for key in ("tokenizer", "template_args")}
        for name, metric in self.metrics.items():
            if again or not logs.get(name):
                logs.pop(name, None)
                metric(model, metric_name=name, cache=logs, **given, **self.eval_cfg.metrics[name])
            self.save_logs(logs, details)
            self.save_logs(self.summarize(logs), summary)
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
    found = EVALUATOR_REGISTRY.get(handler)
    return None if found in OURS else found


def own_methods(evaluator: type[Evaluator]) -> list[str]:
    """What a class does in its own way. One that only has a name of its own is run as any suite is.

    >>> own_methods(TOFUEvaluator)
    []
    """
    plain = {"__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__firstlineno__",
             "__static_attributes__"}  # fmt: skip
    mine = [c for c in evaluator.__mro__ if c not in (*OURS, Evaluator, object)]
    return sorted({name for c in mine for name in vars(c)} - plain)


def calling(cls: type[Evaluator], what: str, call: Callable[[], Any]) -> Any:
    """Runs a method of the user's class; its mistakes are told with the line that made them."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:  # the class is the user's code, and may fail in any way
        reraise_ours(error, cls.__module__)
        file = inspect.getsourcefile(cls)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        where = f" at line {lines[-1]} of {file}" if lines else ""
        words = f"{type(error).__name__}: {error}"
        raise UserError(f"Evaluator {cls.__name__} failed in {what}{where}: {words}.") from None


def source_of(evaluator: type[Evaluator], plugins: tuple[str, ...]) -> str:
    """A digest of the code behind an evaluator: its file, the plug-ins given, and what they import beside them."""
    files = [Path(p).expanduser() for p in plugins]
    files += [Path(f) for c in evaluator.__mro__ if _is_users(c) and (f := inspect.getsourcefile(c))]
    every = dict.fromkeys(f.resolve() for file in files for f in with_siblings(file))
    return content_key(*(d.encode() for d in sorted(digests(list(every)))))[:16]


def _is_users(cls: type) -> bool:
    return cls is not object and not cls.__module__.startswith("vestige.")
