"""RAGEN's pickled rollouts, read without running anything that is in them.

A pickle is a program: it may name any function and have it called. Here only plain containers can be built, and arrays
as lists: numpy's own functions for that crash on made-up arguments, so stand-ins take their place. Every other name
becomes an empty stand-in that accepts whatever is done to it, and names that only an attack would use are refused
outright. The tensors inside (a torch.save of their own) are not opened at all.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_ragen import ragen_history
from vestige.collapse.rollouts_rows import assistant_turns, checked_ids, messages_of
from vestige.data.chat import Ids
from vestige.errors import UserError, named, reraise_ours
from vestige.guard import read_bytes

_NUMPY_HOMES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMBERS = frozenset(f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)) - {"f1"} | {"b1"}
_SCALARS = (str, bytes, int, float, bool, type(None))
MOST_TURNS = 10_000  # of one trajectory that need not have reasoning
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


class Dtype:
    """What kind of number an array holds, as numpy spells it; no numpy object is made before it was checked."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = state[1]

    def numbers(self, data: Any) -> np.ndarray[Any, Any]:
        if not isinstance(self.name, str) or self.name not in _NUMBERS or not isinstance(data, bytes):
            raise ValueError(f"an array of {str(self.name)[:20]!r}")
        return np.frombuffer(data, dtype=np.dtype(self.order.replace("|", "<") + self.name))


class Column:
    """An array being unpickled: its items as a list, once it was told them."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, data = state
        self.items = _items(dtype, shape, data)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]


def _items(dtype: Any, shape: Any, data: Any) -> list[Any]:
    """Nested lists of a shape, from a list of objects or from bytes."""
    if not isinstance(dtype, Dtype) or not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise ValueError("an array without a shape and a type")
    flat = data if isinstance(data, list) else dtype.numbers(data)
    if len(shape) > 4 or any(n < 0 for n in shape) or math.prod(shape) != len(flat):
        raise ValueError(f"an array of shape {shape} with {len(flat)} items")
    if not isinstance(flat, list):
        return list(flat.reshape(shape).tolist()) if shape else [flat.tolist()[0]]
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat


def _scalar(dtype: Any, data: Any = None) -> Any:
    if isinstance(dtype, Dtype) and isinstance(data, bytes):
        return dtype.numbers(data).tolist()[0]
    return data


def _from_buffer(data: Any, dtype: Any, shape: Any, *_: Any) -> Column:
    made = Column()
    made.items = _items(
        dtype, shape, bytes(data) if isinstance(data, (bytes, bytearray, pickle.PickleBuffer)) else data
    )
    return made


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How old protocols spell bytes; no other codec is let in."""
    if encoding.lower().replace("-", "").replace("_", "") != "latin1" or not isinstance(text, str):
        raise _Hostile(f"the codec {encoding!r}")
    return text.encode("latin1")


def _plain_keys(keys: Iterable[Any]) -> list[Any]:
    """Only what can be hashed without going deep: tuples in tuples in tuples would exhaust the stack."""
    out = list(keys)
    for key in out:
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, _SCALARS) for part in parts):
            raise ValueError(f"a {type(key).__name__} as a key")
    return out


_BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "set"): lambda items=(): set(_plain_keys(items)),
    ("builtins", "frozenset"): lambda items=(): frozenset(_plain_keys(items)),
    ("builtins", "slice"): slice,
    ("builtins", "complex"): complex,
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): Dtype,
    ("numpy", "ndarray"): Column,
}
_ARRAY_BUILDERS: dict[str, Callable[..., Any]] = {
    "_reconstruct": lambda *_: Column(),
    "scalar": _scalar,
    "_frombuffer": _from_buffer,
}


class SafeUnpickler(pickle._Unpickler):
    """Builds containers and lists; everything else is Opaque.

    The unpickler written in Python, not the one in C: that one can be made to reserve any amount of memory.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        top = module.split(".")[0]
        if (module, name) == ("collections", "OrderedDict"):
            return lambda pairs=(): OrderedDict(
                zip(_plain_keys(k for k, _ in pairs), [v for _, v in pairs], strict=True)
            )
        found = _BUILDERS.get((module, name))
        if found is None and module in _NUMPY_HOMES:
            found = _ARRAY_BUILDERS.get(name)
        if isinstance(found, type):
            return type(found.__name__, (found,), {}) if found in (Dtype, Column) else found
        if found is not None:
            return _fresh(found)
        if top in _HOSTILE or "." in name or top == "numpy":
            raise _Hostile(f"{module}.{name}")
        return type("Opaque", (Opaque,), {"name": f"{module}.{name}"})

    def get_extension(self, code: int) -> Any:
        raise pickle.UnpicklingError("an extension code")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent ids")


def _fresh(found: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this file's own: a pickle may set attributes on what it is given."""
    return lambda *args: found(*args)


def _checked(load: Callable[[Any], None], keys: Callable[[Any], Iterable[Any]]) -> Callable[[Any], None]:
    """An instruction that hashes, after a look at what it would hash."""

    def run(self: Any) -> None:
        _plain_keys(keys(self))
        load(self)

    return run


_HASHING: dict[bytes, Callable[[Any], Iterable[Any]]] = {
    pickle.SETITEM: lambda u: u.stack[-2:-1],
    pickle.SETITEMS: lambda u: u.stack[::2],
    pickle.DICT: lambda u: u.stack[::2],
    pickle.ADDITEMS: lambda u: u.stack,
    pickle.FROZENSET: lambda u: u.stack,
}
for _code, _keys in _HASHING.items():
    SafeUnpickler.dispatch[_code[0]] = _checked(SafeUnpickler.dispatch[_code[0]], _keys)


def _bytearray(unpickler: Any) -> None:
    """The library reserves as many bytes as a file claims to hold before it reads any; this reads what is there."""
    length = int.from_bytes(unpickler.read(8), "little")
    found = unpickler.read(min(length, sys.maxsize))
    if len(found) < length:
        raise pickle.UnpicklingError("pickle data was truncated")
    unpickler.append(bytearray(found))


SafeUnpickler.dispatch[pickle.BYTEARRAY8[0]] = _bytearray


def safe_load(path: Path) -> Any:
    """What a pickle holds, containers and arrays only."""
    try:
        return SafeUnpickler(io.BytesIO(read_bytes(path))).load()
    except _Hostile as error:
        raise UserError(
            f"{path} asks for {error}, which has no place in rollouts; nothing of it was run. Do not open this file."
        ) from None
    except Exception as error:  # a pickle is a program that calls what is above, with whatever arguments it likes
        reraise_ours(error, "pickle", __name__)
        raise UserError(f"{path} cannot be read as a pickle ({named(error)}).") from None


def ragen_pickle(path: Path) -> list[Rollout]:
    """The turns of a pickled DataProto: token ids where its detector left them, else messages, else histories."""
    return _rollouts(_columns(_non_tensor(safe_load(path), path), path), path)


_CELLS = ("history", "messages_list")  # each row holds a list
_TURNS = ("all_turns_prompt_ids", "all_turns_reasoning_ids")  # each row holds a list of lists of token ids
_FIRST = ("first_turn_prompt_ids", "first_turn_reasoning_ids")  # each row holds a list of token ids


def _columns(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The table with every column that is read as a list, and each of its cells as what it should be."""
    out = dict(table)
    for prompts, reasonings in (_TURNS, _FIRST):
        if prompts in table and reasonings not in table:
            raise UserError(f"{path} has {prompts} without {reasonings}; write it again.")
    for name in (*_CELLS, *_TURNS, *_FIRST, "env_ids", "group_ids", "turn_counts_total"):
        if name not in table:
            continue
        column = _listed(table[name])
        if column is not None and name in (*_CELLS, *_TURNS, *_FIRST):
            column = None if any(_listed(cell) is None for cell in column) else [_listed(cell) for cell in column]
        if column is not None and name in _TURNS:
            column = [[_listed(part) for part in cell or ()] for cell in column]
            column = None if any(part is None for cell in column for part in cell) else column
        if column is None or (name == "turn_counts_total" and not all(_is_count(c) for c in column)):
            raise UserError(f"{path}: the column {name} does not have the form it should; write it again.")
        out[name] = column
    return out


def _listed(value: Any) -> list[Any] | None:
    if isinstance(value, Column):
        return list(value.items)
    return list(value) if isinstance(value, (list, tuple)) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 2**31


def _rollouts(table: Mapping[str, Any], path: Path) -> list[Rollout]:
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
    raise UserError(
        f"{path} holds neither token ids, messages nor histories; it has {', '.join(sorted(map(str, table)))}."
    )


def _non_tensor(found: Any, path: Path) -> Mapping[str, Any]:
    """The dictionary of per-trajectory arrays of a DataProto, however it was stored."""
    state = found.state if isinstance(found, Opaque) else found
    candidates = list(state) if isinstance(state, (tuple, list)) else [state]
    if isinstance(state, Mapping):
        candidates = [state.get("non_tensor_batch"), state]
    for part in candidates:
        if isinstance(part, Mapping) and {"group_ids", "env_ids", "history", "messages_list"} & {
            k for k in part if isinstance(k, str)
        }:
            return part
    raise UserError(f"{path} is not a RAGEN rollout: it has no group_ids, messages or histories; give its own file.")


def _length(table: Mapping[str, Any], path: Path) -> int:
    sizes = {len(v) for v in table.values() if hasattr(v, "__len__") and not isinstance(v, str)}
    if len(sizes) != 1:
        raise UserError(
            f"{path}: its columns have different lengths ({', '.join(map(str, sorted(sizes)))}); write it again."
        )
    return int(sizes.pop())


def _names(table: Mapping[str, Any], i: int) -> dict[str, Any]:
    out: dict[str, Any] = {"env_id": str(table["env_ids"][i]) if "env_ids" in table else f"row {i}"}
    return out | ({"group_id": str(table["group_ids"][i])} if "group_ids" in table else {})


def _ids(values: Iterable[Any], where: str) -> Ids:
    try:
        ids = tuple(int(v) for v in values)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: token ids must be whole numbers.") from None
    return checked_ids(ids, "a list of tokens", where)


def _from_ids(table: Mapping[str, Any], i: int, source: str) -> list[Rollout]:
    """Turns with reasoning as they stand; turns without it as places that say so."""
    where = f"{source} row {i + 1}"
    names = _names(table, i)
    base = {"trajectory": names["env_id"], "group": names.get("group_id"), "where": where}
    pairs: list[tuple[Ids, Ids]] = []
    if "all_turns_prompt_ids" in table:
        both = list(zip(table["all_turns_prompt_ids"][i], table["all_turns_reasoning_ids"][i], strict=False))
        if len(both) != max(len(table[name][i]) for name in _TURNS):
            raise UserError(f"{where}: it has not as many reasonings as prompts; write it again.")
        pairs = [(_ids(x, where), _ids(z, where)) for x, z in both]
    if "first_turn_prompt_ids" in table:
        x, z = _ids(table["first_turn_prompt_ids"][i], where), _ids(table["first_turn_reasoning_ids"][i], where)
        if not z or not pairs:
            pairs.insert(0, (x, z))
    total = int(table["turn_counts_total"][i]) if "turn_counts_total" in table else len(pairs)
    if total > len(pairs) + MOST_TURNS:
        raise UserError(f"{where}: turn_counts_total is {total}, but there are {len(pairs)} turns.")
    first = 0 if "first_turn_prompt_ids" in table else 1
    out = [Rollout(turn=first + n, prompt_ids=x, reasoning_ids=z, **base) for n, (x, z) in enumerate(pairs)]
    missing = range(len(pairs), total)
    return out + [Rollout(turn=first + n, prompt_ids=(), reasoning_ids=(), **base) for n in missing]


def _from_messages(table: Mapping[str, Any], i: int, source: str) -> list[Rollout]:
    where = f"{source} row {i + 1}"
    names = _names(table, i)
    base = Rollout(trajectory=names["env_id"], group=names.get("group_id"), where=where)
    return assistant_turns(messages_of(list(table["messages_list"][i]), where), base)
