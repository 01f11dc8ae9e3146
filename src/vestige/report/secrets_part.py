"""What a run keeps of its rows beside results: the plain question, the secret; and which secrets attacks bring back.

In: an evaluation and a metric of it; the rows of rows_part.py and runs of attacks. Out: questions and secrets by row,
and `attacked` of each row. Caller: report/rows_part.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.metrics.secrets_said import says
from vestige.store.files import load_rows
from vestige.store.kinds import RunSource
from vestige.suites.handlers.texts import secrets_in
from vestige.types import Rows

Row = dict[str, Any]


def facts_in(source: RunSource, metric: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The question of each row as the data has it, and its secret; nothing of runs that keep no rows."""
    data = _rows_of(source, metric)
    if data is None or not data.facts:
        return {}, {}
    asked = {row[0].index: fact.get("question") for row, fact in zip(data.examples, data.facts, strict=True)}
    secrets = {i: list(secret) for i, secret in secrets_in(data).items() if secret}
    return {i: said for i, said in asked.items() if isinstance(said, str)}, secrets


def add_attacks(rows: Mapping[str, Row], prints: Sequence[str], stresses: Sequence[RunSource]) -> None:
    """After which attacks each secret is told, and by whom (the model, its control). Other rows are not looked at."""
    for source in stresses:
        for who, by_label in (source.data.get("evals") or {}).items():
            for label, run in by_label.items():
                made = _made(label, source.data["rows"])
                for i in _told(run, rows, prints) if made else ():
                    told = rows[i].setdefault("attacked", [])
                    if {**made, "who": who} not in told:
                        told.append({**made, "who": who})


def _made(label: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attack and budget whose evaluation is in the folder `label`; nothing for the one before any attack."""
    attack, _, number = label.rpartition("-")
    mine = [r for r in rows if r["attack"] == attack and r["budget"] is not None]
    sampled = [r["budget"] for r in mine if "seeds" in (r.get("settings") or {})]  # a folder per sample, not per budget
    budgets = [max(sampled)] if sampled else [r["budget"] for r in mine if f"{r['budget']:g}" == number]
    return {"attack": attack, "budget": budgets[0]} if budgets else {}


def _told(run: Mapping[str, Any], rows: Mapping[str, Row], prints: Sequence[str]) -> Iterator[str]:
    """The rows whose secret a text of an evaluation says."""
    data, data_of = (run["manifest"].get(key) or {} for key in ("data", "data_of"))
    for metric, body in run["results"].items():
        keys = (data_of.get(metric) or {}).values()
        if sorted(str(data[k]["fingerprint"]) for k in keys if k in data) != list(prints):
            continue
        for i, entry in (body.get("value_by_index") or {}).items():
            text = entry.get("generation") if isinstance(entry, Mapping) else None
            if i in rows and isinstance(text, str) and says(text, rows[i].get("secret") or ()):
                yield i


def _rows_of(source: RunSource, metric: str) -> Rows | None:
    """The rows that a metric of a run read, as its evidence has them; None of runs without (another tool's)."""
    keys = list(((source.data["manifest"].get("data_of") or {}).get(metric) or {}).values())
    path = source.path / "evidence" / "examples.json.gz"
    if len(keys) != 1 or not path.is_file():
        return None
    try:
        return _read(path, path.stat().st_mtime_ns).get(keys[0])
    except (UserError, OSError):
        return None  # damaged: `vestige verify` reports it, and the results can be shown without


@lru_cache(8)
def _read(path: Path, changed: int) -> dict[str, Rows]:
    return load_rows(path)
