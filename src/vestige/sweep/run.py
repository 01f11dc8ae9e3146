"""vestige sweep: a plan carried out, on this machine or on a Ray cluster, and what came of it.

    sweep(plan, how)   does what is missing
    listing(plan)      the tasks and where they stand
    write_meta(plan)   robustness.yaml and axes.yaml, which `vestige meta` reads
    clean(plan)        removes what it made

The run store is the only memory. A sweep that was interrupted, sharded or had failures is completed by running the
same command again; sweep.json is rebuilt from what is on disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vestige.errors import UserError
from vestige.guard import below
from vestige.io import DamagedError, decode, make_directory, misfit
from vestige.numeric import number
from vestige.runs import run as kinds
from vestige.runs.directory import (
    is_held,
    is_listed,
    listed_files,
    open_run,
    refuse_input_in_output,
    remove,
    remove_run,
    write_bytes,
)
from vestige.runs.files import write_json
from vestige.runs.manifest import is_run, kind_in
from vestige.runs.run import Kind, Reader, RunSource
from vestige.show.tables import table
from vestige.stress.copies import write_held
from vestige.sweep.plan import PlannedAttack, SweepPlan
from vestige.sweep.schedule import Board, Cleaner, Prefetcher, Schedule, TaskState
from vestige.sweep.tasks import Task, check_space, is_done, log_file, make_tasks
from vestige.sweep.workers import Executor, ProcessPool, RayPool, SameProcess

_MEASURED = ("eval", "depth")  # kinds of tasks that leave numbers; the others serve them
_POOL_VARIABLE = "VESTIGE_POOL"  # `ray`: the job that runs us has a cluster


@dataclass(frozen=True)
class How:
    """How a plan is carried out; None means that the plan or the machine decides."""

    gpus: tuple[str, ...] = ()  # names for CUDA_VISIBLE_DEVICES, one slot each
    slots: int | None = None
    start: int = 0
    end: int | None = None
    retries: int | None = None
    ray: str | None = None  # an address, or `auto`

    @property
    def on_ray(self) -> bool:
        return self.ray is not None or os.environ.get(_POOL_VARIABLE) == "ray"


def sweep(plan: SweepPlan, how: How) -> int:
    """Does what is missing. 0: everything in this shard is done; 1: something failed, and the table says what."""
    slots = plan.file.slots if how.slots is None else how.slots
    if slots is None:
        slots = max(1, (os.cpu_count() or 1) // 2)
    if how.gpus:
        slots = len(how.gpus)
    tasks = make_tasks(plan, how.start, how.end, max(1, slots))
    if not tasks:
        count = len(plan.models)
        raise UserError(f"--start-idx {how.start} --end-idx {how.end} holds none of the plan's {count} models.")
    check_space(plan.out, plan.free_space)
    # Models and data are not where attacked copies and runs come and go.
    inputs: dict[str, Any] = {f"the model {model.name}": model.path for model in plan.models}
    for name, flags in plan.suites.items():
        inputs |= {f"{key} of suite {name}": flags.get(key) for key in ("data", "full")}
    refuse_input_in_output(plan.out, inputs, ["runs", "attacked", "s1", "held_out", "tasks", "logs"])
    for folder in ("tasks", "logs"):  # where users' files may be, too, so that ours are listed one by one
        make_directory(plan.out / folder)
    files = [file for task in tasks for file in (_note_file(plan, task.id), Path(task.log))]
    names = [file.relative_to(plan.out).as_posix() for file in files]
    # Other shards may be at work there.
    with open_run(plan.out, "sweep", ["sweep.json", "sweep.log", "axes.yaml", *names], shared=True) as run:
        status = _perform_all(plan, how, tasks, slots)
        run.finish()
    return status


def _perform_all(plan: SweepPlan, how: How, tasks: list[Task], slots: int) -> int:
    """The tasks performed and shown, and what came of them written; returns the exit status."""
    for attack in plan.attacks:
        if attack.held_out:  # the rows that remain to be measured
            write_held(plan.suites, plan.teaching_data(attack), plan.held)
    retries = plan.file.retries if how.retries is None else how.retries
    cleaner = Cleaner(tasks, plan.file.keep_attacked, plan.file.clear_cache)
    prefetcher = Prefetcher(tasks, plan.file.prefetch, plan.free_space)
    with _surviving_hangup(), Board(tasks, plan.out / "sweep.log") as board, prefetcher:
        board.say(f"{len(tasks)} tasks, results in {plan.runs}, this text in {plan.out / 'sweep.log'}")
        for model in plan.models:
            if plan.attacks and not plan.is_attacked(model):
                board.say(f"{model.name} is not attacked; attack: true in its entry of the plan asks for that")

        def watch(task: Task, state: TaskState) -> None:
            _write_note(plan, task, state)
            board.change(task, state)
            cleaner.look(schedule.states)

        def tick() -> None:
            for words in prefetcher.look(schedule.states):
                board.say(words)
            board.tick()

        # Ray decides by itself where tasks go; --slots and --gpu are for this machine.
        executor: Executor
        if how.on_ray:
            executor = RayPool(how.ray)
        elif slots == 0:
            executor = SameProcess()
        else:
            executor = ProcessPool(slots, plan.out / "logs", how.gpus, plan.memory)
        schedule = Schedule(tasks, executor, retries, watch, tick)
        states = schedule.run()
        summary = collect(plan)
        write_json(plan.out / "sweep.json", summary)
        files = [plan.out / "sweep.json", *write_meta(plan)]
        board.say(f"\n{show(summary)}\n\nfiles: {', '.join(map(str, files))}")
    return 0 if all(state.status == "done" for state in states.values()) else 1


@contextlib.contextmanager
def _surviving_hangup() -> Iterator[None]:
    """A closed terminal does not end the sweep; worker processes inherit this. Only the main thread may ask for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- what is on disk ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskNote:
    """tasks/ID.json: how a task last ended, for the list and for other shards."""

    id: str
    status: str
    attempts: int | None = None
    lost: int = 0
    seconds: float | None = None
    error: str | None = None
    log: str = ""


def _note_file(plan: SweepPlan, id: str) -> Path:
    return plan.out / "tasks" / f"{id.replace('/', '__')}.json"


def _write_note(plan: SweepPlan, task: Task, state: TaskState) -> None:
    """What was there already keeps its note."""
    file = _note_file(plan, task.id)
    if state.status in ("waiting", "running") or (state.status == "done" and not state.fresh and file.is_file()):
        return
    note = TaskNote(task.id, state.status, state.attempts, state.lost, state.seconds, state.error, task.log)
    write_json(file, vars(note))


def _read_note(plan: SweepPlan, id: str) -> TaskNote:
    try:
        return decode(_note_file(plan, id), TaskNote)
    except (FileNotFoundError, DamagedError):  # the next end of the task writes it again
        return TaskNote(id, "missing")


def collect(plan: SweepPlan) -> dict[str, Any]:
    """What is on disk of the whole plan, whichever shard or machine made it."""
    rows = []
    results: dict[str, dict[str, Any]] = {suite: {} for suite in plan.suites}
    for task in make_tasks(plan):
        note = _read_note(plan, task.id)
        status = note.status
        # Measured anew from disk: a note may be of a run that was removed or changed since.
        if task.kind in _MEASURED:
            done = is_done(task)
            if done:
                status = "done"
            elif status == "done":
                status = "missing"
            suite, _, name = task.id.partition("/")
            place = Path(task.out)
            results[suite][name] = dict(kinds.of(place).values(place)) if done else None
        row = {"id": task.id, "kind": task.kind, "status": status, "run": task.out, "log": task.log}
        rows.append({**row, "attempts": note.attempts, "seconds": note.seconds, "error": note.error})
    plan_json: dict[str, Any] = {
        "models": {model.name: model.path for model in plan.models},
        "attacks": {attack.name: attack.to_json() for attack in plan.attacks},
        "retain": plan.retain,
    }
    if plan.attacks:
        plan_json["attack_facts"] = {attack.name: attack.record.facts() for attack in plan.attacks}
    return {"plan": {**plan_json, "suites": dict(plan.suites)}, "tasks": rows, "results": results}


def show(summary: Mapping[str, Any]) -> str:
    """One table per suite, one line per model; below them whatever did not succeed."""
    parts = []
    for suite, by_model in summary["results"].items():
        metrics = list(dict.fromkeys(metric for values in by_model.values() for metric in values or {}))
        rows = []
        for model, values in by_model.items():
            numbers = [(values or {}).get(metric) for metric in metrics]
            rows.append([model, *(number(v) if isinstance(v, (int, float)) else "-" for v in numbers)])
        parts.append(f"{suite}\n{table(rows, ['model', *metrics], range(1, len(metrics) + 1))}")
    for task in summary["tasks"]:
        if task["status"] in ("failed", "blocked"):
            attempts = f"{task['status']}: {task['id']} after {task['attempts']} attempts"
            parts.append(f"{attempts}: {task['error']} (log: {task['log']})")
    missing = sum(task["status"] == "missing" for task in summary["tasks"])
    if missing:
        parts.append(f"{missing} tasks have not run yet; rerun the same command for them.")
    return "\n\n".join(parts)


def listing(plan: SweepPlan) -> str:
    """The plan's tasks and where they stand, from disk."""
    rows = []
    for task in collect(plan)["tasks"]:
        status = "running" if is_held(Path(task["run"])) else task["status"]
        rows.append([task["id"], status, f"{task['seconds']:.1f} s" if task["seconds"] else "-", task["run"]])
    return table(rows, ["task", "status", "time", "where"], [2])


# ---- what `vestige meta` reads -----------------------------------------------------------------------------------


def meta_files(plan: SweepPlan) -> str:
    """Writes what `vestige meta` reads, from the runs that are there."""
    written = write_meta(plan)
    if not written:
        raise UserError(
            f"{plan.out} has no finished run of a retain model, which `vestige meta` compares with; name one in the "
            "plan (retain:) and run it."
        )
    return f"files: {', '.join(map(str, written))}"


def write_meta(plan: SweepPlan) -> list[Path]:
    """robustness.yaml: the retain model and every unlearned one, before and after the plan's attacks. axes.yaml: the
    unlearned models to rank, with retain and full as references.

    Paths in them are relative to the files, so the sweep's directory can be moved. Nothing is written without a retain
    model: every question compares with it.
    """
    done = {Path(task.out) for task in make_tasks(plan) if task.kind in _MEASURED and is_done(task)}

    def runs(model: str, attack: PlannedAttack | None = None) -> list[str]:
        places = [plan.run_directory(model, suite, attack) for suite in plan.suites]
        return [str(place.relative_to(plan.out)) for place in places if place in done]

    def states(model: str, attacks: Mapping[str, PlannedAttack]) -> dict[str, list[str]]:
        found = {"before": runs(model), **{state: runs(model, attack) for state, attack in attacks.items()}}
        return {state: places for state, places in found.items() if places}

    if not plan.retain or not runs(plan.retain):
        return []
    full = plan.full_model
    unlearned = [model.name for model in plan.models if model.name not in (plan.retain, full)]
    bodies: dict[str, dict[str, Any]] = {}
    for name, attacks in robustness_files(plan).items():
        models = [{"model": model, **states(model, attacks)} for model in unlearned]
        measured = [entry for entry in models if "before" in entry]
        bodies[name] = {"retain": states(plan.retain, attacks), "models": measured}
    axes: dict[str, Any] = {"retain": runs(plan.retain)}
    if full is not None and runs(full):
        axes["full"] = runs(full)
    axes["models"] = [{"model": model, "run": runs(model)} for model in unlearned if runs(model)]
    bodies["axes.yaml"] = axes
    for name, body in bodies.items():
        text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=1000)
        write_bytes(plan.out / name, text.encode())
    return [plan.out / name for name in bodies]


def robustness_files(plan: SweepPlan) -> dict[str, dict[str, PlannedAttack]]:
    """Attacks by what meta calls them. A file takes one of each; a second of a kind gets a file of its own."""
    first: dict[str, PlannedAttack] = {}
    for attack in plan.attacks:
        if attack.record.state:
            first.setdefault(attack.record.state, attack)
    files = {"robustness.yaml": first} if first else {}
    for attack in plan.attacks:
        state = attack.record.state
        if state and first[state] is not attack:
            files[f"robustness-{attack.name}.yaml"] = {**first, state: attack}
    return files


# ---- cleaning ----------------------------------------------------------------------------------------------------


def clean(plan: SweepPlan, everything: bool) -> str:
    """Removes runs that the plan no longer names, attacked copies left behind and their logs; or all the sweep made.

    Of each directory only what its manifest lists; what somebody else put there stays.
    """
    tasks = make_tasks(plan)
    wanted: set[Path] = set()
    if not everything:
        wanted = {Path(t.out) for t in tasks if t.kind != "attack" or plan.file.keep_attacked}
        wanted |= {Path(place) for place in plan.held.values()}
    places = [p for pattern in ("runs/*/*", "attacked/*/*", "s1/*") for p in plan.out.glob(pattern) if p.is_dir()]
    places += plan.out.glob("held_out/*")
    # A link in the sweep's directory could lead anywhere; nothing is removed behind it.
    if strays := [p for p in places if p.is_symlink() or not below(p, plan.out)]:
        raise UserError(f"{strays[0]} leads out of {plan.out} through a link; nothing was removed.")
    if kind_in(plan.out) != "sweep":
        raise UserError(f"{plan.out} holds nothing that a sweep made; nothing was removed.")
    gone = []
    for place in places:
        ours = is_listed(place) if place.is_file() else is_run(place) or bool(listed_files(place))
        if place in wanted or not ours:
            continue
        if is_held(place):
            raise UserError(f"{place} is being written by another process; nothing was removed.")
        gone.append(place)
    lines = []
    size = 0
    for place in gone:
        files = [place] if place.is_file() else listed_files(place)
        size += sum(file.stat().st_size for file in files)
        if is_run(place):
            remove_run(place)
        else:
            remove(*files)
        if place.exists():
            lines.append(f"removed what vestige wrote in {place}; the rest stays")
        else:
            lines.append(f"removed {place}")
    _remove_notes(plan, tasks, everything)
    if everything:
        remove_run(plan.out)
    return "\n".join([*lines, f"{len(gone)} directories, {size / 2**20:.1f} MB"])


def _remove_notes(plan: SweepPlan, tasks: list[Task], everything: bool) -> None:
    """Logs and notes of tasks that the plan no longer has; or all files that are not in a run."""
    logs, notes = list((plan.out / "logs").glob("*.log")), list((plan.out / "tasks").glob("*.json"))
    if everything:
        own = [plan.out / name for name in ("axes.yaml", "sweep.json", "sweep.log")]
        remove(*logs, *notes, *own, *plan.out.glob("robustness*.yaml"))
        return
    current = {log_file(plan, task.id) for task in tasks} | {_note_file(plan, task.id) for task in tasks}
    workers = [file for file in logs if file.name.startswith("worker-")]
    remove(*(file for file in (*logs, *notes) if file not in current and file not in workers))


# ---- a sweep as a kind of run: only a report takes something from its table ----------------------------------------


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    """What a report takes from sweep.json: the attacks of its plan, and the tasks that did not succeed."""
    file = path / "sweep.json"
    data = read(file, dict) if file.is_file() else None
    if data is None or "plan" not in data:
        return
    tasks = data.get("tasks") or []
    if misfit(tasks, list[dict[str, Any]]):
        tasks = []  # the report says what does not fit
    problems = []
    for task in tasks:
        if task.get("status") in ("failed", "blocked", "missing"):
            why = f": {task['error']}" if task.get("error") else ""
            problems.append(f"the sweep's task {task['id']} is {task['status']}{why}")
    facts = {"tasks": str(len(tasks)), "not done": str(len(problems))}
    yield RunSource("sweep", path, (file,), data, facts, tuple(problems))


KIND = Kind("sweep", gather=_gather)
