"""Tables of a report for papers and spreadsheets: Markdown, LaTeX, CSV. The same numbers as on the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.numeric import number
from vestige.report.format import Report
from vestige.show.latex import tex

FACTS = ("name", "role", "method", "epoch")  # columns that are not metrics; settings can be named, too
META_COLUMNS = ("label", "auc", "r", "q", "agg", "overall", "n_models")
META_HEADS = {"label": "Metric", "auc": "Faithfulness", "r": "R", "q": "Q", "agg": "HM(R, Q)", "overall": "Overall",
              "n_models": "n", "accuracy": "Accuracy", "threshold": "Threshold"}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A number with what belongs to it, or a text."""

    text: str = ""
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    best: bool = False
    differs: bool = False  # surely from the retain model's: paired test, corrected for many


@dataclass(frozen=True)
class Table:
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class TableLook:
    """How numbers are written. digits None: four that mean something."""

    digits: int | None = None
    intervals: bool = False
    best: bool = False
    marks: bool = False  # a star where a model surely differs from the retain model


def models_table(report: Report, columns: Sequence[str] | None = None, sort: str | None = None) -> Table:
    """One row per model. Best marks are for unlearned models: references are not in the race."""
    metrics = report["metrics"]
    chosen = list(columns) if columns else ["name", *report["columns"]]
    settings = {k for m in report["models"] for k in m["settings"]}
    for c in (*chosen, *([sort] if sort else [])):
        if c not in metrics and c not in FACTS and c not in settings:
            raise unknown_name("column", c, [*FACTS, *settings, *metrics], lists="")
    best = {c: _best(report, c) for c in chosen if c in metrics}
    models = list(report["models"])
    if sort:
        models.sort(key=lambda m: _sort_key(m, sort, metrics))
    apart = _differing(report)
    rows = tuple(
        tuple(replace(_cell(m, c, metrics, best.get(c)), differs=(m["id"], c) in apart) for c in chosen) for m in models
    )
    return Table(tuple(metrics[c]["label"] if c in metrics else c for c in chosen), rows)


LEVEL = 0.05  # of the tests behind the stars


def _differing(report: Report) -> set[tuple[str, str]]:
    """(model, metric) where a paired test tells the model from its retain model, after Holm's correction."""
    retain = {a["model"]: a["retain"] for a in report["audits"] if a["retain"]}
    pairs = [c for c in report["comparisons"] if retain.get(c["b"]) == c["a"]]
    return {(c["b"], d["metric"]) for c in pairs for d in c["metrics"] if d["holm"] is not None and d["holm"] < LEVEL}


def _best(report: Report, column: str) -> float | None:
    """Of what is known of forget rows the value nearest to the retain model's, for lower is not better; else the good
    end. Without a retain model nothing is best on forget rows.
    """
    about = report["metrics"][column]
    mine = [m for m in report["models"] if m["role"] == "unlearned" and _value(m, column) is not None]
    if len(mine) < 2:
        return None
    if about.get("knows") and about["group"] not in ("axis", "part"):
        far = {m["id"]: d for m in mine if (d := _to_retain(report, m, column)) is not None}
        nearest = min(far, key=lambda id: far[id], default=None)
        return next((_value(m, column) for m in mine if m["id"] == nearest), None)
    known = [v for m in mine if (v := _value(m, column)) is not None]
    return {"high": max, "low": min}[about["better"]](known) if about.get("better") in ("high", "low") else None


def _value(model: Mapping[str, Any], column: str) -> float | None:
    v: float | None = model["values"].get(column, {}).get("v")
    return v


def _to_retain(report: Report, model: Mapping[str, Any], column: str) -> float | None:
    """How far a model is from the retain model it is held against; from the only one, if it was not audited."""
    named = next((a["retain"] for a in report["audits"] if a["model"] == model["id"]), None)
    there = [m for m in report["models"] if m["role"] == "retain"]
    retain = next((m for m in there if m["id"] == named), there[0] if len(there) == 1 else None)
    mine, theirs = _value(model, column), _value(retain, column) if retain else None
    return None if mine is None or theirs is None else abs(mine - theirs)


def _sort_key(model: Mapping[str, object], column: str, metrics: Mapping[str, object]) -> tuple[bool, float, str]:
    """Numbers from high to low, what is missing last; texts in their order."""
    cell = _cell(model, column, metrics, None)
    return (cell.value is None and not cell.text, -(cell.value or 0.0), cell.text)


def _cell(model: Mapping[str, object], column: str, metrics: Mapping[str, object], best: float | None) -> Cell:
    if column not in metrics:
        found = model.get(column) if column in FACTS else _setting(model, column)
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        return Cell(value=float(found)) if is_number else Cell("" if found is None else str(found))  # type: ignore[arg-type]
    value = model["values"].get(column) or {}  # type: ignore[attr-defined]
    about = value.get("of") is None
    v = value.get("v")
    first = best is not None and v == best and model["role"] == "unlearned"
    return Cell(value=v, lo=value.get("lo") if about else None, hi=value.get("hi") if about else None, best=first)


def _setting(model: Mapping[str, object], name: str) -> object:
    return model["settings"].get(name)  # type: ignore[attr-defined]


def meta_table(report: Report, columns: Sequence[str] | None = None) -> Table:
    """One row per metric: faithfulness, robustness, overall."""
    meta = report["meta"]
    if meta is None:
        raise UserError("These runs have no meta-evaluation; give a meta_eval.json (vestige meta).")
    chosen = list(columns) if columns else list(META_COLUMNS)
    known = [*META_HEADS, *(k for k in meta["metrics"][0] if k not in META_HEADS)] if meta["metrics"] else []
    for c in chosen:
        if c not in known:
            raise unknown_name("column", c, known, lists="")
    return Table(
        tuple(META_HEADS.get(c, c) for c in chosen),
        tuple(tuple(_meta_cell(m, c) for c in chosen) for m in meta["metrics"]),
    )


def _meta_cell(metric: Mapping[str, object], column: str) -> Cell:
    found = metric.get(column)
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        lo, hi = metric.get(f"{column}_lo"), metric.get(f"{column}_hi")
        return Cell(value=float(found), lo=lo, hi=hi)  # type: ignore[arg-type]
    return Cell("" if found is None else str(found))


# ---- writing -----------------------------------------------------------------------------------------------------


def shown(cell: Cell, look: TableLook) -> str:
    if cell.text:
        return cell.text
    text = _number(cell.value, look.digits)
    if look.intervals and cell.lo is not None and cell.hi is not None:
        text += f" [{_number(cell.lo, look.digits)}, {_number(cell.hi, look.digits)}]"
    return text


def _number(value: float | None, digits: int | None) -> str:
    return number(value) if digits is None or value is None else f"{value:.{digits}f}"


def markdown(table: Table, look: TableLook) -> str:
    """
    >>> print(markdown(Table(("model", "p"), ((Cell("a|b"), Cell(value=0.5)),)), TableLook()))
    | model | p |
    |---|---:|
    | a\\|b | 0.5000 |
    """
    right = _numeric(table)
    lines = [f"| {' | '.join(map(_md, table.heads))} |"]
    lines.append(f"|{'|'.join('---:' if r else '---' for r in right)}|")
    for row in table.rows:
        cells = [_md(shown(c, look)) for c in row]
        marked = [f"**{x}**" if c.best and look.best else x for c, x in zip(row, cells, strict=True)]
        marked = [f"{x} \\*" if c.differs and look.marks else x for c, x in zip(row, marked, strict=True)]
        lines.append(f"| {' | '.join(marked)} |")
    return "\n".join(lines)


def _md(text: str) -> str:
    """Text that stays text: no cell ends early, no HTML begins."""
    flat = " ".join(text.split())
    for char, safe in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("`", "\\`")):
        flat = flat.replace(char, safe)
    return flat


NARROW = 4  # columns that one column of a two-column page has room for
NOTES = {
    "intervals": "Brackets: 95 % intervals.",
    "best": "Bold: the unlearned model nearest to the retain model on forget rows, at the good end elsewhere.",
    "marks": "*: differs from the retain model (paired test on the same rows, Holm's correction, p < 0.05).",
}


def paper_table(table: Table, look: TableLook, caption: str) -> str:
    """A whole table environment for a paper, with what its marks mean below it."""
    cells = [c for row in table.rows for c in row]
    there = {"intervals": any(c.lo is not None for c in cells), "best": any(c.best for c in cells),
             "marks": any(c.differs for c in cells)}  # fmt: skip
    shown_notes = [words for name, words in NOTES.items() if getattr(look, name) and there[name]]
    kind = "table" if len(table.heads) <= NARROW else "table*"
    lines = ["% \\usepackage{booktabs}", f"\\begin{{{kind}}}[t]", "\\centering\\small", f"\\caption{{{tex(caption)}}}"]
    lines += ["\\setlength{\\tabcolsep}{4pt}", latex(table, look)]
    lines += [f"\\par\\smallskip\\footnotesize {' '.join(map(tex, shown_notes))}"] if shown_notes else []
    return "\n".join([*lines, f"\\end{{{kind}}}"])


def latex(table: Table, look: TableLook) -> str:
    """A tabular with booktabs rules.

    >>> print(latex(Table(("model", "p"), ((Cell("a_b"), Cell(value=0.5, best=True)),)), TableLook(best=True)))
    \\begin{tabular}{lr}
    \\toprule
    model & p \\\\
    \\midrule
    a\\_b & \\textbf{0.5000} \\\\
    \\bottomrule
    \\end{tabular}
    """
    columns = "".join("r" if r else "l" for r in _numeric(table))
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", f"{' & '.join(map(tex, table.heads))} \\\\", "\\midrule"]
    for row in table.rows:
        lines.append(f"{' & '.join(_tex_cell(c, look) for c in row)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def _tex_cell(cell: Cell, look: TableLook) -> str:
    """A number, its star, and its interval in small print; a minus is a minus."""
    if cell.text or cell.value is None:
        return tex(shown(cell, look))
    text = _tex_number(_number(cell.value, look.digits))
    text = f"\\textbf{{{text}}}" if cell.best and look.best else text
    text += "$^{*}$" if cell.differs and look.marks else ""
    if look.intervals and cell.lo is not None and cell.hi is not None:
        ends = (_tex_number(_number(x, look.digits)) for x in (cell.lo, cell.hi))
        text += f" {{\\scriptsize [{', '.join(ends)}]}}"
    return text


def _tex_number(text: str) -> str:
    """
    >>> _tex_number("-0.5"), _tex_number("1.9e-05")
    ('$-$0.5', '1.9e$-$05')
    """
    return text.replace("-", "$-$")


def comma_separated(table: Table, look: TableLook) -> str:
    """Every digit there is; an interval in columns of its own. A text that a spreadsheet would compute is quoted."""
    heads: list[str] = []
    spans = [look.intervals and any(r[i].lo is not None for r in table.rows) for i in range(len(table.heads))]
    for head, span in zip(table.heads, spans, strict=True):
        heads += [head, f"{head} lo", f"{head} hi"] if span else [head]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv, heads))
    for row in table.rows:
        cells: list[str] = []
        for c, span in zip(row, spans, strict=True):
            cells.append(_csv(c.text) if c.text else "" if c.value is None else repr(c.value))
            cells += ["" if x is None else repr(x) for x in (c.lo, c.hi)] if span else []
        writer.writerow(cells)
    return out.getvalue().rstrip("\n")


def _csv(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _numeric(table: Table) -> list[bool]:
    return [any(r[i].value is not None for r in table.rows) for i in range(len(table.heads))]


FORMATS: dict[str, Callable[[Table, TableLook], str]] = {"markdown": markdown, "latex": latex, "csv": comma_separated}
