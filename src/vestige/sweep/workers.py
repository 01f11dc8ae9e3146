"""Who performs tasks: this process, worker processes on this machine, or a Ray cluster.

Each of the three is an `Executor`, and all perform the same tasks with the same function (tasks.perform). A task that
crashes takes nothing else with it.

As a program (`python -m vestige.sweep.workers`) this is a worker process: tasks come as lines of JSON, outcomes go
back the same way. It lives for many tasks, because importing the libraries takes longer than many an evaluation. It
dies with its driver: when the driver is gone, however it went, the pipe ends and so does the work. (The pools of the
standard library fail as a whole when one of their processes dies, and their processes outlive a killed driver.)
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from vestige.errors import UserError, how_to_install
from vestige.isolation import DiedError, ending, isolated
from vestige.runs.directory import append_to
from vestige.secrets import note_variables
from vestige.stress.attacks import attack_named
from vestige.sweep.tasks import Finished, Task, perform

WORKER = [sys.executable, "-m", "vestige.sweep.workers"]


class Executor(Protocol):
    """Something that performs tasks."""

    def has_room(self, task: Task) -> bool:
        """Whether the task can start now."""

    def start(self, task: Task) -> None: ...

    def wait(self, seconds: float) -> list[Finished]:
        """What ended within that time; the list may be empty."""

    def close(self) -> None: ...


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
        # Attacks run native code on unusual weights; a crash must not end the sweep.
        attack_named(task.how["attack"]).import_modules()
        try:
            self.finished.append(isolated(perform, task))
        except DiedError as died:
            self.finished.append(Finished(task.id, "failed", str(died)))

    def wait(self, seconds: float) -> list[Finished]:
        if not self.finished:
            time.sleep(min(seconds, 0.1))
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        pass


# ---- worker processes --------------------------------------------------------------------------------------------


class Worker:
    """One worker process, started when it is first needed and again after it died."""

    def __init__(self, number: int, gpu: str | None, logs: Path) -> None:
        self.number, self.gpu, self.logs = number, gpu, logs
        self.process: subprocess.Popen[str] | None = None

    def perform(self, task: Task) -> Finished:
        """Waits until the task ended, or the process."""
        process, started = self.process, time.monotonic()
        assert process is not None and process.stdin is not None and process.stdout is not None
        line, answer = json.dumps(asdict(task)) + "\n", ""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except (BrokenPipeError, ValueError):
            pass  # it died at once, or `stop` closed the pipe
        if answer.endswith("\n"):
            return Finished(**json.loads(answer))
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what was not sent any more
                pipe.close()
        self.process = None
        return Finished(task.id, "failed", f"the worker process {ending(code)}", round(time.monotonic() - started, 3))

    def launch(self) -> None:
        """Starts the process if there is none. In the driver's main thread: Linux counts children by thread."""
        if self.process is not None and self.process.poll() is None:
            return
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        with append_to(self.logs / f"worker-{self.number}.log") as log:
            self.process = subprocess.Popen(
                WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
            )

    def stop(self) -> None:
        """Ends the process: a worker whose pipe is closed ends by itself, even in the middle of a task."""
        process = self.process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended already
            process.stdin.close()  # the worker takes this for the driver's end, and ends too
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ProcessPool:
    """Worker processes on this machine: one a GPU, or as many as slots and memory allow. A thread waits for each."""

    def __init__(self, slots: int, logs: Path, gpus: Sequence[str] = (), memory: int | None = None) -> None:
        names: Sequence[str | None] = list(gpus) or [None] * slots
        self.workers = [Worker(number, gpu, logs) for number, gpu in enumerate(names)]
        self.memory = memory if memory is not None else _available_memory()
        self.threads = ThreadPoolExecutor(len(self.workers))
        self.running: dict[Future[Finished], tuple[Worker, Task]] = {}

    def has_room(self, task: Task) -> bool:
        """A free worker, and memory for the task next to those that run. Alone, a task may always try."""
        busy = [running for _, running in self.running.values()]
        if len(busy) == len(self.workers):
            return False
        # A guess that is too high must not keep a task from ever starting.
        return not busy or sum(map(self._memory_of, [*busy, task])) <= self.memory

    def _memory_of(self, task: Task) -> int:
        return task.memory if task.memory is not None else self.memory // len(self.workers)

    def start(self, task: Task) -> None:
        busy = [worker for worker, _ in self.running.values()]
        worker = next(w for w in self.workers if w not in busy)
        worker.launch()
        self.running[self.threads.submit(worker.perform, task)] = worker, task

    def wait(self, seconds: float) -> list[Finished]:
        if not self.running:
            time.sleep(min(seconds, 0.1))
            return []
        # A second or so at a time, so that the board and the prefetcher are looked after.
        ended, _ = wait_for_futures(self.running, seconds, FIRST_COMPLETED)
        finished = []
        for future in ended:
            del self.running[future]
            finished.append(future.result())
        return finished

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.threads.shutdown()


def _available_memory() -> int:
    """Bytes that can be used without swapping, the limit of a container included."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


# ---- Ray ---------------------------------------------------------------------------------------------------------


class RayPool:
    """An executor on the cluster at an address; `auto` finds the one we run in, `local` makes one of this machine.

    The run store must be on storage that every node sees under the same path. Ray finds a place for each task by its
    cores, GPUs and memory; a task whose node dies is given to another, and continues from the evidence already
    collected.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise UserError(f"Running on Ray needs the package ray; run `{how_to_install('ray')}`.") from None
        self.ray: Any = ray
        self.is_ours = not ray.is_initialized()
        if self.is_ours:
            quiet: dict[str, Any] = {
                "log_to_driver": False,
                "logging_level": logging.ERROR,
                "ignore_reinit_error": True,
            }
            try:
                ray.init(address=address or "auto", **quiet)
            except ConnectionError as error:
                why = " ".join(str(error).split())[:200]
                raise UserError(f"No Ray cluster answers at '{address or 'auto'}' ({why}); try --ray local.") from None
        self.running: dict[Any, tuple[Task, float]] = {}
        self.refused: list[Finished] = []

    def has_room(self, task: Task) -> bool:
        """Whether the cluster has idle cores for it. Without any (nodes are still joining), nothing starts."""
        cores = self.ray.cluster_resources().get("CPU", 0)
        busy = sum(t.threads for t, _ in self.running.values())
        return bool(cores) and (busy + task.threads <= cores or not busy)

    def start(self, task: Task) -> None:
        """Never asks for more than the largest node has: Ray would wait for such a node for ever."""
        # Without a share in the plan: one GPU for a task where there are any, none on a cluster without.
        gpus = task.gpus if task.gpus is not None else min(1, self._largest("GPU"))
        if gpus > self._largest("GPU"):
            words = f"the plan gives each task {gpus:g} GPUs, the largest node has {self._largest('GPU'):g}"
            self.refused.append(Finished(task.id, "failed", words))
            return
        wants = {"num_cpus": min(task.threads, self._largest("CPU")), "num_gpus": gpus, "max_retries": 0}
        if task.memory is not None:
            wants["memory"] = min(task.memory, self._largest("memory"))
        remote = self.ray.remote(_perform_on_node).options(name=task.id, **wants)
        self.running[remote.remote(task, os.getcwd())] = task, time.monotonic()  # noqa: PTH109

    def _largest(self, resource: str) -> float:
        return max((n["Resources"].get(resource, 0) for n in self.ray.nodes() if n["Alive"]), default=0)

    def wait(self, seconds: float) -> list[Finished]:
        if self.refused or not self.running:
            if not self.refused:
                time.sleep(min(seconds, 0.1))
            refused, self.refused = self.refused, []
            return refused
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._outcome(ref) for ref in ready]

    def _outcome(self, ref: Any) -> Finished:
        """How a task ended. A node that died is not the task's fault: the schedule gives it to another."""
        task, began = self.running.pop(ref)
        errors = self.ray.exceptions
        try:
            finished: Finished = self.ray.get(ref)
            return finished
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.RayTaskError) as error:
            lost = isinstance(error, (errors.WorkerCrashedError, errors.NodeDiedError))
            words = " ".join(str(error).split())[:300]
            return Finished(task.id, "lost" if lost else "failed", words, round(time.monotonic() - began, 3))

    def close(self) -> None:
        for ref in self.running:
            self.ray.cancel(ref, force=True)
        if self.is_ours:
            self.ray.shutdown()


def _perform_on_node(task: Task, directory: str) -> Finished:
    """Where the driver stands, because paths in a plan are relative to it."""
    os.chdir(directory)
    return perform(task)


# ---- the program -------------------------------------------------------------------------------------------------


def main() -> None:
    """Performs tasks until the pipe ends."""
    note_variables()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing a library prints may get between our lines
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        outcome = perform(Task.from_json(json.loads(tasks.get())))
        gc.collect()
        answers.write(json.dumps(asdict(outcome)) + "\n")


def _listen(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)  # in the middle of a task, too: nobody is waiting for it, and the next driver will want its directory


if __name__ == "__main__":
    main()
