"""The tasks of a sweep: plain data that any process can perform, and how to tell that one is done.

    make_tasks(plan) --> Task   in the order in which they should run
    is_done(task), perform(task)

A task is done when its run directory holds results of the same model fingerprint and the same configuration, and the
note next to them (sweep_task.json) has the key of all else that they depend on (`task_key`). Nothing else is
remembered, so a sweep that was killed, sharded or moved to another machine continues from what is on disk.

An evaluation reads its rows and tokenises them each time, so that evidence needs no key for that. A sweep skips all of
it: its key has the files of the tokenizer, the day where a template prints it, and every model that a metric names.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.adapters.plugins import with_siblings
from vestige.depth.ask import DepthAsk, make_ask
from vestige.errors import UserError, mishaps_said
from vestige.guard import is_there, read_json
from vestige.internal import described, in_short, masked
from vestige.models.args import NF4, ModelArgs
from vestige.models.fingerprint import COLLECTED, digests, fingerprint, libraries, library, stored_dtype
from vestige.models.locate import locate
from vestige.models.quantised import RULE, check_low_precision
from vestige.models.tokenizer import says_today, tokenizer_files
from vestige.runs.directory import HeldError, append_to, install, open_run, remove, scratch
from vestige.runs.files import write_json
from vestige.runs.manifest import config_json, is_whole, kind_in
from vestige.secrets import Hiding, hide, note_tree
from vestige.stress.attacks import ATTACKS as ATTACKS  # where plug-ins have found it
from vestige.stress.attacks import LESSON, attack_named
from vestige.stress.copies import AttackLesson, attack_weights, rows_file, settings_of
from vestige.sweep.plan import (
    PlanModel,
    PlannedAttack,
    SweepPlan,
    attacked_place,
    checkpoint_read,
    depth_ask,
    s1_place,
    suite_ask,
)
from vestige.types import content_key

NOTE = "sweep_task.json"  # next to the results (or in the attacked copy): the key of the task that wrote them
_BASE_MEMORY = 800 * 2**20  # bytes that Python, torch and transformers take before any weights
# What a teaching attack takes over from a suite and a model, for its template and its checkpoint.
_TEACHING = (
    "suite", "system_prompt", "limit", "dtype", "device", "tokenizer", "trust_remote_code", "overrides", "config_dir",
)  # fmt: skip
# Flags that only say where things are or how work is shown; models are named by their weights.
_WHERE = (
    "out", "model", "data", "retain_logs", "progress", "plugins", "config_dir", "task_name",
    "unlearned", "full", "retain", "s1_cache", "server", "server_key_env", "server_by_name",
)  # fmt: skip
_AFTER_S1 = ("delta_threshold", "baselines", "plots", "resamples", "seed", "batch_size")  # S1 is the same with others


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

    def model_args(self, path: str) -> ModelArgs:
        """How this task reads a checkpoint."""
        from vestige.engine.prepare import model_args

        if self.kind in ("depth", "s1"):
            return _depth_settings(self.ask).model(path)
        return replace(model_args(evaluation(self.ask)), path=path)

    @property
    def checkpoint(self) -> Path:
        """Where an attack writes its copy; the note and the lock are next to it, not in it."""
        return Path(self.out) / "checkpoint"

    @property
    def checkpoints_read(self) -> list[str]:
        """The checkpoints that a task reads, attacked copies by what they are made of."""
        references = [str(self.ask[key]) for key in ("full", "retain")] if self.kind in ("depth", "s1") else []
        return list(dict.fromkeys([self.source, *references]))

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


def _depth_settings(ask: Mapping[str, Any]) -> DepthAsk:
    return make_ask(**{key: value for key, value in ask.items() if key != "suite"})


def evaluation(ask: Mapping[str, Any]) -> Any:
    """The run that an evaluation's flags compose to."""
    return _compose(json.dumps(ask, sort_keys=True, default=str))


@functools.lru_cache(maxsize=1024)
def _compose(ask: str) -> Any:
    """Composing takes longer than all else that is looked at to see whether a task is done."""
    from vestige.engine.config import make_config

    return make_config(**json.loads(ask))


# ---- from a plan to tasks ----------------------------------------------------------------------------------------


def make_tasks(plan: SweepPlan, start: int = 0, end: int | None = None, slots: int = 1) -> list[Task]:
    """The tasks of models[start:end], those that others wait for first.

    The retain model's evaluations and S1 are in every shard: they are needed there, and done only once.
    """
    chosen = plan.models[start:end]
    if not chosen:
        return []
    # The machine's cores shared among the slots, unless the plan or the environment says otherwise.
    cores = max(1, (os.cpu_count() or 1) // slots)
    stated = os.environ.get("OMP_NUM_THREADS", "")
    if stated.isdigit() and int(stated):
        cores = int(stated)
    common = {"threads": plan.file.threads or cores, "gpus": plan.file.gpus, "plugins": plan.plugins}
    # Everything that compares with the retain model waits for its evaluations.
    first = _retain_ids(plan)
    tasks = [_s1_task(plan, suite, common) for suite in plan.suites if plan.is_depth(suite)]
    for model in plan.models:
        for attack in (None, *(plan.attacks if plan.is_attacked(model) else ())):
            tasks += [t for t in _model_tasks(plan, model, attack, common) if model in chosen or t.id in first]
    # A worker lives for many tasks, and whether it may compute in low precision is decided before its first product.
    low = ("bfloat16", "float16")
    if any({**t.ask, **t.how}.get("quantization") or t.ask.get("dtype") in low for t in tasks):
        tasks = [replace(task, low_precision=True) for task in tasks]
    return sorted(tasks, key=lambda t: t.id not in first and t.kind != "s1")  # stable: otherwise the plan's order


def _retain_ids(plan: SweepPlan) -> tuple[str, ...]:
    return tuple(f"{suite}/{plan.retain}" for suite in plan.retain_suites)


def log_file(plan: SweepPlan, id: str) -> Path:
    return plan.out / "logs" / f"{id.replace('/', '__')}.log"


def _s1_task(plan: SweepPlan, suite: str, common: Mapping[str, Any]) -> Task:
    """Retain -> full of a depth suite: a depth run of the retain model, which fills the cache of all others."""
    flags = plan.suites[suite]
    id, place = f"s1/{suite}", s1_place(plan, suite)
    return Task(
        id,
        "s1",
        suite,
        flags["retain"],
        str(place),
        str(log_file(plan, id)),
        ask={**depth_ask(plan, suite, flags["retain"], place, {}), "baselines": [], "plots": False},
        free_space=plan.free_space,
        memory=_largest(_weights_memory(flags["full"]), _weights_memory(flags["retain"])),
        **common,
    )


def _model_tasks(
    plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None, common: Mapping[str, Any]
) -> list[Task]:
    """The attack on a model, if it makes a copy, and each suite on the model or on its copy."""
    memory = model.memory
    if memory is None:
        memory = _BASE_MEMORY if model.flags.get("server") else _weights_memory(model.path)
    how = _attack_in_full(plan, model, attack)
    common = {
        **common,
        "model": model.name,
        "source": model.path,
        "attack": attack.name if attack else None,
        "how": how,
    }
    tasks: list[Task] = []
    first: tuple[str, ...] = ()
    if attack is not None and not attack.quantization:
        # One copy for all suites; it is removed when the last of them is done (unless keep_attacked).
        id, place = f"attack/{attack.name}/{model.name}", attacked_place(plan, model.name, attack)
        first = (id,)
        ask = {**how["teaching"], "model": model.path, "out": str(place), "task_name": model.name}
        ask |= {"plugins": list(plan.plugins), "progress": False}
        needed = memory
        if attack.record.teaches and memory is not None:
            # What training takes: next to the weights their gradients and two moments.
            needed = _BASE_MEMORY + 4 * max(0, memory - _BASE_MEMORY)
        log = str(log_file(plan, id))
        space = plan.free_space + (memory or 0)  # the copy is about as large as what it is made of
        more = {**common, "needs": _retain_ids(plan), "ask": ask, "memory": needed, "free_space": space}
        tasks.append(Task(id, "attack", out=str(place), log=log, **more))
    for suite in plan.suites:
        directory = plan.run_directory(model.name, suite, attack)
        id = f"{suite}/{directory.name}"
        more = {**common, "out": str(directory), "log": str(log_file(plan, id)), "free_space": plan.free_space}
        if plan.is_depth(suite):
            reading = {key: model.flags[key] for key in ("quantization", "compute_dtype") if model.flags.get(key)}
            reading |= attack.reading if attack else {}
            ask = depth_ask(plan, suite, checkpoint_read(plan, model, attack), directory, reading)
            more["memory"] = _largest(memory, _weights_memory(plan.suites[suite]["full"]))
            tasks.append(Task(id, "depth", ask=ask, needs=(*first, f"s1/{suite}"), **more))
        else:
            ask = suite_ask(plan, model, suite, attack)
            retain = ask.get("retain_logs")
            needs = (*first, f"{suite}/{plan.retain}") if retain else first
            tasks.append(Task(id, "eval", ask=ask, needs=needs, retain=retain, memory=memory, **more))
    return tasks


def _attack_in_full(plan: SweepPlan, model: PlanModel, attack: PlannedAttack | None) -> dict[str, Any]:
    """An attack's settings, and what the copy depends on besides the weights."""
    if attack is None:
        return {}
    if attack.quantization:
        return {**attack.to_json(), **(NF4 if "compute_dtype" in attack.reading else {}), **attack.reading}
    suite = plan.suites[plan.metric_suites[0]] if plan.metric_suites else {"suite": "tofu"}
    teaching = {key: value for key, value in {**suite, **model.flags}.items() if key in _TEACHING}
    out = {**attack.to_json(), "teaching": teaching}
    if attack.record.teaches:
        out["data"] = str(plan.teaching_data(attack))
    return out


def _weights_memory(path: str) -> int | None:
    """A guess at what a checkpoint takes: half-precision files may be held in float32, so twice their size and a bit.

    None for a hub id: its files are not here to be weighed.
    """
    place = Path(path).expanduser()
    if not is_there(place):
        return None
    files = [place]
    if not place.is_file():
        files = [f for f in place.glob("*") if f.suffix in (".safetensors", ".bin", ".gguf", ".pt")]
    return _BASE_MEMORY + int(2.2 * sum(f.stat().st_size for f in files))


def _largest(*memories: int | None) -> int | None:
    """One model is in memory at a time. What is unknown stays unknown."""
    known = [m for m in memories if m is not None]
    return max(known) if len(known) == len(memories) else None


# ---- is it done? -------------------------------------------------------------------------------------------------


def is_done(task: Task) -> bool:
    """Whether what the task would make is there already, for the same content."""
    try:
        note = read_json(Path(task.out) / NOTE)
        return isinstance(note, dict) and _has_results(task) and bool(note.get("key") == task_key(task))
    except (OSError, ValueError, UserError):
        return False  # half a file, a checkpoint that has gone: running the task will say which


def _has_results(task: Task) -> bool:
    """Whether the files that count are there."""
    out = Path(task.out)
    if task.kind == "attack":
        return task.checkpoint.exists()
    if task.kind == "s1":
        return any((out / "s1_cache").glob("*"))
    if task.kind == "depth":
        return (out / "summary.json").is_file() and is_whole(out)
    return any(out.glob("*_SUMMARY.json")) and is_whole(out) and _is_same_run(task)


def _is_same_run(task: Task) -> bool:
    """The manifest names this configuration and, where the checkpoint is at hand, these weights."""
    from vestige.engine.prepare import model_args

    run = evaluation(task.ask)
    manifest = read_json(Path(task.out) / "manifest.json")
    model = manifest.get("model") if isinstance(manifest, dict) else None
    if not isinstance(model, dict) or manifest.get("config") != config_json(run.describe()):
        return False
    if run.server:
        from vestige.engine.served import serves_as_before

        return serves_as_before(run, model)
    # An attacked copy is gone by now; the key names what it was made of.
    copied = task.attack is not None and not task.how.get("quantization")
    return copied or not is_local(task.source) or model.get("fingerprint") == fingerprint(model_args(run))


def task_key(task: Task) -> str:
    """A name for everything a task's result depends on."""
    # An attack counts with its settings, whatever the plan calls it; what it teaches by content, not by place.
    how = {key: value for key, value in task.how.items() if key != "data"}
    flags = {key: value for key, value in task.ask.items() if key not in _WHERE}
    # Flags of a suite do not change the copy.
    if task.kind == "attack":  # one copy serves every suite; what it depends on is in `how`
        flags = {}
    if task.kind == "s1":
        flags = {key: value for key, value in flags.items() if key not in _AFTER_S1}
    parts = [task.kind, json.dumps(how, sort_keys=True, default=str) if how else ""]
    parts += [json.dumps(flags, sort_keys=True, default=str), *_checkpoint_keys(task), *_file_keys(task)]
    if task.kind != "attack":
        # How evidence is collected (none of the tasks measures collapse), and somebody else's harness.
        collectors = {kind: version for kind, version in COLLECTED.items() if kind != "cross"}
        parts += [json.dumps(collectors, sort_keys=True), harness_part(task.ask)]
    if task.kind == "eval":
        known = [*(str(task.ask.get(key) or "") for key in _WHERE), task.source, task.out]
        parts += named_content(config_json(evaluation(task.ask).describe()), known)
    return content_key(*(part.encode() for part in parts))


def _checkpoint_keys(task: Task) -> list[str]:
    """The checkpoint before any attack, and for a depth run its two references."""
    template = (
        config_json(evaluation(task.ask).describe())["model"].get("template_args", {}) if task.kind == "eval" else {}
    )
    dated = bool(template.get("date_string"))
    parts: list[str] = []
    for path in task.checkpoints_read:
        args = task.model_args(path)
        if task.ask.get("server"):
            parts += _served_parts(args, dated)
            continue
        # A model that an attack quantises on loading is named by its unquantised files.
        if task.how.get("quantization"):  # recorded in `how`: the files are the same
            args = replace(args, quantization=None, compute_dtype=None)
        parts += checkpoint_parts(args, dated)
    return parts


def _file_keys(task: Task) -> list[str]:
    """Files a task reads besides the checkpoint, by content: rows, the retain model's results, plug-ins."""
    files = [file for plugin in task.plugins for file in with_siblings(Path(plugin).expanduser())]
    for key in ("data", "include_path") if task.kind != "attack" else ():
        if task.ask.get(key):
            place = Path(str(task.ask[key])).expanduser()
            files += [place] if place.is_file() else sorted(f for f in place.rglob("*") if f.is_file())
    if task.how.get("data"):
        files.append(rows_file(Path(task.how["data"]), "forget"))
    if task.retain:
        files += sorted(Path(task.retain).glob("*_EVAL.json"))
    return [f"{file.name}={digest}" for file, digest in zip(files, digests(files), strict=True)]


def checkpoint_parts(args: ModelArgs, dated: bool = False) -> list[str]:
    """A checkpoint by content. A hub id is its name and revision: its files may have been cleared from the cache.

    Device and attention are as asked: what `auto` means is settled where the task runs, and its manifest says it.
    `dated`: the configuration says which day to print.
    """
    tools = {**libraries("model", bool(args.quantization)), "tokenizers": library("tokenizers")}
    if not is_local(args.path):
        four_bit = [RULE, args.computes_in] if args.computes_in else []
        return [f"hub:{args.path}", str(args.revision), json.dumps(tools, sort_keys=True), *four_bit]
    tools |= libraries(locate(args).kind, bool(args.quantization))
    parts = [fingerprint(args), json.dumps(tools, sort_keys=True), *tokenizer_files(args)]
    parts += [RULE, args.computes_in] if args.computes_in else []
    parts += [stored_dtype(args)] if args.dtype == "auto" else []
    return parts + ([datetime.date.today().isoformat()] if not dated and says_today(args) else [])


def _served_parts(args: ModelArgs, dated: bool = False) -> list[str]:
    """A served model: by its name, as a hub id is, and by its tokenizer, which is read here.

    Which weights a server has, only the server knows: `serves_as_before` asks it before a run counts as done.
    """
    tools = json.dumps({"tokenizers": library("tokenizers")})
    files = tokenizer_files(args) if is_local(args.tokenizer or args.path) else []
    today = [datetime.date.today().isoformat()] if files and not dated and says_today(args) else []
    return ["served", args.path, str(args.tokenizer), tools, *files, *today]


def harness_part(ask: Mapping[str, Any]) -> str:
    """The version of somebody else's harness, where it makes the numbers."""
    return f"lm_eval={library('lm_eval')}" if ask.get("tasks") else ""


def named_content(config: Any, known: Iterable[str]) -> list[str]:
    """The models and files that a configuration names, by content: a second model, a classifier, saved logits.

    `known`: paths that the key has already, or that results are written to.
    """
    skip = [Path(p).expanduser().resolve() for p in known if p]
    out = []
    for path in sorted({Path(s).expanduser() for s in _strings(config) if _may_be_path(s)}):
        here = path.resolve()
        if any(here == s or here.is_relative_to(s) for s in skip):
            continue
        if path.is_file():
            out.append(f"{path.name}={digests([path])[0]}")
        elif any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            out += checkpoint_parts(ModelArgs(path=str(path)))
    return out


def _strings(value: Any) -> Iterator[str]:
    """All text in a configuration, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _may_be_path(text: str) -> bool:
    return "/" in text and len(text) < 4096 and "\n" not in text and "\0" not in text and is_local(text)


def is_local(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError:  # a name too long to be one
        return False


# ---- performing a task -----------------------------------------------------------------------------------------


def perform(task: Task) -> Finished:
    """Performs a task in this process, all it says going to its log. Never raises: the outcome says how it went."""
    started = time.perf_counter()

    def finished(status: str, error: str | None = None) -> Finished:
        return Finished(task.id, status, error, round(time.perf_counter() - started, 3))

    note_tree(asdict(task))
    with _output_to_log(Path(task.log)):
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
    """The work itself. A note next to the results is written last, so half of a result never counts as done."""
    import torch

    from vestige.adapters.plugins import load_plugins

    check_space(Path(task.out), task.free_space)
    load_plugins(task.plugins)
    if task.low_precision:
        check_low_precision(task.ask.get("device") or "auto")  # after a product in float32 it is too late
    torch.set_num_threads(task.threads)  # the same on every machine: sums must not depend on where they are made
    if task.kind == "attack":
        _make_attacked(task)
        return
    key = task_key(task)
    remove(Path(task.out) / NOTE)  # from here on the directory may hold a mixture
    if task.kind == "eval":
        _evaluate(task)
    else:
        _measure_depth(task)
    _write_note(task, key)


def _evaluate(task: Task) -> None:
    """One evaluation; one without a single number is a failure, with the reasons of its metrics."""
    from vestige.engine.evaluate import evaluate_config

    outcome = evaluate_config(evaluation(task.ask))
    if "harness" not in outcome.manifest and outcome.top and all(outcome.scores[name].missing for name in outcome.top):
        reasons = {outcome.scores[name].reason for name in outcome.top}
        raise UserError(f"none of the metrics asked for could be computed: {'; '.join(sorted(reasons))}")


def _measure_depth(task: Task) -> None:
    """One depth run; one without a score is a failure."""
    from vestige.depth.run import depth_run, report

    results = depth_run(_depth_settings(task.ask))
    print(report(results), flush=True)
    summary = results[0].summary
    if summary["avg_uds"] is None:
        raise UserError(f"the depth score could not be computed: {summary['reason']}")


def _write_note(task: Task, key: str) -> None:
    """The task's note next to its results, as one more file of the finished run."""
    note: dict[str, Any] = {"id": task.id, "key": key, "attack": task.attack}
    if task.attack is not None:
        # A report reads the attack: a sweep that was killed has no sweep.json to say which runs are of attacked
        # copies. Every setting in effect is in the copy, which is removed before long.
        settings = {k: v for k, v in task.how.items() if k != "teaching"}
        if not task.how.get("quantization"):
            copy = task.ask["unlearned"][0] if task.kind == "depth" else task.ask["model"]
            settings |= settings_of(Path(str(copy)), task.how["attack"])
        note |= {"settings": settings, "attack_facts": attack_named(task.how["attack"]).facts()}
    out = Path(task.out)
    with open_run(out, kind_in(out) or "eval", [NOTE]) as run:
        write_json(out / NOTE, note)
        run.finish()


def _make_attacked(task: Task) -> None:
    """The attacked copy, moved into place when it is whole."""
    out = Path(task.out)
    with open_run(out, "attack", [NOTE, f"{task.checkpoint.name}/"]) as run:
        remove(out / NOTE)
        with scratch(out) as made:
            _attack(task, made / task.checkpoint.name)
            install(made / task.checkpoint.name, task.checkpoint)
        write_json(out / NOTE, {"id": task.id, "key": task_key(task)})
        run.finish()


def _attack(task: Task, target: Path) -> None:
    """The attack's own function, with its settings and (if it teaches) the rows to teach."""
    said = {k: v for k, v in task.how.items() if k not in ("attack", "teaching")}
    record = attack_named(task.how["attack"])
    taught = {k: said.pop(k) for k in LESSON if k in said} if record.teaches else {}
    lesson = AttackLesson(**{**taught, "data": Path(taught["data"])}) if taught else None
    made = attack_weights(record.name, said, evaluation(task.ask), lesson, target)
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
def _output_to_log(log: Path) -> Iterator[None]:
    """Everything written to standard output and error goes to a file, what C libraries write included."""
    # File descriptors, not sys.stdout alone: tokenizers, CUDA and kernels print without asking Python.
    file = append_to(log)
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    with file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = Hiding(file, environment=True)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for number, old in zip((1, 2), copies, strict=True):
                os.dup2(old, number)
                os.close(old)
