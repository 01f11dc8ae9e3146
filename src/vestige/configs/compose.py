"""Hydra at work: the user's directory before ours, mistakes in one sentence, named metrics looked up in the groups.

In: overrides and, if there is one, a directory of the user's. Out: a composed configuration, as plain data. Callers:
engine/config.py for evaluations; depth, collapse and unlearn for their own groups; others for the names of options.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from vestige.errors import UserError, first_line, unknown_name
from vestige.guard import check_nodes, read_text
from vestige.models.args import OWN_KEYS
from vestige.runs.directory import temporary, write_bytes
from vestige.secrets import note_environment, note_tree, note_words
from vestige.suites.registry import TRAJECTORY
from vestige.suites.spec import MetricConfig

PACKAGE_DIR = Path(__file__).resolve().parent
_PACKAGE_LINE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
CLOSED = ("collapse.yaml", "depth.yaml")  # every setting of these verbs is listed: none can be added, none printed
MOST_FILES = 10_000  # of a user's config directory that are looked at beforehand
# Settings that a root configuration of the user's own need not list; given with or without Hydra's plus.
_OPTIONAL = (
    *(f"model.model_args.{key}=" for key in OWN_KEYS),
    *("data.local=", "data.max_samples=", "data.missing=", "stats.resamples=", "stats.cluster="),
    *("batch_tokens=", "max_rows=", "dialect=", "seed=", "progress="),
)
_USER_DIR: list[Path] = []  # where the search-path plug-in below looks, the first one last; set while composing


def _register_search_path() -> None:
    """Tells Hydra, once, to look into the user's directory before ours (its public way to do so is a plug-in)."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserDirectoryFirst(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for directory in _USER_DIR:
                search_path.prepend("vestige-user", f"file://{directory}")

    known = [plugin.__name__ for plugin in Plugins.instance().discover(SearchPathPlugin)]
    if UserDirectoryFirst.__name__ not in known:
        Plugins.instance().register(UserDirectoryFirst)


def _watch_environment() -> None:
    """Tells OmegaConf's `oc.env` to say what it read: such values are kept out of files (secrets.py)."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def watched(key: str, *default: Any) -> Any:
        value = oc.env(key, *default)
        if key in os.environ:
            note_environment(key, os.environ[key])
        return value

    OmegaConf.register_new_resolver("oc.env", watched, replace=True)


def config_directories(config_dir: Path | None) -> list[Path]:
    """Where config files are looked for: the user's directory first, then ours."""
    if config_dir is None:
        return [PACKAGE_DIR]
    if not config_dir.is_dir():
        raise UserError(f"--config-dir {config_dir} is not a directory; give the folder that holds your config groups.")
    return [config_dir, PACKAGE_DIR]


@contextmanager
def composing(config_dir: Path | None) -> Iterator[list[Path]]:
    """Hydra with the user's directory first and ours behind it; yields the directories in that order."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    config_directories(config_dir)
    _register_search_path()
    _watch_environment()
    for path in islice(config_dir.rglob("*.yaml"), MOST_FILES) if config_dir else ():
        check_yaml(path)
    GlobalHydra.instance().clear()
    own = [config_dir.resolve()] if config_dir else []
    try:
        without: AbstractContextManager[list[Path]] = _without_hydra_group(own[0]) if own else nullcontext([])
        with without as silent:
            _USER_DIR[:] = [*own, *silent]
            with initialize_config_dir(str(PACKAGE_DIR), version_base="1.3"):
                yield [*own, PACKAGE_DIR]
    finally:
        _USER_DIR.clear()


@contextmanager
def _without_hydra_group(own: Path) -> Iterator[list[Path]]:
    """Empty files in the place of a user's own `hydra` group: how Hydra logs and where it runs is not ours to set up.

    (Such a group asks for plug-ins, as open-unlearning's does for colorlog, or for folders that nobody wants here.)
    """
    names = [p.relative_to(own) for p in (own / "hydra").rglob("*.yaml")]
    if not names:
        yield []
        return
    with temporary() as place:
        for name in names:
            write_bytes(place / name, b"{}\n")
        yield [place]


def _quoted(word: str) -> str:
    """Hydra's grammar reads plain values of ASCII letters only; a path with others is put in quotes."""
    key, equals, value = word.partition("=")
    if value.isascii() or set(value) & set("'\"[]{}(),$"):
        return word
    return f"{key}{equals}'{value}'"


def compose_config(
    config_name: str, overrides: Sequence[str], directories: Sequence[Path], values: Mapping[str, Any] | None = None
) -> Any:
    """The configuration that words in Hydra's grammar choose; `values` are settings taken as they are."""
    import yaml
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    note_words(overrides)
    try:
        with warnings.catch_warnings():
            # Metric files written for older Hydra have no _self_ in their defaults; its advice is not for our users.
            warnings.simplefilter("ignore", UserWarning)
            cfg = compose(config_name, overrides=[_quoted(_optional(word)) for word in overrides])
        for name, value in (values or {}).items():
            for key in _keys_of(name, cfg):
                if not any(map(_overrides_key, overrides, repeat(key))):
                    OmegaConf.update(cfg, key, _literal(value), force_add=True)
        note_tree(OmegaConf.to_container(cfg, resolve=False))
        return cfg
    except yaml.YAMLError as error:
        raise _explain_yaml(error) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain_composition(error, directories, config_name, overrides) from None
    except RecursionError:
        raise UserError(f"The defaults list of '{config_name}' leads back to itself; take that entry out.") from None
    except (ValueError, TypeError, AttributeError) as error:  # eval=3.5, trainer=[1,2]: a group takes a file's name
        raise UserError(f"{' '.join(str(error).split())}; write GROUP=NAME, as in eval=tofu.") from None


def _keys_of(name: str, cfg: Any) -> list[str]:
    """The settings that a value is for: {suite} stands for every suite, and a suite that is absent has none."""
    suites = list(map(str, cfg.get("eval") or {})) if "eval." in name else []
    if "{suite}" in name:
        return [name.format(suite=suite) for suite in suites]
    return [name] if not name.startswith("eval.") or name.split(".")[1] in suites else []


def _overrides_key(override: str, key: str) -> bool:
    """Whether an override says something about a setting: a person's KEY=VALUE beats a flag.

    >>> key = "model.model_args.device"
    >>> [_overrides_key(o, key) for o in (f"++{key}=cpu", "model.model_args={device: cpu}", "model=local", "seed=1")]
    [True, True, False, False]
    """
    said, _, value = override.lstrip("+~").partition("=")
    leaf = key.rsplit(".", 1)[-1]
    return said == key or (
        key.startswith(f"{said}.") and re.search(rf"\b{re.escape(leaf)}\b['\"]?\s*:", value) is not None
    )


def _literal(value: Any) -> Any:
    """A value that OmegaConf gives back as it is: `${` in a path is text, not a reference.

    >>> from omegaconf import OmegaConf
    >>> paths = ["a ${b}", "c\\\\${d}", "e\\\\f", "g=h,'i'"]
    >>> [OmegaConf.create({"x": _literal(path)}).x for path in paths] == paths
    True
    """
    if isinstance(value, (list, tuple)):
        return [_literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _optional(override: str) -> str:
    """Settings that no config file needs to list are set whether they are there or not.

    >>> _optional("model.model_args.diffusion=adapted"), _optional("+data.max_samples=4"), _optional("eval=tofu")
    ('++model.model_args.diffusion=adapted', '++data.max_samples=4', 'eval=tofu')
    """
    setting = override.lstrip("+")
    optional = setting.startswith(_OPTIONAL) or ".trajectory_config.guide_defaults=" in setting
    return f"++{setting}" if optional else override


def _explain_yaml(error: Exception, path: Path | None = None) -> UserError:
    """A file that is not YAML; the guide's truth ratio, which says `probability` twice, gets the form that works."""
    mark = getattr(error, "problem_mark", None)
    where = f"{path or mark.name}, line {mark.line + 1}" if mark else str(path or "A config file")
    problem = str(getattr(error, "problem", None) or error)
    twice = re.search(r"found duplicate key (\S+)", problem)
    if not twice:
        return UserError(f"{where}: not valid YAML ({problem}); check its indentation and quotes.")
    key = twice[1]
    return UserError(
        f"{where}: the key '{key}' is there twice, and YAML keeps one; name each entry, e.g. pre_compute: "
        f"{{right: {{handler: {key}, access_key: correct, datasets: ...}}, wrong: {{handler: {key}, access_key: wrong, "
        f"datasets: ...}}}}, each with the data it had."
    )


def _read_yaml(path: Path) -> Any:
    import yaml
    from omegaconf import OmegaConf

    if not isinstance(check_yaml(path), (yaml.MappingNode, type(None))):
        raise UserError(f"{path} must hold a mapping of settings, as in handler: probability.")
    try:
        return OmegaConf.load(path)
    except yaml.YAMLError as error:  # check_yaml lets a key pass that is there twice
        raise _explain_yaml(error) from None


def check_yaml(path: Path) -> Any:
    """The nodes of a config file, its size, depth and aliases checked before a library writes every alias out."""
    import yaml

    try:
        node = yaml.compose(read_text(path), Loader=yaml.SafeLoader)
        if node is not None:
            check_nodes(node)
        return node
    except yaml.YAMLError as error:
        raise _explain_yaml(error, path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def _explain_composition(
    error: Exception, directories: Sequence[Path], config_name: str, overrides: Sequence[str]
) -> UserError:
    """Hydra's refusal in one sentence that names what exists."""
    text = str(error)
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing:
        group, _, name = missing[1].removesuffix(".yaml").rpartition("/")
        known = options(group, directories)
        if not known:  # no such group either: name what the whole kind has
            kind = group.split("/")[0]
            return unknown_name(kind, f"{group}/{name}".removeprefix(f"{kind}/"), options(kind, directories))
        return unknown_name(f"{group or 'config'}", name, known)
    unknown = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if unknown is None:
        first = " ".join(text.split("\n")[:2])
        return UserError(f"The configuration could not be composed: {first}")
    key = unknown[1]
    metric = re.match(r"(eval\.(\w+)\.metrics\.(\w+))", key)
    if metric and metric[3] not in _listed_metrics(config_name, metric[2], directories):
        return _explain_unlisted_metric(key, metric, directories, overrides)
    names = _setting_names(config_name)
    leaf = key.rsplit(".", 1)[-1]
    homes = [name for name in names if name.rsplit(".", 1)[-1] == leaf and name != key]
    homes = homes or difflib.get_close_matches(key, names, n=1)
    advice = f"did you mean {' or '.join(homes)}?" if homes else "check its spelling."
    if config_name in CLOSED:
        return UserError(f"'{key}' is not a setting of `vestige {Path(config_name).stem}`; {advice}")
    return UserError(f"'{key}' is not a setting that exists; {advice} --cfg prints all of them; +{key}=VALUE adds one.")


def _explain_unlisted_metric(
    key: str, metric: re.Match[str], directories: Sequence[Path], overrides: Sequence[str]
) -> UserError:
    """A setting of a metric that the suite does not list: it has to be added before it can be set."""
    whole, suite, name = metric.groups()
    others = [override for override in overrides if not _overrides_key(override, key)]
    added = any(re.match(rf"\+\+?{re.escape(whole)}\b", override) for override in others)
    if added or name in ConfigLibrary(None, suite, directories).files:
        absent = key if added else whole
        return UserError(
            f"Key '{absent.rsplit('.', 1)[-1]}' is not in struct: the configuration does not list {absent}; to set "
            f"it, only a plus is missing: +{key}=VALUE."
        )
    return UserError(
        f"Key '{name}' is not in struct: the suite has no metric of that name yet; add it with a plus, "
        f"+{whole}.handler={name}, and write +{whole}... for its other settings."
    )


def _listed_metrics(config_name: str, suite: str, directories: Sequence[Path]) -> set[str]:
    """The metrics that a suite has before any override."""
    from hydra import compose
    from omegaconf import OmegaConf

    if suite not in options("eval", directories):
        return set()
    listed = OmegaConf.select(compose(config_name, overrides=[f"eval={suite}"]), f"eval.{suite}.metrics")
    return set(listed or ())


def _setting_names(config_name: str) -> list[str]:
    """Every setting of a configuration as it is by default, dotted."""
    from hydra import compose
    from omegaconf import OmegaConf

    names = []
    nodes: list[tuple[str, Any]] = [("", OmegaConf.to_container(compose(config_name), resolve=False))]
    while nodes:
        prefix, node = nodes.pop(0)
        for key, value in node.items():
            if isinstance(value, dict):
                nodes.append((f"{prefix}{key}.", value))
            else:
                names.append(f"{prefix}{key}")
    return names


def explain_value(error: Exception) -> UserError:
    key = getattr(error, "full_key", None) or "?"
    absent = re.search(r"Interpolation key '([^']+)' not found", str(error))
    if absent:
        return UserError(
            f"Setting '{key}' refers to '{absent[1]}', which is not there; add it to your configuration or to "
            f"the command (+{absent[1]}=VALUE)."
        )
    if type(error).__name__ == "MissingMandatoryValue":
        return UserError(f"'{key}' must be given; add {key}=VALUE to the command.")
    return UserError(f"Setting '{key}': {first_line(error)}")


def options(group: str, directories: Sequence[Path]) -> list[str]:
    """The names available in a config group, the user's and ours."""
    names: set[str] = set()
    for directory in directories:
        base = directory / group
        names |= {str(p.relative_to(base).with_suffix("")) for p in base.rglob("*.yaml")} if base.is_dir() else set()
    return sorted(names)


def lend_suite(cfg: Any, lender: str, borrower: str, directories: Sequence[Path]) -> None:
    """Makes the settings of the suite `lender` known to a suite that names its metrics; what the borrower says wins."""
    from omegaconf import OmegaConf

    file = next((f for d in directories if (f := d / "eval" / f"{lender}.yaml").is_file()), None)
    if file is None:
        raise unknown_name("library", lender, options("eval", directories), f"(eval.{borrower}.library)")
    kept = _read_yaml(file)
    own = {k for k in cfg.eval[borrower] if k not in ("metrics", "handler", "library", "local_data")}
    body = {str(k): v for k, v in kept.items_ex(resolve=False) if k not in ("defaults", "metrics")}
    body |= {str(k): f"${{eval.{borrower}.{k}}}" for k in own}
    OmegaConf.update(cfg, f"eval.{lender}", body, force_add=True)


def fill_suite(cfg: Any, name: str) -> None:
    """Settings that a user's copy of one of our suites leaves out get the values they have in ours.

    Guides print short forms of these files; the metrics refer to the settings all the same.
    """
    from omegaconf import OmegaConf

    file = PACKAGE_DIR / "eval" / f"{name}.yaml"
    if not file.is_file():
        return
    for key, value in _read_yaml(file).items_ex(resolve=False):
        if key not in (*cfg.eval[name], "defaults", "metrics", "handler"):
            OmegaConf.update(cfg, f"eval.{name}.{key}", value, force_add=True)
    for metric in (cfg.eval[name].get("metrics") or {}).values():
        _fill_open_settings(metric, cfg, name)


def _fill_open_settings(metric: Any, cfg: Any, suite: str) -> None:
    """What a metric's file leaves open (open-unlearning's `reference_model_path: ???`) is the suite's setting."""
    from omegaconf import OmegaConf

    if OmegaConf.is_dict(metric):
        for key in metric:
            if OmegaConf.is_missing(metric, key) and key in cfg.eval[suite]:
                metric[key] = f"${{eval.{suite}.{key}}}"


class ConfigLibrary:
    """Named metrics and data sets, read from the config groups when a suite mentions them."""

    def __init__(self, cfg: Any, suite: str, directories: Sequence[Path]) -> None:
        self.cfg = cfg
        self.suite = suite
        self.directories = directories
        # Metric name -> file. The name is the end of the file's @package line; the file name works too.
        self.files: dict[str, Path] = {}
        for directory in reversed(directories):  # the user's files come last and win
            for path in sorted((directory / f"eval/{suite}_metrics").glob("*.yaml")):
                package = _PACKAGE_LINE.search(read_text(path))
                self.files[package[1].rsplit(".", 1)[-1] if package else path.stem] = path

    def metric_names(self) -> list[str]:
        return sorted(self.files)

    def resolve_name(self, name: str) -> str:
        """A metric by its name or by its file's name (forget_Truth_Ratio is forget_truth_ratio)."""
        if name in self.files:
            return name
        by_stem = {p.stem: n for n, p in self.files.items()}
        return by_stem.get(name, name)

    def metric(self, name: str) -> MetricConfig | None:
        path = self.files.get(self.resolve_name(name))
        if path is None:
            return None
        node = self._load(path)
        if list(node) == [name]:  # pasted with its name, as guides print it
            node = node[name]
        _fill_open_settings(node, self.cfg, self.suite)
        return self._attached(f"eval.{self.suite}._library.{name}", self._completed(node))

    def dataset(self, name: str) -> Mapping[str, MetricConfig] | None:
        for directory in self.directories:
            path = directory / "data" / "datasets" / f"{name}.yaml"
            if path.is_file():
                return self._attached(f"eval.{self.suite}._datasets.{name}", self._load(path))
        return None

    def _load(self, path: Path) -> Any:
        """A config file's content. One with a defaults list is composed by Hydra, one without is just read."""
        from omegaconf import OmegaConf

        node = _read_yaml(path)
        if "defaults" not in node:
            return node
        root = next(d for d in self.directories if path.is_relative_to(d))
        whole = compose_config(str(path.relative_to(root).with_suffix("")), [], self.directories)
        package = _PACKAGE_LINE.search(path.read_text(encoding="utf-8"))
        # Hydra counts packages from the root, with or without _global_ said before them.
        place = package[1].removeprefix("_global_.") if package else ".".join(path.relative_to(root).parent.parts)
        return OmegaConf.select(whole, place)

    def _completed(self, node: Any) -> Any:
        """The guide's short trajectory files name neither data nor, sometimes, metrics: those are the suite's own."""
        shipped = PACKAGE_DIR / "eval" / f"{self.suite}_metrics" / f"{TRAJECTORY}.yaml"
        if node.get("handler") == TRAJECTORY and shipped.is_file():
            ours = _read_yaml(shipped)
            for key in ("metrics", "datasets"):
                if key not in node:
                    node[key] = ours[key]
        return node

    def _attached(self, key: str, node: Any) -> Any:
        """Puts a node into the tree, so that its interpolations see the whole configuration, and resolves it."""
        from omegaconf import OmegaConf

        OmegaConf.update(self.cfg, key, node, force_add=True)
        return OmegaConf.to_container(OmegaConf.select(self.cfg, key), resolve=True)


def seed_of(cfg: Any) -> int:
    """`seed=`; NumPy takes no larger one."""
    said = cfg.get("seed")
    if said is None:
        return 0
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said < 2**32:
        raise UserError(f"seed must be a whole number from 0 to {2**32 - 1}, it is {said!r}.")
    return said
