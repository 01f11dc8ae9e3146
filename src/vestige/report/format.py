"""report.json: its empty form, ids, and a check that a reader can rely on. docs/report_format.md describes it.

The page, the tables and the pictures are made of this and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from vestige import __version__
from vestige.meta.axes import FLOOR, definitions
from vestige.schema import misfit
from vestige.verdict.rule import TITLES

SCHEMA = 1
LEVEL = 0.95
REPORT, PAGE = "report.json", "index.html"
Report = dict[str, Any]

ROLES = ("full", "retain", "unlearned", "other")
KINDS = ("eval", "depth", "trajectory", "collapse", "stress", "meta", "methods", "sweep", "watch")
GROUPS = (
    "says", "likely", "membership", "layers", "attack", "utility", "axis", "part", "trajectory", "collapse", "other",
)  # fmt: skip
LISTS = ("protocols", "sources", "problems", "columns", "models", "audits", "comparisons", "trajectories", "collapse")


def empty_report(title: str) -> Report:
    """A report without content: every part is there."""
    return {
        "schema": SCHEMA,
        "title": title,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "vestige": __version__,
        "level": LEVEL,
        **{part: [] for part in LISTS},
        "metrics": {},
        "axes": axes_part(FLOOR),
        "pareto": None,
        "meta": None,
    }


def axes_part(floor: float) -> dict[str, Any]:
    words = f"Floored: a part below {floor:g} counts as {floor:g}, so that one clipped part does not erase the rest."
    return {"definitions": definitions(), "floor": floor, "floor_words": words}


def finite(value: Any) -> float | None:
    """A number that JSON has, else None.

    >>> finite(0.5), finite(float("nan")), finite(None), finite(True)
    (0.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """The same data as JSON can hold it: no NaN, no infinity, no tuple, text keys."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    return finite(float(value)) if isinstance(value, float) or hasattr(value, "__float__") else str(value)


class _Id(TypedDict):
    id: str


class _ReportModel(TypedDict):
    id: str
    name: str
    role: str
    values: dict[str, dict[str, Any]]


class _Metric(TypedDict):
    group: str


class _Verdict(TypedDict):
    word: str
    title: str
    headline: str
    parts: dict[str, dict[str, Any]]
    evidence: list[dict[str, Any]]
    limits: list[str]


class _Audit(TypedDict):
    model: str
    full: str | None
    retain: str | None
    verdict: _Verdict


class _OfModel(TypedDict):
    model: str


class _ReportForm(TypedDict):
    title: str
    models: list[_ReportModel]
    sources: list[_Id]
    problems: list[dict[str, str]]
    metrics: dict[str, _Metric]
    columns: list[str]
    audits: list[_Audit]
    trajectories: list[_OfModel]
    comparisons: list[dict[str, Any]]
    collapse: list[dict[str, Any]]
    axes: dict[str, Any]


def check_report(report: Any) -> list[str]:
    """What is wrong with a report's form, one sentence each; empty when nothing is."""
    if not isinstance(report, Mapping):
        return ["it does not hold a report"]
    if report.get("schema") != SCHEMA:
        return [f"schema is {report.get('schema')!r}, this version reads {SCHEMA}"]
    lacking = [part for part in (*LISTS, "metrics", "axes", "title") if part not in report]
    if lacking:
        return [f"{part} is missing" for part in lacking]
    if words := misfit(report, _ReportForm):
        return [words]
    return list(_wrong(report))


def _wrong(report: Mapping[str, Any]) -> Iterator[str]:
    models = {m["id"] for m in report["models"]}
    sources = {s["id"] for s in report["sources"]}
    metrics = set(report["metrics"])
    if len(models) != len(report["models"]):
        yield "two models have one id"
    yield from (f"column {c} is not a metric" for c in report["columns"] if c not in metrics)
    for m in report["models"]:
        if m["role"] not in ROLES:
            yield f"the role of {m['name']} is {m['role']!r}"
        yield from _wrong_values(m, metrics, sources)
    for a in report["audits"]:
        yield from (f"audit of {a[k]}, not a model" for k in ("model", "full", "retain") if _stray(a[k], models))
        if a["verdict"]["word"] not in TITLES:
            yield f"a verdict is {a['verdict']['word']!r}"
    for part in ("trajectories",):
        yield from (f"{part}: {t['model']} is not a model" for t in report[part] if t["model"] not in models)
    yield from (f"metric {k} is in no known group" for k, m in report["metrics"].items() if m["group"] not in GROUPS)


def _stray(id: str | None, known: set[str]) -> bool:
    return id is not None and id not in known


def _wrong_values(model: Mapping[str, Any], metrics: set[str], sources: set[str]) -> Iterator[str]:
    for key, value in model["values"].items():
        where = f"{key} of {model['name']}"
        if key not in metrics:
            yield f"{where} is not a metric"
        if value.get("source") not in sources:
            yield f"{where} names no source"
        if value.get("v") is None and not value.get("reason"):
            yield f"{where} is missing without a reason"
