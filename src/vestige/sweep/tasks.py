"""The tasks of a sweep: plain data that any process can perform, and how to tell that one is done.

A task is done when its run directory holds results of the same model fingerprint and the same configuration, and the
note beside them (sweep_task.json) has the key of all else that they depend on (`task_key`). Nothing else is
remembered, so a sweep that was killed, sharded or moved to another machine goes on from what is on disk.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError, mishaps_said
from vestige.guard import read_json
from vestige.integrations.plugin_files import with_siblings
from vestige.internal import described, in_short, masked
from vestige.models.args import ModelArgs
from vestige.models.fingerprint import digests, fingerprint
from vestige.models.quantised import check_low_precision
from vestige.runs.directory import HeldError, append_to, install, open_run, remove, scratch
from vestige.runs.manifest import is_whole, kind_in
from vestige.schema import misfit
from vestige.secrets import Hiding, hide, note_tree
from vestige.store.files import write_json
from vestige.stress.copies import AttackLesson, attack_weights, rows_file, settings_of
from vestige.stress.registry import ATTACKS as ATTACKS  # where plug-ins have found it
from vestige.stress.registry import LESSON, attack_named
from vestige.sweep.depth import run_depth, to_ask
from vestige.sweep.keys import (
    checkpoint_parts,
    collector_part,
    harness_part,
    is_local,
    named_content,
    served_parts,
)
from vestige.types import content_key

NOTE = "sweep_task.json"  # beside the results (or in the attacked copy): the key of the task that wrote them


@dataclass(frozen=True)
class Task:
    """One evaluation or depth run, one attack that makes a checkpoint to evaluate, or S1 for all depth runs."""

    id: str  # tofu/npo, tofu/npo+relearn, attack/relearn/npo, s1/depth
    kind: str  # eval | depth | attack | s1
    model: str  # the model's name in the plan
    source: str  # its checkpoint before any attack
    out: str  # the run directory, or where the attacked copy goes
    log: str
    ask: Mapping[str, Any]  # the fields of Ask, or of DepthAsk
    attack: str | None = None  # its name in the plan
    how: Mapping[str, Any] = field(default_factory=dict)  # the attack in full: kind, settings, what it teaches
    needs: tuple[str, ...] = ()  # ids of tasks whose results this one reads
    retain: str | None = None  # the retain model's run directory
    plugins: tuple[str, ...] = ()
    threads: int = 1
    memory: int | None = None  # bytes; None: unknown
    gpus: float | None = None  # its share of a cluster's; None: one, where there are any
    free_space: int = 0  # bytes that must be free before it starts
    low_precision: bool = False  # whether a task of the same sweep, and so of the same worker, reads a model so

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def model_args(self, path: str) -> ModelArgs:
        """How this task reads a checkpoint."""
        from vestige.engine.prepare import model_args

        if self.kind in ("depth", "s1"):
            return to_ask(self.ask).model(path)
        return replace(model_args(_run(self)), path=path)

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


class _TaskNote(TypedDict):
    key: str


class _Weights(TypedDict):
    fingerprint: str


class _TaskManifest(TypedDict):
    model: _Weights


def is_done(task: Task) -> bool:
    """Whether what the task would make is there already, for the same content."""
    try:
        note = read_json(Path(task.out) / NOTE)
        return not misfit(note, _TaskNote) and _made(task) and bool(note["key"] == task_key(task))
    except (OSError, ValueError, UserError):
        return False  # half a file, a checkpoint that has gone: running the task will say which


def _made(task: Task) -> bool:
    """Whether the files that count are there."""
    out = Path(task.out)
    if task.kind == "attack":
        return checkpoint(task).exists()
    if task.kind == "s1":
        return any((out / "s1_cache").glob("*"))
    if task.kind == "depth":
        return (out / "summary.json").is_file() and is_whole(out)
    return any(out.glob("*_SUMMARY.json")) and is_whole(out) and _same_run(task)


def _same_run(task: Task) -> bool:
    """The manifest names this configuration and, where the checkpoint is at hand, these weights."""
    from vestige.engine.prepare import model_args

    run = _run(task)
    manifest = read_json(Path(task.out) / "manifest.json")
    if misfit(manifest, _TaskManifest) or manifest.get("config") != _config(task):
        return False
    if run.server:
        from vestige.engine.served import serves_as_before

        return serves_as_before(run, manifest["model"])
    weights = manifest["model"]["fingerprint"]
    copied = task.attack is not None and not task.how.get("quantization")
    return copied or not is_local(task.source) or weights == fingerprint(model_args(run))


def task_key(task: Task) -> str:
    """A name for everything a task's result depends on."""
    parts = [task.kind, _attack_key(task), json.dumps(_said(task), sort_keys=True, default=str), *_identities(task)]
    parts += [f"{file.name}={digest}" for file, digest in _read_files(task)]
    if task.kind != "attack":
        parts += [collector_part(), harness_part(task.ask)]
    if task.kind == "eval":
        parts += named_content(_config(task), [str(task.ask.get(k) or "") for k in WHERE] + [task.source, task.out])
    return content_key(*(part.encode() for part in parts))


def _attack_key(task: Task) -> str:
    """The attack with its settings, whatever the plan calls it; what it teaches is named by content, not by place."""
    how = {k: v for k, v in task.how.items() if k != "data"}
    return json.dumps(how, sort_keys=True, default=str) if how else ""


# Flags that only say where things are or how work is shown; models are named by their weights.
WHERE = (
    "out", "model", "data", "retain_logs", "progress", "plugins", "config_dir", "task_name",
    "unlearned", "full", "retain", "s1_cache", "server", "server_key_env", "server_by_name",
)  # fmt: skip
AFTER_S1 = ("delta_threshold", "baselines", "plots", "resamples", "seed", "batch_size")  # S1 is the same with others


def _said(task: Task) -> dict[str, Any]:
    """The flags that make a difference to the outcome."""
    if task.kind == "attack":  # one copy serves every suite; what it depends on is in `how`
        return {}
    if task.kind == "s1":
        return {k: v for k, v in task.ask.items() if k not in (*WHERE, *AFTER_S1)}
    return {k: v for k, v in task.ask.items() if k not in WHERE}


def _identities(task: Task) -> list[str]:
    """The checkpoint before any attack, and for a depth run its two references."""
    # Quantising by an attack is recorded in `how`: the files are the same.
    template = _config(task)["model"].get("template_args", {}) if task.kind == "eval" else {}
    dated = bool(template.get("date_string"))
    found = [task.model_args(path) for path in checkpoints_of(task)]
    if task.ask.get("server"):
        return [part for args in found for part in served_parts(args, dated)]
    if task.how.get("quantization"):
        found = [replace(args, quantization=None, compute_dtype=None) for args in found]
    return [part for args in found for part in checkpoint_parts(args, dated)]


def _config(task: Task) -> dict[str, Any]:
    from vestige.runs.manifest import config_json

    return config_json(_run(task).describe())


def checkpoints_of(task: Task) -> list[str]:
    """The checkpoints that a task reads, attacked copies by what they are made of."""
    references = [str(task.ask[k]) for k in ("full", "retain")] if task.kind in ("depth", "s1") else []
    return list(dict.fromkeys([task.source, *references]))


def _read_files(task: Task) -> list[tuple[Path, str]]:
    """Files a task reads besides the checkpoint, with their digests: rows, the retain model's results, plug-ins."""
    files = [file for plugin in task.plugins for file in with_siblings(Path(plugin).expanduser())]
    places = [task.ask[k] for k in ("data", "include_path") if task.ask.get(k)] if task.kind != "attack" else []
    for place in (Path(str(p)).expanduser() for p in places):
        files += [place] if place.is_file() else sorted(f for f in place.rglob("*") if f.is_file())
    if task.how.get("data"):
        files.append(rows_file(Path(task.how["data"]), "forget"))
    if task.retain:
        files += sorted(Path(task.retain).glob("*_EVAL.json"))
    return list(zip(files, digests(files), strict=True))


def _run(task: Task) -> Any:
    return _composed(json.dumps(task.ask, sort_keys=True, default=str))


@functools.lru_cache(maxsize=1024)
def _composed(ask: str) -> Any:
    """The run of some flags. Composing takes longer than all else that is looked at to see whether a task is done."""
    from vestige.engine.flags import EvalAsk, to_run

    return to_run(EvalAsk(**json.loads(ask)))


def checkpoint(task: Task) -> Path:
    """Where an attack writes its copy; the note and the lock are beside it, not in it."""
    return Path(task.out) / "checkpoint"


def perform(task: Task) -> Finished:
    """Performs a task in this process, all it says going to its log. Never raises: the outcome says how it went."""
    started = time.perf_counter()

    def finished(status: str, error: str | None = None) -> Finished:
        return Finished(task.id, status, error, round(time.perf_counter() - started, 3))

    note_tree(asdict(task))
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
        except Exception as error:  # whatever nothing below expected: reported as a bug, and the other tasks go on
            words = in_short(error)
            print(masked(described(error)), f"vestige: {words}", sep="\n", flush=True)
            return finished("failed", hide(words))
        return finished("done")


def _perform(task: Task) -> None:
    import torch

    from vestige.integrations.plugins import load_plugins

    check_space(Path(task.out), task.free_space)
    load_plugins(task.plugins)
    if task.low_precision:
        check_low_precision(task.ask.get("device") or "auto")  # after a product in float32 it is too late
    torch.set_num_threads(task.threads)  # the same on every machine: sums must not depend on where they are made
    {"attack": _make_attacked, "depth": _measure_depth, "s1": _measure_depth, "eval": _evaluate}[task.kind](task)


def _evaluate(task: Task) -> None:
    from vestige.engine.evaluate import evaluate_config

    key = task_key(task)
    _unsign(task)  # from here on the directory may hold a mixture
    outcome = evaluate_config(_run(task))
    plain = "harness" not in outcome.manifest
    if plain and outcome.top and all(outcome.scores[name].missing for name in outcome.top):
        reasons = {outcome.scores[name].reason for name in outcome.top}
        raise UserError(f"none of the metrics asked for could be computed: {'; '.join(sorted(reasons))}")
    _sign(task, key)


def _unsign(task: Task) -> None:
    remove(Path(task.out) / NOTE)


def _sign(task: Task, key: str) -> None:
    """The task's note beside its results, as one more file of the finished run."""
    out = Path(task.out)
    with open_run(out, kind_in(out) or "eval", [NOTE]) as run:
        # A report reads the attack: a sweep that was killed has no sweep.json to say which runs are of attacked copies.
        said: dict[str, Any] = {"settings": settings} if (settings := _settings(task)) else {}
        said |= {"attack_facts": attack_named(task.how["attack"]).facts()} if task.attack else {}
        write_json(Path(task.out) / NOTE, {"id": task.id, "key": key, "attack": task.attack, **said})
        run.finish()


def _settings(task: Task) -> dict[str, Any]:
    """Every setting in effect of the attack before this run: the copy says its own, and is removed before long."""
    if task.attack is None:
        return {}
    how = {k: v for k, v in task.how.items() if k != "teaching"}
    if task.how.get("quantization"):
        return how  # no copy was made
    copy = task.ask["unlearned"][0] if task.kind == "depth" else task.ask["model"]
    return {**how, **settings_of(Path(str(copy)), task.how["attack"])}


def _measure_depth(task: Task) -> None:
    key = task_key(task)
    _unsign(task)
    summary = run_depth(task.ask)
    if summary["avg_uds"] is None:
        raise UserError(f"the depth score could not be computed: {summary['reason']}")
    _sign(task, key)


def _make_attacked(task: Task) -> None:
    out = Path(task.out)
    with open_run(out, "attack", [NOTE, f"{checkpoint(task).name}/"]) as run:
        remove(out / NOTE)
        with scratch(out) as made:
            _attack(task, made / checkpoint(task).name)
            install(made / checkpoint(task).name, checkpoint(task))
        write_json(out / NOTE, {"id": task.id, "key": task_key(task)})
        run.finish()


def _attack(task: Task, target: Path) -> None:
    said = {k: v for k, v in task.how.items() if k not in ("attack", "teaching")}
    record = attack_named(task.how["attack"])
    taught = {k: said.pop(k) for k in LESSON if k in said} if record.teaches else {}
    lesson = AttackLesson(**{**taught, "data": Path(taught["data"])}) if taught else None
    made = attack_weights(record.name, said, _run(task), lesson, target)
    print(f"settings: {json.dumps(made.settings, default=str)}", *made.notes, sep="\n", flush=True)


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
    file = append_to(log)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    spoken = sys.stdout, sys.stderr
    with file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = Hiding(file, environment=True)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = spoken
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
