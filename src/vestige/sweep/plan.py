"""From a plan (models x suites x attacks, in YAML) to tasks in the order in which they should run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vestige.engine.config import HarnessConfig
from vestige.engine.flags import EvalAsk, to_run
from vestige.errors import UserError, unknown_name
from vestige.guard import is_there, read_yaml
from vestige.schema import check_form
from vestige.secrets import note_tree
from vestige.stress.copies import held_paths
from vestige.sweep import depth as sweep_depth
from vestige.sweep.attacks import PlannedAttack, read_attacks, teaching_data

ASK = {f.name for f in fields(EvalAsk)}
OURS = {"model", "out", "task_name", "retain_logs", "plugins", "progress"}  # what a sweep says itself
OURS |= {"server_by_name"}
HERE = "none"  # `server` of a model that runs in the task's own process although the plan has servers
TEACHING = (
    "suite", "system_prompt", "limit", "dtype", "device", "tokenizer", "trust_remote_code", "overrides", "config_dir",
)  # fmt: skip
RESERVED = ("attack", "s1")  # tasks of these names are not evaluations
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class PlanModel:
    name: str
    path: str
    flags: Mapping[str, Any] = field(default_factory=dict)  # fields of Ask, for this model only
    memory: int | None = None
    attack: bool | None = None  # None: unless it is the full model


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do, checked."""

    out: Path
    models: tuple[PlanModel, ...]
    suites: Mapping[str, Mapping[str, Any]]  # name -> fields of Ask, or of DepthAsk
    retain: str | None = None
    attacks: tuple[PlannedAttack, ...] = ()
    plugins: tuple[str, ...] = ()
    slots: int | None = None
    threads: int | None = None
    memory: int | None = None  # bytes all tasks together may take
    gpus: float | None = None  # a task's share of a cluster's GPUs
    retries: int = 1
    free_space: int = 2**30
    clear_cache: bool = False
    prefetch: int = 0  # hub models on the disk before any task of theirs has started
    keep_attacked: bool = False
    server: str | None = None  # servers for all models, each found by its name
    server_key_env: str | None = None
    retain_suites: tuple[str, ...] = ()  # suites that compare with the retain model
    metric_suites: tuple[str, ...] = ()  # suites of metrics: neither depth nor a harness
    held: Mapping[str, str] = field(default_factory=dict)  # suite -> its rows without those that relearning teaches

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    @property
    def teaching_suites(self) -> dict[str, Mapping[str, Any]]:
        return {name: self.suites[name] for name in self.metric_suites}

    def is_depth(self, suite: str) -> bool:
        return bool(self.suites[suite]["suite"] == sweep_depth.SUITE)


KEYS = {f.name for f in fields(SweepPlan)} - {"retain_suites", "metric_suites", "held"}


def read_plan(
    path: Path, more_plugins: Sequence[str] = (), instead: Mapping[str, Any] = MappingProxyType({})
) -> SweepPlan:
    """The plan in a YAML file. Paths in it are relative to where the command runs, as on the command line.

    `instead`: keys that the command line gives, and that the file's do not count for.
    """
    from vestige.integrations.plugins import load_plugins

    try:
        body = read_yaml(path)
    except OSError:
        raise UserError(f"The plan {path} cannot be read; give a YAML file with models and suites.") from None
    except ValueError as error:
        raise UserError(f"The plan {path} is not valid YAML ({error}); see docs/sweep.md for an example.") from None
    note_tree(body)
    if not isinstance(body, dict) or not body.get("models") or not body.get("suites"):
        raise UserError(f"The plan {path} must name at least one model and one suite (models: and suites:).")
    for key in body:
        if key not in KEYS:
            raise unknown_name("key", str(key), KEYS, f"(in {path})")
    plugins = tuple(dict.fromkeys(str(p) for p in [*_list(body.get("plugins"), "plugins"), *more_plugins]))
    load_plugins(plugins)
    return _checked(_plan({**body, **instead}, path, plugins))


def _plan(body: Mapping[str, Any], path: Path, plugins: tuple[str, ...]) -> SweepPlan:
    models = _models(body["models"])
    models, retain = _with_retain(models, body.get("retain"))
    models = _with_servers(models, body)
    suites = _suites(body["suites"])
    return SweepPlan(
        out=Path(str(body.get("out") or f"saves/sweep/{path.stem}")),
        models=models,
        suites=suites,
        retain=retain,
        attacks=read_attacks(body.get("attacks"), _name),
        plugins=plugins,
        slots=_count(body, "slots", 0),
        threads=_count(body, "threads", 1),
        memory=_size(body.get("memory"), "memory"),
        gpus=_share(body.get("gpus")),
        retries=_count(body, "retries", 0, 1) or 0,
        free_space=_size(body.get("free_space", "1 GB"), "free_space") or 0,
        clear_cache=bool(body.get("clear_cache", False)),
        prefetch=_count(body, "prefetch", 0, 0) or 0,
        keep_attacked=bool(body.get("keep_attacked", False)),
        server=_addresses(body.get("server")),
        server_key_env=body.get("server_key_env"),
    )


def _addresses(said: Any) -> str | None:
    """One address or several, as text with commas or as a list."""
    if said is not None and not isinstance(said, (str, list)):
        raise UserError(f"'server' in the plan must be an address or a list of them, it is {said!r}.")
    return ",".join(map(str, said)) if isinstance(said, list) else said


def _with_servers(models: tuple[PlanModel, ...], body: Mapping[str, Any]) -> tuple[PlanModel, ...]:
    """Each model with its servers: its own entry's, else those of the plan that list it."""
    plans = {"server": _addresses(body.get("server")), "server_key_env": body.get("server_key_env")}
    plans = {k: v for k, v in plans.items() if v is not None}
    out = []
    for model in models:
        flags = dict(model.flags)
        if flags.get("server") == HERE:
            flags = {k: v for k, v in flags.items() if k not in ("server", "server_key_env")}
        elif not flags.get("server") and "server" in plans:
            flags |= {**plans, "server_by_name": True}
        out.append(replace(model, flags=flags))
    return tuple(out)


def _list(value: Any, key: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UserError(f"'{key}' in the plan must be a list, it is {value!r}.")
    return value


def _count(body: Mapping[str, Any], key: str, least: int, default: int | None = None) -> int | None:
    value = body.get(key, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise UserError(f"'{key}' in the plan must be a whole number of at least {least}, it is {value!r}.")
    return value


def _size(value: Any, key: str) -> int | None:
    """Bytes, from a number of gigabytes or a number with a unit.

    >>> _size("1.5 GB", "memory"), _size(2, "memory"), _size("300 MB", "memory")
    (1610612736, 2147483648, 314572800)
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d*)?|\.\d+)\s*([KMGT]B)?\s*", str(value), re.I | re.A)
    if not found:
        raise UserError(f"'{key}' in the plan must be a size such as 12 GB, it is {value!r}.")
    return int(float(found[1]) * UNITS[(found[2] or "GB").upper()])


def _share(value: Any) -> float | None:
    if value is not None and (not isinstance(value, (int, float)) or value < 0):
        raise UserError(
            f"'gpus' in the plan must be a number of GPUs for each task (0.5: two share one), not {value!r}."
        )
    return value


def _name(name: Any, kind: str) -> str:
    if not NAME.fullmatch(str(name)):
        raise UserError(f"The {kind} name '{name}' cannot name a directory; use letters, digits, '.', '_' and '-'.")
    return str(name)


def _models(said: Any) -> tuple[PlanModel, ...]:
    """A mapping of names to paths (or to `path` and flags), or a list of paths named by their last part."""
    if isinstance(said, list):
        names = [Path(str(p)).name for p in said]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UserError(f"Two models of the plan are called '{twice}'; name them (models: {{a: PATH, b: PATH}}).")
        said = dict(zip(names, said, strict=True))
    if not isinstance(said, dict):
        raise UserError("'models' in the plan must be a list of paths or a mapping of names to paths.")
    return tuple(_model(name, body) for name, body in said.items())


def _model(name: Any, body: Any) -> PlanModel:
    flags = dict(body) if isinstance(body, dict) else {"path": body}
    path, memory, attack = (flags.pop(key, None) for key in ("path", "memory", "attack"))
    if not path:
        raise UserError(f"The model '{name}' of the plan has no path; write {name}: PATH.")
    if attack not in (None, True, False):
        raise UserError(f"'attack' of the model '{name}' of the plan must be true or false, it is {attack!r}.")
    if "server" in flags:
        flags["server"] = _addresses(flags["server"])
    _check_flags(flags, f"of the model '{name}'")
    return PlanModel(_name(name, "model"), str(path), flags, _size(memory, f"models.{name}.memory"), attack)


def _with_retain(models: tuple[PlanModel, ...], said: Any) -> tuple[tuple[PlanModel, ...], str | None]:
    """The retain model by its name among the models, or by a path; then it is one more model."""
    if said is None:
        return models, None
    name = str(said)
    if name not in {m.name for m in models}:
        if not is_there(Path(name).expanduser()) and "/" not in name:
            raise unknown_name("retain model", name, [m.name for m in models], "(in the plan)")
        models, name = (*models, PlanModel("retain", name)), "retain"
        if len({m.name for m in models}) < len(models):
            raise UserError("A model of the plan is called 'retain', but the retain model is another one; rename it.")
    return models, name


def _suites(said: Any) -> dict[str, Mapping[str, Any]]:
    if isinstance(said, list):
        said = dict.fromkeys(_name(name, "suite") for name in said)
    if not isinstance(said, dict):
        raise UserError("'suites' in the plan must be a list of names or a mapping of names to their flags.")
    out: dict[str, Mapping[str, Any]] = {}
    for name, body in said.items():
        if body is not None and not isinstance(body, dict):
            raise UserError(f"The suite '{name}' of the plan takes a mapping of flags, it is {body!r}.")
        flags = {"suite": str(name), **(body or {})}
        if name in RESERVED:
            raise UserError(f"A suite of the plan is called '{name}', as other tasks are; give it another name.")
        check = sweep_depth.check_flags if flags["suite"] == sweep_depth.SUITE else _check_flags
        check(flags, f"of the suite '{name}'")
        if "server" in flags or "server_key_env" in flags:
            raise UserError(
                f"The suite '{name}' of the plan names servers; they belong to models, or to the whole plan."
            )
        if isinstance(flags.get("metrics"), str):
            flags["metrics"] = [m.strip() for m in flags["metrics"].split(",")]
        check_form(flags.get("metrics"), list[str] | None, f"'metrics' of the suite '{name}' of the plan", "list names")
        out[_name(name, "suite")] = flags
    return out


def _check_flags(flags: Mapping[str, Any], where: str) -> None:
    for key in flags:
        if key not in ASK - OURS:
            raise unknown_name("setting", str(key), ASK - OURS, f"({where} in the plan)")
    check_form({**flags, "metrics": None}, EvalAsk, f"What the plan says {where}", "correct it")


def _checked(plan: SweepPlan) -> SweepPlan:
    """Every suite composed once, before anything runs: a misspelt metric should not cost a night."""
    paths = {m.name: m.path for m in plan.models}
    retain = paths.get(plan.retain or "")
    depth = {n: sweep_depth.resolved(f, paths, retain, n) for n, f in plan.suites.items() if plan.is_depth(n)}
    plan = replace(plan, suites={**plan.suites, **depth})
    kinds = {n: to_run(EvalAsk(**suite_ask(plan, plan.models[0], n, None))) for n in plan.suites if n not in depth}
    metrics = tuple(name for name, run in kinds.items() if not isinstance(run, HarnessConfig))
    plan = replace(plan, metric_suites=metrics, retain_suites=metrics if plan.retain else ())
    return _with_attacks(plan)


def _with_attacks(plan: SweepPlan) -> SweepPlan:
    """Attacks that cannot work are refused, and held-out rows get their place."""
    held: dict[str, str] = {}
    _check_served(plan)
    for attack in plan.attacks:
        if attack.record.teaches:
            teaching = teaching_data(attack, plan.teaching_suites)
            held |= held_paths(plan.suites, teaching, plan.out / "held_out") if attack.held_out else {}
        said = [*(m.flags for m in plan.models), *plan.suites.values()]
        if attack.quantization and any(flags.get("quantization") for flags in said):
            raise UserError(f"The attack '{attack.name}' quantises models that the plan already reads quantised.")
    if plan.attacks and not any(is_attacked(plan, m) for m in plan.models):
        name = plan.models[0].name
        raise UserError(
            "The plan has attacks and no model to attack: the full model is attacked only where its entry says so "
            f"(models: {{{name}: {{path: PATH, attack: true}}}})."
        )
    return replace(plan, held=held)


def _check_served(plan: SweepPlan) -> None:
    """What a server cannot do is refused before anything runs."""
    served = [m for m in plan.models if m.flags.get("server")]
    layers = [name for name in plan.suites if plan.is_depth(name)]
    if served and layers:
        raise UserError(
            f"The suite '{layers[0]}' of the plan reads layers, which a server does not give, and "
            f"'{served[0].name}' is served; leave the suite out, or write server: {HERE} for the models."
        )
    changed = [m.name for m in served if plan.attacks and is_attacked(plan, m)]
    if changed:
        raise UserError(
            f"The attack '{plan.attacks[0].name}' of the plan changes weights, and '{changed[0]}' is served; write "
            f"attack: false for it, or server: {HERE}."
        )


def full_model(plan: SweepPlan) -> str | None:
    """The model before unlearning: what a depth suite says, else the one called `full`."""
    said = [flags["full"] for name, flags in plan.suites.items() if plan.is_depth(name)]
    found: list[PlanModel] = [m for m in plan.models if m.path in said] or [m for m in plan.models if m.name == "full"]
    return found[0].name if found else None


def is_attacked(plan: SweepPlan, model: PlanModel) -> bool:
    """What the model's entry says; without a word every model but the full one, whose attacked copies nothing reads."""
    return model.attack if model.attack is not None else model.name != full_model(plan)


def spared(plan: SweepPlan) -> list[str]:
    """Models that the plan's attacks leave alone."""
    return [m.name for m in plan.models if plan.attacks and not is_attacked(plan, m)]


def attacked_place(plan: SweepPlan, model: str, attack: PlannedAttack) -> Path:
    return plan.out / "attacked" / attack.name / model


def read_from(plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None) -> str:
    """The checkpoint to evaluate: the model's own, unless an attack makes a copy."""
    if attack is None or attack.quantization:
        return model.path
    return str(attacked_place(plan, model.name, attack) / "checkpoint")


def suite_ask(plan: SweepPlan, model: PlanModel, suite: str, attack: PlannedAttack | None) -> dict[str, Any]:
    out = run_directory(plan, model.name, suite, attack)
    said = {**plan.suites[suite], **model.flags, "model": read_from(plan, model, attack), "out": str(out)}
    said |= {"task_name": f"{suite}_{out.name}", "plugins": list(plan.plugins), "progress": False}
    said |= {"data": plan.held[suite]} if suite in plan.held else {}
    said |= attack.reading if attack else {}
    if suite in plan.retain_suites and model.name != plan.retain:
        said["retain_logs"] = str(run_directory(plan, str(plan.retain), suite, None))
    elif suite in plan.retain_suites and attack is not None:
        said["retain_logs"] = str(run_directory(plan, model.name, suite, None))
    return said


def depth_ask(plan: SweepPlan, suite: str, unlearned: str, out: Path, reading: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model's own flags only its quantisation counts here: full and retain are read alike for all models."""
    said = {**plan.suites[suite], "unlearned": [unlearned], "out": str(out), "progress": False}
    said |= {"data": plan.held[suite]} if suite in plan.held else {}
    return {**said, "s1_cache": str(s1_place(plan, suite) / "s1_cache"), "quantization": None, **reading}


def s1_place(plan: SweepPlan, suite: str) -> Path:
    return plan.out / "s1" / suite


def run_directory(plan: SweepPlan, model: str, suite: str, attack: PlannedAttack | None) -> Path:
    return plan.runs / suite / (model if attack is None else f"{model}+{attack.name}")
