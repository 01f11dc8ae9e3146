"""A plan (models x suites x attacks, in YAML), read and checked before anything runs.

    models:  {npo: PATH, full: {path: PATH, dtype: float32}}      or a list of paths
    suites:  {tofu: {data: DIR, limit: 40}, depth: {full: full}}  or a list of names
    attacks: [relearn, {quantise: {bits: 8}}, {relearn-long: {attack: relearn, steps: 100}}]
    retain:  NAME or PATH, and the other fields of PlanFile

What an attack is, and which settings it has, is in its record (stress/registry.py), a plug-in's included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from vestige.depth.ask import DepthAsk, make_ask
from vestige.engine.config import HarnessConfig, make_config, option_types
from vestige.errors import UserError, unknown_name
from vestige.guard import is_there, read_yaml
from vestige.io import decode_data, misfit
from vestige.secrets import note_tree
from vestige.stress.attacks import WORDS, WeightsAttack, weights_attacks
from vestige.stress.copies import held_paths

DEPTH = "depth"  # the suite that is a depth run for each model
# Flags that a sweep sets itself; a plan may set all others of an evaluation or of a depth run.
_SET_BY_SWEEP = ("model", "out", "task_name", "retain_logs", "plugins", "progress", "server_by_name")
_EVAL_TYPES = option_types()
_EVAL_FLAGS = set(_EVAL_TYPES) - set(_SET_BY_SWEEP)
_DEPTH_SET_BY_SWEEP = ("unlearned", "out", "s1_cache", "progress", "quantization", "compute_dtype")
_DEPTH_FLAGS = {f.name for f in fields(DepthAsk)} - set(_DEPTH_SET_BY_SWEEP)
HERE = "none"  # `server` of a model that runs in the task's own process although the plan has servers
RESERVED = ("attack", "s1")  # tasks of these names are not evaluations
# Names of models, suites and attacks are names of directories, on every file system.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
_UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
NotNegative = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class PlanFile:
    """The keys of a plan file. Paths are relative to where the command runs, as on the command line."""

    models: dict[Any, Any] | list[Any]
    suites: dict[Any, Any] | list[Any]
    out: str | None = None  # default: saves/sweep/NAME of the plan file
    retain: str | None = None
    attacks: dict[Any, Any] | list[Any] | None = None
    plugins: list[str] | None = None
    slots: NotNegative | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    memory: str | float | None = None  # all tasks together may take
    gpus: Annotated[float, msgspec.Meta(ge=0)] | None = None  # a task's share of a cluster's (0.5: two share one)
    retries: NotNegative = 1
    free_space: str | float = "1 GB"
    clear_cache: bool = False
    prefetch: NotNegative = 0  # hub models on the disk before any task of theirs has started
    keep_attacked: bool = False
    server: str | list[str] | None = None  # servers for all models, each found by its name
    server_key_env: str | None = None


@dataclass(frozen=True)
class PlanModel:
    name: str
    path: str
    flags: Mapping[str, Any] = field(default_factory=dict)  # options of an evaluation, for this model only
    memory: int | None = None
    attack: bool | None = None  # None: unless it is the full model


@dataclass(frozen=True)
class PlannedAttack:
    """One attack of a plan."""

    name: str  # of its directories: MODEL+NAME
    kind: str  # of the registry
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> WeightsAttack:
        return weights_attacks()[self.kind]

    @property
    def reading(self) -> dict[str, str]:
        """How the checkpoint is to be read; then no copy is made."""
        return self.record.reading(self.settings)

    @property
    def quantization(self) -> str | None:
        return self.reading.get("quantization")

    @property
    def held_out(self) -> bool:
        return self.record.teaches and bool(self.settings.get("held_out"))

    def to_json(self) -> dict[str, Any]:
        return {"attack": self.kind, **self.settings}


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do, checked."""

    out: Path
    models: tuple[PlanModel, ...]
    suites: Mapping[str, Mapping[str, Any]]  # name -> options of an evaluation, or fields of DepthAsk
    file: PlanFile  # whatever else it says
    retain: str | None = None
    attacks: tuple[PlannedAttack, ...] = ()
    plugins: tuple[str, ...] = ()
    memory: int | None = None  # bytes
    free_space: int = 2**30
    metric_suites: tuple[str, ...] = ()  # suites of metrics: neither depth nor a harness
    held: Mapping[str, str] = field(default_factory=dict)  # suite -> its rows without those that relearning teaches

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    @property
    def retain_suites(self) -> tuple[str, ...]:
        """Suites that compare with the retain model."""
        return self.metric_suites if self.retain else ()

    def is_depth(self, suite: str) -> bool:
        return bool(self.suites[suite]["suite"] == DEPTH)

    @property
    def full_model(self) -> str | None:
        """The model before unlearning: what a depth suite says, else the one called `full`."""
        paths = [flags["full"] for name, flags in self.suites.items() if self.is_depth(name)]
        by_path = [m.name for m in self.models if m.path in paths]
        by_name = [m.name for m in self.models if m.name == "full"]
        return next(iter(by_path or by_name), None)

    def is_attacked(self, model: PlanModel) -> bool:
        """As the model's entry says; else every model but the full one, whose attacked copies nothing reads."""
        return model.attack if model.attack is not None else model.name != self.full_model

    def teaching_data(self, attack: PlannedAttack) -> Path:
        """The folder whose forget rows are taught: the attack's own, or that of the first suite which has one."""
        own = [self.suites[name]["data"] for name in self.metric_suites if self.suites[name].get("data")]
        chosen = attack.settings.get("data") or next(iter(own), None)
        if chosen is None:
            raise UserError(
                f"The attack '{attack.name}' teaches the forget rows of a folder, and no suite of the plan has one; "
                "add data: DIR to the suite or to the attack."
            )
        folder = Path(str(chosen)).expanduser()
        if not folder.is_dir():
            raise UserError(f"The attack '{attack.name}' teaches the rows of {folder}, which is not a folder.")
        return folder

    def run_directory(self, model: str, suite: str, attack: PlannedAttack | None) -> Path:
        return self.runs / suite / (model if attack is None else f"{model}+{attack.name}")


def read_plan(
    path: Path, more_plugins: Sequence[str] = (), instead: Mapping[str, Any] = MappingProxyType({})
) -> SweepPlan:
    """The plan in a YAML file. `instead`: keys that the command line gives in place of the file's."""
    from vestige.adapters.plugins import load_plugins

    try:
        body = read_yaml(path)
    except OSError:
        raise UserError(f"The plan {path} cannot be read; give a YAML file with models and suites.") from None
    except ValueError as error:
        raise UserError(f"The plan {path} is not valid YAML ({error}); see docs/sweep.md for an example.") from None
    # Tokens in the plan must not reach logs.
    note_tree(body)
    if not isinstance(body, dict) or not body.get("models") or not body.get("suites"):
        raise UserError(f"The plan {path} must name at least one model and one suite (models: and suites:).")
    known = {f.name for f in fields(PlanFile)}
    for key in body:
        if key not in known:
            raise unknown_name("key", str(key), known, f"(in {path})")
    file = decode_data({**body, **instead}, PlanFile, f"The plan {path}", "correct it (see docs/sweep.md)")
    plugins = tuple(dict.fromkeys([*(file.plugins or ()), *more_plugins]))
    load_plugins(plugins)
    models, retain = _with_retain(_read_models(file), file.retain)
    plan = SweepPlan(
        out=Path(file.out or f"saves/sweep/{path.stem}"),
        models=models,
        suites=_read_suites(file.suites),
        file=file,
        retain=retain,
        attacks=read_attacks(file.attacks),
        plugins=plugins,
        memory=_size(file.memory, "memory"),
        free_space=_size(file.free_space, "free_space") or 0,
    )
    return _check_whole(plan)


def _size(value: str | float | None, key: str) -> int | None:
    """Bytes, from a number of gigabytes or a number with a unit.

    >>> _size("1.5 GB", "memory"), _size(2, "memory"), _size("300 MB", "memory")
    (1610612736, 2147483648, 314572800)
    """
    if value is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d*)?|\.\d+)\s*([KMGT]B)?\s*", str(value), re.I | re.A)
    if not match:
        raise UserError(f"'{key}' in the plan must be a size such as 12 GB, it is {value!r}.")
    return int(float(match[1]) * _UNITS[(match[2] or "GB").upper()])


def _directory_name(name: Any, kind: str) -> str:
    if not NAME.fullmatch(str(name)):
        raise UserError(f"The {kind} name '{name}' cannot name a directory; use letters, digits, '.', '_' and '-'.")
    return str(name)


# ---- models ------------------------------------------------------------------------------------------------------


def _read_models(file: PlanFile) -> tuple[PlanModel, ...]:
    """A mapping of names to paths (or to `path` and flags), or a list of paths named by their last part."""
    entries = file.models
    if isinstance(entries, list):
        names = [Path(str(path)).name for path in entries]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UserError(f"Two models of the plan are called '{twice}'; name them (models: {{a: PATH, b: PATH}}).")
        entries = dict(zip(names, entries, strict=True))
    plan_server = {"server": _addresses(file.server), "server_key_env": file.server_key_env}
    plan_server = {key: value for key, value in plan_server.items() if value is not None}
    models = []
    for name, body in entries.items():
        flags = dict(body) if isinstance(body, dict) else {"path": body}
        path, memory, attack = (flags.pop(key, None) for key in ("path", "memory", "attack"))
        if not path:
            raise UserError(f"The model '{name}' of the plan has no path; write {name}: PATH.")
        if attack not in (None, True, False):
            raise UserError(f"'attack' of the model '{name}' of the plan must be true or false, it is {attack!r}.")
        if "server" in flags:
            flags["server"] = _addresses(flags["server"])
        _check_flags(flags, _EVAL_FLAGS, f"of the model '{name}'")
        # Each model has the servers of its own entry, else those of the plan that list it.
        if flags.get("server") == HERE:
            flags = {key: value for key, value in flags.items() if key not in ("server", "server_key_env")}
        elif not flags.get("server") and "server" in plan_server:
            flags |= {**plan_server, "server_by_name": True}
        memory = _size(memory, f"models.{name}.memory")
        models.append(PlanModel(_directory_name(name, "model"), str(path), flags, memory, attack))
    return tuple(models)


def _addresses(server: Any) -> Any:
    """One address or several, as text with commas or as a list."""
    return ",".join(map(str, server)) if isinstance(server, list) else server


def _with_retain(models: tuple[PlanModel, ...], name: str | None) -> tuple[tuple[PlanModel, ...], str | None]:
    """The retain model by its name among the models, or by a path; then it is one more model."""
    names = [model.name for model in models]
    if name is None or name in names:
        return models, name
    # A hub id has a slash; a word without one that is no path is a misspelt name.
    if not is_there(Path(name).expanduser()) and "/" not in name:
        raise unknown_name("retain model", name, names, "(in the plan)")
    if "retain" in names:
        raise UserError("A model of the plan is called 'retain', but the retain model is another one; rename it.")
    return (*models, PlanModel("retain", name)), "retain"


# ---- suites ------------------------------------------------------------------------------------------------------


def _read_suites(entries: Any) -> dict[str, Mapping[str, Any]]:
    """A list of names, or a mapping of names to flags; `suite:` in the flags says which one a name stands for."""
    if isinstance(entries, list):
        for name in entries:
            if not isinstance(name, str):
                raise UserError(f"The suites of the plan are a list of names, one of them is {name!r}; correct it.")
        entries = dict.fromkeys(entries)
    suites: dict[str, Mapping[str, Any]] = {}
    for name, body in entries.items():
        if body is not None and not isinstance(body, dict):
            raise UserError(f"The suite '{name}' of the plan takes a mapping of flags, it is {body!r}.")
        flags = {"suite": str(name), **(body or {})}
        where = f"the suite '{name}'"
        if name in RESERVED:
            raise UserError(f"A suite of the plan is called '{name}', as other tasks are; give it another name.")
        if isinstance(flags.get("metrics"), str):
            flags["metrics"] = [m.strip() for m in flags["metrics"].split(",")]
        _check_flags(flags, _DEPTH_FLAGS | {"suite"} if flags["suite"] == DEPTH else _EVAL_FLAGS, f"of {where}")
        if "server" in flags or "server_key_env" in flags:
            raise UserError(
                f"The suite '{name}' of the plan names servers; they belong to models, or to the whole plan."
            )
        suites[_directory_name(name, "suite")] = flags
    return suites


def _check_flags(flags: Mapping[str, Any], known: set[str], where: str) -> None:
    """A misspelt flag is found here, not by the first task that runs."""
    for key in flags:
        if key not in known:
            raise unknown_name("setting", str(key), known, f"({where} in the plan)")
    # (Types of the flags of an evaluation.)
    if known is _EVAL_FLAGS:  # make_ask checks those of a depth run
        for key, value in flags.items():
            problem = misfit(value, _EVAL_TYPES[key])
            if problem:
                raise UserError(
                    f"What the plan says {where} does not have the form it should: {problem} at `$.{key}`; correct it."
                )


def _depth_suite(flags: Mapping[str, Any], plan: SweepPlan, name: str) -> dict[str, Any]:
    """A depth suite's flags with models by their paths, checked as `vestige depth` checks them."""
    paths = {model.name: model.path for model in plan.models}
    flags = {"retain": plan.retain, **flags}
    for key in ("full", "retain", "data"):
        if flags.get(key) is None:
            hint = " (or retain: of the plan)" if key == "retain" else ""
            raise UserError(f"The suite '{name}' of the plan needs {key}:{hint}, as `vestige depth --{key}` does.")
    for key in ("full", "retain"):
        flags[key] = paths.get(str(flags[key]), str(flags[key]))
    make_ask(**{key: value for key, value in flags.items() if key != "suite"}, unlearned=[flags["full"]])
    return flags


# ---- attacks -----------------------------------------------------------------------------------------------------


def read_attacks(entries: Any) -> tuple[PlannedAttack, ...]:
    """The attacks of a plan: a list of names and one-entry mappings, or a mapping of names to settings."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(entries, dict):
        pairs = list(entries.items())
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and len(entry) != 1:
            raise UserError(f"An attack of the plan is {entry!r}; write a name, or one name with settings.")
        pairs += entry.items() if isinstance(entry, dict) else [(entry, None)]
    attacks: list[PlannedAttack] = []
    for name, body in pairs:
        if name in (None, "none"):
            continue
        attack = _read_attack(_directory_name(name, "attack"), body)
        if any(other.name == attack.name for other in attacks):
            raise UserError(
                f"The plan has two attacks called '{name}'; name one of them otherwise and say which attack it is "
                f"({{{name}-2: {{attack: {name}, ...}}}})."
            )
        attacks.append(attack)
    if len({attack.held_out for attack in attacks if attack.record.teaches}) > 1:
        raise UserError(
            "Relearning with held_out: true leaves only half of the rows to measure; set it for all or none."
        )
    return tuple(attacks)


def _read_attack(name: str, body: Any) -> PlannedAttack:
    """One attack with its settings checked; `attack:` in them says which one a name of the user's stands for."""
    if body is not None and not isinstance(body, dict):
        raise UserError(f"The attack '{name}' of the plan has settings {body!r}; write {{{name}: {{KEY: VALUE}}}}.")
    settings = dict(body or {})
    kind, known = str(settings.pop("attack", name)), weights_attacks()
    if kind not in known:
        raise unknown_name("attack", kind, known, "(in the plan: attacks on weights, ours and those of plug-ins)")
    record = known[kind]
    if record.all_settings is None:  # a plug-in's plain function takes what it takes
        return PlannedAttack(name, kind, settings)
    for key, value in settings.items():
        if key not in record.all_settings:
            raise unknown_name("setting", key, record.all_settings, f"(of the attack '{kind}' in the plan)")
        setting = record.all_settings[key]
        settings[key] = _setting_value(kind, key, value, setting.type)
        if setting.positive and settings[key] <= 0:
            raise UserError(f"The setting '{key}' of the attack '{name}' must be above 0.")
    if record.check:
        record.check(settings)
    return PlannedAttack(name, kind, settings)


def _setting_value(attack: str, key: str, value: Any, wanted: type) -> Any:
    """A setting as its type; YAML reads 1e-3 as text."""
    if wanted is object or (wanted is bool and isinstance(value, bool)):
        return value
    try:
        if wanted is bool or isinstance(value, bool) or (wanted is int and float(value) != int(float(value))):
            raise ValueError
        return wanted(value)
    except (TypeError, ValueError):
        raise UserError(
            f"The setting '{key}' of the attack '{attack}' in the plan must be {WORDS[wanted]}, it is {value!r}."
        ) from None


# ---- the whole plan ----------------------------------------------------------------------------------------------


def _check_whole(plan: SweepPlan) -> SweepPlan:
    """Every suite composed once, before anything runs: a misspelt metric should not cost a night."""
    suites = dict(plan.suites)
    metric_suites = []
    # Composing reads no model; it finds unknown metrics, datasets and settings.
    for name, flags in plan.suites.items():
        if plan.is_depth(name):
            suites[name] = _depth_suite(flags, plan, name)
        elif not isinstance(make_config(**suite_ask(plan, plan.models[0], name, None)), HarnessConfig):
            metric_suites.append(name)
    plan = replace(plan, suites=suites, metric_suites=tuple(metric_suites))
    served = [model for model in plan.models if model.flags.get("server")]
    layers = [name for name in plan.suites if plan.is_depth(name)]
    if served and layers:
        raise UserError(
            f"The suite '{layers[0]}' of the plan reads layers, which a server does not give, and "
            f"'{served[0].name}' is served; leave the suite out, or write server: {HERE} for the models."
        )
    if not plan.attacks:
        return plan
    attacked = [model for model in plan.models if plan.is_attacked(model)]
    if changed := [model.name for model in served if model in attacked]:
        raise UserError(
            f"The attack '{plan.attacks[0].name}' of the plan changes weights, and '{changed[0]}' is served; write "
            f"attack: false for it, or server: {HERE}."
        )
    held: dict[str, str] = {}
    quantised = any(flags.get("quantization") for flags in (*(m.flags for m in plan.models), *plan.suites.values()))
    for attack in plan.attacks:
        if attack.record.teaches:
            teaching = plan.teaching_data(attack)
            held |= held_paths(plan.suites, teaching, plan.out / "held_out") if attack.held_out else {}
        if attack.quantization and quantised:
            raise UserError(f"The attack '{attack.name}' quantises models that the plan already reads quantised.")
    if not attacked:
        raise UserError(
            "The plan has attacks and no model to attack: the full model is attacked only where its entry says so "
            f"(models: {{{plan.models[0].name}: {{path: PATH, attack: true}}}})."
        )
    return replace(plan, held=held)


def suite_ask(plan: SweepPlan, model: PlanModel, suite: str, attack: PlannedAttack | None) -> dict[str, Any]:
    """The flags of one evaluation."""
    out = plan.run_directory(model.name, suite, attack)
    ask = {**plan.suites[suite], **model.flags, "model": checkpoint_read(plan, model, attack), "out": str(out)}
    ask |= {"task_name": f"{suite}_{out.name}", "plugins": list(plan.plugins), "progress": False}
    if suite in plan.held:
        ask["data"] = plan.held[suite]
    if attack is not None:
        ask |= attack.reading
    if suite in plan.retain_suites and model.name != plan.retain:
        ask["retain_logs"] = str(plan.run_directory(str(plan.retain), suite, None))
    # The attacked retain model is compared with itself before the attack.
    elif suite in plan.retain_suites and attack is not None:
        ask["retain_logs"] = str(plan.run_directory(model.name, suite, None))
    return ask


def depth_ask(plan: SweepPlan, suite: str, unlearned: str, out: Path, reading: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of one depth run. Of a model's own flags only its quantisation counts here: full and retain are read
    alike for all models."""
    ask = {**plan.suites[suite], "unlearned": [unlearned], "out": str(out), "progress": False}
    if suite in plan.held:
        ask["data"] = plan.held[suite]
    ask |= {"s1_cache": str(s1_place(plan, suite) / "s1_cache"), "quantization": None, **reading}
    return ask


def s1_place(plan: SweepPlan, suite: str) -> Path:
    return plan.out / "s1" / suite


def attacked_place(plan: SweepPlan, model: str, attack: PlannedAttack) -> Path:
    return plan.out / "attacked" / attack.name / model


def checkpoint_read(plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None) -> str:
    """The checkpoint to evaluate: the model's own, unless an attack makes a copy."""
    if attack is None or attack.quantization:
        return model.path
    return str(attacked_place(plan, model.name, attack) / "checkpoint")
