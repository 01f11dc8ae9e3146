"""Running a graph of tasks: who may start, what is tried again, what is shown, and what the disk holds meanwhile.

`Schedule` knows the graph and no machine; an executor (workers.py) knows machines and no graph. The board, the
cleaner and the prefetcher look at the states of all tasks after every change.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from vestige.errors import UserError, is_ours, named
from vestige.models.args import ModelArgs
from vestige.runs.directory import append_to, remove_run
from vestige.secrets import hide
from vestige.sweep.tasks import Finished, Task, check_space, is_done
from vestige.sweep.workers import Executor

LOST_LIMIT = 5  # machines that may die under one task before it counts as failed
_HELD_PAUSE = 1.0  # seconds before a directory that another process writes is looked at again
OVER = ("done", "failed", "blocked")
_FAILED = ("failed", "blocked")


@dataclass
class TaskState:
    """Where one task stands."""

    status: str = "waiting"  # waiting | running | done | failed | blocked
    fresh: bool = False  # done by this driver, not found on disk
    attempts: int = 0
    lost: int = 0
    error: str | None = None
    seconds: float = 0.0
    began: float = 0.0  # the last attempt, by the monotonic clock
    not_before: float = 0.0
    checked: bool = False  # looked for on disk since it last could have appeared there


@dataclass
class Schedule:
    """One way through a graph of tasks, in the order given and as wide as the executor allows."""

    tasks: Sequence[Task]
    executor: Executor
    retries: int
    watch: Callable[[Task, TaskState], None] = lambda task, state: None  # told of every change
    tick: Callable[[], None] = lambda: None  # called about once per second
    states: dict[str, TaskState] = field(default_factory=dict)

    def run(self) -> dict[str, TaskState]:
        """Every task ends as done, failed or blocked (by one that failed); none is dropped."""
        self.states = {task.id: TaskState() for task in self.tasks}
        by_id = {task.id: task for task in self.tasks}
        try:
            while any(state.status not in OVER for state in self.states.values()):
                self.tick()
                for task in self.tasks:
                    self._start_if_possible(task)
                for finished in self.executor.wait(1.0):
                    self._finish(by_id[finished.id], finished)
        finally:
            self.executor.close()
        return self.states

    def _start_if_possible(self, task: Task) -> None:
        """Starts a task whose needs are done and for which there is room, unless its results are there already."""
        state = self.states[task.id]
        if state.status != "waiting" or state.not_before > time.monotonic():
            return
        needs = [name for name in task.needs if name in self.states]
        for name in needs:
            if self.states[name].status in _FAILED:
                self._change(task, "blocked", f"needs {name}, which did not succeed")
                return
        if any(self.states[name].status != "done" for name in needs):
            return
        if not self.executor.has_room(task):
            return  # nor is it looked for on disk yet: looking takes time in which others finish
        # Another shard may have done it meanwhile, and a run of an earlier sweep counts as well.
        if not state.checked and self._is_settled(task):
            self._change(task, "done")
            return
        state.checked = True
        state.attempts += 1
        state.began = time.monotonic()
        self._change(task, "running")
        self.executor.start(task)

    def _is_settled(self, task: Task) -> bool:
        """Done already. An attack (or S1) counts as done, too, when nothing that wants its outcome is left to do."""
        users = [t for t in self.tasks if task.id in t.needs] if task.kind in ("attack", "s1") else []
        return is_done(task) or (bool(users) and all(map(is_done, users)))

    def _finish(self, task: Task, finished: Finished) -> None:
        """Records how an attempt ended, and whether there is to be another."""
        state = self.states[task.id]
        state.seconds += finished.seconds
        if finished.status == "done":
            state.fresh = True
            self._change(task, "done")
        elif finished.status == "held":  # not its fault: look again later; by then it may be done
            state.attempts -= 1
            state.not_before, state.checked = time.monotonic() + _HELD_PAUSE, False
            self._change(task, "waiting", finished.error)
        # A machine that died says nothing about the task; a task that kills every machine must end some time.
        elif finished.status == "lost" and state.lost < LOST_LIMIT:
            state.lost += 1
            state.attempts -= 1
            self._change(task, "waiting", finished.error)
        else:
            again = state.attempts <= self.retries
            self._change(task, "waiting" if again else "failed", finished.error)

    def _change(self, task: Task, status: str, error: str | None = None) -> None:
        state = self.states[task.id]
        state.status, state.error = status, error
        self.watch(task, state)


# ---- what is shown -----------------------------------------------------------------------------------------------

MARKS = {"waiting": "again", "running": "start", "done": "done", "failed": "FAILED", "blocked": "BLOCKED"}


class Board:
    """A line for each change, and on a terminal a bar below them with what runs. Every line also goes to a file: when
    the terminal hangs up, the file continues."""

    def __init__(self, tasks: Sequence[Task], log: Path, stream: TextIO | None = None) -> None:
        self.states = {task.id: TaskState() for task in tasks}
        self.stream = stream or sys.stdout
        self.log = append_to(log)
        watched = self.stream.isatty()
        self.bar = tqdm(
            total=len(tasks),
            file=self.stream,
            disable=not watched,
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}",
        )

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):
            self.bar.close()
        self.log.close()

    def change(self, task: Task, state: TaskState) -> None:
        """One line a change: what happened, to which task, how long it took, why it failed and where to read on."""
        self.states[task.id] = state
        words = f"{MARKS[state.status]:8}{task.id}"
        if state.status == "done":
            words += f"  {state.seconds:.1f} s" if state.fresh else "  (there already)"
        elif state.error:
            words += f"  {state.error}"
        if state.status == "failed":
            words += f"  (log: {task.log})"
        done = sum(s.status == "done" for s in self.states.values())
        self.say(f"[{done}/{len(self.states)}] {words}")

    def say(self, words: str) -> None:
        words = hide(words)
        self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n")
        with suppress(OSError, ValueError):  # the terminal is gone; the log has it all
            tqdm.write(words, file=self.stream)
            self.stream.flush()
        self.tick()

    def tick(self) -> None:
        """Draws how far it is, and what runs for how long."""
        parts = [_progress_line(self.states)]
        for id, state in self.states.items():
            if state.status == "running":
                parts.append(f"{id} {time.monotonic() - state.began:.0f} s")
        with suppress(OSError, ValueError):
            self.bar.set_description_str("; ".join(parts))


def _progress_line(states: Mapping[str, TaskState]) -> str:
    """
    >>> _progress_line({"a": TaskState("done"), "b": TaskState("running"), "c": TaskState("waiting")})
    '1 of 3 done, 1 running, 1 waiting'
    """
    counts = Counter(state.status for state in states.values())
    parts = [f"{counts['done']} of {len(states)} done"]
    parts += [f"{counts[status]} {status}" for status in ("running", "waiting", "failed", "blocked") if counts[status]]
    return ", ".join(parts)


# ---- the disk ----------------------------------------------------------------------------------------------------


def hub_cache() -> dict[str, Any]:
    """Repositories in the hub's cache, by id."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return {}
    return {repo.repo_id: repo for repo in repositories if repo.repo_type == "model"}


def _remove_download(repo_id: str) -> None:
    """Removes one model from the hub's cache, by the hub's own means."""
    from huggingface_hub import constants, scan_cache_dir

    repo = hub_cache().get(repo_id)
    if repo is not None:
        # Shown this repository alone: a mirror of it has the same commits, and would go in its place.
        alone = replace(scan_cache_dir(constants.HF_HUB_CACHE), repos=frozenset({repo}))
        alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()


def hub_users(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks that read each hub model, in the order in which the models are first wanted."""
    users: dict[str, list[Task]] = {}
    for task in tasks:
        if task.ask.get("server"):
            continue  # a served model's files stay with its server
        for path in task.checkpoints_read:
            if not Path(path).expanduser().exists():
                users.setdefault(path, []).append(task)
    return users


class Cleaner:
    """Removes attacked copies and (on request) downloads when nothing needs them any more."""

    def __init__(self, tasks: Sequence[Task], keep_attacked: bool, clear_cache: bool) -> None:
        self.copies: dict[str, set[str]] = {}  # attacked copy -> ids of the tasks that make and read it
        self.downloads: dict[str, set[str]] = {}
        for task in tasks:
            if task.kind == "attack" and not keep_attacked:
                self.copies[task.out] = {task.id, *(t.id for t in tasks if task.id in t.needs)}
        # What was in the cache before the sweep belongs to the user.
        if clear_cache:
            there = hub_cache()
            for path, readers in hub_users(tasks).items():
                if path not in there:
                    self.downloads[path] = {task.id for task in readers}

    def look(self, states: Mapping[str, TaskState]) -> None:
        over = {id for id, state in states.items() if state.status in OVER}
        for place in [place for place, users in self.copies.items() if users <= over]:
            del self.copies[place]
            remove_run(Path(place))
        for path in [path for path, users in self.downloads.items() if users <= over]:
            del self.downloads[path]
            _remove_download(path)


def fetch_model(args: ModelArgs) -> None:
    """All files of a hub model, into the hub's cache."""
    from vestige.models.locate import locate

    locate(args)


def size_at_hub(args: ModelArgs) -> int:
    from vestige.models.locate import repository_size

    return repository_size(args.path, args) or 0


class Prefetcher:
    """Fetches hub models before their tasks start: one at a time, at most `ahead` of them not yet in use.

    Downloads go through models/locate.py, as those of a task do; a task that wants a model which is still on its way
    waits for it at the hub's own lock.
    """

    def __init__(self, tasks: Sequence[Task], ahead: int, free_space: int) -> None:
        self.ahead, self.free_space = ahead, free_space
        self.waiting: dict[str, list[Task]] = {}  # models not yet fetched -> the tasks that read them
        for path, readers in (hub_users(tasks) if ahead else {}).items():
            if not all(map(is_done, readers)):
                self.waiting[path] = readers
        self.unused: dict[str, list[Task]] = {}  # fetched, and no task has started that reads them
        self.pool = ThreadPoolExecutor(1)
        self.fetching: Future[str] | None = None

    def look(self, states: Mapping[str, TaskState]) -> list[str]:
        """Begins the next download if there is room for it; returns what is to be said of those that ended."""
        lines = []
        if self.fetching is not None and self.fetching.done():
            lines.append(self.fetching.result())
            self.fetching = None
        # A model counts as unused until one of its tasks runs, or until nothing will read it any more.
        for models in (self.waiting, self.unused):
            for path, readers in list(models.items()):
                statuses = [states[task.id].status for task in readers]
                if "running" in statuses or all(status in OVER for status in statuses):
                    del models[path]
        if self.fetching is None and self.waiting and len(self.unused) < self.ahead:
            path = next(iter(self.waiting))
            self.unused[path] = self.waiting.pop(path)
            self.fetching = self.pool.submit(self._fetch, path, self.unused[path][0].model_args(path))
        return lines

    def _fetch(self, path: str, args: ModelArgs) -> str:
        """A model that cannot be downloaded does not fail here: its task will say so, and be tried again."""
        from huggingface_hub import constants

        try:
            check_space(Path(args.hub.get("cache_dir") or constants.HF_HUB_CACHE), self.free_space + size_at_hub(args))
            fetch_model(args)
        except UserError as error:
            return f"did not fetch {path} ahead: {error}"
        except Exception as error:  # of the hub and the network
            if is_ours(error):
                raise
            return f"did not fetch {path} ahead: {named(error)}"
        return f"fetched {path}"

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()  # a download that is under way is awaited
