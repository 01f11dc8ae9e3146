"""Rows that are in memory already: data sets of `datasets`, frames of pandas, lists of dictionaries.

    {"forget": Dataset, "retain": DataFrame} --GivenRows--> "memory:KEY", a path that load_rows understands

In: objects. Out: plain rows, named by their content: other rows, another path, other fingerprints. Callers: the rooms
api and unlearn make them, data/rows.py and engine/flags.py read them. They are forgotten with the object that holds
them, and nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from vestige.data.clusters import rows_fingerprint
from vestige.data.rows import GIVEN, Row
from vestige.errors import UserError, unknown_name

if TYPE_CHECKING:  # protocols, for signatures only
    from vestige.given import Place, RowsInMemory, RowTables


class GivenRows:
    """Tables of rows by the names that files would have. Keep it as long as its path is in use."""

    def __init__(self, tables: RowTables) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.kinds: dict[str, str] = {}
        for name, rows in tables.items():
            self.tables[str(name)] = plain_rows(rows, str(name))
            self.kinds[str(name)] = type(rows).__name__
        if not self.tables:
            raise UserError('data is an empty mapping; give at least {"forget": rows}.')
        self.path = f"{GIVEN}{rows_fingerprint([self.tables])}"
        _HELD[self.path] = self

    def check_names(self, known: Iterable[str]) -> None:
        """A misspelt name would silently leave metrics out."""
        names = list(dict.fromkeys(known))
        for name in self.tables:
            if name not in names:
                raise unknown_name("rows", name, names, "(data maps these names to rows)")

    def read(self, name: str) -> tuple[list[Row], str]:
        """One table, and where it comes from, for people."""
        rows = self.tables[name]
        return [dict(row) for row in rows], f"{name} ({self.kinds[name]} in memory, {len(rows)} rows)"


_HELD: WeakValueDictionary[str, GivenRows] = WeakValueDictionary()


def given_rows(path: str) -> GivenRows:
    """The rows behind a path of ours."""
    found = _HELD.get(path)
    if found is None:
        raise UserError(
            "The rows of this run were objects in Python, which are not kept; give them again (data=...), or write "
            "them to files for what reads rows a second time."
        )
    return found


def as_given(data: Place | RowTables | None) -> GivenRows | None:
    """Rows in memory, if that is what `data` is."""
    if data is None or isinstance(data, (str, bytes)) or hasattr(data, "__fspath__"):
        return None
    if not hasattr(data, "items") or hasattr(data, "columns"):
        raise UserError(
            f"data is a {type(data).__name__}; give a folder, or say which rows it holds: "
            'data={"forget": rows, "retain": others}.'
        )
    return GivenRows(data)


def plain_rows(rows: RowsInMemory, name: str) -> list[Row]:
    """Rows as dictionaries of plain values, whatever holds them."""
    found: Any = rows
    if isinstance(found, Mapping):
        splits = ", ".join(map(str, found))
        raise UserError(f"'{name}' is a mapping ({splits}), not rows; give one of its parts.")
    if hasattr(found, "to_dict") and hasattr(found, "columns"):  # a frame of pandas
        found = found.to_dict("records")
    elif hasattr(found, "with_format") and hasattr(found, "column_names"):  # of datasets: not as tensors
        found = found.with_format(None)
    try:
        listed = list(found)
    except TypeError:
        raise UserError(f"'{name}' is a {type(rows).__name__}, not rows; give a data set or a list.") from None
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise UserError(f"'{name}' row {number} is not a dictionary with named fields but {type(row).__name__}.")
    if not listed:
        raise UserError(f"'{name}' holds no rows; give at least one.")
    return [{str(key): plain_value(value) for key, value in row.items()} for row in listed]


def plain_value(value: Any) -> Any:
    """As JSON would have it: no numpy types, and None where pandas says that a cell is empty.

    >>> import numpy as np
    >>> plain_value({"a": np.float32(0.5), "b": [np.int64(2)], "c": float("nan"), "d": np.array(["x", "y"])})
    {'a': 0.5, 'b': [2], 'c': None, 'd': ['x', 'y']}
    """
    if isinstance(value, Mapping):
        return {str(k): plain_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(v) for v in value]
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):  # of numpy
        return plain_value(value.tolist())
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
