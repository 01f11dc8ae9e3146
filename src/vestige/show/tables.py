"""Tables: for a terminal, and in Markdown, LaTeX and CSV; and the numbers of one run as a terminal shows them."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vestige.metrics.cards import is_attack, reading
from vestige.numeric import number
from vestige.suites.spec import MetricSpec
from vestige.types import MIXTURE, NO_RETAIN_LOGS, Score

SCREEN = 120  # columns
DISTANCE = "D "  # begins an interval that is about the distance between two samples


def span(stat: Mapping[str, Any]) -> str:
    """An interval in words; one that is not about the metric's own value says what it is about.

    >>> span({"interval": [0.41, 0.5]}), span({"interval": [0.1, 0.3], "of": "ks_statistic"}), span({})
    ('0.4100 to 0.5000', 'D 0.1000 to 0.3000', '-')
    >>> span({"interval": [1.0, 1.0]})  # not certainty: the rows at hand agree, others might not
    'no spread'
    """
    if not stat.get("interval"):
        return "-"
    low, high = stat["interval"]
    if low == high:
        return "no spread"
    return f"{DISTANCE if stat.get('of') == 'ks_statistic' else ''}{number(low)} to {number(high)}"


def table(rows: Sequence[Sequence[str]], heads: Sequence[str], right: Sequence[int] = ()) -> str:
    """Columns as wide as their content; where that is wider than a screen, heads and texts continue on further lines.

    >>> print(table([["loss", "0.5", "low"]], ["metric", "value", "reading"], right=[1]))
    metric  value  reading
    ------  -----  -------
    loss      0.5  low
    """
    columns = [list(column) for column in zip(heads, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    # A column gets no narrower than its longest word: a path or a number that is cut cannot be copied.
    least = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > SCREEN:
        shrinkable = [c for c, width in enumerate(widths) if width > least[c]]
        if not shrinkable:
            break
        widest = max(shrinkable, key=widths.__getitem__)
        widths[widest] -= 1
    lines = []
    for row, cells in enumerate(zip(*columns, strict=True)):
        wrapped = []
        for cell, width in zip(cells, widths, strict=True):
            if len(cell) <= width:
                wrapped.append([cell])
            else:
                wrapped.append(textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False))
        for n in range(max(1, *map(len, wrapped))):
            parts = []
            for c, width in enumerate(widths):
                text = wrapped[c][n] if n < len(wrapped[c]) else ""
                parts.append(text.rjust(width) if c in right else text.ljust(width))
            lines.append("  ".join(parts).rstrip())
        if row == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


# ---- tables of values, for papers and spreadsheets -------------------------------------------------------------------


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

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(row[i].value is not None for row in self.rows) for i in range(len(self.heads))]


@dataclass(frozen=True)
class TableLook:
    """How numbers are written. digits None: four that mean something."""

    digits: int | None = None
    intervals: bool = False
    best: bool = False
    marks: bool = False  # a star where a model surely differs from the retain model

    def number(self, value: float | None) -> str:
        return number(value) if self.digits is None or value is None else f"{value:.{self.digits}f}"

    def interval(self, cell: Cell) -> str:
        if not self.intervals or cell.lo is None or cell.hi is None:
            return ""
        return f"[{self.number(cell.lo)}, {self.number(cell.hi)}]"


def markdown(table: Table, look: TableLook) -> str:
    """
    >>> print(markdown(Table(("model", "p"), ((Cell("a|b"), Cell(value=0.5)),)), TableLook()))
    | model | p |
    |---|---:|
    | a\\|b | 0.5000 |
    """
    lines = [f"| {' | '.join(map(_markdown_text, table.heads))} |"]
    lines.append(f"|{'|'.join('---:' if numeric else '---' for numeric in table.numeric)}|")
    for row in table.rows:
        cells = []
        for cell in row:
            text = _markdown_text(cell.text or f"{look.number(cell.value)} {look.interval(cell)}")
            text = f"**{text}**" if cell.best and look.best else text
            cells.append(rf"{text} \*" if cell.differs and look.marks else text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _markdown_text(text: str) -> str:
    """Text that stays text: no cell ends early, no HTML begins."""
    flat = " ".join(text.split())
    for char, safe in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("`", "\\`")):
        flat = flat.replace(char, safe)
    return flat


def latex(table: Table, look: TableLook) -> str:
    """A tabular with booktabs rules: a number, its star, and its interval in small print.

    >>> print(latex(Table(("model", "p"), ((Cell("a_b"), Cell(value=0.5, best=True)),)), TableLook(best=True)))
    \\begin{tabular}{lr}
    \\toprule
    model & p \\\\
    \\midrule
    a\\_b & \\textbf{0.5000} \\\\
    \\bottomrule
    \\end{tabular}
    """
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{' & '.join(map(tex, table.heads))} \\", r"\midrule"]
    for row in table.rows:
        cells = []
        for cell in row:
            if cell.text or cell.value is None:
                cells.append(tex(cell.text or look.number(None)))
                continue
            text = look.number(cell.value).replace("-", "$-$")  # a minus is a minus
            text = rf"\textbf{{{text}}}" if cell.best and look.best else text
            text += "$^{*}$" if cell.differs and look.marks else ""
            interval = look.interval(cell).replace("-", "$-$")
            cells.append(rf"{text} {{\scriptsize {interval}}}" if interval else text)
        lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "\u00d7": r"$\times$", "\u2264": r"$\le$", "\u2265": r"$\ge$",
    "\u2013": "--", "\u2014": "---", "\u00b1": r"$\pm$",
}  # fmt: skip


def tex(text: str) -> str:
    r"""One line, with every character that LaTeX would take for a command written out.

    >>> print(tex("a_b <c> & 95 %"))
    a\_b \textless{}c\textgreater{} \& 95 \%
    """
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


NARROW = 4  # columns that one column of a two-column page has room for


def paper_table(table: Table, look: TableLook, caption: str) -> str:
    """A whole table environment for a paper, with what its marks mean below it."""
    cells = [cell for row in table.rows for cell in row]
    notes = []
    if look.intervals and any(cell.lo is not None for cell in cells):
        notes.append("Brackets: 95 % intervals.")
    if look.best and any(cell.best for cell in cells):
        notes.append("Bold: the unlearned model nearest to the retain model on forget rows, at the good end elsewhere.")
    if look.marks and any(cell.differs for cell in cells):
        notes.append("*: differs from the retain model (paired test on the same rows, Holm's correction, p < 0.05).")
    kind = "table" if len(table.heads) <= NARROW else "table*"
    lines = [r"% \usepackage{booktabs}", rf"\begin{{{kind}}}[t]", r"\centering\small", rf"\caption{{{tex(caption)}}}"]
    lines += [r"\setlength{\tabcolsep}{4pt}", latex(table, look)]
    if notes:
        lines.append(rf"\par\smallskip\footnotesize {' '.join(map(tex, notes))}")
    return "\n".join([*lines, rf"\end{{{kind}}}"])


def comma_separated(table: Table, look: TableLook) -> str:
    """Every digit there is; an interval in columns of its own. A text that a spreadsheet would compute is quoted."""
    lines: list[list[str]] = [[] for _ in range(1 + len(table.rows))]
    for i, head in enumerate(table.heads):
        column = [row[i] for row in table.rows]
        lines[0].append(_spreadsheet_text(head))
        for line, cell in zip(lines[1:], column, strict=True):
            line.append(_spreadsheet_text(cell.text) or _all_digits(cell.value))
        if look.intervals and any(cell.lo is not None for cell in column):
            lines[0] += [_spreadsheet_text(f"{head} lo"), _spreadsheet_text(f"{head} hi")]
            for line, cell in zip(lines[1:], column, strict=True):
                line += [_all_digits(cell.lo), _all_digits(cell.hi)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue().rstrip("\n")


def _spreadsheet_text(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _all_digits(value: float | None) -> str:
    return "" if value is None else repr(value)


FORMATS: dict[str, Callable[[Table, TableLook], str]] = {"markdown": markdown, "latex": latex, "csv": comma_separated}

# ---- the numbers of a run, for a terminal ----------------------------------------------------------------------------


def amount(count: float, unit: str) -> str:
    """
    >>> amount(1, "steps"), amount(4, "steps")
    ('1 step', '4 steps')
    """
    return f"{count:g} {unit.removesuffix('s') if count == 1 else unit}"


def _span(values: Sequence[float]) -> str:
    """One value, or the range of several retain models.

    >>> _span([0.5]), _span([0.5, 0.25]), _span([])
    ('0.5000', '0.2500..0.5000', '-')
    """
    if len(values) > 1:
        return f"{number(min(values))}..{number(max(values))}"
    return number(values[0]) if values else "-"


def without_retain(metrics: Mapping[str, MetricSpec], scores: Mapping[str, Score]) -> str:
    """What the numbers show without a retain model: by fresh rows alone, and how far that carries."""
    attacks: dict[str, float] = {}
    for name, score in scores.items():
        if is_attack(metrics[name].handler) and score.agg_value is not None:
            attacks[name] = score.agg_value
    if not attacks:
        return ""
    name, value = max(attacks.items(), key=lambda item: abs((item[1] or 0.5) - 0.5))
    return (
        f"Without a retain model, by fresh rows alone: the strongest attack ({name}, AUC {number(value)}) says that "
        f"{reading(metrics[name].handler, value)}. Its limits: fresh rows must be of the same kind as the forget rows, "
        "and 0.5 is also what a model shows that never knew them."
    )


def describe(spec: MetricSpec, score: Score, stat: Mapping[str, Any] | None = None) -> str:
    """The reading of one score, as far as its interval bears it out."""
    if score.curves is not None:
        return "curves over denoising steps (below)"
    if score.agg_value is None:
        return "not computed (no retain model)" if score.reason == NO_RETAIN_LOGS else "not computed (below)"
    if any(note.startswith(MIXTURE) for note in score.notes):
        return "not read: a mixture (below)"
    against = "ref_value" not in "\n".join(score.notes)
    ends = own_interval(stat or {})
    return reading(spec.handler, score.agg_value, str(spec.params.get("aggregator", "")), against, ends)


def own_interval(stat: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of the metric's own value.

    >>> own_interval({"interval": [0.1, 0.3]}), own_interval({"interval": [0.1, 0.3], "of": "ks_statistic"})
    ((0.1, 0.3), None)
    """
    if not stat.get("interval") or stat.get("of"):
        return None
    return float(stat["interval"][0]), float(stat["interval"][1])


def _legend(intervals: Iterable[str]) -> list[str]:
    """What an interval is about, where it is not about the metric's own value."""
    if any(words.startswith(DISTANCE) for words in intervals):
        return ["D: the Kolmogorov-Smirnov distance from the retain model's answers (0: alike, 1: wholly apart)"]
    return []


def _reasons(top: Sequence[str], scores: Mapping[str, Score]) -> list[str]:
    """What must be known of the numbers and why others are missing, each once with the metrics it is about."""
    reasons: dict[str, list[str]] = {}
    for name in top:
        for words in (*scores[name].notes, *([scores[name].reason] if scores[name].missing else [])):
            if not words.endswith(NO_RETAIN_LOGS):  # the reading says so
                reasons.setdefault(words, []).append(name)
    return [f"{', '.join(names)}: {words}" for words, names in reasons.items()]


def summary(
    metrics: Mapping[str, MetricSpec],
    top: Sequence[str],
    scores: Mapping[str, Score],
    retain: Mapping[str, Sequence[float]] | None = None,
    stats: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The asked-for metrics of one run, with intervals, and with the retain model's values where its logs were given.

    Under the table stands what is missing, why, and what must be known.
    """
    told = stats or {}
    rows: list[list[str]] = []
    spread = False  # whether some metric has an interval
    for name in top:
        score, stat = scores[name], told.get(name, {})
        rows.append([name, number(score.agg_value), describe(metrics[name], score, stat)])
        spread = spread or bool(stat.get("interval"))
    heads = ["metric", "value", "reading"]
    if retain:
        heads.insert(2, "retain")
        for row in rows:
            row.insert(2, _span(retain.get(row[0], ())))
    if spread:
        heads.insert(2, "95 % interval")
        for row in rows:
            row.insert(2, span(told.get(row[0], {})))
    lines = [table(rows, heads, right=tuple(range(1, len(heads) - 1)))]
    if below := [*_legend(row[2] for row in rows if spread), *_reasons(top, scores)]:
        lines += ["", *below]
    for name in top:
        if scores[name].curves:
            lines.append(f"\n{curves_table(name, scores[name])}")
    return "\n".join(lines)


SHOWN_STEPS = 6
MOST_CURVES = 16  # in a terminal


def curves_table(name: str, score: Score) -> str:
    """A trajectory metric in a few columns: each curve at steps spread over the whole path."""
    from vestige.metrics.trajectory import VIEWS

    meta: Any = score.extra["trajectory_step_metadata"]
    count = int(meta["num_trajectory_steps"])
    steps = sorted({round(i * (count - 1) / max(1, SHOWN_STEPS - 1)) for i in range(SHOWN_STEPS)})
    nested: Mapping[str, Any] = score.curves or {}
    if not set(nested) <= set(VIEWS):  # the flat shape: one view, unnamed
        nested = {"": nested}
    rows = [
        [metric, trajectory, view, *(number(values[s]) for s in steps)]
        for view, by_trajectory in nested.items()
        for trajectory, metrics in by_trajectory.items()
        for metric, values in metrics.items()
        if any(v is not None for v in values)
    ]
    rows.sort(key=lambda row: row[0])
    left_out = ""
    if len(rows) > MOST_CURVES:  # the one that stops when a token is decided says most
        plain = [row for row in rows if row[1:3] == ["fixation_start", rows[0][2]]]
        if plain:
            rows, left_out = plain, "\nOther trajectories and views are in the result file."
    decided = [f"step {s} ({meta['step_values'][s]} tok)" for s in steps]
    head = f"{name}: values at some of {count} steps (tokens decided before the pass in brackets)"
    heads = ["metric", "trajectory", "view", *decided]
    return f"{head}\n{table(rows, heads, right=tuple(range(3, len(heads))))}{left_out}"


def comparison(names: Sequence[str], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Several runs side by side: one row per metric, one column per run. Values are agg_values by metric name."""
    rows = [[name, *(number(runs[r].get(name)) for r in runs)] for name in names]
    return table(rows, ["metric", *runs], right=tuple(range(1, len(runs) + 1)))


def harness_summary(scores: Mapping[str, Score]) -> str:
    """One line per task and metric, its standard error beside it."""
    rows = []
    for key, score in scores.items():
        name, comma, kind = key.partition(",")
        if name.endswith("_stderr"):
            continue
        error = scores.get(f"{name}_stderr{comma}{kind}")
        rows.append([key, number(score.agg_value), number(error.agg_value if error else None)])
    return table(rows, ["task/metric", "value", "stderr"], right=(1, 2))


def harness_report(outcome: Any) -> str:
    """What the command line prints of a harness run."""
    manifest: Mapping[str, Any] = outcome.manifest
    documents = sum(d["rows"] for d in manifest["data"].values())
    version = manifest["versions"].get("lm_eval", "")
    head = f"{manifest['model']['name']}  (lm-evaluation-harness {version}, {documents} documents)"
    notes = [f"note: {note}" for note in outcome.notes]
    files = f"files: {', '.join(str(f) for f in outcome.files)}"
    took = f"time:  {manifest['seconds']['total']:.1f} s"
    return "\n".join(["", head, "", harness_summary(outcome.scores), *notes, "", files, took])
