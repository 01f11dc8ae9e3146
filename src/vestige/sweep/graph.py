"""From a plan to the tasks of a sweep, in the order in which they should run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.models.args import NF4
from vestige.sweep.attacks import PlannedAttack, teaching_data
from vestige.sweep.plan import (
    TEACHING,
    PlanModel,
    SweepPlan,
    attacked_place,
    depth_ask,
    is_attacked,
    read_from,
    run_directory,
    s1_place,
    suite_ask,
)
from vestige.sweep.pool import BASE_MEMORY, training_memory, weights_memory
from vestige.sweep.tasks import Task


def make_tasks(plan: SweepPlan, start: int = 0, end: int | None = None, slots: int = 1) -> list[Task]:
    """The tasks of models[start:end], those that others wait for first.

    The retain model's evaluations and S1 are in every shard: they are needed there, and done only once.
    """
    chosen = plan.models[start:end]
    threads = plan.threads or _threads(slots)
    first = _retain_ids(plan) if chosen else ()
    tasks = _s1_tasks(plan, threads) if chosen else []
    tasks += [
        task
        for model in plan.models
        for attack in (None, *(plan.attacks if is_attacked(plan, model) else ()))
        for task in _tasks_of(plan, model, attack, threads)
        if model in chosen or task.id in first
    ]
    if any(map(_reads_low, tasks)):
        tasks = [replace(task, low_precision=True) for task in tasks]
    return sorted(tasks, key=lambda t: t.id not in first and t.kind != "s1")  # stable: otherwise the plan's order


def _reads_low(task: Task) -> bool:
    """Whether the task reads a model in low precision."""
    return bool({**task.ask, **task.how}.get("quantization")) or task.ask.get("dtype") in ("bfloat16", "float16")


def _s1_tasks(plan: SweepPlan, threads: int) -> list[Task]:
    """For each depth suite, retain -> full: a depth run of the retain model, which fills the cache of all others."""
    out = []
    for suite, flags in plan.suites.items():
        if plan.is_depth(suite):
            id, place = f"s1/{suite}", s1_place(plan, suite)
            ask = {**depth_ask(plan, suite, flags["retain"], place, {}), "baselines": [], "plots": False}
            memory = _largest(weights_memory(flags["full"]), weights_memory(flags["retain"]))
            more: dict[str, Any] = {"log": str(log_file(plan, id)), "free_space": plan.free_space, "memory": memory}
            more |= {"threads": threads, "gpus": plan.gpus, "plugins": plan.plugins}
            out.append(Task(id, "s1", suite, flags["retain"], str(place), ask=ask, **more))
    return out


def _memory(model: PlanModel) -> int | None:
    return BASE_MEMORY if model.flags.get("server") else weights_memory(model.path)


def _largest(*memories: int | None) -> int | None:
    """One model is in memory at a time. What is unknown stays unknown."""
    known = [m for m in memories if m is not None]
    return max(known) if len(known) == len(memories) else None


def _tasks_of(plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None, threads: int) -> list[Task]:
    memory = model.memory if model.memory is not None else _memory(model)
    how = _how(plan, model, attack)
    common: dict[str, Any] = {"model": model.name, "source": model.path, "plugins": plan.plugins, "threads": threads}
    common |= {"gpus": plan.gpus, "attack": attack.name if attack else None, "how": how}
    out: list[Task] = []
    first: list[str] = []
    if attack is not None and not attack.quantization:
        first = [f"attack/{attack.name}/{model.name}"]
        out.append(_attack_task(plan, model, attack, {**common, "memory": memory}))
    for suite in plan.suites:
        directory = run_directory(plan, model.name, suite, attack)
        id = f"{suite}/{directory.name}"
        more = {**common, "out": str(directory), "log": str(log_file(plan, id)), "free_space": plan.free_space}
        if plan.is_depth(suite):
            own = {k: v for k in ("quantization", "compute_dtype") if (v := model.flags.get(k))}
            reading = {**own, **(attack.reading if attack else {})}
            ask = depth_ask(plan, suite, read_from(plan, model, attack), directory, reading)
            held = _largest(memory, weights_memory(plan.suites[suite]["full"]))
            out.append(Task(id=id, kind="depth", ask=ask, needs=(*first, f"s1/{suite}"), memory=held, **more))
            continue
        ask = suite_ask(plan, model, suite, attack)
        logs = ask.get("retain_logs")
        needs = [*first, *([f"{suite}/{plan.retain}"] if logs else [])]
        out.append(Task(id=id, kind="eval", ask=ask, needs=tuple(needs), retain=logs, memory=memory, **more))
    return out


def _how(plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None) -> dict[str, Any]:
    """An attack in full: its settings, and what the copy depends on besides the weights."""
    if attack is None:
        return {}
    if attack.quantization:
        return {**attack.to_json(), **(NF4 if "compute_dtype" in attack.reading else {}), **attack.reading}
    suite = next(iter(plan.teaching_suites.values()), {"suite": "tofu"})
    out = {**attack.to_json(), "teaching": {k: v for k, v in {**suite, **model.flags}.items() if k in TEACHING}}
    return {**out, "data": str(teaching_data(attack, plan.teaching_suites))} if attack.record.teaches else out


def _attack_task(plan: SweepPlan, model: PlanModel, attack: PlannedAttack, common: Mapping[str, Any]) -> Task:
    id, place = f"attack/{attack.name}/{model.name}", attacked_place(plan, model.name, attack)
    ask = {**common["how"]["teaching"], "model": model.path, "out": str(place), "task_name": model.name}
    ask |= {"plugins": list(plan.plugins), "progress": False}
    memory = common["memory"]
    room = plan.free_space + (memory or 0)  # the copy is about as large as what it is made of
    held = training_memory(memory) if attack.record.teaches and memory is not None else memory
    more: dict[str, Any] = {"out": str(place), "log": str(log_file(plan, id)), "ask": ask, "free_space": room}
    return Task(id=id, kind="attack", needs=_retain_ids(plan), **{**common, **more, "memory": held})


def _retain_ids(plan: SweepPlan) -> tuple[str, ...]:
    return tuple(f"{suite}/{plan.retain}" for suite in plan.retain_suites)


def log_file(plan: SweepPlan, id: str) -> Path:
    return plan.out / "logs" / f"{id.replace('/', '__')}.log"


def _threads(slots: int) -> int:
    """The machine's cores shared among the slots, unless the environment says otherwise."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) else max(1, (os.cpu_count() or 1) // slots)
