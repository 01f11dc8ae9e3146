"""Tables of a report for papers and spreadsheets: the same numbers as on the page. show/tables.py writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.report.gather import Json
from vestige.show.tables import Cell, Table

FACTS = ("name", "role", "method", "epoch")  # columns that are not metrics; settings can be named, too
META_HEADS = {"label": "Metric", "auc": "Faithfulness", "r": "R", "q": "Q", "agg": "HM(R, Q)", "overall": "Overall",
              "n_models": "n", "accuracy": "Accuracy", "threshold": "Threshold"}  # fmt: skip
META_COLUMNS = ("label", "auc", "r", "q", "agg", "overall", "n_models")
LEVEL = 0.05  # of the tests behind the stars


def models_table(report: Json, columns: Sequence[str] | None = None, sort: str | None = None) -> Table:
    """One row per model. Best marks are for unlearned models: references are not in the race."""
    metrics = report["metrics"]
    chosen = list(columns) if columns else ["name", *report["columns"]]
    settings = {name for model in report["models"] for name in model["settings"]}
    for column in (*chosen, *([sort] if sort else [])):
        if column not in metrics and column not in FACTS and column not in settings:
            raise unknown_name("column", column, [*FACTS, *settings, *metrics], lists="")
    best = {column: _best(report, column) for column in chosen if column in metrics}
    # (model, metric) where a paired test tells the model from its retain model, after Holm's correction.
    retain_of = {audit["model"]: audit["retain"] for audit in report["audits"] if audit["retain"]}
    apart = set()
    for pair in report["comparisons"]:
        if retain_of.get(pair["b"]) == pair["a"]:
            sure = [d["metric"] for d in pair["metrics"] if d["holm"] is not None and d["holm"] < LEVEL]
            apart |= {(pair["b"], metric) for metric in sure}
    models = list(report["models"])
    if sort:
        models.sort(key=lambda model: _sort_key(_cell(model, sort, metrics)))
    rows = []
    for model in models:
        cells = []
        for column in chosen:
            first = model["role"] == "unlearned" and best.get(column) is not None
            first = first and _value(model, column) == best[column]
            cells.append(_cell(model, column, metrics, first, (model["id"], column) in apart))
        rows.append(tuple(cells))
    return Table(tuple(metrics[c]["label"] if c in metrics else c for c in chosen), tuple(rows))


def _cell(model: Json, column: str, metrics: Json, best: bool = False, differs: bool = False) -> Cell:
    if column not in metrics:
        return _plain_cell(model[column] if column in FACTS else model["settings"].get(column))
    value = model["values"].get(column) or {}
    ends = (None, None) if value.get("of") else (value.get("lo"), value.get("hi"))
    return Cell("", value.get("v"), *ends, best, differs)


def _plain_cell(value: Any, lo: float | None = None, hi: float | None = None) -> Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Cell(value=float(value), lo=lo, hi=hi)
    return Cell("" if value is None else str(value))


def _sort_key(cell: Cell) -> tuple[bool, float, str]:
    """Numbers from high to low, what is missing last; texts in their order."""
    return (cell.value is None and not cell.text, -(cell.value or 0.0), cell.text)


def _value(model: Json, column: str) -> float | None:
    v: float | None = model["values"].get(column, {}).get("v")
    return v


def _best(report: Json, column: str) -> float | None:
    """Of what is known of forget rows the value nearest to the retain model's, for lower is not better; else the good
    end. Without a retain model nothing is best on forget rows.
    """
    about = report["metrics"][column]
    known = []
    for model in report["models"]:
        v = _value(model, column)
        if model["role"] == "unlearned" and v is not None:
            known.append((model, v))
    if len(known) < 2:
        return None
    if about.get("knows") and about["group"] not in ("axis", "part"):
        far = []
        for model, v in known:
            aim = _aim(report, model, column)
            if aim is not None:
                far.append((abs(v - aim), v))
        return min(far, key=lambda one: one[0])[1] if far else None
    values = [v for _, v in known]
    return {"high": max(values), "low": min(values)}.get(about.get("better"))


def _aim(report: Json, model: Json, column: str) -> float | None:
    """The value of the retain model that a model is held against; of the only one, if it was not audited."""
    named = next((audit["retain"] for audit in report["audits"] if audit["model"] == model["id"]), None)
    retains = [other for other in report["models"] if other["role"] == "retain"]
    for retain in retains:
        if retain["id"] == named or (len(retains) == 1):
            return _value(retain, column)
    return None


def meta_table(report: Json, columns: Sequence[str] | None = None) -> Table:
    """One row per metric: faithfulness, robustness, overall."""
    meta = report["meta"]
    if meta is None:
        raise UserError("These runs have no meta-evaluation; give a meta_eval.json (vestige meta).")
    chosen = list(columns) if columns else list(META_COLUMNS)
    known = list(dict.fromkeys([*META_HEADS, *meta["metrics"][0]])) if meta["metrics"] else []
    for column in chosen:
        if column not in known:
            raise unknown_name("column", column, known, lists="")
    rows = []
    for metric in meta["metrics"]:
        cells = (_plain_cell(metric.get(c), metric.get(f"{c}_lo"), metric.get(f"{c}_hi")) for c in chosen)
        rows.append(tuple(cells))
    return Table(tuple(META_HEADS.get(c, c) for c in chosen), tuple(rows))
