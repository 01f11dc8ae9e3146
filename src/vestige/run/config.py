"""Hydra as the configuration language: compose, explain what went wrong, hand on plain data."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.integrations.lm_eval import EVALUATORS
from vestige.metrics.dialects import get_dialect
from vestige.suites.spec import Config, SuiteSpec, read_suite

PACKAGE_DIR = Path(__file__).resolve().parent.parent / "configs"
_PACKAGE_LINE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


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
    max_rows: int
    progress: bool
    plugins: tuple[str, ...] = ()
    resamples: int = 2000  # behind each interval; 0: no intervals

    @property
    def overwrite(self) -> bool:
        return bool(self.settings.get("overwrite", False))

    @property
    def retain_logs(self) -> str | None:
        path = self.settings.get("retain_logs_path")
        return None if path is None else str(path)

    def describe(self) -> dict[str, Any]:
        """The configuration as the manifest records it: enough to score again without composing again."""
        return {
            "suite": self.suite.name,
            "settings": {k: v for k, v in self.settings.items() if k != "metrics"},
            "top": list(self.suite.top),
            "metrics": {name: _spec_to_json(spec) for name, spec in self.suite.metrics.items()},
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
            "stats": {"resamples": self.resamples},
        }


@dataclass(frozen=True)
class HarnessConfig:
    """One evaluation by somebody else's harness: tasks in the place of metrics."""

    name: str  # the config key: lm_eval
    handler: str  # a key of EVALUATORS
    settings: Mapping[str, Any]  # eval.<name>, resolved
    model_args: Mapping[str, Any]
    tokenizer_args: Mapping[str, Any]
    task_name: str
    output_dir: Path
    limit: int | None
    progress: bool

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
        }


AnyConfig = RunConfig | HarnessConfig


def _spec_to_json(spec: Any) -> dict[str, Any]:
    return {
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


_USER_DIR: list[Path] = []  # where the search-path plug-in below looks; set while composing


def _register_search_path() -> None:
    """Tells Hydra, once, to look into the user's directory before ours (its public way to do so is a plug-in)."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserDirectoryFirst(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for directory in _USER_DIR:
                search_path.prepend("vestige-user", f"file://{directory}")

    if not any(p.__name__ == UserDirectoryFirst.__name__ for p in Plugins.instance().discover(SearchPathPlugin)):
        Plugins.instance().register(UserDirectoryFirst)


@contextmanager
def composing(config_dir: Path | None) -> Iterator[list[Path]]:
    """Hydra with the user's directory first and ours behind it; yields the directories in that order."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if config_dir is not None and not config_dir.is_dir():
        raise UserError(f"--config-dir {config_dir} is not a directory; give the folder that holds your config groups.")
    _register_search_path()
    _USER_DIR[:] = [config_dir.resolve()] if config_dir else []
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(PACKAGE_DIR), version_base="1.3"):
            yield [*_USER_DIR, PACKAGE_DIR]
    finally:
        _USER_DIR.clear()


def compose_runs(
    overrides: Sequence[str],
    config_name: str = "eval.yaml",
    config_dir: Path | None = None,
    only: Iterable[str] | None = None,
    plugins: Sequence[str] = (),
) -> list[AnyConfig]:
    """One config for each evaluator under `eval`. `only` replaces the suite's metrics ("all" means all)."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides, listed = _metric_lists(overrides)
    only = only if only is not None else listed
    with composing(config_dir) as directories:
        cfg = _compose(config_name, overrides, directories)
        OmegaConf.set_struct(cfg, False)
        try:
            return [_run(cfg, str(name), directories, only, plugins) for name in cfg.get("eval") or {}]
        except OmegaConfBaseException as error:
            raise _explain_value(error) from None


_METRIC_LIST = re.compile(r"^eval\.\w+\.metrics=\[(.*)\]$")


def _metric_lists(overrides: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Takes eval.SUITE.metrics=[A,B] out of the overrides: Hydra cannot lay a list over the mapping it fills."""
    found = [(o, _METRIC_LIST.match(o)) for o in overrides]
    lists = [m[1] for _, m in found if m]
    names = [n.strip() for n in lists[-1].split(",") if n.strip()] if lists else None
    return [o for o, m in found if not m], names


def _compose(config_name: str, overrides: Sequence[str], directories: Sequence[Path]) -> Any:
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with warnings.catch_warnings():
            # Metric files written for older Hydra have no _self_ in their defaults; its advice is not for our users.
            warnings.simplefilter("ignore", UserWarning)
            return compose(config_name, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain_compose(error, directories) from None


def _explain_compose(error: Exception, directories: Sequence[Path]) -> UserError:
    text = str(error)
    found = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if found:
        group, _, name = found[1].removesuffix(".yaml").rpartition("/")
        known = options(group, directories)
        if not known:  # no such group either: name what the whole kind has
            kind = group.split("/")[0]
            return unknown_name(kind, f"{group}/{name}".removeprefix(f"{kind}/"), options(kind, directories))
        return unknown_name(f"{group or 'config'}", name, known)
    found = re.search(r"Could not override '([^']+)'", text)
    if found:
        leaf = found[1].rsplit(".", 1)[-1]
        homes = [k for k in _setting_names() if k.rsplit(".", 1)[-1] == leaf and k != found[1]]
        advice = f"did you mean {' or '.join(homes)}?" if homes else "check its spelling (--cfg prints what there is)."
        return UserError(
            f"'{found[1]}' is not a setting that exists; {advice} To add a new one write +{found[1]}=VALUE."
        )
    first = " ".join(text.split("\n")[:2])
    return UserError(f"The configuration could not be composed: {first}")


def _setting_names() -> list[str]:
    """Every setting of the default configuration, dotted."""
    from hydra import compose
    from omegaconf import OmegaConf

    def walk(node: Any, path: str) -> Iterator[str]:
        for key, value in node.items():
            name = f"{path}.{key}" if path else str(key)
            yield from walk(value, name) if isinstance(value, dict) else [name]

    return list(walk(OmegaConf.to_container(compose("eval.yaml"), resolve=False), ""))


def _explain_value(error: Exception) -> UserError:
    key = getattr(error, "full_key", None) or "?"
    if type(error).__name__ == "MissingMandatoryValue":
        return UserError(f"'{key}' must be given; add {key}=VALUE to the command.")
    return UserError(f"Setting '{key}': {str(error).splitlines()[0]}")


def options(group: str, directories: Sequence[Path]) -> list[str]:
    """The names available in a config group, the user's and ours."""
    names: set[str] = set()
    for directory in directories:
        base = directory / group
        names |= {str(p.relative_to(base).with_suffix("")) for p in base.rglob("*.yaml")} if base.is_dir() else set()
    return sorted(names)


class ConfigLibrary:
    """Named metrics and data sets, read from the config groups when a suite mentions them."""

    def __init__(self, cfg: Any, suite: str, directories: Sequence[Path]) -> None:
        self.cfg = cfg
        self.suite = suite
        self.directories = directories
        self.files = self._index()

    def _index(self) -> dict[str, Path]:
        """Metric name -> file. The name is the end of the file's @package line; the file name works too."""
        out: dict[str, Path] = {}
        group = f"eval/{self.suite}_metrics"
        for directory in reversed(self.directories):  # the user's files come last and win
            for path in sorted((directory / group).glob("*.yaml")):
                package = _PACKAGE_LINE.search(path.read_text(encoding="utf-8"))
                out[package[1].rsplit(".", 1)[-1] if package else path.stem] = path
        return out

    def metric_names(self) -> list[str]:
        return sorted(self.files)

    def resolve_name(self, name: str) -> str:
        """A metric by its name or by its file's name (forget_Truth_Ratio is forget_truth_ratio)."""
        if name in self.files:
            return name
        by_stem = {p.stem: n for n, p in self.files.items()}
        return by_stem.get(name, name)

    def metric(self, name: str) -> Config | None:
        path = self.files.get(self.resolve_name(name))
        if path is None:
            return None
        return self._attached(f"eval.{self.suite}._library.{name}", self._load(path))

    def dataset(self, name: str) -> Mapping[str, Config] | None:
        for directory in self.directories:
            path = directory / "data" / "datasets" / f"{name}.yaml"
            if path.is_file():
                return self._attached(f"eval.{self.suite}._datasets.{name}", self._load(path))
        return None

    def _load(self, path: Path) -> Any:
        """A config file's content. One with a defaults list is composed by Hydra, one without is just read."""
        from omegaconf import OmegaConf

        node = OmegaConf.load(path)
        if "defaults" not in node:
            return node
        root = next(d for d in self.directories if path.is_relative_to(d))
        whole = _compose(str(path.relative_to(root).with_suffix("")), [], self.directories)
        package = _PACKAGE_LINE.search(path.read_text(encoding="utf-8"))
        return OmegaConf.select(whole, package[1] if package else ".".join(path.relative_to(root).parent.parts))

    def _attached(self, key: str, node: Any) -> Any:
        """Puts a node into the tree, so that its interpolations see the whole configuration, and resolves it."""
        from omegaconf import OmegaConf

        OmegaConf.update(self.cfg, key, node, force_add=True)
        return OmegaConf.to_container(OmegaConf.select(self.cfg, key), resolve=True)


def _run(
    cfg: Any, name: str, directories: Sequence[Path], only: Iterable[str] | None, plugins: Sequence[str]
) -> AnyConfig:
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(cfg, "task_name"):
        raise UserError("'task_name' must be given (it names the run directory): add task_name=NAME to the command.")
    settings: Any = OmegaConf.to_container(cfg.eval[name], resolve=True)
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    data: Any = OmegaConf.to_container(cfg.data, resolve=True) if "data" in cfg else {}
    dialect = str(cfg.get("dialect") or settings.get("dialect") or "open-unlearning")
    limit = data.get("max_samples") if data.get("max_samples") is not None else get_dialect(dialect).rows
    for key, count in (("data.max_samples", limit), *((k, cfg.get(k)) for k in ("batch_tokens", "max_rows"))):
        if count is not None and int(count) < 1:
            raise UserError(f"{key} must be at least 1, it is {count}.")
    if not model.get("model_args", {}).get("pretrained_model_name_or_path"):
        raise UserError("No model given; add model.model_args.pretrained_model_name_or_path=PATH (or --model PATH).")
    if settings.get("handler") in EVALUATORS:
        if only is not None:
            raise UserError(f"'{name}' has tasks, not metrics; choose them with eval.{name}.tasks=[...] or --tasks.")
        return _harness(cfg, name, settings, model, limit)
    library = ConfigLibrary(cfg, name, directories)
    wanted = None if only is None else _names(list(only), library)
    suite = _seeded(read_suite(name, settings, library, wanted), int(cfg.get("seed") or 0))
    return RunConfig(
        suite=suite,
        settings={k: v for k, v in settings.items() if not k.startswith("_")},
        model_args=model.get("model_args") or {},
        tokenizer_args=model.get("tokenizer_args") or {},
        template_args=model.get("template_args") or {},
        task_name=str(cfg.task_name),
        output_dir=Path(str(settings.get("output_dir") or cfg.paths.output_dir)),
        dialect=dialect,
        seed=int(cfg.get("seed") or 0),
        limit=None if limit is None else int(limit),
        missing=str(data.get("missing") or "error"),
        local=data.get("local") or {},
        batch_tokens=cfg.get("batch_tokens"),
        max_rows=int(cfg.get("max_rows") or 128),
        progress=bool(cfg.get("progress", True)),
        plugins=tuple(plugins),
        resamples=_resamples(cfg),
    )


def _harness(cfg: Any, name: str, settings: Mapping[str, Any], model: Mapping[str, Any], limit: Any) -> HarnessConfig:
    return HarnessConfig(
        name=name,
        handler=str(settings["handler"]),
        settings=settings,
        model_args=model.get("model_args") or {},
        tokenizer_args=model.get("tokenizer_args") or {},
        task_name=str(cfg.task_name),
        output_dir=Path(str(settings.get("output_dir") or cfg.paths.output_dir)),
        limit=None if limit is None else int(limit),
        progress=bool(cfg.get("progress", True)),
    )


def _resamples(cfg: Any) -> int:
    """A root configuration of the user's own need not have heard of intervals."""
    said = (cfg.get("stats") or {}).get("resamples", RunConfig.resamples)
    if not isinstance(said, int) or said < 0:
        raise UserError(f"stats.resamples must be a whole number (0: no intervals), it is {said}.")
    return said


def _seeded(suite: SuiteSpec, seed: int) -> SuiteSpec:
    """`seed=` reaches metrics that sample their texts, unless they name a seed of their own."""
    metrics = {
        name: replace(spec, generation={"seed": seed, **spec.generation}) if spec.generation.get("do_sample") else spec
        for name, spec in suite.metrics.items()
    }
    return replace(suite, metrics=metrics)


def _names(only: list[str], library: ConfigLibrary) -> list[str]:
    if only == ["all"]:
        return [n for n in library.metric_names() if not (library.metric(n) or {}).get("optional")]
    out = [library.resolve_name(name) for name in only]
    for name, resolved in zip(only, out, strict=True):
        if resolved not in library.files:
            raise unknown_name("metric", name, library.metric_names())
    return out
