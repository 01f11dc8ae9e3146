"""Models, tokenizers and rows that Python users have in memory, and folders for results that are not kept.

The types are protocols, so that a type checker knows them whether or not it has types of torch, transformers, datasets
or pandas. The functions turn what a user passed into what the packages take: paths, plain values, a loaded model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vestige.errors import UserError

if TYPE_CHECKING:  # they import torch
    from vestige.data.rows import GivenRows
    from vestige.models.load import LoadedModel

Place = str | Path


class TorchModel(Protocol):
    """A model in memory: any `torch.nn.Module`."""

    training: bool

    def eval(self) -> object: ...

    def parameters(self, recurse: bool = True) -> Iterator[object]: ...


class TokenizerLike(Protocol):
    """A tokenizer of transformers."""

    def __len__(self) -> int: ...

    def get_vocab(self) -> dict[str, int]: ...


class AcceleratorLike(Protocol):
    """An `accelerate.Accelerator`."""

    @property
    def num_processes(self) -> int: ...

    @property
    def is_main_process(self) -> bool: ...


class DatasetLike(Protocol):
    """A `datasets.Dataset` (or an iterable one)."""

    @property
    def column_names(self) -> list[str] | None: ...

    def __iter__(self) -> Iterator[object]: ...


class FrameLike(Protocol):
    """A `pandas.DataFrame`."""

    @property
    def columns(self) -> object: ...

    def __len__(self) -> int: ...


RowsInMemory = DatasetLike | FrameLike | Sequence[Mapping[str, object]]


class RowTables(Protocol):
    """A mapping from the name of a file of rows ("forget") to its rows; a `datasets.DatasetDict` is one."""

    def items(self) -> Iterable[tuple[object, RowsInMemory]]: ...


# A checkpoint by its path or hub id, a model in memory, or an adapter on its base: (base, adapter).
ModelGiven = Place | TorchModel | tuple[Place | TorchModel, Place]


# ---- plain values ----------------------------------------------------------------------------------------------------


def as_text(value: Any) -> Any:
    """Paths, devices and number types as the text that the command line would have; other values as they are.

    >>> as_text(Path("a") / "b"), as_text(["c", Path("d")]), as_text(None), as_text(3)
    ('a/b', ['c', 'd'], None, 3)
    """
    if isinstance(value, (list, tuple)):
        return [as_text(one) for one in value]
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


def name_list(names: str | Sequence[str] | None) -> list[str] | None:
    """Names from a list, or from text with commas.

    >>> name_list("a, b"), name_list(("c",)), name_list(None)
    (['a', 'b'], ['c'], None)
    """
    if names is None:
        return None
    if isinstance(names, str):
        return [name.strip() for name in names.split(",") if name.strip()]
    return list(names)


def load_plugin_files(plugins: Place | Sequence[Place]) -> list[str]:
    """Loads installed plug-ins and the files that `plugins` names (one, or a list); returns the files."""
    from vestige.integrations.plugins import load_plugins

    several = [plugins] if isinstance(plugins, (str, Path)) else plugins
    files = [str(file) for file in several]
    load_plugins(files)
    return files


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_or_folder(data: Place | RowTables | None) -> tuple[str | None, GivenRows | None]:
    """The path that stands for `data`, and rows in memory, which live as long as the caller holds them."""
    from vestige.data.rows import as_given

    held = as_given(data)
    if held is not None:
        return held.path, held
    return None if data is None else str(data), None


@contextmanager
def rows_as_folder(data: Place | RowTables) -> Iterator[Place]:
    """A folder of files: an attack copies rows and divides them between teaching and measuring."""
    from vestige.data.rows import as_given
    from vestige.runs.directory import temporary

    held = as_given(data)
    if held is None:
        assert isinstance(data, (str, Path))
        yield data
        return
    with temporary() as scratch:
        files = {}
        for name, rows in held.tables.items():
            lines = [json.dumps(row, default=str, ensure_ascii=False) for row in rows]
            files[f"{name}.jsonl"] = "\n".join([*lines, ""]).encode()
        write_files(files, scratch / "rows")
        yield scratch / "rows"


def forget_rows(data: Any) -> GivenRows | None:
    """Forget rows in memory: a table, or a mapping with a table called "forget". None for the path of a file."""
    from vestige.data.rows import as_given

    if isinstance(data, (str, Path)) or data is None:
        return None
    is_mapping = hasattr(data, "items") and not hasattr(data, "columns")
    return as_given(data if is_mapping else {"forget": data})


# ---- models ----------------------------------------------------------------------------------------------------------


@dataclass
class ModelSubject:
    """The model to be measured: by its path, or loaded already."""

    path: str
    adapter_base: str | None = None  # where it is not what the adapter's own configuration names
    tokenizer: str | None = None
    load: Callable[[], LoadedModel] | None = None  # wraps a model in memory; computing its fingerprint takes time


@contextmanager
def model_subject(function: str, model: ModelGiven, tokenizer: TokenizerLike | Place | None) -> Iterator[ModelSubject]:
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
        own = None if tokenizer is None else as_path(function, "tokenizer", tokenizer)
        with undisturbed():
            yield ModelSubject(str(adapter or base), str(base) if adapter else None, own)
        return
    if not callable(getattr(base, "parameters", None)):
        raise UserError(f"{function}() takes a path, a hub id or a model of torch, not {type(base).__name__}.")
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        raise UserError(f"A model in memory needs its tokenizer: {function}(model, ..., tokenizer=tokenizer).")
    with undisturbed(base), ExitStack() as stack:
        held = base if adapter is None else stack.enter_context(attached_for_now(base, str(adapter)))
        yield ModelSubject("in-memory", load=lambda: wrap_model(held, tokenizer))


# ---- results that are not kept ---------------------------------------------------------------------------------------


@contextmanager
def place_for(out: Place | None, name: str = "run") -> Iterator[Path]:
    """The directory for results: what the user named, or a temporary one."""
    from vestige.runs.directory import temporary

    if out is not None:
        yield Path(out).expanduser()
        return
    with temporary() as scratch:
        yield scratch / name


def read_files(directory: Path) -> dict[str, bytes]:
    """The content of every file below a directory, by relative path."""
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            files[path.relative_to(directory).as_posix()] = path.read_bytes()
    return files


def write_files(files: Mapping[str, bytes], directory: Path) -> None:
    """The reverse of `read_files`, into a directory that does not exist yet or is empty."""
    from vestige.io import write_file

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is there already and not empty; give a folder that is not there yet.")
    for name, body in files.items():
        write_file(directory / name, body)
