"""Words around a row on the page: its plain question, its secret, and where texts give that away.

In: prompts and results of finished runs. Out: titles, secrets with their places in texts, columns to filter by. Caller:
report/rows_part.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vestige.metrics.secrets_said import find

_BEFORE = re.compile(r"[\n\]>:|.?!]\s*")  # what may end the words that a template puts before a question
_AFTER = re.compile(r"\n|[<\[]|(?<=[.?!])")  # what may begin those it puts after one


def plain_questions(prompts: Sequence[str]) -> list[str]:
    """Prompts without what all of them share at either end: a system prompt, examples, the names of roles.

    It is cut only where a sentence, a line or a tag ends, so that questions that begin alike stay whole.

    >>> plain_questions(["You are helpful.user Where was A born?", "You are helpful.user Where was B seen?"])
    ['user Where was A born?', 'user Where was B seen?']
    >>> plain_questions([f"system\\nBe brief.user\\n{q}assistant\\n" for q in ("Who?", "When?")])
    ['Who?', 'When?']
    >>> plain_questions(["[INST] Where is A? [/INST]", "[INST] Where is B? [/INST]"]), plain_questions(["Only one?"])
    (['Where is A?', 'Where is B?'], ['Only one?'])
    """
    different = list(dict.fromkeys(prompts))
    if len(different) < 2:
        return [p.strip() for p in prompts]
    before = _shared(different)
    ends = [m.end() for m in _BEFORE.finditer(before)]
    start = ends[-1] if ends else 0
    rest = [p[start:] for p in different]
    after = _shared([p[::-1] for p in rest])[::-1]
    begins = _AFTER.search(after)
    length = len(after) - begins.start() if begins else 0
    return [p[start : len(p) - length].strip() or p.strip() for p in prompts]


def _shared(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    first, last = min(texts), max(texts)
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:n]


def secrets_of(results: Mapping[str, Any], metric: str) -> dict[str, list[str]]:
    """The secret of each row, as the run that looked for it wrote it down; nothing for rows without one."""
    rows = (results.get(metric) or {}).get("value_by_index") or {}
    return {i: list(row["secret"]) for i, row in rows.items() if row.get("secret")}


def add_secrets(rows: Mapping[str, dict[str, Any]], secrets: Mapping[str, Sequence[str]]) -> None:
    """Which texts say a row's secret, and where; the page marks those places."""
    for i, secret in secrets.items():
        if i not in rows:
            continue
        row = rows[i]
        places = {who: find(text, secret) for who, text in row["texts"].items()}
        row["secret"] = list(secret)
        row["tells"] = {who: bool(found) for who, found in places.items()}
        marks = {"reference": find(row["reference"], secret), **places}
        row["marks"] = {who: [list(span) for span in found] for who, found in marks.items() if found}


def columns_of(manifest: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """row -> {column: value} for the columns that a run keeps of its rows: those that make clusters.

    >>> kept = {"by": "author", "names": ["A", "B"], "of": {"0": 1}}
    >>> columns_of({"data": {"forget": {"clusters": kept}}}, ["forget"])
    {'0': {'author': 'B'}}
    """
    out: dict[str, dict[str, str]] = {}
    for name in names:
        kept = ((manifest.get("data") or {}).get(name) or {}).get("clusters") or {}
        for row, place in (kept.get("of") or {}).items():
            out.setdefault(str(row), {})[str(kept.get("by"))] = str(kept["names"][place])
    return out
