"""Running a graph of tasks: who may start, what is tried again, and workers on this machine.

`drive` knows the graph and no machine; an executor knows machines and no graph. The pool of processes below is one
executor, Ray (ray_pool.py) another, and both perform the same tasks with the same function.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from vestige.guard import is_there
from vestige.isolation import DiedError, ending, isolated
from vestige.runs.directory import append_to
from vestige.stress.registry import attack_named
from vestige.sweep.tasks import Finished, Task, is_done, perform

LOST_LIMIT = 5  # machines that may die under one task before it counts as failed
HELD_PAUSE = 1.0  # seconds before a directory that another process writes is looked at again
WORKER = [sys.executable, "-m", "vestige.sweep.worker"]
BASE_MEMORY = 800 * 2**20  # what Python, torch and transformers take before any weights


class Executor(Protocol):
    """Something that performs tasks."""

    def has_room(self, task: Task) -> bool:
        """Whether the task can start now."""

    def start(self, task: Task) -> None: ...

    def wait(self, seconds: float) -> list[Finished]:
        """What ended within that time; the list may be empty."""

    def close(self) -> None: ...


@dataclass
class TaskState:
    """Where one task stands."""

    status: str = "waiting"  # waiting | running | done | failed | blocked
    fresh: bool = False  # done by this driver, not found on disk
    attempts: int = 0
    lost: int = 0
    error: str | None = None
    seconds: float = 0.0
    not_before: float = 0.0
    checked: bool = False  # looked for on disk since it last could have appeared there


Watcher = Callable[[Task, TaskState], None]


@dataclass
class Drive:
    """One way through a graph of tasks, in the order given and as wide as the executor allows."""

    tasks: Sequence[Task]
    executor: Executor
    retries: int
    watch: Watcher = lambda task, state: None  # told of every change
    tick: Callable[[], None] = lambda: None  # called about once per second
    states: dict[str, TaskState] = field(default_factory=dict)

    def run(self) -> dict[str, TaskState]:
        """Every task ends as done, failed or blocked (by one that failed); none is dropped."""
        self.states = {t.id: TaskState() for t in self.tasks}
        by_id = {t.id: t for t in self.tasks}
        try:
            while self._open():
                self._start_what_can()
                for finished in self.executor.wait(1.0):
                    self._finish(by_id[finished.id], finished)
                self.tick()
        finally:
            self.executor.close()
        return self.states

    def _open(self) -> bool:
        return any(s.status in ("waiting", "running") for s in self.states.values())

    def _start_what_can(self) -> None:
        for task in self.tasks:
            state = self.states[task.id]
            if state.status != "waiting" or state.not_before > time.monotonic():
                continue
            needs = [self.states[n] for n in task.needs if n in self.states]
            if any(n.status in ("failed", "blocked") for n in needs):
                broken = next(n for n in task.needs if self.states[n].status in ("failed", "blocked"))
                self._change(task, "blocked", f"needs {broken}, which did not succeed")
            elif all(n.status == "done" for n in needs):
                self._start(task)

    def _start(self, task: Task) -> None:
        state = self.states[task.id]
        if not self.executor.has_room(task):
            return  # nor is it looked for on disk yet: looking takes time in which others finish
        if not state.checked and self._settled(task):
            self._change(task, "done")
            return
        state.checked = True
        state.attempts += 1
        self._change(task, "running")
        self.executor.start(task)

    def _settled(self, task: Task) -> bool:
        """Done already. An attack (or S1) counts as done, too, when nothing that wants its outcome is left to do."""
        users = [t for t in self.tasks if task.id in t.needs] if task.kind in ("attack", "s1") else []
        return is_done(task) or (bool(users) and all(map(is_done, users)))

    def _finish(self, task: Task, finished: Finished) -> None:
        state = self.states[task.id]
        state.seconds += finished.seconds
        if finished.status == "done":
            state.fresh = True
            self._change(task, "done")
        elif finished.status == "held":  # not its fault: look again later; by then it may be done
            state.attempts -= 1
            state.not_before, state.checked = time.monotonic() + HELD_PAUSE, False
            self._change(task, "waiting", finished.error)
        elif finished.status == "lost" and state.lost < LOST_LIMIT:
            state.lost += 1
            state.attempts -= 1
            self._change(task, "waiting", finished.error)
        else:
            again = state.attempts <= self.retries
            self._change(task, "waiting" if again else "failed", finished.error)

    def _change(self, task: Task, status: str, error: str | None = None) -> None:
        state = self.states[task.id]
        state.status, state.error = status, None if status in ("done", "running") else error
        self.watch(task, state)


class SameProcess:
    """The tasks one after another, attacks and what they left in a child, all others in this very process."""

    def __init__(self) -> None:
        self.finished: list[Finished] = []

    def has_room(self, task: Task) -> bool:
        return not self.finished

    def start(self, task: Task) -> None:
        if task.attack is None:
            self.finished.append(perform(task))
            return
        attack_named(task.how["attack"]).import_modules()
        try:
            self.finished.append(isolated(perform, task))
        except DiedError as died:
            self.finished.append(Finished(task.id, "failed", str(died)))

    def wait(self, seconds: float) -> list[Finished]:
        if not self.finished:
            time.sleep(min(seconds, 0.1))
        out, self.finished = self.finished, []
        return out

    def close(self) -> None:
        pass


class Slot:
    """One worker process, started when it is first needed and again after it died."""

    def __init__(self, number: int, gpu: str | None, logs: Path) -> None:
        self.number, self.gpu, self.logs = number, gpu, logs
        self.process: subprocess.Popen[bytes] | None = None
        self.task: Task | None = None
        self.started = 0.0
        self.buffer = b""

    def give(self, task: Task) -> None:
        if self.process is None or self.process.poll() is not None:
            self._launch()
        assert self.process is not None
        self.task, self.started, self.buffer = task, time.monotonic(), b""
        try:
            _input(self.process).write((json.dumps(task.to_json()) + "\n").encode())
            _input(self.process).flush()
        except BrokenPipeError:
            pass  # it died at once; reading from it will say so

    def _launch(self) -> None:
        more = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}
        with append_to(self.logs / f"worker-{self.number}.log") as log:
            self.process = subprocess.Popen(
                WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **more, "TOKENIZERS_PARALLELISM": "false"},
            )

    def read(self) -> Finished | None:
        """The outcome, once there is a whole line of it, or once the process is gone."""
        assert self.process is not None and self.process.stdout is not None and self.task is not None
        piece = os.read(self.process.stdout.fileno(), 65536)
        self.buffer += piece
        if self.buffer.endswith(b"\n"):
            self.task = None
            return Finished(**json.loads(self.buffer.splitlines()[-1]))
        if piece:
            return None
        task, code = self.task, self.process.wait()
        self.task = self.process = None
        return Finished(
            task.id, "failed", f"the worker process {ending(code)}", round(time.monotonic() - self.started, 3)
        )

    def stop(self) -> None:
        if self.process is None:
            return
        _input(self.process).close()  # the worker takes this for the driver's end, and ends too
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


class ProcessPool:
    """Worker processes on this machine: one a GPU, or as many as slots and memory allow."""

    def __init__(self, slots: int, logs: Path, gpus: Sequence[str] = (), memory: int | None = None) -> None:
        names: Sequence[str | None] = list(gpus) or [None] * slots
        self.slots = [Slot(n, gpu, logs) for n, gpu in enumerate(names)]
        self.memory = memory if memory is not None else available_memory()
        self.selector = selectors.DefaultSelector()

    def has_room(self, task: Task) -> bool:
        """A free slot, and memory for the task beside those that run. Alone, a task may always try."""
        busy = [slot.task for slot in self.slots if slot.task is not None]
        if len(busy) == len(self.slots):
            return False
        return not busy or sum(map(self._memory_of, busy)) + self._memory_of(task) <= self.memory

    def _memory_of(self, task: Task) -> int:
        return task.memory if task.memory is not None else self.memory // len(self.slots)

    def start(self, task: Task) -> None:
        slot = next(s for s in self.slots if s.task is None)
        slot.give(task)
        assert slot.process is not None
        self.selector.register(slot.process.stdout, selectors.EVENT_READ, slot)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> list[Finished]:
        if not self.selector.get_map():
            time.sleep(min(seconds, 0.1))
            return []
        out = []
        for key, _ in self.selector.select(seconds):
            finished = key.data.read()
            if finished is not None:
                self.selector.unregister(key.fileobj)
                out.append(finished)
        return out

    def close(self) -> None:
        for slot in self.slots:
            slot.stop()
        self.selector.close()


def available_memory() -> int:
    """Bytes that can be used without swapping, the limit of a container included."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def weights_memory(path: str) -> int | None:
    """A guess at what a checkpoint takes: half-precision files may be held in float32, so twice their size and a bit.

    None for a hub id: its files are not here to be weighed.
    """
    place = Path(path).expanduser()
    if not is_there(place):
        return None
    if place.is_file():
        files: Sequence[Path] = [place]
    else:
        files = [f for f in place.glob("*") if f.suffix in (".safetensors", ".bin", ".gguf", ".pt")]
    return BASE_MEMORY + int(2.2 * sum(f.stat().st_size for f in files))


def training_memory(memory: int) -> int:
    """What training takes where evaluating takes so much: beside the weights their gradients and two moments."""
    return BASE_MEMORY + 4 * max(0, memory - BASE_MEMORY)


def shown(states: Mapping[str, TaskState]) -> str:
    """How far it is, in one line.

    >>> shown({"a": TaskState("done"), "b": TaskState("running"), "c": TaskState("waiting")})
    '1 of 3 done, 1 running, 1 waiting'
    """
    counts = {
        s: sum(state.status == s for state in states.values()) for s in ("running", "waiting", "failed", "blocked")
    }
    done = sum(state.status == "done" for state in states.values())
    return ", ".join([f"{done} of {len(states)} done", *(f"{n} {s}" for s, n in counts.items() if n)])
