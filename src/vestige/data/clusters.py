"""Which rows of a data set belong together: questions about one author, chunks of one document.

A column says so: the one that was asked for, else `author` or `document` where the rows have it. TOFU's own files ask
twenty questions per author, in order; of these only complete ones are read that way, because what was left out of a
filtered one is not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vestige.errors import UserError
from vestige.types import Grouping, Rows, content_key

AUTO, NONE = "auto", "none"  # in place of a column
COLUMNS = ("author", "document")
PER_AUTHOR = 20
# Rows of TOFU's files, by their names on the hub and in open-unlearning's copy of them.
COMPLETE = {
    "full": 4000, "forget01": 40, "forget05": 200, "forget10": 400, "retain90": 3600, "retain95": 3800,
    "retain99": 3960, "holdout01": 40, "holdout05": 200, "holdout10": 400, "retain_perturbed": 400,
    "forget01_perturbed": 40, "forget05_perturbed": 200, "forget10_perturbed": 400,
}  # fmt: skip


def grouping(
    rows: Sequence[Mapping[str, Any]], hf_args: Mapping[str, Any], column: str = AUTO, source: str = ""
) -> Grouping | None:
    """The cluster of each row. Rows without a value in the column are clusters by themselves.

    >>> grouping([{"author": "A"}, {"author": "A"}, {"author": "B"}], {}).of
    {'0': 'A', '1': 'A', '2': 'B'}
    """
    if column == NONE:
        return None
    for name in COLUMNS if column == AUTO else (column,):
        found = {}
        for i, row in enumerate(rows):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
                raise UserError(
                    f"{source} row {i} (counting from 0): '{name}' must be text or a whole number to name a cluster, "
                    f"it is {type(value).__name__}; name another column with --cluster, or none."
                )
            if value is not None:
                found[str(i)] = str(value)
        if found and len(set(found.values())) < len(found):
            return Grouping(name, found)
    name = str(hf_args.get("name") or "")
    if column != AUTO or COMPLETE.get(name) != len(rows):
        return None
    split = name.removesuffix("_perturbed")  # the same authors, in the same order
    return Grouping(f"every {PER_AUTHOR} rows", {str(i): f"{split} {i // PER_AUTHOR}" for i in range(len(rows))})


def with_clusters(found: Rows, rows: Sequence[Mapping[str, Any]], hf_args: Mapping[str, Any], column: str) -> Rows:
    """The data set with the cluster of each row. Chunks of joined texts are not rows, and have none."""
    by_place = grouping(rows, hf_args, column, found.source) if len(found) == len(rows) else None
    if by_place is None:
        return replace(found, clusters=None)
    of = {found.examples[int(i)][0].index: cluster for i, cluster in by_place.of.items()}
    return replace(found, clusters=Grouping(by_place.by, of))


def rows_fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
    """What tells two data sets apart: a digest of all their columns."""
    return content_key(json.dumps(rows, sort_keys=True, default=str, ensure_ascii=False).encode())


def check_column(column: str, data: Sequence[Rows]) -> None:
    """A column that was asked for and that no data set has is a mistake, and must not pass in silence."""
    if column not in (AUTO, NONE) and data and not any(rows.clusters for rows in data):
        raise no_such_column(column, sorted({rows.source for rows in data}))


def no_such_column(column: str, sources: Sequence[str]) -> UserError:
    return UserError(
        f"--cluster {column}: in none of these files do rows share a value of such a column: {', '.join(sources)}; "
        "name a column of theirs, or leave --cluster out."
    )
