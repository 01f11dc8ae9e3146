"""The configuration of `trajectory_metrics`: what is sampled, what is read, which metrics are computed at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vestige.errors import UserError, did_you_mean, unknown_name
from vestige.metrics.trajectory import (
    ALIGNMENTS,
    DEFAULT_TRAJECTORIES,
    FIXATION_COUNTS,
    TEXT_SOURCES,
    TRAJECTORIES,
    views,
)
from vestige.suites.registry import DECIDED, TRAJECTORY
from vestige.wants import Denoising

# In a list these names stand for the suite's own metric, whose parents say which answers are right and wrong.
STAND_INS = {"truth_ratio": "forget_truth_ratio", "ks_test": "forget_quality", "hm_aggregate": "model_utility"}
# Settings of the published code that only worked around its memory use, or name what always happens here.
WITHOUT_EFFECT = {
    "return_logits", "return_fixation_steps", "trajectory_logits_storage", "metric_worker_pool_size",
    "aggressive_cuda_empty_cache", "trajectory_cpu_offload_metrics", "use_generalized_sequence_probability",
    "trajectory_step_prefetch_max_steps", "trajectory_step_view_batch_chunk_max", "return_dict",
}  # fmt: skip
GUIDE_INTERVAL = 8  # tokens; with `guide_defaults`, where no interval is set
# Settings of Dream's sampler that draw at random, with the value at which they do nothing.
DREAM_NEUTRAL = {"alg_temp": 0.0, "top_p": 1.0, "top_k": 0}


@dataclass(frozen=True)
class TrajectoryConfig:
    """`trajectory_config`, checked."""

    denoising: Denoising
    views: tuple[str, ...] = ("full", "eos")
    trajectories: tuple[str, ...] = DEFAULT_TRAJECTORIES
    alignment: str = "same_position"
    interval: int = 1  # report a pass when this many more tokens were decided; 1: every pass
    fixation_counts: str = "captures"  # or passes: what trajectories are made of when not every pass is reported
    text_source: str = "logits_argmax"
    eos_ids: tuple[int, ...] = ()  # empty: the tokenizer's
    logits_path: str | None = None  # logits_source: external
    store_per_sample: bool = False
    legacy_flat: bool = False
    notes: tuple[str, ...] = ()

    @property
    def thins(self) -> bool:
        """Whether trajectories are made of the reported passes alone."""
        return self.interval > 1 and self.fixation_counts == "captures"

    @property
    def length(self) -> int:
        """How many positions the window has."""
        return self.denoising.max_new_tokens


# What `trajectory_config` may hold.
SETTINGS = {
    "sampler_kwargs", "include_views", "trajectories", "logit_alignment", "logits_source", "logits_path",
    "evaluation_mode", "rouge_prediction_source", "eos_token_id", "store_per_sample", "legacy_flat",
    "fixation_steps_count", "guide_defaults",
} | WITHOUT_EFFECT  # fmt: skip


def read_config(params: Mapping[str, Any], metric: str) -> TrajectoryConfig:
    """The `trajectory_config` of a metric; what it does not say has the guide's defaults."""
    given = _mapping(params.get("trajectory_config"), "trajectory_config", metric)
    unknown = sorted(set(given) - SETTINGS)
    if unknown:
        raise unknown_name("trajectory_config setting", unknown[0], SETTINGS, f"(metric '{metric}')")
    sampling = _mapping(given.get("sampler_kwargs"), "sampler_kwargs", metric)
    guide = bool(given.get("guide_defaults", False))
    interval = sampling.pop("trajectory_sample_interval", None)
    if interval is None:
        interval = GUIDE_INTERVAL if guide else 1
    interval = _whole(interval, "trajectory_sample_interval", metric)
    alignment = str(given.get("logit_alignment", "same_position"))
    if alignment not in ALIGNMENTS:
        raise UserError(f"logit_alignment must be 'causal' or 'same_position', got {alignment!r} (metric '{metric}').")
    path = given.get("logits_path")
    source = _one_of(given.get("logits_source", "sampler"), ("sampler", "external"), "logits_source")
    if (source == "external") != (path is not None):
        raise UserError(f"Metric '{metric}': logits_source external and logits_path (a saved tensor file) go together.")
    notes = []
    for name in ("return_logits", "return_fixation_steps"):
        if given.get(name) is False:
            notes.append(f"{name}=false has no effect")
    denoising = read_denoising({**sampling, "mode": str(given.get("evaluation_mode", "unguided"))}, metric)
    if denoising.takes_back and interval > 1:
        notes.append(
            f"trajectory_sample_interval={interval} counts decided tokens, and this sampler takes decisions back: "
            "every pass is reported"
        )
        interval = 1
    text_source = given.get("rouge_prediction_source", "logits_argmax")
    chosen_views = given.get("include_views")
    if not isinstance(chosen_views, (str, list, tuple, type(None))):
        raise UserError(
            f"Metric '{metric}': trajectory_config.include_views must be a name or a list of names, "
            f"got {chosen_views!r}."
        )
    return TrajectoryConfig(
        denoising=denoising,
        views=views(chosen_views),
        trajectories=_trajectories(given.get("trajectories") or DEFAULT_TRAJECTORIES),
        alignment=alignment,
        interval=interval,
        fixation_counts=_one_of(given.get("fixation_steps_count", "captures"), FIXATION_COUNTS, "fixation_steps_count"),
        text_source=_one_of(text_source, TEXT_SOURCES, "rouge_prediction_source"),
        eos_ids=_ids(given.get("eos_token_id"), "eos_token_id", metric),
        logits_path=None if path is None else str(path),
        store_per_sample=bool(given.get("store_per_sample", params.get("store_per_sample", guide))),
        legacy_flat=bool(given.get("legacy_flat", params.get("legacy_flat", guide))),
        notes=tuple(notes),
    )


def reference_keys(metric: str, compared: Iterable[str]) -> dict[str, str]:
    """Where retain logs keep what children are compared with.

    Values by step: ours under the metric's own name, open-unlearning's fork under two names. An ordinary run has one
    value for each metric, which serves the last step.
    """
    ordinary = {name: last_step_key(name) for name in compared}
    by_step = {"mia_min_k_by_step": "mia_min_k", "forget_truth_ratio_by_step": "forget_truth_ratio"}
    return {**ordinary, **by_step, metric: "trajectory"}


def last_step_key(metric: str) -> str:
    """The access key of an ordinary run's value of a metric."""
    return f"{metric} at the last step"


def _trajectories(given: Any) -> tuple[str, ...]:
    """Names of trajectories, one or several, each once."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    names = tuple(dict.fromkeys(map(str, given if several else [given])))
    for name in names:
        if name not in TRAJECTORIES:
            raise UserError(f"Unknown trajectory '{name}' (known: {', '.join(TRAJECTORIES)})")
    return names


def read_denoising(given: Mapping[str, Any], metric: str = TRAJECTORY) -> Denoising:
    """`sampler_kwargs`; null means the default. Dream's own names for settings are understood, too."""
    said = {k: v for k, v in given.items() if v is not None and k not in WITHOUT_EFFECT}
    said = _from_dream(said, metric)
    known = {f.name: f for f in fields(Denoising)}
    unknown = sorted(set(said) - set(known))
    if unknown:
        raise unknown_name("sampler_kwargs setting", unknown[0], known, f"(metric '{metric}')")
    for name in ("cfg_keep_tokens", "suppress_tokens", "begin_suppress_tokens"):
        if name in said:
            said[name] = _ids(said[name], name, metric)
    _whole(said.get("seed", 0), "seed", metric, least=0)
    try:
        made = Denoising(**said)
    except (TypeError, ValueError) as error:
        raise UserError(f"Metric '{metric}': sampler_kwargs: {error}.") from None
    made.check()
    return made


def _from_dream(said: dict[str, Any], metric: str) -> dict[str, Any]:
    """`sampler=dream` fills masks as mdlm does, `alg` says which go first; what else draws at random is refused.

    >>> _from_dream({"sampler": "dream", "alg": "entropy", "alg_temp": 0.0}, "m")
    {'sampler': 'mdlm', 'remasking': 'entropy'}
    """
    said = dict(said)
    for name, neutral in DREAM_NEUTRAL.items():
        if said.pop(name, neutral) != neutral:
            raise UserError(
                f"Metric '{metric}': sampler_kwargs.{name} other than {neutral:g} is not supported: of Dream's ways to "
                "decide only those without chance are; leave it out, or set temperature."
            )
    said.pop("eps", None)  # where Dream's own schedule ends; the schedule here is dllm's
    if "alg" in said:
        alg = said.pop("alg")
        if said.setdefault("remasking", alg) != alg:
            raise UserError(
                f"Metric '{metric}': sampler_kwargs.alg ({alg}) and remasking ({said['remasking']}) name the same "
                "setting; give one of them."
            )
        if alg == "origin":
            raise UserError(
                f"Metric '{metric}': sampler_kwargs.alg=origin decides by chance alone; use remasking=random, or "
                "maskgit_plus, topk_margin or entropy."
            )
    if said.get("sampler") == "dream":
        said["sampler"] = "mdlm"
        said.setdefault("remasking", "entropy")
    return said


def _mapping(value: Any, name: str, metric: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"Metric '{metric}': {name} must hold settings (name: value), it is {value!r}.")
    return dict(value or {})


def _whole(value: Any, name: str, metric: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"Metric '{metric}': {name} must be a whole number of at least {least}, it is {value!r}.")
    return value


def _one_of(value: Any, allowed: Iterable[str], name: str) -> str:
    if str(value) not in allowed:
        raise unknown_name(name, str(value), allowed)
    return str(value)


def _ids(value: Any, name: str, metric: str) -> tuple[int, ...]:
    """Token numbers, one or several."""
    given = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
    return tuple(_whole(v, name, metric, least=0) for v in given)


FindMetric = Callable[[str], Mapping[str, Any] | None]  # a metric of the suite by name, with its whole config


@dataclass
class ChildReader:
    """The metrics to compute at each step, being read."""

    datasets: Mapping[str, Any]
    suite: FindMetric
    handlers: set[str]
    named: set[str]  # metrics of the suite
    defined: dict[str, Any]  # one name, one definition: what the names of children and parents stand for

    def read_child(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """One metric of the list, with its whole configuration."""
        config = dict(given)
        config.pop("display_name", None)
        source = str(config.pop("dataset_key", "")) or None
        base = self._find_base(name, config.pop("handler", None))
        if source:
            config.setdefault("datasets", {source: {}})
        if base.get("handler") == "extraction_strength" and config.pop("order", "text") == "decided":
            base["handler"] = DECIDED
        return self._apply_settings(name, base, config)

    def _find_base(self, name: str, handler: str | None) -> dict[str, Any]:
        """What a child's own settings are laid on: one of the suite's metrics, or a bare handler."""
        plain = handler or name
        rows = name in self.handlers and name in ("extraction_strength", "exact_memorization")
        if handler is None and name in self.named and not rows:
            return dict(self.suite(name) or {})
        stand_in = STAND_INS.get(plain)
        if stand_in in self.named:
            return dict(self.suite(str(stand_in)) or {})
        if plain in self.handlers:
            return {"handler": plain}
        known = sorted(self.handlers | self.named)
        raise UserError(
            f"Metric '{name}' not found in registry.{did_you_mean(name, known)} Available metrics: [{', '.join(known)}]"
        )

    def _apply_settings(self, name: str, base: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """`config` on `base`, the suite's metric. What parents are compared with follows them."""
        out = {**base, **config}
        if config.get("pre_compute"):
            before = base.get("pre_compute") or {}
            out["pre_compute"] = self._parents(name, config["pre_compute"], before)
            if base.get("reference_logs") and "reference_logs" not in config:
                out["reference_logs"] = _follow_parents(base["reference_logs"], before, out["pre_compute"])
            if "datasets" not in config:
                out.pop("datasets", None)
        elif not out.get("datasets") and not out.get("pre_compute"):
            out["datasets"] = dict(self.datasets)
        return out

    def _parents(self, child: str, given: Any, suites: Mapping[str, Any]) -> dict[str, Any]:
        """A child's parents. A name alone is the suite's metric; settings are laid on it, under a name of its own.

        A handler without data (the guide's `probability: {access_key: correct}`) is the suite's parent of that key,
        because only the suite knows which rows are meant.
        """
        inherited = {str((entry or {}).get("access_key", name)): name for name, entry in suites.items()}
        out: dict[str, Any] = {}
        short = False
        for parent, entry in _entries(given):
            key = str(entry.pop("access_key", parent))
            handler = entry.get("handler") or parent
            bare = parent not in self.named and handler in self.handlers
            base: dict[str, Any] = {}
            name = parent
            if bare and key in inherited and not entry.get("datasets"):
                short = True
                entry.pop("handler", None)
                entry.pop("labels_field", None)  # the published code's way to say which rows
                base = self._full_config(inherited[key], suites)
                if handler != base.get("handler"):
                    base = {"handler": handler, "datasets": base.get("datasets")}
                elif not entry:
                    continue
                name = f"{child}_{key}"
            elif bare and parent in self.handlers:
                entry["handler"] = handler
                name = f"{child}_{key}"
            elif not entry:
                out[parent] = {"access_key": key}
                continue
            elif parent in self.named and not entry.get("handler"):
                base = self._full_config(parent, {})
                name = f"{child}_{parent}"
            full = self._apply_settings(name, base, entry)
            if self.defined.setdefault(name, full) != full:
                name = f"{child}_{name}"
                self.defined[name] = full
            out[name] = {**full, "access_key": key}
        if short:  # also a parent that is not named: of two entries `probability`, readers of YAML keep one
            keys = {entry["access_key"] for entry in out.values()}
            out.update(
                {
                    name: {**(suites[name] or {}), "access_key": key}
                    for key, name in inherited.items()
                    if key not in keys
                }
            )
        return out

    def _full_config(self, parent: str, written_out: Mapping[str, Any]) -> dict[str, Any]:
        """A parent's whole config: as it stands in place, else the suite's of that name."""
        entry = dict(written_out.get(parent) or {})
        entry.pop("access_key", None)
        return entry if entry.get("handler") else {**(self.suite(parent) or {}), **entry}


def child_configs(
    params: Mapping[str, Any],
    metric: str,
    datasets: Mapping[str, Any],
    suite: FindMetric,
    handlers: Iterable[str],
    named: Iterable[str],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The metrics to compute at each step, each with a full config; and all that was defined on the way, by name.

    A bare name is a handler or one of the suite's metrics.
    """
    asked = params.get("metrics")
    if not asked:
        raise UserError(
            f"No metrics specified in config of '{metric}'; add eval.SUITE.metrics.{metric}.metrics=[probability,...]."
        )
    if isinstance(asked, str) or not isinstance(asked, (list, tuple, Mapping)):
        raise UserError(f"metrics must be a list or dict, got {type(asked).__name__} (metric '{metric}').")
    asked = dict(asked) if isinstance(asked, Mapping) else {str(m): {} for m in asked}
    only = params.get("include_metrics")
    kept = {str(name): config for name, config in asked.items() if only is None or name in only}
    if not kept:
        raise UserError(f"include_metrics of '{metric}' leaves none of {', '.join(asked)}.")
    reader = ChildReader(datasets, suite, set(handlers) - {TRAJECTORY}, set(named), dict.fromkeys(kept))
    children = {name: reader.read_child(name, config or {}) for name, config in kept.items()}
    return children, {**reader.defined, **children}


def _entries(given: Any) -> list[tuple[str, dict[str, Any]]]:
    """Parents as (name, settings): written as a mapping, or as a list of {metric: NAME, ...}."""
    if isinstance(given, list):
        return [
            (str(e.get("metric") or e.get("name")), {k: v for k, v in e.items() if k not in ("metric", "name")})
            for e in given
        ]
    return [(str(k), dict(v or {})) for k, v in (given or {}).items()]


def _follow_parents(logs: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The suite's references with its parents replaced: a metric is compared with the retain model's same metric."""
    by_key = {str((e or {}).get("access_key", m)): m for m, e in now.items()}
    moved = {m: by_key.get(str((e or {}).get("access_key", m)), m) for m, e in before.items()}
    return {
        file: {**body, "include": {moved.get(m, m): e for m, e in (body.get("include") or {}).items()}}
        for file, body in logs.items()
    }
