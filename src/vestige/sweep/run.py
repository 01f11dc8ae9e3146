"""vestige sweep: a plan carried out, on this machine or on a Ray cluster, and what came of it.

The run store is the only memory. A sweep that was interrupted, sharded or had failures is completed by running the
same command again; sweep.json is rebuilt from what is on disk.

In: a plan file (sweep/plan.py). Out: one run directory per task, and sweep.json. Callers: sweep/flags.py,
bench/demo_meta.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict

from vestige.errors import UserError
from vestige.guard import below, read_json
from vestige.io import make_directory
from vestige.numeric import number
from vestige.runs.directory import (
    is_held,
    is_listed,
    listed_files,
    open_run,
    refuse_input_in_output,
    remove,
    remove_run,
)
from vestige.runs.manifest import is_run, kind_in
from vestige.schema import misfit
from vestige.show.tables import table
from vestige.store import kinds
from vestige.store.files import write_json
from vestige.stress.held_out import write_held
from vestige.sweep.attacks import teaching_data
from vestige.sweep.board import Board
from vestige.sweep.disk import Cleaner, fetching_ahead
from vestige.sweep.graph import log_file, make_tasks
from vestige.sweep.plan import SweepPlan, spared
from vestige.sweep.pool import Drive, Executor, ProcessPool, SameProcess, TaskState
from vestige.sweep.pools import write_meta
from vestige.sweep.tasks import Task, check_space, is_done

MEASURED = ("eval", "depth")  # kinds of tasks that leave numbers; the others serve them
POOL_VARIABLE = "VESTIGE_POOL"  # `ray`: the job that runs us has a cluster


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
        return self.ray is not None or os.environ.get(POOL_VARIABLE) == "ray"


def sweep(plan: SweepPlan, how: How) -> int:
    """Does what is missing. 0: everything in this shard is done; 1: something failed, and the table says what."""
    asked = plan.slots if how.slots is None else how.slots
    slots = len(how.gpus) or (max(1, (os.cpu_count() or 1) // 2) if asked is None else asked)
    tasks = make_tasks(plan, how.start, how.end, max(1, slots))
    if not tasks:
        count = len(plan.models)
        raise UserError(f"--start-idx {how.start} --end-idx {how.end} holds none of the plan's {count} models.")
    check_space(plan.out, plan.free_space)
    _keep_apart(plan)
    for folder in ("tasks", "logs"):  # where users' files may be, too, so that ours are listed one by one
        make_directory(plan.out / folder)
    named = [file for task in tasks for file in (_note_file(plan, task.id), Path(task.log))]
    names = [file.relative_to(plan.out).as_posix() for file in named]
    with open_run(plan.out, "sweep", ["sweep.json", "sweep.log", "axes.yaml", *names], shared=True) as run:
        status = _sweep(plan, how, tasks, slots)
        run.finish()
    return status


def _sweep(plan: SweepPlan, how: How, tasks: list[Task], slots: int) -> int:
    _hold_out(plan)
    retries = plan.retries if how.retries is None else how.retries
    cleaner = Cleaner(tasks, plan.keep_attacked, plan.clear_cache)
    fetching = fetching_ahead(tasks, plan.prefetch, plan.free_space)
    with surviving_hangup(), Board(tasks, plan.out / "sweep.log") as board, fetching as ahead:
        board.say(f"{len(tasks)} tasks, results in {plan.runs}, this text in {plan.out / 'sweep.log'}")
        for name in spared(plan):
            board.say(f"{name} is not attacked; attack: true in its entry of the plan asks for that")

        def watch(task: Task, state: TaskState) -> None:
            _note(plan, task, state)
            board.change(task, state)
            cleaner.look(drive.states)
            ahead.look(drive.states)

        def tick() -> None:
            for words in ahead.messages():
                board.say(words)
            board.tick()

        drive = Drive(tasks, _executor(plan, how, slots), retries, watch, tick)
        states = drive.run()
        summary = collect(plan)
        write_json(plan.out / "sweep.json", summary)
        files = [plan.out / "sweep.json", *write_meta(plan)]
        board.say(f"\n{show(summary)}\n\nfiles: {', '.join(map(str, files))}")
    return 0 if all(s.status == "done" for s in states.values()) else 1


def _hold_out(plan: SweepPlan) -> None:
    """The rows that remain to be measured, where relearning holds some out."""
    for attack in plan.attacks:
        if attack.held_out:
            write_held(plan.suites, teaching_data(attack, plan.teaching_suites), plan.held)


def _executor(plan: SweepPlan, how: How, slots: int) -> Executor:
    if how.on_ray:
        from vestige.sweep.ray_pool import RayPool

        return RayPool(how.ray)
    if slots == 0:
        return SameProcess()
    return ProcessPool(slots, plan.out / "logs", how.gpus, plan.memory)


@contextlib.contextmanager
def surviving_hangup() -> Iterator[None]:
    """A closed terminal does not end the sweep; worker processes inherit this. Only the main thread may ask for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _note_file(plan: SweepPlan, id: str) -> Path:
    return plan.out / "tasks" / f"{id.replace('/', '__')}.json"


def _note(plan: SweepPlan, task: Task, state: TaskState) -> None:
    """How a task last ended, for the list and for other shards. What was there already keeps its note."""
    file = _note_file(plan, task.id)
    if state.status in ("waiting", "running") or (state.status == "done" and not state.fresh and file.is_file()):
        return
    body = {"id": task.id, "status": state.status, "attempts": state.attempts, "lost": state.lost}
    write_json(file, {**body, "seconds": state.seconds, "error": state.error, "log": task.log})


def collect(plan: SweepPlan) -> dict[str, Any]:
    """What is on disk of the whole plan, whichever shard or machine made it."""
    rows = []
    results: dict[str, dict[str, Any]] = {suite: {} for suite in plan.suites}
    for task in make_tasks(plan):
        note = _read(_note_file(plan, task.id))
        measured = task.kind in MEASURED
        done = is_done(task) if measured else note.get("status") == "done"
        status = "done" if done else note.get("status", "missing")
        status = "missing" if status == "done" and not done else status
        row = {"id": task.id, "kind": task.kind, "status": status, "run": task.out, "log": task.log}
        rows.append({**row, **{k: note.get(k) for k in ("attempts", "seconds", "error")}})
        if measured:
            suite, _, name = task.id.partition("/")
            results[suite][name] = _numbers(task) if done else None
    attacks = {a.name: a.to_json() for a in plan.attacks}
    plan_json = {"models": {m.name: m.path for m in plan.models}, "attacks": attacks, "retain": plan.retain}
    plan_json |= {"attack_facts": {a.name: a.record.facts() for a in plan.attacks}} if attacks else {}
    return {"plan": {**plan_json, "suites": dict(plan.suites)}, "tasks": rows, "results": results}


class _Note(TypedDict, total=False):
    """How a task ended."""

    status: Required[str]
    attempts: int | None
    seconds: float | None
    error: str | None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return {} if misfit(found, _Note) else dict(found)


def _numbers(task: Task) -> dict[str, Any]:
    """The main numbers of a task's run, whichever kind it is."""
    return dict(kinds.of(Path(task.out)).values(Path(task.out)))


def show(summary: Mapping[str, Any]) -> str:
    """One table per suite, one line per model; below them whatever did not succeed."""
    parts = []
    for suite, by_model in summary["results"].items():
        names = list(dict.fromkeys(metric for values in by_model.values() for metric in values or {}))
        rows = [[model, *(_cell((values or {}).get(m)) for m in names)] for model, values in by_model.items()]
        parts.append(f"{suite}\n{table(rows, ['model', *names], range(1, len(names) + 1))}")
    bad = [t for t in summary["tasks"] if t["status"] in ("failed", "blocked")]
    parts += [f"{t['status']}: {t['id']} after {t['attempts']} attempts: {t['error']} (log: {t['log']})" for t in bad]
    missing = sum(t["status"] == "missing" for t in summary["tasks"])
    parts += [f"{missing} tasks have not run yet; run the same command again for them."] if missing else []
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, (int, float)) else "-"


def listing(plan: SweepPlan) -> str:
    """The plan's tasks and where they stand, from disk."""
    tasks = collect(plan)["tasks"]
    rows = [[t["id"], t["status"], f"{t['seconds']:.1f} s" if t["seconds"] else "-", t["run"]] for t in tasks]
    rows = [[r[0], "running" if is_held(Path(r[3])) else r[1], *r[2:]] for r in rows]
    return table(rows, ["task", "status", "time", "where"], [2])


def meta_files(plan: SweepPlan) -> str:
    """Writes what `vestige meta` reads, from the runs that are there."""
    written = write_meta(plan)
    if not written:
        raise UserError(
            f"{plan.out} has no finished run of a retain model, which `vestige meta` compares with; name one in the "
            "plan (retain:) and run it."
        )
    return f"files: {', '.join(map(str, written))}"


def clean(plan: SweepPlan, everything: bool) -> str:
    """Removes runs that the plan no longer names, attacked copies left behind and their logs; or all the sweep made.

    Of each directory only what its manifest lists; what somebody else put there stays.
    """
    tasks = make_tasks(plan)
    wanted = set() if everything else {Path(t.out) for t in tasks if t.kind != "attack" or plan.keep_attacked}
    wanted |= set() if everything else {Path(p) for p in plan.held.values()}
    places = ("runs/*/*", "attacked/*/*", "s1/*", "held_out/*")
    found = [p for pattern in places for p in plan.out.glob(pattern) if p.is_dir() or p.parent.name == "held_out"]
    if strays := [p for p in found if p.is_symlink() or not below(p, plan.out)]:
        raise UserError(f"{strays[0]} leads out of {plan.out} through a link; nothing was removed.")
    if kind_in(plan.out) != "sweep":
        raise UserError(f"{plan.out} holds nothing that a sweep made; nothing was removed.")
    gone = [p for p in found if p not in wanted and _is_made(p)]
    for place in gone:
        if is_held(place):
            raise UserError(f"{place} is being written by another process; nothing was removed.")
    size = 0
    for place in gone:
        files = [place] if place.is_file() else listed_files(place)
        size += sum(file.stat().st_size for file in files)
        remove_run(place) if is_run(place) else remove(*files)
    remove(*_files_of(plan, tasks, everything))
    if everything:
        remove_run(plan.out)
    left = [p for p in gone if p.exists()]
    lines = [f"removed {p}" if p not in left else f"removed what vestige wrote in {p}; the rest stays" for p in gone]
    return "\n".join([*lines, f"{len(gone)} directories, {size / 2**20:.1f} MB"])


def _is_made(place: Path) -> bool:
    """Whether a sweep made it, wholly or in part."""
    if place.is_file():
        return is_listed(place)
    return is_run(place) or bool(listed_files(place))


def _files_of(plan: SweepPlan, tasks: list[Task], everything: bool) -> list[Path]:
    """Logs and notes of tasks that the plan no longer has; or all files that are not in a run."""
    logs = {log_file(plan, t.id) for t in tasks} if not everything else set()
    notes = {_note_file(plan, t.id) for t in tasks} if not everything else set()
    files = [f for f in (plan.out / "logs").glob("*.log") if f not in logs and not f.name.startswith("worker-")]
    files += [f for f in (plan.out / "tasks").glob("*.json") if f not in notes]
    if everything:
        files += [plan.out / "axes.yaml", *plan.out.glob("robustness*.yaml")]
        files += [plan.out / "sweep.json", plan.out / "sweep.log", *(plan.out / "logs").glob("worker-*.log")]
    return files


def _keep_apart(plan: SweepPlan) -> None:
    """Models and data are not where attacked copies and runs come and go."""
    inputs: dict[str, Any] = {f"the model {m.name}": m.path for m in plan.models}
    inputs |= {
        f"{key} of suite {name}": flags.get(key) for name, flags in plan.suites.items() for key in ("data", "full")
    }
    refuse_input_in_output(plan.out, inputs, ["runs", "attacked", "s1", "held_out", "tasks", "logs"])
