"""What `vestige verify` finds when the numbers of a run are computed again: results compared value by value.

Comes in: what evidence gives and what a file says. Goes out: Findings. Called by the kinds of runs (kind.py of a room).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 1e-9  # relative: another machine may add up in another order


@dataclass(frozen=True)
class Finding:
    """One comparison: how many values, and what is wrong, if anything is."""

    compared: int = 0
    words: str = ""
    note: bool = False  # something that could not be looked at
    check: bool = False  # what was looked at, where files alone do not say


def compared(file: Path, expected: Any, got: Any, repair: str) -> Finding:
    """Two results, value by value; the first difference is named."""
    count, first = _differences(expected, got, "")
    if first is None:
        return Finding(count)
    where, made, stands = first
    return Finding(count, f"{file}: {where} is {_short(stands)}, its evidence gives {_short(made)}; {repair}")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


Difference = tuple[str, Any, Any]


def _differences(expected: Any, got: Any, where: str) -> tuple[int, Difference | None]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        pairs = [(str(k), expected.get(k, "(absent)"), got.get(k, "(absent)")) for k in {**expected, **got}]
    elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)) and len(expected) == len(got):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    else:
        return 1, None if _same(expected, got) else (where or "it", expected, got)
    count, first = 0, None
    for key, a, b in pairs:
        n, difference = _differences(a, b, f"{where}/{key}" if where else key)
        count, first = count + n, first or difference
    return count, first


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool) | isinstance(b, bool):
        return a == b or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
