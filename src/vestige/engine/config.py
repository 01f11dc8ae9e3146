"""From options and Hydra overrides to the configurations of evaluations, described completely in plain data.

`make_configs` takes the options of `vestige eval` as keywords; `compose_runs` takes Hydra overrides as they are typed.
Both return RunConfigs (or HarnessConfigs), from which everything else works and which the manifest records.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from vestige.adapters import HARNESSES
from vestige.configs.compose import (
    PACKAGE_DIR,
    ConfigLibrary,
    compose_config,
    composing,
    explain_value,
    fill_suite,
    lend_suite,
    seed_of,
)
from vestige.errors import UserError, unknown_name
from vestige.guard import inside
from vestige.io import decode_data, misfit
from vestige.metrics.dialects import get_dialect
from vestige.options import name_everywhere, setting_types, settings_of
from vestige.suites.postprocess import check_postprocess
from vestige.suites.spec import MetricSpec, SuiteSpec, read_suite


@dataclass(frozen=True)
class RunConfig:
    """One evaluation, said completely."""

    suite: SuiteSpec
    settings: Mapping[str, Any]  # eval.<suite>, resolved
    model_args: Mapping[str, Any]
    tokenizer_args: Mapping[str, Any]
    template_args: Mapping[str, Any]
    task_name: str
    output_dir: Path
    dialect: str
    seed: int
    limit: int | None
    missing: str  # error | skip
    local: Mapping[str, Any]
    batch_tokens: int | None
    max_rows: int | None  # None: what fits the device
    progress: bool
    plugins: tuple[str, ...] = ()
    resamples: int = 2000  # behind each interval; 0: no intervals
    cluster: str = "auto"  # the column that says which rows hang together; none: rows are independent
    server: Mapping[str, Any] = field(default_factory=dict)  # url, key_env, ...; empty: the model runs here
    asked_as: Mapping[str, str] = field(default_factory=dict)  # metrics said by their short names -> full names

    @property
    def overwrite(self) -> bool:
        return bool(self.settings.get("overwrite", False))

    @property
    def retain_logs(self) -> tuple[str, ...]:
        """One path, or several: runs of retain models that were trained with other seeds."""
        given = self.settings.get("retain_logs_path")
        if given is None:
            return ()
        paths = given if isinstance(given, (list, tuple)) else [given]
        return tuple(str(Path(str(path)).expanduser().absolute()) for path in paths)

    @property
    def accept_mixture(self) -> bool:
        return bool(self.settings.get("accept_mixture", False))

    def describe(self) -> dict[str, Any]:
        """The configuration as the manifest records it: enough to score again without composing again."""
        settings, metrics = dict(self.settings), self.suite.metrics
        settings.pop("metrics", None)
        return {
            "suite": self.suite.name,
            "settings": settings,
            "top": list(self.suite.top),
            **({"stem": self.suite.stem} if self.suite.stem else {}),
            "metrics": {name: spec_to_json(spec) for name, spec in metrics.items()},
            "model": {
                "model_args": dict(self.model_args),
                "tokenizer_args": dict(self.tokenizer_args),
                "template_args": dict(self.template_args),
            },
            "task_name": self.task_name,
            "seed": self.seed,
            "max_samples": self.limit,
            "missing": self.missing,
            "local": dict(self.local),
            "batch_tokens": self.batch_tokens,
            "max_rows": self.max_rows,
            "plugins": list(self.plugins),
            **({"server": dict(self.server)} if self.server else {}),
            "stats": {"resamples": self.resamples, **({} if self.cluster == "auto" else {"cluster": self.cluster})},
        }


@dataclass(frozen=True)
class HarnessConfig:
    """One evaluation by somebody else's harness: tasks in the place of metrics."""

    name: str  # the config key: lm_eval
    handler: str  # a key of HARNESSES
    settings: Mapping[str, Any]  # eval.<name>, resolved
    model_args: Mapping[str, Any]
    tokenizer_args: Mapping[str, Any]
    task_name: str
    output_dir: Path
    limit: int | None
    progress: bool
    server: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overwrite(self) -> bool:
        return bool(self.settings.get("overwrite", False))

    @property
    def file_stem(self) -> str:
        """LMEvalEvaluator -> LMEval, as in LMEval_EVAL.json."""
        return self.handler.removesuffix("Evaluator")

    def describe(self) -> dict[str, Any]:
        """The configuration as the manifest records it."""
        return {
            "suite": self.name,
            "settings": dict(self.settings),
            "model": {"model_args": dict(self.model_args), "tokenizer_args": dict(self.tokenizer_args)},
            "task_name": self.task_name,
            "max_samples": self.limit,
            **({"server": dict(self.server)} if self.server else {}),
        }


AnyConfig = RunConfig | HarnessConfig


def spec_to_json(spec: MetricSpec) -> dict[str, Any]:
    inner = spec.children
    children = {"top": inner.top, "metrics": {n: spec_to_json(c) for n, c in inner.metrics.items()}} if inner else None
    return {
        **({"children": children} if children else {}),
        "handler": spec.handler,
        "datasets": {d.name: {"access_key": d.access_key, **d.config} for d in spec.datasets},
        "pre_compute": {name: {"access_key": key} for key, name in spec.parents.items()},
        "reference_logs": {
            r.name: {
                "path": list(r.paths) if r.others else r.path,
                "include": {m: {"access_key": k} for m, k in r.include.items()},
            }
            for r in spec.references
        },
        "generation_args": dict(spec.generation),
        "collators": dict(spec.collators),
        **spec.params,
    }


def compose_runs(
    overrides: Sequence[str],
    config_name: str = "eval.yaml",
    config_dir: Path | None = None,
    only: Iterable[str] | None = None,
    plugins: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> list[AnyConfig]:
    """One config for each evaluator under `eval`. `only` replaces the suite's metrics ("all" means all).

    `values` are settings as they are, key by key; what an override says about the same key wins.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    words, listed = for_hydra(overrides)
    only = only if only is not None else listed
    with composing(config_dir) as directories:
        cfg = compose_config(config_name, words, directories, values)
        OmegaConf.set_struct(cfg, False)
        if "eval" in cfg and not OmegaConf.is_dict(cfg.eval):
            raise UserError(f"The setting 'eval' must hold suites (name: settings), it is {cfg.eval!r}.")
        runs: list[AnyConfig] = []
        try:
            for name in list(map(str, cfg.get("eval") or {})):  # a suite may borrow another's settings, which are added
                runs.append(_run(cfg, name, directories, only, plugins))
            return runs
        except OmegaConfBaseException as error:
            raise explain_value(error) from None


_METRIC_LIST = re.compile(r"^eval\.\w+\.metrics=\[(.*)\]$")
_GLOBAL_PACKAGE = re.compile(r"^(\+*eval\.\w+\.metrics\.\w+)=_global_\.")
_MAPPING_OF_METRICS = re.compile(r"^(eval\.\w+\.metrics\.\w+\.metrics)=\{")


def for_hydra(overrides: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Overrides that Hydra can lay over our groups; beside them the metrics that a list names, if one does.

    >>> for_hydra(["seed=1", "eval.tofu.metrics=[a, b]"])
    (['seed=1'], ['a', 'b'])
    >>> for_hydra(["+eval.tofu.metrics.trajectory_metrics=_global_.eval.metrics.trajectory_metrics"])
    (['+eval.tofu.metrics.trajectory_metrics={}'], None)
    >>> for_hydra(["eval.a.metrics.b.metrics={rouge:{}}"])
    (['~eval.a.metrics.b.metrics', '+eval.a.metrics.b.metrics={rouge:{}}'], None)
    """
    out: list[str] = []
    listed = None
    for word in overrides:
        if found := _METRIC_LIST.match(word):  # Hydra cannot lay a list over the mapping it fills
            listed = [name.strip() for name in found[1].split(",") if name.strip()]
        elif found := _GLOBAL_PACKAGE.match(word):  # the trajectory guide names a package, and means an entry
            out.append(f"{found[1]}={{}}")
        elif found := _MAPPING_OF_METRICS.match(word):  # a mapping cannot replace a list: the list goes first
            out += [f"~{found[1]}", f"+{word}"]
        else:
            out.append(word)
    return out, listed


# The parts of a composed configuration that are read as they are, by part and key; metrics are checked by their suite.
_READ_AS_THEY_ARE: dict[str, dict[str, Any]] = {
    "model": {"model_args": dict[str, Any], "tokenizer_args": dict[str, Any], "template_args": dict[str, Any]},
    "eval": {"handler": str, "output_dir": str},
    "data": {"local": dict[str, Any] | str, "missing": str},
}


def _run(
    cfg: Any, name: str, directories: Sequence[Path], only: Iterable[str] | None, plugins: Sequence[str]
) -> AnyConfig:
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(cfg, "task_name"):
        raise UserError("'task_name' must be given (it names the run directory): add task_name=NAME to the command.")
    parts = ((f"eval.{name}", cfg.eval[name]), ("model", cfg.get("model", {})), ("paths", cfg.get("paths", {})))
    for key, part in parts:
        if not OmegaConf.is_dict(part):
            raise UserError(f"The setting '{key}' must hold settings (name: value), it is {part!r}.")
    fill_suite(cfg, name)
    lender = str(cfg.eval[name].get("library") or name)  # whose metrics this suite names
    if lender != name:
        lend_suite(cfg, lender, name, directories)
    settings, model, data = _checked(cfg, name)
    dialect = str(cfg.get("dialect") or settings.get("dialect") or "open-unlearning")
    limit = data.get("max_samples") if data.get("max_samples") is not None else get_dialect(dialect).rows
    sizes = (limit, cfg.get("batch_tokens"), cfg.get("max_rows"))
    for flag, count in zip(("limit", "batch_tokens", "batch_size"), sizes, strict=True):
        if count is not None and (not isinstance(count, int) or count < 1):
            raise UserError(f"{name_everywhere(flag)} must be a whole number of at least 1, it is {count!r}.")
    shared = _shared(cfg, settings, model, limit)
    if settings.get("handler") in HARNESSES:
        if only is not None:
            raise UserError(f"'{name}' has tasks, not metrics; choose them with eval.{name}.tasks=[...] or --tasks.")
        return HarnessConfig(name=name, handler=str(settings["handler"]), settings=settings, **shared)
    library = ConfigLibrary(cfg, lender, directories)
    # A suite that is not evaluated, only filled: by metric files that another suite lists.
    filled = [other for other, body in cfg.eval.items() if body.get("metrics") and "handler" not in body]
    if only is None and filled and not settings.get("metrics"):
        raise UserError(
            f"eval.{name}.metrics is empty: the metric files that this benchmark lists belong to package "
            f"eval.{filled[0]} (`# @package` in their first line), and its metrics are there; write "
            f"`library: {filled[0]}` and `metrics: {{{': {}, '.join(cfg.eval[filled[0]].metrics)}: {{}}}}` in its file."
        )
    wanted = None if only is None else _names(list(only), library)
    suite = read_suite(name, settings, library, list(wanted.values()) if wanted else None)
    suite = _seeded(suite, seed_of(cfg))
    if suite.postprocess:
        check_postprocess(suite)
    asked_as = {}
    for said, full in (wanted or {}).items():
        if said != full:
            from vestige.suites.dialect_points import refuse_other_number  # short names only: most runs use none

            refuse_other_number(said, suite.metrics[full].handler, suite.metrics[full].params, dialect)
            asked_as[said] = full
    return RunConfig(
        suite=suite,
        settings=settings,
        template_args=model.get("template_args") or {},
        dialect=dialect,
        seed=seed_of(cfg),
        missing=str(data.get("missing") or "error"),
        local=_local_folders(data.get("local") or {}, name, settings),
        batch_tokens=cfg.get("batch_tokens"),
        max_rows=cfg.get("max_rows"),
        plugins=tuple(plugins),
        **shared,
        **_statistics(cfg),
        asked_as=asked_as,
    )


def _local_folders(local: Mapping[str, Any] | str, suite: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`data.local`: a folder, or folders by hub data set; the suite's own data set is read from it as with `--data`."""
    from vestige.data.rows import local_data

    layout = settings.get("local_data") or {}
    if isinstance(local, str):
        return local_data(suite, layout, local)
    folders: dict[str, Any] = {}
    for hub, place in local.items():
        if isinstance(place, str) and hub == layout.get("hub"):
            folders |= local_data(suite, layout, place)
        elif isinstance(place, str):
            folders[hub] = {"path": place}
        else:
            folders[hub] = place
    return folders


def _infinity_as_text(value: Any) -> Any:
    """Hydra reads `p=inf` as a number that no JSON file can hold; metrics take the word."""
    if isinstance(value, dict):
        return {key: _infinity_as_text(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_infinity_as_text(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _checked(cfg: Any, name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A suite, the model and the data of a composed configuration as plain data of the form that is relied on."""
    from omegaconf import OmegaConf

    settings: Any = _infinity_as_text(OmegaConf.to_container(cfg.eval[name], resolve=True))
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    rest: dict[str, Any] = {}
    for key in ("data", "stats"):
        if key in cfg:
            part = cfg.get(key)
            rest[key] = OmegaConf.to_container(part, resolve=True) if OmegaConf.is_config(part) else part
    for part, body in {"model": model, "eval": settings, **rest}.items():
        if body is None:
            continue
        decode_data({part: body}, dict[str, dict[str, Any]], "The configuration", "correct that setting")
        for key, expected in _READ_AS_THEY_ARE.get(part, {}).items():
            if problem := misfit(body.get(key), expected | None, f"$.{part}.{key}"):
                raise UserError(f"The configuration does not have the form it should: {problem}; correct that setting.")
    if not (model.get("model_args") or {}).get("pretrained_model_name_or_path"):
        raise UserError("No model given; add model.model_args.pretrained_model_name_or_path=PATH (or --model PATH).")
    for key in list(settings):  # what another suite looked up here
        if str(key).startswith("_"):
            del settings[key]
    return settings, model, rest.get("data") or {}


def _shared(cfg: Any, settings: Mapping[str, Any], model: Mapping[str, Any], limit: Any) -> dict[str, Any]:
    """What runs of metrics and runs of a harness have in common."""
    from omegaconf import OmegaConf

    said = cfg.get("server") or {}
    if not OmegaConf.is_dict(said) and not isinstance(said, dict):
        raise UserError(f"The setting 'server' must hold settings (url, key_env), it is {said!r}.")
    # The servers that run the model, if any: {url, key_env, timeout, down, slots}, without what was not said.
    server: Any = OmegaConf.to_container(said, resolve=True) if OmegaConf.is_config(said) else dict(said)
    return {
        "model_args": model.get("model_args") or {},
        "tokenizer_args": model.get("tokenizer_args") or {},
        "task_name": inside(str(cfg.task_name), "task_name"),
        "output_dir": Path(str(settings.get("output_dir") or cfg.paths.output_dir)),
        "limit": None if limit is None else int(limit),
        "progress": bool(cfg.get("progress", True)),
        "server": {str(k): v for k, v in server.items() if v is not None} if server.get("url") else {},
    }


def _statistics(cfg: Any) -> dict[str, Any]:
    """A root configuration of the user's own need not have heard of intervals."""
    stats = cfg.get("stats") or {}
    said = stats.get("resamples", RunConfig.resamples)
    if not isinstance(said, int) or said < 0:
        raise UserError(f"stats.resamples must be a whole number (0: no intervals), it is {said}.")
    return {"resamples": said, "cluster": str(stats.get("cluster") or RunConfig.cluster)}


def _seeded(suite: SuiteSpec, seed: int) -> SuiteSpec:
    """`seed=` reaches metrics that sample their texts, unless they name a seed of their own."""
    metrics = dict(suite.metrics)
    for name, spec in suite.metrics.items():
        if spec.generation.get("do_sample"):
            metrics[name] = replace(spec, generation={"seed": seed, **spec.generation})
        elif spec.children is not None and seed:
            trajectory = dict(spec.params.get("trajectory_config") or {})
            trajectory["sampler_kwargs"] = {"seed": seed, **(trajectory.get("sampler_kwargs") or {})}
            metrics[name] = replace(spec, params={**spec.params, "trajectory_config": trajectory})
    return replace(suite, metrics=metrics)


def _names(only: list[str], library: ConfigLibrary) -> dict[str, str]:
    """What was asked for -> its name in the suite. The suite's own names come before short names."""
    if only == ["all"]:
        return {n: n for n in library.metric_names() if not (library.metric(n) or {}).get("optional")}
    out = {}
    for name in only:
        here = library.resolve_name(name)
        if here not in library.files:
            from vestige.metrics.cards import full_name

            here = full_name(name)
        out[name] = here
        if here not in library.files:
            raise unknown_name("metric", name, library.metric_names())
    return out


# ---- from options ----------------------------------------------------------------------------------------------------

# Options that mean something to one kind of evaluation only; for the other kind they would change nothing.
METRICS_ONLY = ("data", "retain_logs", "reference_model", "full", "dialect", "batch_tokens", "seed", "cluster")
TASKS_ONLY = ("tasks", "include_path")
# Overrides that choose the suite and the model; options then only change single settings.
_CHOOSES_ALL = re.compile(r"(experiment|eval)=")
_ABOUT_MODEL, _CHOOSES_MODEL = re.compile("model"), re.compile("model=")
# Settings of a suite that open-unlearning's experiments have at the top level: `vestige eval muse data_split=Books`.
_OF_SUITE = re.compile(r"(data_split|forget_split|holdout_split|retain_logs_path)=")
TRAJECTORY_SUITES = ("trajectory-eval", "trajectory_eval")
VIEWS = {"both": "[full,eos]", "full": "[full]", "eos": "[eos]"}


def suite_names() -> list[str]:
    return sorted(path.stem for path in (PACKAGE_DIR / "eval").glob("*.yaml"))


def option_types() -> dict[str, Any]:
    """The options of `make_configs` with the types of their values, for files that set them (a sweep's plan)."""
    types = setting_types() | get_type_hints(make_configs)
    del types["settings"], types["return"]
    return types


def make_config(**options: Any) -> AnyConfig:
    """The configuration of one evaluation; the options are those of `make_configs`."""
    return make_configs(**options)[0]


def make_configs(
    *,
    suite: str | None = "tofu",
    model: str | None = None,
    data: str | None = None,
    retain_logs: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    task_name: str | None = None,
    metrics: Sequence[str] | None = None,
    tasks: Any = None,
    trajectory_views: str | None = None,
    benchmark: str | None = None,
    adapter_base: str | None = None,
    server: str | None = None,
    server_by_name: bool = False,
    system_prompt: str | None = None,
    progress: bool | None = None,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    config_name: str = "eval.yaml",
    plugins: Sequence[str] = (),
    **settings: Any,
) -> list[AnyConfig]:
    """The evaluations that options mean. None means: not given. The `settings` are the other options of `vestige eval`.

    Options are laid over what Hydra composes, each on its own setting; an override of the same setting wins.
    `suite` None: an experiment or the user's own configuration chooses. `server_by_name`: each of several models is
    asked at those of the servers that list it.
    """
    overrides = list(overrides)
    if suite in TRAJECTORY_SUITES or benchmark is not None or trajectory_views is not None:
        suite, views = _trajectory_suite(suite, benchmark, trajectory_views, config_dir)
        overrides = [*views, *overrides]
    composed = config_name != "eval.yaml" or any(map(_CHOOSES_ALL.match, overrides))
    if suite is None and not composed and not config_dir:
        suite = "tofu"
    values = {"model": model, "retain_logs": retain_logs, "out": out, "server": server, "system_prompt": system_prompt}
    values |= settings
    values["task_name"] = task_name
    if not composed and not any(word.startswith("task_name=") for word in overrides):
        values["task_name"] = task_name or _task_name(out, model, suite, overrides)
    if isinstance(retain_logs, (list, tuple)) and len(retain_logs) == 1:
        values["retain_logs"] = retain_logs[0]
    if suite is not None:
        if config_dir is None and suite not in suite_names():
            raise unknown_name("suite", suite, suite_names())
        if not composed:
            overrides = [f"eval.{suite}.{word}" if _OF_SUITE.match(word) else word for word in overrides]
        overrides.insert(0, f"eval={suite}")
    if not composed:
        if model is None and not any(map(_ABOUT_MODEL.match, overrides[1:])):
            raise UserError("No model given; add --model PATH (a directory, a .gguf file or a hub id).")
        if not any(map(_CHOOSES_MODEL.match, overrides)):
            overrides.insert(0, "model=local")
    laid_over = settings_of(values)
    more = {
        "progress": progress,
        "model.model_args.adapter_base": adapter_base,
        "server.by_name": True if server and server_by_name else None,
        # lm-evaluation-harness makes its own prompts, from its own setting.
        "eval.lm_eval.simple_evaluate_args.system_instruction": system_prompt,
    }
    laid_over |= {key: value for key, value in more.items() if value is not None}
    directory = Path(config_dir) if config_dir else None
    runs = compose_runs(overrides, config_name, directory, metrics, plugins, laid_over)
    given = {**values, "data": data, "tasks": tasks}
    return [_with_tasks_or_data(run, given) for run in runs]


def _with_tasks_or_data(run: AnyConfig, given: Mapping[str, Any]) -> AnyConfig:
    from vestige.data.rows import local_data

    is_harness = isinstance(run, HarnessConfig)
    name = run.name if isinstance(run, HarnessConfig) else run.suite.name
    for option in METRICS_ONLY if is_harness else TASKS_ONLY:
        if given.get(option) is not None:
            raise UserError(f"--{option.replace('_', '-')} means nothing to '{name}'; leave it out.")
    if isinstance(run, HarnessConfig):
        tasks = given["tasks"]
        return run if tasks is None else replace(run, settings={**run.settings, "tasks": tasks})
    if not given["data"]:
        return run
    local = local_data(name, run.settings.get("local_data"), str(given["data"]))
    return replace(run, missing="skip", local=local)


def _trajectory_suite(
    suite: str | None, benchmark: str | None, views: str | None, config_dir: Any
) -> tuple[str, list[str]]:
    """`trajectory-eval --benchmark B` and `B --trajectory-views V` both mean the suite B_trajectory; and the override
    that chooses the views."""
    if suite not in TRAJECTORY_SUITES and benchmark is not None:
        raise UserError("--benchmark belongs to `vestige eval trajectory-eval`; here the suite's name says it.")
    if views is not None and views not in VIEWS:
        raise unknown_name("view", views, VIEWS, "(--trajectory-views)")
    base = benchmark or "tofu" if suite in TRAJECTORY_SUITES else suite or "tofu"
    wanted = base if "trajectory" in base else f"{base}_trajectory"
    suites = suite_names()
    if wanted not in suites and config_dir is None:
        known = [name.removesuffix("_trajectory") for name in suites if name.endswith("_trajectory")]
        raise unknown_name("benchmark with trajectories", base, known)
    if views is None:
        return wanted, []
    setting = f"eval.{wanted}.metrics.trajectory_metrics.trajectory_config.include_views"
    return wanted, [f"{setting}={VIEWS[views]}"]


def _task_name(out: Any, model: Any, suite: str | None, overrides: Sequence[str]) -> str:
    if out:
        return Path(out).absolute().name.replace("..", "_") or "run"
    chosen = [word.partition("=")[2] for word in overrides if re.match(r"model=|model.*name_or_path=", word)]
    name = Path(str(model or (chosen[-1] if chosen else "run"))).name
    return f"{suite or 'eval'}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name).removesuffix('.gguf')}"


# ---- several runs from comma lists ---------------------------------------------------------------------------------


def expand_choices(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that the overrides list, the last one changing fastest, as Hydra does.

    >>> expand_choices(["a=1,2", "b=x", "c=range(0,2)"])
    [['a=1', 'b=x', 'c=0'], ['a=1', 'b=x', 'c=1'], ['a=2', 'b=x', 'c=0'], ['a=2', 'b=x', 'c=1']]
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [
            [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
            if o.is_sweep_override()
            else [str(o.input_line)]
            for o in parsed
        ]
    except HydraException as error:
        raise UserError(f"--multirun cannot read the overrides: {' '.join(str(error).split())}") from None
    return [list(combination) for combination in itertools.product(*choices)]


def expand_multirun(overrides: Sequence[str], compose: Callable[[list[str]], list[Any]]) -> list[Any]:
    """The runs of every combination. Where two would write to one directory, each has a folder named by its choices."""
    combinations = expand_choices(overrides)
    by_choice = [(_chosen(overrides, words), run) for words in combinations for run in compose(words)]
    places = [run.output_dir for _, run in by_choice]
    if len(set(places)) == len(places):
        return [run for _, run in by_choice]
    runs = [replace(run, output_dir=run.output_dir / folder) for folder, run in by_choice]
    places = [run.output_dir for run in runs]
    if len(set(places)) < len(places):
        twice = next(p for p in places if places.count(p) > 1)
        raise UserError(f"Two runs of --multirun would write to {twice}; make task_name differ between them.")
    return runs


def _chosen(before: Sequence[str], after: Sequence[str]) -> Path:
    """A folder for a combination, from the overrides that had a choice: mia_min_k.k=0.2,seed=1."""
    words = [a for b, a in zip(before, after, strict=True) if a != b]
    return Path(re.sub(r"[^A-Za-z0-9._=,-]+", "_", ",".join(words)) or ".")
