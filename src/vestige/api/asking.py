"""What the public functions share: keywords checked by name, models and rows in memory, a place for files.

In: what a user gave. Out: paths and plain values for the rooms. Callers: the other files of this room.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from vestige.data.rows import GivenRows, as_given
from vestige.errors import UserError, did_you_mean
from vestige.given import ModelGiven, Place, RowTables, TokenizerLike
from vestige.models.load import LoadedModel
from vestige.writing import temporary

P = ParamSpec("P")
R = TypeVar("R")
IN_MEMORY = "in-memory"


def keywords_checked(function: Callable[P, R]) -> Callable[P, R]:
    """A misspelt keyword is a UserError with the nearest name, as a misspelt flag is (Python's own TypeError has none
    before version 3.13)."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                called = function.__name__
                raise UserError(
                    f"{called}() has no keyword '{name}'.{did_you_mean(name, names)} help(vestige.{called}) lists them."
                )
        return function(*args, **kwargs)

    return call


def as_text(value: Any) -> Any:
    """Paths, devices and number types as the text that the command line would have; other values as they are.

    >>> as_text(Path("a") / "b"), as_text(["c", Path("d")]), as_text(None), as_text(3)
    ('a/b', ['c', 'd'], None, 3)
    """
    if isinstance(value, (list, tuple)):
        return [as_text(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "torch":  # torch.bfloat16, torch.device("cpu")
        return str(value).removeprefix("torch.")
    return value


def as_path(function: str, name: str, model: object) -> str:
    """A checkpoint by its path. Models in memory are for `evaluate` and `measure_collapse`."""
    if not isinstance(model, (str, Path)):
        raise UserError(
            f"{function}() takes paths or hub ids, and {name} is a {type(model).__name__}; save the model first "
            "(model.save_pretrained(DIR), tokenizer.save_pretrained(DIR))."
        )
    return str(model)


def load_all_plugins(plugins: Place | Sequence[Place]) -> list[str]:
    """Installed plug-ins, and the files that `plugins` names: one, or a list."""
    from vestige.integrations.plugins import load_plugins

    files = [str(file) for file in ([plugins] if isinstance(plugins, (str, Path)) else plugins)]
    load_plugins(files)
    return files


def listed(names: str | Sequence[str] | None) -> list[str] | None:
    """Metrics from a list, or from text with commas.

    >>> listed("a, b"), listed(("c",)), listed(None)
    (['a', 'b'], ['c'], None)
    """
    if names is None:
        return None
    return [n.strip() for n in names.split(",") if n.strip()] if isinstance(names, str) else list(names)


# ---- rows -------------------------------------------------------------------------------------------------------


def rows_or_folder(data: Place | RowTables | None) -> tuple[str | None, GivenRows | None]:
    """What the rooms take for `data`, and rows in memory, which live as long as the caller holds them."""
    given = as_given(data)
    return (None if data is None else str(data)) if given is None else given.path, given


@contextmanager
def folder_of(data: Place | RowTables) -> Iterator[Place]:
    """A folder of files for what copies and divides them: an attack teaches some rows and measures others."""
    given = as_given(data)
    if given is None:
        assert isinstance(data, (str, Path))
        yield data
        return
    with temporary() as scratch:
        bodies = {}
        for name, rows in given.tables.items():
            lines = [json.dumps(row, default=str, ensure_ascii=False) for row in rows]
            bodies[f"{name}.jsonl"] = "\n".join([*lines, ""]).encode()
        write_files(bodies, scratch / "rows")
        yield scratch / "rows"


# ---- models -----------------------------------------------------------------------------------------------------


@dataclass
class ModelSubject:
    """A model as the rooms take it: by its path, or loaded already."""

    path: str
    adapter_base: str | None = None  # where it is not what the adapter's own configuration names
    tokenizer: str | None = None
    load: Callable[[], LoadedModel] | None = None  # of a model in memory; fingerprints take time, so not before asked


@contextmanager
def subject(function: str, model: ModelGiven, tokenizer: TokenizerLike | Place | None) -> Iterator[ModelSubject]:
    """The model to be measured. Afterwards it is as it was: modes, gradients, settings, and without our adapter."""
    from vestige.integrations.undisturbed import attached_for_now, undisturbed
    from vestige.models.load import wrap_model

    base, adapter = model if isinstance(model, tuple) else (model, None)
    if isinstance(model, tuple) and not isinstance(adapter, (str, Path)):
        raise UserError(
            f"A pair is (base, adapter), the adapter as a path or hub id; it is a {type(adapter).__name__}. "
            "A PeftModel holds its base already: give it alone."
        )
    if isinstance(base, (str, Path)):
        words = None if tokenizer is None else as_path(function, "tokenizer", tokenizer)
        with undisturbed():
            yield ModelSubject(str(adapter or base), str(base) if adapter else None, words)
        return
    if not callable(getattr(base, "parameters", None)):
        raise UserError(f"{function}() takes a path, a hub id or a model of torch, not {type(base).__name__}.")
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        raise UserError(f"A model in memory needs its tokenizer: {function}(model, ..., tokenizer=tokenizer).")
    with undisturbed(base), ExitStack() as stack:
        held = base if adapter is None else stack.enter_context(attached_for_now(base, str(adapter)))
        yield ModelSubject(IN_MEMORY, load=lambda: wrap_model(held, tokenizer))


# ---- places -----------------------------------------------------------------------------------------------------


@contextmanager
def place_for(out: Place | None, name: str = "run") -> Iterator[Path]:
    """Where files go: what the user named, or a folder that is gone afterwards."""
    if out is not None:
        yield Path(out).expanduser()
        return
    with temporary() as scratch:
        yield scratch / name


def files_in(place: Path) -> dict[str, bytes]:
    """Everything below a folder, by relative name."""
    return {p.relative_to(place).as_posix(): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


def write_files(files: Mapping[str, bytes], place: Path) -> None:
    """The reverse, into a folder that is not there yet or is empty."""
    from vestige.writing import create_bytes

    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} is there already and not empty; give a folder that is not there yet.")
    for name, body in files.items():
        create_bytes(place / name, body)
