"""One number under two names: suites name the same metric differently, and a page that shows both asks why.

In: the content of a report. Out: the same without the second name's values. Caller: report/assemble.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vestige.report.format import Report

SAME = 1e-5  # as a share: packed and plain batches differ by less


def same_number(a: float, b: float) -> bool:
    """Whether two runs measured the same, but for rounding.

    >>> same_number(0.7008811, 0.7008812), same_number(9.6e-6, 9.5e-6), same_number(0.0, 0.0)
    (True, False, True)
    """
    return math.isclose(a, b, rel_tol=SAME)


def drop_repeated(report: Report) -> None:
    """Of columns with the same meaning and the same numbers the first is kept; evidence keeps the names it uses."""
    named = {point.get("metric") for audit in report["audits"] for point in audit["verdict"].get("evidence") or ()}
    for key in list(report["columns"]):
        first = next((k for k in report["columns"] if k != key and _repeats(report, k, key)), None)
        if first is None or (key in named and first in named):
            continue
        gone = first if key in named else key
        report["columns"].remove(gone)
        for model in report["models"]:
            model["values"].pop(gone, None)


def _repeats(report: Report, first: str, second: str) -> bool:
    # Attacks that differ in their formula only share a title, and now and then a number.
    told = [[report["metrics"][k].get(fact) for fact in ("title", "definition", "formula")] for k in (first, second)]
    return bool(told[0][0]) and told[0] == told[1] and _same_numbers(report["models"], first, second)


def _same_numbers(models: Sequence[Mapping[str, Any]], first: str, second: str) -> bool:
    """Whether both names have a number in the same models, and it is the same."""
    pairs = [tuple(m["values"].get(k, {}).get("v") for k in (first, second)) for m in models]
    there = [(a, b) for a, b in pairs if a is not None or b is not None]
    return all(a is not None and b is not None and same_number(a, b) for a, b in there)
