"""The tasks of a sweep on a Ray cluster: the same tasks, the same function, other machines.

The run store must be on storage that every node sees under the same path. Ray finds a place for each task by its
cores, GPUs and memory; a task whose node dies is given to another, and goes on from the evidence already collected.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from vestige.errors import UserError, how_to_install
from vestige.sweep.tasks import Finished, Task, perform


class RayPool:
    """An executor on the cluster at an address; `auto` finds the one we run in, `local` makes one of this machine."""

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise UserError(f"Running on Ray needs the package ray; run `{how_to_install('ray')}`.") from None
        self.ray: Any = ray
        self.mine = not ray.is_initialized()
        if self.mine:
            try:
                ray.init(
                    address=address or "auto",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    ignore_reinit_error=True,
                )
            except ConnectionError as error:
                why = " ".join(str(error).split())[:200]
                raise UserError(f"No Ray cluster answers at '{address or 'auto'}' ({why}); try --ray local.") from None
        self.running: dict[Any, tuple[Task, float]] = {}
        self.refused: list[Finished] = []

    def has_room(self, task: Task) -> bool:
        """Whether the cluster has idle cores for it. Without any (nodes are still joining), nobody starts."""
        cores = self.ray.cluster_resources().get("CPU", 0)
        busy = sum(t.threads for t, _ in self.running.values())
        return bool(cores) and (busy + task.threads <= cores or not busy)

    def start(self, task: Task) -> None:
        """Never asks for more than the largest node has: Ray would wait for such a node for ever."""
        gpus = task.gpus if task.gpus is not None else min(1, self._largest("GPU"))
        if gpus > self._largest("GPU"):
            words = f"the plan gives each task {gpus:g} GPUs, the largest node has {self._largest('GPU'):g}"
            self.refused.append(Finished(task.id, "failed", words))
            return
        wants = {"num_cpus": min(task.threads, self._largest("CPU")), "num_gpus": gpus, "max_retries": 0}
        if task.memory is not None:
            wants["memory"] = min(task.memory, self._largest("memory"))
        remote = self.ray.remote(_perform_elsewhere).options(name=task.id, **wants)
        self.running[remote.remote(task.to_json(), os.getcwd())] = task, time.monotonic()  # noqa: PTH109

    def _largest(self, resource: str) -> float:
        return max((n["Resources"].get(resource, 0) for n in self.ray.nodes() if n["Alive"]), default=0)

    def wait(self, seconds: float) -> list[Finished]:
        if self.refused:
            out, self.refused = self.refused, []
            return out
        if not self.running:
            time.sleep(min(seconds, 0.1))
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._outcome(ref) for ref in ready]

    def _outcome(self, ref: Any) -> Finished:
        task, began = self.running.pop(ref)
        errors = self.ray.exceptions
        try:
            return Finished(**self.ray.get(ref))
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.RayTaskError) as error:
            lost = isinstance(error, (errors.WorkerCrashedError, errors.NodeDiedError))
            words = " ".join(str(error).split())[:300]
            return Finished(task.id, "lost" if lost else "failed", words, round(time.monotonic() - began, 3))

    def close(self) -> None:
        for ref in self.running:
            self.ray.cancel(ref, force=True)
        if self.mine:
            self.ray.shutdown()


def _perform_elsewhere(data: dict[str, Any], directory: str) -> dict[str, Any]:
    """On the node: where the driver stands, because paths in a plan are relative to it."""
    os.chdir(directory)
    return vars(perform(Task.from_json(data)))
