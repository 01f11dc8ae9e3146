"""The tasks of a sweep: plain data that any process can perform, and how to tell that one is done.

A task is done when its run directory holds results of the same model fingerprint and the same configuration, and the
note beside them (sweep_task.json) names the same data, retain results and attack. Nothing else is remembered, so a
sweep that was killed, sharded or moved to another machine goes on from what is on disk.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.models.fingerprint import digests, fingerprint
from vestige.run.mishaps import mishaps_said
from vestige.store.checksums import add, is_whole
from vestige.store.files import read_json, write_json
from vestige.store.lock import HeldError, writing
from vestige.types import content_key

# Attacks by name: (checkpoint, where to write the attacked copy) -> where it was written. Plug-ins may add theirs.
ATTACKS: dict[str, Callable[[Path, Path], Path]] = {}

NOTE = "sweep_task.json"  # beside the results (or in the attacked copy): the key of the task that wrote them


@dataclass(frozen=True)
class Task:
    """One evaluation, or one attack that makes a checkpoint to evaluate."""

    id: str  # tofu/npo, tofu/npo+relearn, attack/relearn/npo
    kind: str  # eval | attack
    model: str  # the model's name in the plan
    source: str  # its checkpoint before any attack
    out: str  # the run directory, or where the attacked copy goes
    log: str
    ask: Mapping[str, Any]  # the fields of Ask
    attack: str | None = None
    needs: tuple[str, ...] = ()  # ids of tasks whose results this one reads
    retain: str | None = None  # the retain model's run directory
    plugins: tuple[str, ...] = ()
    threads: int = 1
    memory: int | None = None  # bytes; None: unknown
    gpus: float | None = None  # its share of a cluster's; None: one, where there are any
    free_space: int = 0  # bytes that must be free before it starts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        return cls(**{**data, "needs": tuple(data["needs"]), "plugins": tuple(data["plugins"])})


@dataclass(frozen=True)
class Finished:
    """How a task ended: done, failed, held (another process writes there) or lost (its machine died)."""

    id: str
    status: str
    error: str | None = None
    seconds: float = 0.0


def is_done(task: Task) -> bool:
    """Whether what the task would make is there already, for the same content."""
    if task.kind == "attack":
        return _is_attacked(task)
    out = Path(task.out)
    if not (out / NOTE).is_file() or not (out / "manifest.json").is_file() or not list(out.glob("*_SUMMARY.json")):
        return False
    try:
        return is_whole(out) and _same_run(task) and read_json(out / NOTE).get("key") == task_key(task)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False  # half a file, a checkpoint that has gone: running the task will say which


def _same_run(task: Task) -> bool:
    """The manifest names this configuration and, where the checkpoint is at hand, these weights."""
    from vestige.run.evaluate import config_json
    from vestige.run.prepare import model_args

    run = _run(task)
    manifest = read_json(Path(task.out) / "manifest.json")
    if manifest.get("config") != config_json(run):
        return False
    weights = manifest["model"]["fingerprint"]
    return task.attack is not None or not _local(task.source) or weights == fingerprint(model_args(run))


def task_key(task: Task) -> str:
    """A name for everything a task's result depends on."""
    parts = [task.kind, task.attack or "", json.dumps(_said(task), sort_keys=True, default=str), _identity(task)]
    parts += [f"{file.name}={digest}" for file, digest in _read_files(task)]
    return content_key(*(part.encode() for part in parts))


def _said(task: Task) -> dict[str, Any]:
    """The flags without those that only say where things are or how work is shown."""
    where = ("out", "model", "data", "retain_logs", "progress", "plugins", "config_dir", "task_name")
    if task.kind == "attack":  # one copy serves every suite
        return {}
    return {k: v for k, v in task.ask.items() if k not in where}


def _identity(task: Task) -> str:
    """The weights before any attack. A hub id is its name: its files may have been cleared from the cache."""
    from vestige.run.prepare import model_args

    if not _local(task.source):
        return f"hub:{task.source}"
    return fingerprint(replace(model_args(_run(task)), path=task.source))


def _local(path: str) -> bool:
    return Path(path).expanduser().exists()


def _read_files(task: Task) -> list[tuple[Path, str]]:
    """Files a task reads besides the checkpoint, with their digests: rows, the retain model's results, plug-ins."""
    files = [Path(p) for p in task.plugins]
    folders = [task.ask[k] for k in ("data", "include_path") if task.ask.get(k)] if task.kind == "eval" else []
    for folder in folders:
        files += sorted(f for f in Path(str(folder)).expanduser().rglob("*") if f.is_file())
    if task.retain:
        files += sorted(Path(task.retain).glob("*_EVAL.json"))
    return list(zip(files, digests(files), strict=True))


def _run(task: Task) -> Any:
    return _composed(json.dumps(task.ask, sort_keys=True, default=str))


@functools.lru_cache(maxsize=1024)
def _composed(ask: str) -> Any:
    """The run of some flags. Composing takes longer than all else that is looked at to see whether a task is done."""
    from vestige.run.friendly import Ask, to_run

    return to_run(Ask(**json.loads(ask)))


def _is_attacked(task: Task) -> bool:
    """Whether the attacked checkpoint is there and was made of these weights by this attack."""
    try:
        return bool(read_json(Path(task.out) / NOTE)["key"] == task_key(task)) and checkpoint(task).exists()
    except (OSError, ValueError, KeyError, UserError):
        return False


def checkpoint(task: Task) -> Path:
    """Where an attack writes its copy; the note and the lock are beside it, not in it."""
    return Path(task.out) / "checkpoint"


def perform(task: Task) -> Finished:
    """Performs a task in this process, all it says going to its log. Never raises: the outcome says how it went."""
    started = time.perf_counter()

    def finished(status: str, error: str | None = None) -> Finished:
        return Finished(task.id, status, error, round(time.perf_counter() - started, 3))

    with speaking_to(Path(task.log)):
        print(f"\n== {task.id}, {time.strftime('%Y-%m-%d %H:%M:%S')}, process {os.getpid()}", flush=True)
        try:
            with mishaps_said():
                _perform(task)
        except HeldError as error:
            return finished("held", str(error))
        except UserError as error:
            print(f"vestige: error: {error}", flush=True)
            return finished("failed", str(error))
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            return finished("failed", f"{type(error).__name__}: {error}")
        return finished("done")


def _perform(task: Task) -> None:
    import torch

    from vestige.integrations.plugins import load_plugins

    check_space(Path(task.out), task.free_space)
    load_plugins(task.plugins)
    torch.set_num_threads(task.threads)  # the same on every machine: sums must not depend on where they are made
    if task.kind == "attack":
        _make_attacked(task)
    else:
        _evaluate(task)


def _evaluate(task: Task) -> None:
    from vestige.run.evaluate import evaluate_config

    key = task_key(task)
    (Path(task.out) / NOTE).unlink(missing_ok=True)  # from here on the directory may hold a mixture
    outcome = evaluate_config(_run(task))
    plain = "harness" not in outcome.manifest
    if plain and outcome.top and all(outcome.scores[name].missing for name in outcome.top):
        reasons = {str(outcome.scores[name].missing) for name in outcome.top}
        raise UserError(f"none of the metrics asked for could be computed: {'; '.join(sorted(reasons))}")
    with writing(Path(task.out)):
        write_json(Path(task.out) / NOTE, {"id": task.id, "key": key})
        add(Path(task.out), NOTE)


def _make_attacked(task: Task) -> None:
    from vestige.models.locate import locate
    from vestige.run.prepare import model_args

    if task.attack not in ATTACKS:
        raise unknown_name("attack", str(task.attack), ATTACKS)
    out = Path(task.out)
    with writing(out):
        place = locate(replace(model_args(_run(task)), path=task.source))
        (out / NOTE).unlink(missing_ok=True)
        made = ATTACKS[task.attack](place.gguf or place.directory, checkpoint(task))
        if made.resolve() != checkpoint(task).resolve():
            raise UserError(f"The attack '{task.attack}' wrote to {made}; it must write to {checkpoint(task)}.")
        write_json(out / NOTE, {"id": task.id, "key": task_key(task)})


def check_space(place: Path, wanted: int) -> None:
    """Refuses to begin what would fill the disk."""
    here = next(p for p in (place, *place.absolute().parents) if p.exists())
    free = shutil.disk_usage(here).free
    if free < wanted:
        raise UserError(
            f"Only {free / 2**30:.1f} GB are free at {here}, the plan asks for {wanted / 2**30:.1f} GB (free_space); "
            "make room, or lower free_space in the plan."
        )


@contextlib.contextmanager
def speaking_to(log: Path) -> Iterator[None]:
    """Everything written to standard output and error goes to a file, what C libraries write included."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    spoken = sys.stdout, sys.stderr
    with log.open("a", encoding="utf-8", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        try:
            yield
        finally:
            sys.stdout, sys.stderr = spoken
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
