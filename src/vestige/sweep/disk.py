"""A sweep's use of the disk, kept within bounds: what is removed after its last use, what is fetched ahead.

Both look at the states of all tasks after every change. Downloads go through models/locate.py, as those of a task do; a
task that wants a model which is still on its way waits for it at the hub's own lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, is_ours, named
from vestige.models.args import ModelArgs
from vestige.runs.directory import remove_run
from vestige.sweep.pool import TaskState
from vestige.sweep.tasks import Task, check_space, checkpoints_of, is_done

OVER = ("done", "failed", "blocked")


def hub_cache() -> dict[str, Any]:
    """Repositories in the hub's cache, by id."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return {}
    return {repo.repo_id: repo for repo in found if repo.repo_type == "model"}


def forget_download(repo_id: str) -> None:
    """Removes one model from the hub's cache, by the hub's own means."""
    from huggingface_hub import constants, scan_cache_dir

    repo = hub_cache().get(repo_id)
    if repo is not None:
        # Shown this repository alone: a mirror of it has the same commits, and would go in its place.
        alone = replace(scan_cache_dir(constants.HF_HUB_CACHE), repos=frozenset({repo}))
        alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()


def hub_users(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks that read each hub model, in the order in which the models are first wanted."""
    out: dict[str, list[Task]] = {}
    for task in tasks:
        for path in () if task.ask.get("server") else checkpoints_of(task):  # a served model's files stay there
            if not Path(path).expanduser().exists():
                out.setdefault(path, []).append(task)
    return out


class Cleaner:
    """Removes attacked copies and (on request) downloads when nothing needs them any more."""

    def __init__(self, tasks: Sequence[Task], keep_attacked: bool, clear_cache: bool) -> None:
        self.jobs: list[tuple[set[str], Callable[[], None]]] = []
        for task in tasks:
            if task.kind == "attack" and not keep_attacked:
                users = {task.id, *(t.id for t in tasks if task.id in t.needs)}
                self.jobs.append((users, lambda place=task.out: remove_run(Path(place))))  # type: ignore[misc,arg-type]
        if clear_cache:
            before = set(hub_cache())
            for path, readers in hub_users(tasks).items():
                if path not in before:
                    users = {t.id for t in readers}
                    self.jobs.append((users, lambda repo=path: forget_download(repo)))  # type: ignore[misc]

    def look(self, states: Mapping[str, TaskState]) -> None:
        over = {i for i, s in states.items() if s.status in OVER}
        ready = [job for job in self.jobs if job[0] <= over]
        self.jobs = [job for job in self.jobs if job not in ready]
        for _, clean in ready:
            clean()


def fetch_model(args: ModelArgs) -> None:
    """All files of a hub model, into the hub's cache."""
    from vestige.models.locate import locate

    locate(args)


def size_at_hub(args: ModelArgs) -> int:
    from vestige.models.locate import repository_size

    return repository_size(args.path, args) or 0


class Prefetcher:
    """Fetches hub models before their tasks start: one at a time, at most `ahead` of them not yet in use."""

    def __init__(
        self,
        tasks: Sequence[Task],
        ahead: int,
        free_space: int,
        fetch: Callable[[ModelArgs], None] = fetch_model,
        size: Callable[[ModelArgs], int] = size_at_hub,
    ) -> None:
        self.users = {p: [t.id for t in ts] for p, ts in hub_users(tasks).items() if not all(map(is_done, ts))}
        readers = hub_users(tasks)
        self.args = {path: readers[path][0].model_args(path) for path in self.users}
        self.ahead, self.free_space, self.fetch, self.size = ahead, free_space, fetch, size
        self.used: set[str] = set()
        self.fetched: list[str] = []  # in the order in which it was begun
        self.said: list[str] = []
        self.ended = False
        self.bug: Exception | None = None
        self.change = threading.Condition()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def look(self, states: Mapping[str, TaskState]) -> None:
        """Told in the driver's thread what has started, so that there is room for another."""
        with self.change:
            for path, ids in self.users.items():
                if any(states[i].status == "running" for i in ids) or all(states[i].status in OVER for i in ids):
                    self.used.add(path)
            self.change.notify()

    def messages(self) -> list[str]:
        with self.change:
            out, self.said = self.said, []
            return out

    def _next(self) -> str | None:
        if len([p for p in self.fetched if p not in self.used]) >= self.ahead:
            return None
        return next((p for p in self.users if p not in self.used and p not in self.fetched), None)

    def _work(self) -> None:
        while True:
            with self.change:
                while not self.ended and self._next() is None:
                    self.change.wait()
                if self.ended:
                    return
                path = self._next()
                assert path is not None
                self.fetched.append(path)
            self._fetch(path)

    def _fetch(self, path: str) -> None:
        """A model that cannot be downloaded does not fail here: its task will say so, and be tried again."""
        args = self.args[path]
        try:
            check_space(cache_directory(args), self.free_space + self.size(args))
            self.fetch(args)
            words = f"fetched {path}"
        except UserError as error:
            words = f"did not fetch {path} ahead: {error}"
        except Exception as error:  # of the hub and the network; a thread that dies would fetch no more
            if is_ours(error):
                self.bug = error
            words = f"did not fetch {path} ahead: {named(error)}"
        with self.change:
            self.said.append(words)

    def stop(self) -> None:
        with self.change:
            self.ended = True
            self.change.notify()
        self.thread.join()
        if self.bug is not None:
            raise self.bug  # here, where it ends the command, after the tasks have had their turn


def cache_directory(args: ModelArgs) -> Path:
    from huggingface_hub import constants

    return Path(args.hub.get("cache_dir") or constants.HF_HUB_CACHE)


@contextlib.contextmanager
def fetching_ahead(tasks: Sequence[Task], ahead: int, free_space: int) -> Iterator[Prefetcher]:
    """A prefetcher at work; with `ahead` 0 it has nothing to do. A download that is under way at the end is awaited."""
    prefetcher = Prefetcher(tasks if ahead else (), ahead, free_space)
    prefetcher.thread.start()
    try:
        yield prefetcher
    finally:
        prefetcher.stop()
