"""What Python users hand over, as types: places, models, tokenizers and rows in memory. No library is needed for them.

In: nothing. Out: names for signatures of the public functions. Callers: api and unlearn. They are protocols, so
that a type checker knows them whether or not it has types of torch, transformers, datasets or pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

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
