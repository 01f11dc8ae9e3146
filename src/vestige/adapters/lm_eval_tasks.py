"""From what a user calls a task to the harness's task objects, with mistakes in one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.models.foreign import error_sentence

WRAPPER = "vestige_overrides"  # the name of a group that exists for a moment, see _over_known


@dataclass(frozen=True)
class Tasks:
    """Tasks and groups ready to run; `top` are their names as asked for (a tag stands for its tasks)."""

    manager: Any
    objects: Sequence[Any]
    top: Sequence[str]


def load_tasks(asked: Any, include_path: str | None, args: Mapping[str, Any]) -> Tasks:
    """Every task asked for, its data read. Nothing here needs a model."""
    specs = _specs(asked)
    manager = _manager(specs, include_path)
    objects: list[Any] = []
    for spec in specs:
        objects += _load(spec, manager)
    try:
        flat = manager.load(list(objects))  # objects pass through; it refuses a task that is asked for twice
    except ValueError as error:
        raise UserError(f"eval.lm_eval.tasks cannot be run together: {error_sentence(error)}") from None
    unsafe = [name for name, task in flat["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
    if unsafe and not args.get("confirm_run_unsafe_code"):
        raise UserError(
            f"Task '{unsafe[0]}' runs code that the model writes; allow it with "
            "+eval.lm_eval.simple_evaluate_args.confirm_run_unsafe_code=true."
        )
    return Tasks(manager, objects, [_name(item) for item in objects])


def _name(item: Any) -> str:
    return str(getattr(item, "task_name", None) or item.name)


def _specs(asked: Any) -> list[str | dict[str, Any]]:
    if isinstance(asked, str):
        asked = [part.strip() for part in asked.split(",") if part.strip()]
    if isinstance(asked, Mapping):
        asked = [asked]
    if not asked:
        raise UserError("No tasks given; add --tasks NAME,... (or 'eval.lm_eval.tasks=[NAME,...]').")
    for spec in asked:
        if not isinstance(spec, str) and not (isinstance(spec, Mapping) and {"task", "group"} & set(spec)):
            raise UserError(f"eval.lm_eval.tasks: {spec!r} is neither a name nor a task config with a `task:` key.")
    return [spec if isinstance(spec, str) else dict(spec) for spec in asked]


def _manager(specs: Iterable[Any], include_path: str | None) -> Any:
    """The index of tasks. Reading the harness's own 14,000 takes seconds, so it is left out when none is asked for."""
    from lm_eval.tasks import TaskManager

    place = None if include_path is None else Path(include_path).expanduser()
    if place is not None and not place.is_dir():
        raise UserError(f"include_path {place} is not a directory; give the folder that holds your task YAML files.")
    local = TaskManager(include_path=place, include_defaults=False)
    waiting = list(specs)
    for spec in waiting:  # a group adds its members
        if isinstance(spec, str) and spec in local.all_groups:
            members = local.task_index[spec].cfg["task"]
            waiting += [member for member in members if member not in waiting]
        elif not _stands_alone(spec, local):
            return TaskManager(include_path=place)
    return local


def _stands_alone(spec: str | dict[str, Any], local: Any) -> bool:
    """Whether a task needs nothing from the harness's own. The file of a group may name any task."""
    if isinstance(spec, dict):
        return _complete(spec) or spec.get("task") in local.all_subtasks
    if spec in local.all_subtasks:
        return True
    path = Path(spec).expanduser()
    return path.is_file() and not re.search(r"^\W?group\b", path.read_text(encoding="utf-8"), re.MULTILINE)


def _complete(config: Mapping[str, Any]) -> bool:
    """A config written in place that says where its data is and how to ask is the whole task."""
    return "task" in config and "class" not in config and {"dataset_path", "doc_to_text"} <= set(config)


def _load(spec: str | dict[str, Any], manager: Any) -> list[Any]:
    """The objects of one spec: a task, a group, or the tasks of a tag or a pattern."""
    label = spec if isinstance(spec, str) else str(spec.get("task") or spec.get("group"))
    wanted: Any = [spec]
    if isinstance(spec, str) and spec not in manager.task_index:
        path = Path(spec).expanduser()
        wanted = [str(path)] if path.is_file() else manager.match_tasks([spec]) if "*" in spec else []
    elif isinstance(spec, dict) and "task" in spec and not _complete(spec):
        if spec["task"] in manager.task_index:
            wanted = [_over_known(spec)]
        elif "dataset_path" not in spec:
            wanted = []
    if not wanted:
        raise _unknown(label, manager.all_tasks)
    try:
        loaded = manager.load(wanted)
    except Exception as error:  # a task file can fail in any way: its data, its functions, its packages
        reraise_ours(error)
        raise _explain(label, error) from error
    return _outermost(loaded)


def _over_known(spec: Mapping[str, Any]) -> dict[str, Any]:
    """{task: gsm8k, num_fewshot: 2} means the harness's gsm8k with that changed, as it did in lm-eval 0.4.8.

    Today's harness lays changes over a known task only inside a group, so there is a group around it for a moment.
    """
    return {"group": WRAPPER, "task": [dict(spec)]}


def _outermost(loaded: Mapping[str, Any]) -> list[Any]:
    """Groups and tasks that are in no other group."""
    groups = {name: group for name, group in loaded["groups"].items() if name != WRAPPER}
    inside = {child for name in groups for child in loaded["group_map"].get(name, ())}
    found = {**groups, **loaded["tasks"]}
    return [item for name, item in found.items() if name not in inside]


def _unknown(name: str, known: Sequence[str]) -> UserError:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    guess = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UserError(
        f"Unknown task '{name}'.{guess} `lm-eval ls tasks` lists the harness's own; one of your own is named by the "
        "path of its YAML file, or found in --include-path DIR."
    )


_HUB = re.compile(r"\bhub\b|offline|huggingface\.co|connect(ion)?\b|max retries", re.IGNORECASE)


def _explain(name: str, error: Exception) -> UserError:
    said = error_sentence(error)
    if isinstance(error, ConnectionError) or _HUB.search(f"{type(error).__name__} {said}"):
        return UserError(
            f"The data of task '{name}' is on the hub and could not be fetched ({said.rstrip('.')}); go online once, "
            "or write a task YAML with local data_files."
        )
    return UserError(f"Task '{name}' could not be read: {type(error).__name__}: {said}")
