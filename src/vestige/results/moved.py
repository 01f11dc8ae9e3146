"""Which rows of two runs differ: in their text, and in a metric's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.metrics.cards import full_name
from vestige.numeric import mean, number
from vestige.show.tables import table
from vestige.store.files import load_rows, read_scores, result_file
from vestige.types import Rows, Score

Manifest = Mapping[str, Any]
STILL = 1e-6  # differences below this are rounding
SHARES = ("score", "rougeL_recall", "prob")  # the field of a row that is the metric's value, by preference


@dataclass
class Moved:
    """One metric in two runs."""

    metric: str
    a: float | None
    b: float | None
    asked: bool = False  # asked for in both runs, not only a parent
    rows: dict[str, tuple[float, float]] = field(default_factory=dict)  # "3" or "holdout 3" -> values in A and B
    texts: dict[str, list[str]] = field(default_factory=dict)  # the same keys -> question, answer, what the model wrote

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def compared(self) -> int:
        return len(self.rows)

    @property
    def moved_rows(self) -> list[str]:
        """Rows that moved, the farthest first."""
        far = {k: abs(y - x) for k, (x, y) in self.rows.items()}
        return sorted((k for k in far if far[k] > STILL), key=lambda k: (-far[k], k))


def examples_of(run: Path) -> dict[str, Rows]:
    path = run / "evidence" / "examples.json.gz"
    if not path.is_file():
        raise UserError(f"{run} has no evidence/examples.json.gz; give a whole run directory.")
    return load_rows(path)


def changed_rows(a: Path, b: Path, one: Manifest, other: Manifest) -> dict[str, list[str]]:
    """Data set -> rows whose text is not the same in both runs.

    Questions are compared as part of their prompts, so only where both runs wrap them in the same way.
    """
    same_prompt = one.get("prompt") is not None and one.get("prompt") == other.get("prompt")
    mine, theirs = examples_of(a), examples_of(b)
    pairs = {
        (one["data_of"][m][k], other["data_of"][m][k])
        for m in set(one["data_of"]) & set(other["data_of"])
        for k in set(one["data_of"][m]) & set(other["data_of"][m])
    }
    out: dict[str, list[str]] = {}
    for key, key_b in sorted(pairs):
        if key not in mine or key_b not in theirs:
            continue
        x, y = (_texts_of(r, same_prompt) for r in (mine[key], theirs[key_b]))
        rows = [i for i in x if i in y and x[i] != y[i]]
        if rows:
            out[mine[key].name] = sorted({*out.get(mine[key].name, []), *rows}, key=lambda i: (len(i), i))
    return out


def _texts_of(rows: Rows, with_prompt: bool) -> dict[str, list[str]]:
    return {row[0].index: [e.answer + (e.input_text if with_prompt else "") for e in row] for row in rows.examples}


def moved_metrics(a: Path, b: Path, one: Manifest, other: Manifest, only: Sequence[str] | None) -> list[Moved]:
    """Every metric both runs have, those asked for in both first."""
    x, y = (read_scores(result_file(run)) for run in (a, b))
    asked = [m for m in one["config"]["top"] if m in other["config"]["top"]]
    common = [*asked, *sorted(m for m in x if m in y and m not in asked)]
    if only is not None:
        wanted = [name if name in common else full_name(name) for name in only]
        for name in wanted:
            if name not in common:
                raise unknown_name("metric in both runs", name, common)
        common = wanted
    stored = examples_of(a)
    out = []
    for m in (m for m in common if m in x and m in y):
        curves = Score.from_json(x[m]).curves, Score.from_json(y[m]).curves
        if curves[0] is None or curves[1] is None:
            out.append(_moved(m, x[m], y[m], m in asked, one, stored))
        else:
            out += _moved_curves(m, curves[0], curves[1], m in asked)
    return out


def _moved_curves(name: str, x: Mapping[str, Any], y: Mapping[str, Any], asked: bool) -> list[Moved]:
    """One entry for each metric of a trajectory, at the point where the two runs are farthest apart."""
    farthest: dict[str, Moved] = {}
    theirs = dict(_curves(y))
    for (*place, metric), curve in _curves(x):
        for step, (a, b) in enumerate(zip(curve, theirs.get((*place, metric), []), strict=False)):
            here = Moved(f"{name}: {metric} ({'/'.join(place)}, step {step})", a, b, asked)
            there = farthest.setdefault(metric, here)
            if abs(here.difference or 0) > abs(there.difference or 0):
                farthest[metric] = here
    return list(farthest.values())


def _curves(nested: Mapping[str, Any], at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[float | None]]]:
    """Every curve with the names that lead to it: view (unless left out), trajectory, metric."""
    out: list[tuple[tuple[str, ...], list[float | None]]] = []
    for key, value in nested.items():
        out += _curves(value, (*at, key)) if isinstance(value, Mapping) else [((*at, key), value)]
    return out


def _moved(name: str, x: Mapping[str, Any], y: Mapping[str, Any], asked: bool, m: Manifest, stored: Any) -> Moved:
    out = Moved(name, Score.from_json(x).agg_value, Score.from_json(y).agg_value, asked)
    kind = m["config"]["metrics"].get(name, {}).get("rouge_type")
    mine, theirs = _entries(x), _entries(y)
    for key, entry in mine.items():
        values = (_value(entry, kind), _value(theirs.get(key, {}), kind))
        if values[0] is not None and values[1] is not None:
            out.rows[key] = (values[0], values[1])
            said = {"A says": entry.get("generation"), "B says": theirs[key].get("generation")}
            out.texts[key] = [f"{who}: {text}" for who, text in said.items() if isinstance(text, str)]
    _add_questions(out, m, stored)
    return out


def _entries(score: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Per-row entries; those of an attack's two sets under "forget 3" and "holdout 3"."""
    if score.get("value_by_index"):
        return {str(k): v for k, v in score["value_by_index"].items()}
    sets = {k: v["value_by_index"] for k, v in score.items() if isinstance(v, Mapping) and v.get("value_by_index")}
    return {f"{key} {i}": v for key, rows in sorted(sets.items()) for i, v in rows.items()}


def _value(entry: Mapping[str, Any], kind: str | None) -> float | None:
    name = next((f for f in ([kind] if kind else []) + list(SHARES) if f in entry), None)
    values = entry.get(name) if name else None
    values = values if isinstance(values, list) else [values]
    good = [v for v in values if v is not None]
    return mean(good) if good else None


def _add_questions(moved: Moved, m: Manifest, stored: Mapping[str, Rows]) -> None:
    sources = _data_of(moved.metric, m)
    for key in moved.rows:
        access, _, index = key.rpartition(" ")
        rows = stored.get(sources.get(access) or next(iter(sources.values()), ""))
        found = next((r[0] for r in rows.examples if r[0].index == index), None) if rows else None
        if found is not None:
            moved.texts[key] = [
                f"question: {found.input_text.strip()}",
                f"answer: {found.answer}",
                *moved.texts.get(key, []),
            ]


def _data_of(metric: str, m: Manifest) -> dict[str, str]:
    """The data a metric reads; a metric made of parents reads what its first parent reads."""
    own = m["data_of"].get(metric)
    if own:
        return dict(own)
    parents = m["config"]["metrics"].get(metric, {}).get("pre_compute") or {}
    return next((_data_of(p, m) for p in parents), {})


def show_moved(moved: Moved, count: int, changed: Mapping[str, list[str]]) -> list[str]:
    """The rows that moved most, with their values and texts."""
    names = moved.moved_rows[:count]
    if not names:
        return [f"{moved.metric}: no row moved"]
    lines = [f"{moved.metric}: {len(moved.moved_rows)} of {moved.compared} rows moved, most of all:"]
    edited = {i for rows in changed.values() for i in rows}
    rows = []
    for name in names:
        x, y = moved.rows[name]
        mark = "text changed" if name.split()[-1] in edited else ""
        rows.append([name, number(x), number(y), number(y - x), mark])
    body = table(rows, ["row", "A", "B", "B - A", ""], right=(1, 2, 3)).splitlines()
    lines += [f"  {line}".rstrip() for line in body[:2]]
    for name, line in zip(names, body[2:], strict=True):
        lines += [f"  {line}", *(f"      {_fit(t)}" for t in moved.texts.get(name, []))]
    return lines


def _fit(text: str, width: int = 100) -> str:
    """One line; the middle is left out of what is too long, because both ends of a prompt tell."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width // 3]} ... {flat[-(width - width // 3 - 5) :]}"
