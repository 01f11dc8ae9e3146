"""RAGEN's pickled rollouts, read without running anything that is in them.

A pickle is a program: it may name any function and have it called. Here only plain containers and numpy arrays can be
built. Every other name becomes an empty stand-in that accepts whatever is done to it, and names that only an attack
would use are refused outright. The tensors inside (a torch.save of their own) are not opened at all.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vestige.data.chat import Ids
from vestige.data.reasoning import Rollout
from vestige.errors import UserError
from vestige.integrations.rollouts_ragen import ragen_history
from vestige.integrations.rollouts_rows import assistant_turns, messages_of

_BUILTINS = {"set": set, "frozenset": frozenset, "slice": slice, "complex": complex}
_NUMPY_FUNCTIONS = {"_reconstruct", "scalar", "_frombuffer"}
# Nothing that stores rollouts has a use for these.
_HOSTILE = {
    "os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "runpy", "importlib", "pty", "ctypes", "code",
    "codeop", "webbrowser", "builtins", "__builtin__", "commands", "platform", "pickle", "_pickle", "marshal", "types",
    "functools", "operator", "inspect", "signal", "threading", "multiprocessing", "asyncio", "tempfile", "pathlib",
    "urllib", "http", "requests", "pydoc", "timeit", "cProfile", "profile", "pdb", "bdb", "trace", "distutils", "pip",
    "setuptools", "site", "gc",
}  # fmt: skip


class _Hostile(Exception):  # noqa: N818 - named for what it found
    pass


class Opaque:
    """Stands for an object of a class we do not load; keeps what it was given and does nothing."""

    state: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How old protocols spell bytes; no other codec is let in."""
    if encoding.lower().replace("-", "").replace("_", "") != "latin1" or not isinstance(text, str):
        raise _Hostile(f"the codec {encoding!r}")
    return text.encode("latin1")


class SafeUnpickler(pickle.Unpickler):
    """Builds containers and numpy arrays; everything else is Opaque."""

    def find_class(self, module: str, name: str) -> Any:
        top = module.split(".")[0]
        if module == "builtins" and name in _BUILTINS:
            return _BUILTINS[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module in _NUMPY_HOMES and name in _NUMPY_FUNCTIONS:
            return getattr(_NUMPY_HOMES[module], name)
        if top in _HOSTILE or "." in name or top == "numpy":
            raise _Hostile(f"{module}.{name}")
        return type("Opaque", (Opaque,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent ids")


def _numpy_homes() -> dict[str, Any]:
    """Where numpy keeps its reconstruction functions, by the names old and new files use."""
    from numpy._core import multiarray, numeric

    return {
        "numpy.core.multiarray": multiarray,
        "numpy._core.multiarray": multiarray,
        "numpy.core.numeric": numeric,
        "numpy._core.numeric": numeric,
    }


_NUMPY_HOMES = _numpy_homes()


def safe_load(path: Path) -> Any:
    """What a pickle holds, containers and arrays only."""
    try:
        return SafeUnpickler(io.BytesIO(path.read_bytes())).load()
    except _Hostile as error:
        raise UserError(
            f"{path} asks for {error}, which has no place in rollouts; nothing of it was run. Do not open this file."
        ) from None
    except Exception as error:  # a pickle can be broken in any way
        words = str(error).splitlines()[0] if str(error) else ""
        raise UserError(f"{path} cannot be read as a pickle ({type(error).__name__}: {words}).") from None


def ragen_pickle(path: Path) -> list[Rollout]:
    """The turns of a pickled DataProto: token ids where its detector left them, else messages, else histories."""
    table = _non_tensor(safe_load(path), path)
    rows = _length(table, path)
    if "first_turn_prompt_ids" in table or "all_turns_prompt_ids" in table:
        return [r for i in range(rows) for r in _from_ids(table, i, str(path))]
    if "messages_list" in table:
        return [r for i in range(rows) for r in _from_messages(table, i, str(path))]
    if "history" in table:
        made = []
        for i in range(rows):
            row = {"history": list(table["history"][i]), **_names(table, i)}
            made += ragen_history(row, f"{path} row {i + 1}", i)
        return made
    raise UserError(f"{path} holds neither token ids, messages nor histories; it has {', '.join(sorted(table))}.")


def _non_tensor(found: Any, path: Path) -> Mapping[str, Any]:
    """The dictionary of per-trajectory arrays of a DataProto, however it was stored."""
    state = found.state if isinstance(found, Opaque) else found
    candidates = list(state) if isinstance(state, (tuple, list)) else [state]
    if isinstance(state, Mapping):
        candidates = [state.get("non_tensor_batch"), state]
    for part in candidates:
        if isinstance(part, Mapping) and {"group_ids", "env_ids", "history", "messages_list"} & set(part):
            return part
    raise UserError(f"{path} is not a RAGEN rollout: there are no group_ids, messages or histories in it.")


def _length(table: Mapping[str, Any], path: Path) -> int:
    sizes = {len(v) for v in table.values() if hasattr(v, "__len__") and not isinstance(v, str)}
    if len(sizes) != 1:
        raise UserError(f"{path}: its columns have different lengths ({', '.join(map(str, sorted(sizes)))}).")
    return int(sizes.pop())


def _names(table: Mapping[str, Any], i: int) -> dict[str, Any]:
    out: dict[str, Any] = {"env_id": str(table["env_ids"][i]) if "env_ids" in table else f"row {i}"}
    return out | ({"group_id": str(table["group_ids"][i])} if "group_ids" in table else {})


def _ids(values: Iterable[Any], where: str) -> Ids:
    try:
        return tuple(int(v) for v in values)
    except (TypeError, ValueError):
        raise UserError(f"{where}: token ids must be whole numbers.") from None


def _from_ids(table: Mapping[str, Any], i: int, source: str) -> list[Rollout]:
    """Turns with reasoning as they stand; turns without it as places that say so."""
    where = f"{source} row {i + 1}"
    names = _names(table, i)
    base = {"trajectory": names["env_id"], "group": names.get("group_id"), "where": where}
    pairs: list[tuple[Ids, Ids]] = []
    if "all_turns_prompt_ids" in table:
        both = zip(table["all_turns_prompt_ids"][i], table["all_turns_reasoning_ids"][i], strict=True)
        pairs = [(_ids(x, where), _ids(z, where)) for x, z in both]
    if "first_turn_prompt_ids" in table:
        x, z = _ids(table["first_turn_prompt_ids"][i], where), _ids(table["first_turn_reasoning_ids"][i], where)
        if not z or not pairs:
            pairs.insert(0, (x, z))
    total = int(table["turn_counts_total"][i]) if "turn_counts_total" in table else len(pairs)
    first = 0 if "first_turn_prompt_ids" in table else 1
    out = [Rollout(turn=first + n, prompt_ids=x, reasoning_ids=z, **base) for n, (x, z) in enumerate(pairs)]
    missing = range(len(pairs), total)
    return out + [Rollout(turn=first + n, prompt_ids=(), reasoning_ids=(), **base) for n in missing]


def _from_messages(table: Mapping[str, Any], i: int, source: str) -> list[Rollout]:
    where = f"{source} row {i + 1}"
    names = _names(table, i)
    base = Rollout(trajectory=names["env_id"], group=names.get("group_id"), where=where)
    return assistant_turns(messages_of(list(table["messages_list"][i]), where), base)
