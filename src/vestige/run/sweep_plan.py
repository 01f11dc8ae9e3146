"""From a plan (models x suites x attacks, in YAML) to tasks in the order in which they should run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.guard import read_yaml, shaped
from vestige.run.config import HarnessConfig
from vestige.run.friendly import Ask, to_run
from vestige.run.pool import weights_memory
from vestige.run.tasks import ATTACKS, Task

ASK = {f.name for f in fields(Ask)}
OURS = {"model", "out", "task_name", "retain_logs", "plugins", "progress"}  # what a sweep says itself
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class Model:
    name: str
    path: str
    flags: Mapping[str, Any] = field(default_factory=dict)  # fields of Ask, for this model only
    memory: int | None = None


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do, checked."""

    out: Path
    models: tuple[Model, ...]
    suites: Mapping[str, Mapping[str, Any]]  # name -> fields of Ask
    retain: str | None = None
    attacks: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    slots: int | None = None
    threads: int | None = None
    memory: int | None = None  # bytes all tasks together may take
    gpus: float | None = None  # a task's share of a cluster's GPUs
    retries: int = 1
    free_space: int = 2**30
    clear_cache: bool = False
    keep_attacked: bool = False
    retain_suites: tuple[str, ...] = ()  # suites that compare with the retain model

    @property
    def runs(self) -> Path:
        return self.out / "runs"


KEYS = {f.name for f in fields(Plan)} - {"retain_suites"}


def read_plan(path: Path) -> Plan:
    """The plan in a YAML file. Paths in it are relative to where the command runs, as on the command line."""
    from vestige.integrations.plugins import load_plugins

    try:
        body = read_yaml(path)
    except OSError:
        raise UserError(f"The plan {path} cannot be read; give a YAML file with models and suites.") from None
    except ValueError as error:
        raise UserError(f"The plan {path} is not valid YAML ({error}); see docs/sweep.md for an example.") from None
    if not isinstance(body, dict) or not body.get("models") or not body.get("suites"):
        raise UserError(f"The plan {path} must name at least one model and one suite (models: and suites:).")
    for key in body:
        if key not in KEYS:
            raise unknown_name("key", str(key), KEYS, f"(in {path})")
    plugins = tuple(str(p) for p in _list(body.get("plugins"), "plugins"))
    load_plugins(plugins)
    with shaped(f"The plan {path}"):
        return _checked(_plan(body, path, plugins))


def _plan(body: Mapping[str, Any], path: Path, plugins: tuple[str, ...]) -> Plan:
    models = _models(body["models"])
    models, retain = _with_retain(models, body.get("retain"))
    suites = _suites(body["suites"])
    return Plan(
        out=Path(str(body.get("out") or f"saves/sweep/{path.stem}")),
        models=models,
        suites=suites,
        retain=retain,
        attacks=_attacks(_list(body.get("attacks"), "attacks")),
        plugins=plugins,
        slots=_count(body, "slots", 0),
        threads=_count(body, "threads", 1),
        memory=_size(body.get("memory"), "memory"),
        gpus=_share(body.get("gpus")),
        retries=_count(body, "retries", 0, 1) or 0,
        free_space=_size(body.get("free_space", "1 GB"), "free_space") or 0,
        clear_cache=bool(body.get("clear_cache", False)),
        keep_attacked=bool(body.get("keep_attacked", False)),
    )


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


def _models(said: Any) -> tuple[Model, ...]:
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


def _model(name: Any, body: Any) -> Model:
    flags = dict(body) if isinstance(body, dict) else {"path": body}
    path, memory = flags.pop("path", None), flags.pop("memory", None)
    if not path:
        raise UserError(f"The model '{name}' of the plan has no path; write {name}: PATH.")
    _check_flags(flags, f"of the model '{name}'")
    return Model(_name(name, "model"), str(path), flags, _size(memory, f"models.{name}.memory"))


def _with_retain(models: tuple[Model, ...], said: Any) -> tuple[tuple[Model, ...], str | None]:
    """The retain model by its name among the models, or by a path; then it is one more model."""
    if said is None:
        return models, None
    name = str(said)
    if name not in {m.name for m in models}:
        if not Path(name).expanduser().exists() and "/" not in name:
            raise unknown_name("retain model", name, [m.name for m in models], "(in the plan)")
        models, name = (*models, Model("retain", name)), "retain"
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
        _check_flags(flags, f"of the suite '{name}'")
        if isinstance(flags.get("metrics"), str):
            flags["metrics"] = [m.strip() for m in flags["metrics"].split(",")]
        out[_name(name, "suite")] = flags
    return out


def _check_flags(flags: Mapping[str, Any], where: str) -> None:
    for key in flags:
        if key not in ASK - OURS:
            raise unknown_name("setting", str(key), ASK - OURS, f"({where} in the plan)")


def _attacks(said: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(_name(a, "attack") for a in said if a not in (None, "none"))
    for name in names:
        if name not in ATTACKS:
            raise unknown_name("attack", name, ATTACKS, "(in the plan; plug-ins register theirs in ATTACKS)")
    return names


def _checked(plan: Plan) -> Plan:
    """Every suite composed once, before anything runs: a misspelt metric should not cost a night."""
    kinds = {name: to_run(Ask(**_ask(plan, plan.models[0], name, None))) for name in plan.suites}
    compared = tuple(name for name, run in kinds.items() if plan.retain and not isinstance(run, HarnessConfig))
    return replace(plan, retain_suites=compared)


def _ask(plan: Plan, model: Model, suite: str, attack: str | None) -> dict[str, Any]:
    out = run_directory(plan, model.name, suite, attack)
    path = model.path if attack is None else str(plan.out / "attacked" / attack / model.name / "checkpoint")
    said = {**plan.suites[suite], **model.flags, "model": path, "out": str(out), "progress": False}
    said |= {"task_name": f"{suite}_{out.name}", "plugins": list(plan.plugins)}
    if suite in plan.retain_suites and model.name != plan.retain:
        said["retain_logs"] = str(run_directory(plan, str(plan.retain), suite, None))
    elif suite in plan.retain_suites and attack is not None:
        said["retain_logs"] = str(run_directory(plan, model.name, suite, None))
    return said


def run_directory(plan: Plan, model: str, suite: str, attack: str | None) -> Path:
    return plan.runs / suite / (model if attack is None else f"{model}+{attack}")


def make_tasks(plan: Plan, start: int = 0, end: int | None = None, slots: int = 1) -> list[Task]:
    """The tasks of models[start:end], those that others wait for first.

    The retain model's evaluations are in every shard: they are needed there, and done only once.
    """
    chosen = plan.models[start:end]
    threads = plan.threads or _threads(slots)
    first = _retain_ids(plan) if chosen else ()
    tasks = [
        task
        for model in plan.models
        for attack in (None, *plan.attacks)
        for task in _tasks_of(plan, model, attack, threads)
        if model in chosen or task.id in first
    ]
    return sorted(tasks, key=lambda t: t.id not in first)  # stable: otherwise the plan's order


def _tasks_of(plan: Plan, model: Model, attack: str | None, threads: int) -> list[Task]:
    memory = model.memory if model.memory is not None else weights_memory(model.path)
    common: dict[str, Any] = {"model": model.name, "source": model.path, "attack": attack, "plugins": plan.plugins}
    common |= {"threads": threads, "memory": memory, "gpus": plan.gpus}
    out: list[Task] = []
    first = [] if attack is None else [f"attack/{attack}/{model.name}"]
    for id in first:
        ask = {**_ask(plan, model, next(iter(plan.suites)), attack), "model": model.path}
        place = plan.out / "attacked" / str(attack) / model.name
        room = plan.free_space + (memory or 0)  # the copy is about as large as what it is made of
        more: dict[str, Any] = {"out": str(place), "log": str(log_file(plan, id)), "ask": ask, "free_space": room}
        out.append(Task(id=id, kind="attack", needs=_retain_ids(plan), **more, **common))
    for suite in plan.suites:
        id = f"{suite}/{run_directory(plan, model.name, suite, attack).name}"
        ask = _ask(plan, model, suite, attack)
        logs = ask.get("retain_logs")
        needs = [*first, *([f"{suite}/{plan.retain}"] if logs else [])]
        more = {"out": ask["out"], "log": str(log_file(plan, id)), "ask": ask, "free_space": plan.free_space}
        out.append(Task(id=id, kind="eval", needs=tuple(needs), retain=logs, **more, **common))
    return out


def _retain_ids(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{suite}/{plan.retain}" for suite in plan.retain_suites)


def log_file(plan: Plan, id: str) -> Path:
    return plan.out / "logs" / f"{id.replace('/', '__')}.log"


def _threads(slots: int) -> int:
    """The machine's cores shared among the slots, unless the environment says otherwise."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) else max(1, (os.cpu_count() or 1) // slots)
