"""What an evaluation has to say, in plain data: numbers with intervals, a table per data set, curves of trajectories.

In: the directory of a finished evaluation. Out: a RunAccount (types.py). Caller: results/kind.py, for publishing.
A table has a line per row of a data set: its texts, and beside them what every metric gave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.engine.evaluate import Outcome
from vestige.errors import UserError
from vestige.io import number
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.results.load import load_outcome
from vestige.runs.files import load_rows
from vestige.types import Rows, RunAccount, RunCurve, RunNumber, RunTable, Score

TEXTS = ("input", "ground_truth", "generation")  # as open-unlearning calls them
BAND = ("ci_low", "ci_high")
Cells = dict[str, dict[str, Any]]  # row -> column -> value


def account_of(path: Path) -> RunAccount:
    """An evaluation by metrics, along a trajectory, or by a harness."""
    outcome = load_outcome(path)
    manifest = outcome.manifest
    tables = _harness_tables(outcome) if "harness" in manifest else _tables(path, outcome)
    return RunAccount(
        name=path.resolve().name,
        kind=str(manifest.get("kind", "eval")),
        model=model_name(manifest),
        suite=str((manifest.get("config") or {}).get("suite", "")),
        created=str(manifest.get("created", "")),
        numbers=dict(_numbers(outcome)),
        curves=dict(_curves(outcome.scores)),
        tables=tables,
        facts=facts_of(manifest),
        notes=tuple(map(str, manifest.get("notes") or ())),
    )


def model_name(manifest: Mapping[str, Any]) -> str:
    """A hub id as it is; of a directory its last part: where it is on this machine is nobody's business."""
    said = str((manifest.get("model") or {}).get("name", ""))
    return Path(said).name if Path(said).is_absolute() or said.count("/") > 1 else said


def facts_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the numbers must know: whose definitions, which weights and rows, which versions."""
    model, config = manifest.get("model") or {}, manifest.get("config") or {}
    facts = {
        "dialect": (manifest.get("dialect") or {}).get("name"),
        "weights": model.get("fingerprint"),
        "precision": model.get("dtype"),
        "device": model.get("device"),
        "quantization": model.get("quantization"),
        "rows read at most": config.get("max_samples"),
        **{f"version of {k}": v for k, v in (manifest.get("versions") or {}).items()},
    }
    for data in (manifest.get("data") or {}).values():
        facts[f"rows of {data['name']}"] = f"{data['rows']} ({str(data['fingerprint'])[:12]})"
    return {k: str(v) for k, v in facts.items() if v not in (None, "")}


def _numbers(outcome: Outcome) -> Iterator[tuple[str, RunNumber]]:
    asked = [n for n in outcome.top if n in outcome.scores]
    for name in (*asked, *(n for n in outcome.scores if n not in asked)):
        score, stat = outcome.scores[name], outcome.stats.get(name) or {}
        if score.curves is not None:
            continue
        # An interval may be of another number than the one reported: of the statistic behind a p-value.
        of = str(stat.get("of") or "")
        low, high = (None, None) if of else (stat.get("interval") or (None, None))
        why = score.reason or ("" if of or low is not None else str(stat.get("reason") or ""))
        yield name, RunNumber(score.agg_value, low, high, stat.get("n"), why)
        if of:
            low, high = stat.get("interval") or (None, None)
            yield f"{name}/{of}", RunNumber(stat.get("value"), low, high, stat.get("n"), str(stat.get("reason") or ""))


# ---- rows -----------------------------------------------------------------------------------------------------------


def _tables(path: Path, outcome: Outcome) -> dict[str, RunTable]:
    data, data_of = outcome.manifest["data"], outcome.manifest["data_of"]
    cells: dict[str, Cells] = {}
    for metric, score in outcome.scores.items():
        for key, by_index in _by_data(score, data_of.get(metric) or {}):
            for index, fields in by_index.items():
                row = cells.setdefault(key, {}).setdefault(str(index), {})
                row |= {k if k in TEXTS else f"{metric}.{k}": _cell(v) for k, v in fields.items()}
    texts = _texts(path)
    names = [str(data[key]["name"]) if key in data else key for key in cells]
    out = {}
    for key, name in zip(cells, names, strict=True):
        out[name if names.count(name) == 1 else key] = _table(cells[key], texts.get(key))
    return out


def _by_data(score: Score, sets: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a score by the data set they are of. A membership attack has two sets, each under its own name."""
    if score.value_by_index and len(sets) == 1:
        yield next(iter(sets.values())), score.value_by_index
    elif score.value_by_index:
        yield "rows", score.value_by_index  # a metric of other metrics
    for name, key in sets.items():
        inner = score.extra.get(name)
        if isinstance(inner, Mapping) and inner.get("value_by_index"):
            yield key, inner["value_by_index"]


def _texts(path: Path) -> dict[str, Rows]:
    try:
        return load_rows(path / "evidence" / "examples.json.gz")
    except UserError:  # a run of another tool, or without evidence: texts are those of its metrics
        return {}


def _table(cells: Cells, rows: Rows | None) -> RunTable:
    for n, row in enumerate(rows.examples if rows else ()):
        mine = cells.get(row[0].index)
        facts: Mapping[str, Any] = rows.facts[n] if rows and n < len(rows.facts) else {}
        if mine is not None:
            mine.setdefault("input", str(facts.get("question") or row[0].input_text))
            mine.setdefault("ground_truth", "\n".join(e.answer for e in row))
    columns = dict.fromkeys(k for row in cells.values() for k in row)
    ordered = [*(t for t in TEXTS if t in columns), *(c for c in columns if c not in TEXTS)]
    return RunTable(("index", *ordered), tuple((index, *(row.get(c) for c in ordered)) for index, row in cells.items()))


def _harness_tables(outcome: Outcome) -> dict[str, RunTable]:
    """A table per task: what each document was given for every metric, its target and the responses."""
    cells: dict[str, Cells] = {}
    for score_name, score in outcome.scores.items():
        task = score_name.partition("/")[0]
        for index, fields in (score.value_by_index or {}).items():
            cells.setdefault(task, {}).setdefault(str(index), {}).update({k: _cell(v) for k, v in fields.items()})
    return {task: _table(rows, None) for task, rows in cells.items()}


def _cell(value: Any) -> Any:
    """A number, a text or nothing: trackers' tables hold nothing else. Lists are JSON."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return number(value) if isinstance(value, float) else json.dumps(value)


# ---- trajectories ---------------------------------------------------------------------------------------------------


def _curves(scores: Mapping[str, Score]) -> Iterator[tuple[str, RunCurve]]:
    for name, score in scores.items():
        if score.curves is None:
            continue
        nested: Any = score.curves
        views = nested if set(nested) <= set(VIEWS) else {"": nested}
        for view, kinds in views.items():
            for kind, metrics in kinds.items():
                for metric, values in metrics.items():
                    told = spread_of(score.extra, view, kind, metric)
                    parts = [p for p in (name, view, kind, metric) if p]
                    yield "/".join(parts), _curve(values, told)


def _curve(values: Any, spread: Mapping[str, Any]) -> RunCurve:
    low, high = (spread.get(end) or [None] * len(values) for end in BAND)
    points = [RunNumber(number(v), number(a), number(b)) for v, a, b in zip(values, low, high, strict=True)]
    return RunCurve("denoising step", tuple(float(i) for i in range(len(points))), tuple(points))
