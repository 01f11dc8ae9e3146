"""One parse of a GGUF file for everyone who asks for it.

transformers parses the whole file for the tokenizer, again for the configuration and again for the weights, and each
time every string of the vocabulary becomes an array of its own: seconds, where the weights themselves take one. It also
builds the same table of tensor names again for every module of the model.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.models.reading import first_line

# The file parsed last (by name, and by what changes when it is written again), kept from the tokenizer to the weights.
_kept: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def parsed_once() -> Iterator[None]:
    """Until the block ends, transformers gets the parse there is, as long as the file is the same."""
    import gguf

    parse, names = gguf.GGUFReader, gguf.get_tensor_name_map

    def parsed(path: Any, mode: Any = "r") -> Any:
        return _parsed(Path(path), parse) if mode == "r" else parse(path, mode)

    gguf.GGUFReader = parsed  # type: ignore[assignment,misc]
    gguf.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = parse, names  # type: ignore[misc]


def forget_parsed() -> None:
    """Gives the memory back (150 MB for a vocabulary of 49,000 tokens): the weights are read, or will not be."""
    _kept.clear()


def _read(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return _parsed(path, GGUFReader)
    except Exception as error:  # whatever the parser makes of a file that is damaged
        reraise_ours(error)
        raise damaged(path, error) from None


def gguf_parameters(path: Path) -> int:
    """Weights in the file, whatever number of bits each takes there."""
    return sum(int(tensor.n_elements) for tensor in _read(path).tensors)


def gguf_context_length(path: Path) -> int | None:
    """How many tokens the model was made to read, as the file's metadata say."""
    fields = _read(path).fields
    architecture = _value(fields, "general.architecture")
    named = "" if architecture is None else bytes(architecture).decode("utf-8", "replace")
    length = _value(fields, f"{named}.context_length")
    return int(length[0]) if length is not None and length[0] > 0 else None


def damaged(path: Path, error: BaseException) -> UserError:
    return UserError(f"'{path}' is damaged, cut short, or of a kind transformers cannot read: {first_line(error)}")


def _parsed(path: Path, parse: Any) -> Any:
    stat = path.stat()
    key = (path.resolve(), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key not in _kept:
        _kept.clear()
        _kept[key] = parse(path)
    return _kept[key]


def _value(fields: Any, name: str) -> Any:
    field = fields.get(name)
    return None if field is None else field.parts[field.data[0]]
