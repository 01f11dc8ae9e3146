"""A suite in plain data: which metric, on which data, from which parents. Read from composed configuration.

Two spellings mean the same. Compact (ours): a parent or data set is *named* and looked up once in the library.
Written out (open-unlearning's): its whole config stands in place. An entry with a `handler` is written out.

A SuiteSpec lists its metrics in an order in which parents come first. It is read from composed configuration
(configs/compose.py) or from a manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from vestige.errors import UserError, did_you_mean, unknown_name
from vestige.suites.registry import HANDLERS, TRAJECTORY, canonical, no_wants

log = logging.getLogger("vestige.suites")

MetricConfig = Mapping[str, Any]


@dataclass(frozen=True)
class DataSpec:
    """A data set of a metric, by the key under which its handler finds it."""

    name: str
    access_key: str
    config: MetricConfig  # {handler, args}


@dataclass(frozen=True)
class ReferenceSpec:
    """Results of another run that a metric compares with."""

    name: str
    path: str | None
    include: Mapping[str, str]  # metric in that file -> access key
    others: tuple[str, ...] = ()  # further runs of the same kind: other seeds of the retain model

    @property
    def paths(self) -> tuple[str, ...]:
        return () if self.path is None else (self.path, *self.others)


@dataclass(frozen=True)
class MetricSpec:
    """One metric of a suite, read in full."""

    name: str
    handler: str
    datasets: tuple[DataSpec, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)  # access key -> metric name
    references: tuple[ReferenceSpec, ...] = ()
    generation: MetricConfig = field(default_factory=dict)
    collators: MetricConfig = field(default_factory=dict)  # only metrics that run the model themselves pad
    params: MetricConfig = field(default_factory=dict)  # everything else: k, p, aggregator, rouge_type, ...
    children: SuiteSpec | None = None  # metrics computed at every step of a trajectory


@dataclass(frozen=True)
class SuiteSpec:
    """A benchmark: its metrics in an order in which parents come first."""

    name: str  # the config key: tofu
    handler: str  # TOFUEvaluator
    metrics: Mapping[str, MetricSpec]
    top: tuple[str, ...]  # the metrics asked for; the others are their parents
    postprocess: str = ""  # a function of all scores (suites/postprocess.py)
    stem: str = ""  # how an evaluator in code names its files

    @property
    def file_stem(self) -> str:
        """TOFUEvaluator -> TOFU, as in TOFU_EVAL.json."""
        return self.stem or self.handler.removesuffix("Evaluator") or self.name.upper()


class Library(Protocol):
    """Where named metrics and data sets are defined (the config groups)."""

    def metric(self, name: str) -> MetricConfig | None: ...
    def dataset(self, name: str) -> Mapping[str, MetricConfig] | None: ...
    def metric_names(self) -> Iterable[str]: ...


class Named:
    """A library that holds just the metrics it is given, said in full (a manifest's)."""

    def __init__(self, metrics: Mapping[str, MetricConfig]) -> None:
        self.metrics = metrics

    def metric(self, name: str) -> MetricConfig | None:
        return self.metrics.get(name)

    def dataset(self, name: str) -> Mapping[str, MetricConfig] | None:
        return None

    def metric_names(self) -> list[str]:
        return sorted(self.metrics)


# Keys of a metric config that are not settings of the metric itself.
RESERVED = {
    "handler", "datasets", "collators", "generation_args", "pre_compute", "reference_logs", "optional", "children",
}  # fmt: skip
# Settings of every metric in open-unlearning's files; batches are measured in tokens here.
WITHOUT_EFFECT = {"batch_size"}


# Parts of a metric config that hold settings; of the first three each entry does.
MAPPINGS = ("datasets", "pre_compute", "reference_logs", "generation_args", "collators", "trajectory_config")


def _check_shape(config: MetricConfig, where: str) -> None:
    """In YAML a list or a word is easily written where settings are expected."""
    for key in MAPPINGS:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {key} must hold settings (name: value), it is {value!r}; correct its settings.")
        for name, entry in value.items() if key in MAPPINGS[:3] else ():
            if entry is not None and not isinstance(entry, Mapping):
                raise UserError(
                    f"{where}: {key}.{name} must hold settings (name: value), it is {entry!r}; correct its settings."
                )


@dataclass
class _Reader:
    """Reads metrics by name, each once, parents before what is made of them."""

    library: Library
    settings: Mapping[str, Any]  # eval.<suite>.metrics: a metric's settings hold wherever it is a parent
    metrics: dict[str, MetricSpec] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    def read(self, name: str, given: MetricConfig | None) -> str:
        """Registers the metric `name` and, before it, its parents; returns the name it goes by."""
        config = self._config(name, given)
        _check_shape(config, f"Metric '{name}'")
        if name in self.metrics:
            return name
        if name in self.open:
            raise UserError(f"Metric '{name}' depends on itself: {' -> '.join([*self.open, name])}.")
        self.open.append(name)
        parents = {}
        # By name, which is how a manifest lists them: `score` meets the parents in the order in which `eval` met them.
        for parent, entry in sorted((config.get("pre_compute") or {}).items(), key=lambda pair: str(pair[0])):
            entry = dict(entry or {})
            key = entry.pop("access_key", parent)
            parents[key] = self.read(str(parent), entry)
        self.open.pop()
        if not config.get("handler"):
            has = ", ".join(map(str, config)) or "nothing"
            raise UserError(
                f"Metric '{name}' does not say its handler (it holds: {has}); add handler: NAME at its top."
            )
        handler = canonical(str(config["handler"]))
        if handler not in HANDLERS:
            raise unknown_name(
                "metric handler", handler, HANDLERS, f"(metric '{name}'; one of your own: --plugin FILE)"
            )
        params = {k: v for k, v in config.items() if k not in RESERVED}
        known = HANDLERS[handler].settings
        for key in params:
            if known is not None and key not in known and key not in WITHOUT_EFFECT:
                guess = did_you_mean(str(key), known)
                there = f"it has {', '.join(known)}." if known else "it has none of its own."
                raise UserError(f"Metric '{name}' has no setting '{key}'; {there}{guess}")
        spec = MetricSpec(
            name=name,
            handler=handler,
            datasets=tuple(self._dataset(*item) for item in (config.get("datasets") or {}).items()),
            parents=parents,
            references=tuple(_reference(*item) for item in (config.get("reference_logs") or {}).items()),
            generation=dict(config.get("generation_args") or {}),
            collators=dict(config.get("collators") or {}),
            params=params,
        )
        # A metric that asks the model about rows needs rows: known before anything runs.
        if not spec.datasets and handler != TRAJECTORY and HANDLERS[handler].wants is not no_wants:
            raise UserError(
                f"Metric '{name}' (handler {handler}) names no data; add datasets: {{NAME: {{access_key: KEY}}}} to "
                f"it, NAME from data/datasets (`vestige ls datasets` lists them)."
            )
        self.metrics[name] = spec if handler != TRAJECTORY else self._with_children(spec, config)
        return name

    def _with_children(self, spec: MetricSpec, config: MetricConfig) -> MetricSpec:
        """A trajectory metric with the metrics it computes at every step; its own data are theirs by default."""
        from vestige.suites.trajectory import child_configs, reference_keys

        recorded = config.get("children")
        if recorded:  # read back from a manifest, which is complete
            inner = _Reader(Named(recorded["metrics"]), {})
            children: dict[str, Any] = dict.fromkeys(recorded["top"])
        else:
            own = self._own()
            named = {*self.library.metric_names(), *own}
            children, defined = child_configs(
                spec.params,
                spec.name,
                config.get("datasets") or {},
                lambda name: own.get(name) or self.library.metric(name),
                HANDLERS,
                named,
            )
            # As in a suite: a metric's settings hold wherever it is a parent, in whatever order they are named.
            inner = _Reader(self.library, {**own, **defined})
        top = tuple(inner.read(name, child) for name, child in children.items())
        for name, child in inner.metrics.items():
            if HANDLERS[child.handler].live is not None and not child.datasets:
                inner.metrics[name] = replace(child, datasets=inner.data_of_parents(child))
        # What a child compares with is found in the same place of the retain model's own trajectory metric.
        theirs = [r for child in inner.metrics.values() for r in child.references]
        keys = reference_keys(spec.name, sorted({metric for r in theirs for metric in r.include}))
        references = [
            ReferenceSpec("retain_model_logs", p[0] if p else None, keys, tuple(p[1:]))
            for p in sorted({r.paths for r in theirs})
        ]
        suite = SuiteSpec(spec.name, spec.handler, inner.metrics, top)
        return replace(spec, datasets=(), references=tuple(references), children=suite)

    def data_of_parents(self, spec: MetricSpec) -> tuple[DataSpec, ...]:
        """The data sets that a metric's parents read, each once; where two share an access key, the first's."""
        found: dict[str, DataSpec] = {}
        for parent in spec.parents.values():
            theirs = self.metrics[parent]
            for data in theirs.datasets or self.data_of_parents(theirs):
                found.setdefault(data.access_key, data)
        return tuple(found.values())

    def _own(self) -> dict[str, MetricConfig]:
        """Metrics that the suite defines in place, with a handler, besides the library's."""
        own = {name: said for name, said in self.settings.items() if said and said.get("handler")}
        return {name: said for name, said in own.items() if said["handler"] != TRAJECTORY}

    def _config(self, name: str, given: MetricConfig | None) -> MetricConfig:
        """A metric's whole configuration: what stands in place, laid on the suite's, laid on the library's."""
        if given and given.get("handler") == TRAJECTORY and TRAJECTORY in self.library.metric_names():
            # Said to be a trajectory metric, and perhaps little else: the suite's own fills in metrics and data.
            return merged(self.library.metric(TRAJECTORY) or {}, given)
        if given and given.get("handler"):
            return given
        said = self.settings.get(name) or {}
        if said.get("handler"):
            return merged(said, given or {})
        found = self.library.metric(name)
        if found is None:
            raise unknown_name("metric", name, self.library.metric_names())
        return merged(merged(found, said), given or {})

    def _dataset(self, name: str, given: MetricConfig | None) -> DataSpec:
        """A data set by its name in the library, or written out."""
        config = dict(given or {})
        if not config.get("handler"):
            source = str(config.pop("from", name))
            found = self.library.dataset(source)
            if found is None or not isinstance(found.get(name), Mapping):
                raise UserError(f"Data set '{name}' is not defined: no data/datasets/{source}.yaml with that key.")
            config = dict(merged(found[name], config))
        return DataSpec(name, str(config.pop("access_key", name)), config)


def _reference(name: str, given: MetricConfig | None) -> ReferenceSpec:
    """Retain logs that a metric compares with; several files are runs of other training seeds."""
    config = given or {}
    include = {str(k): str((v or {}).get("access_key", k)) for k, v in (config.get("include") or {}).items()}
    path = config.get("path")
    listed = [] if path is None else [path] if isinstance(path, (str, Path)) else list(path)
    # Absolute, because a run is scored again from wherever its user happens to be.
    paths = [str(Path(str(p)).expanduser().absolute()) for p in listed]
    return ReferenceSpec(name, paths[0] if paths else None, include, tuple(paths[1:]))


def merged(base: MetricConfig, over: MetricConfig) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def read_suite(name: str, config: MetricConfig, library: Library, only: Iterable[str] | None = None) -> SuiteSpec:
    """The suite under `eval.<name>`; `only` replaces its list of metrics."""
    metrics = config.get("metrics") or {}
    if isinstance(metrics, list):
        metrics = {str(m): {} for m in metrics}
    if not isinstance(metrics, Mapping):
        raise UserError(f"eval.{name}.metrics is {metrics!r}; write a name and its settings for each metric.")
    for metric, settings in metrics.items():
        if settings is not None and not isinstance(settings, Mapping):
            raise UserError(
                f"eval.{name}.metrics.{metric} is {settings!r}; write a name and its settings for each metric."
            )
    wanted = dict.fromkeys(only if only is not None else metrics)
    reader = _Reader(library, metrics)
    top = tuple(map(reader.read, wanted, map(metrics.get, wanted)))
    if not top:
        raise UserError(f"eval.{name}.metrics is empty; name at least one metric.")
    said = str(config.get("postprocess") or "")
    return SuiteSpec(name, str(config.get("handler", name)), reader.metrics, top, said)
