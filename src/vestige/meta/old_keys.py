"""The depth score's former name in published files is udr for uds: both are read, a mixture of both is found out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = object()
RENAMED = {"avg_udr": "avg_uds", "udr": "uds", "udr_unclipped": "uds_unclipped"}


def modern(data: Any) -> Any:
    """The same data under today's keys. Where both are there, today's key wins.

    >>> modern({"avg_udr": 0.5, "rows": [{"udr": 1}, {"udr": 2, "uds": 3}]})
    {'avg_uds': 0.5, 'rows': [{'uds': 1}, {'uds': 3}]}
    """
    if isinstance(data, Mapping):
        kept = {k: v for k, v in data.items() if RENAMED.get(k) not in data}
        return {RENAMED.get(k, k): modern(v) for k, v in kept.items()}
    return [modern(v) for v in data] if isinstance(data, list) else data


def ages(data: Any) -> set[str]:
    """Which names some data uses: old, new, both or neither.

    Published summaries write one value under both names: that is today's name with an alias, not a mixture.

    >>> sorted(ages({"udr": 1, "more": [{"avg_uds": 2}]})), ages({"avg_udr": 0.5, "avg_uds": 0.5})
    (['new', 'old'], {'new'})
    """
    return set(_ages(data))


def _ages(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key in RENAMED and data.get(RENAMED[key], _ABSENT) == value:
                continue
            if key in RENAMED:
                yield "old"
            elif key in RENAMED.values():
                yield "new"
            yield from _ages(value)
    elif isinstance(data, list):
        for value in data:
            yield from _ages(value)
