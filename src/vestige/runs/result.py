"""`vestige.Result`: the scores of one evaluation, as text, as a small HTML table, as a pandas frame, row by row.

A result that was not written to a directory holds its files in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from vestige.engine.evaluate import Outcome
from vestige.errors import UserError, how_to_install, unknown_name
from vestige.in_memory import Place, write_files
from vestige.numeric import number
from vestige.runs.directory import temporary
from vestige.types import Score

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT_KEYS = {"input": "input", "ground_truth": "reference", "generation": "text"}


class WrittenText(TypedDict):
    """What the model wrote for one row."""

    metric: str
    index: str
    input: str
    reference: str
    text: str


class ResultLine(TypedDict):
    """One metric of a result, as a line of a table."""

    metric: str
    value: float | None
    low: float | None  # of its 95 % interval
    high: float | None
    n: int | None  # rows behind it
    reading: str  # in words
    reason: str  # why it has no value


@dataclass(frozen=True)
class RunVerdict:
    """What a report says of a model: the word, its title, and why in a sentence."""

    word: str  # forgotten | looks_forgotten | partly | not_forgotten | damaged | cannot_tell
    title: str
    headline: str


@dataclass(frozen=True)
class TrajectoryScore(Score):
    """A trajectory metric. Printed, it is a table of its curves at some of their steps; `curves` has all values."""

    name: str = ""

    def __repr__(self) -> str:
        from vestige.show.tables import curves_table

        return curves_table(self.name, self)


class Result:
    """The scores of one evaluation. `print(result)` is the table; `result["forget_Q_A_Prob"]` is one Score.

    `evaluate`, `score` and `load_run` return one.

        result = vestige.load_run("saves/eval/mine")
        print(result, result.summary, result.intervals)
        frame = result.to_pandas()                       # value, low, high, n, reading, reason by metric
        worst = result.to_pandas("forget_Q_A_Prob").sort_values("prob").head()
        for row in result.texts("forget_Q_A_ROUGE"): print(row["input"], row["text"])

    `directory` is the run directory; None if no `out` was given: then nothing is on disk, and `save` writes it.
    """

    def __init__(self, outcome: Outcome, kept: Mapping[str, bytes] | None = None) -> None:
        self.outcome = outcome
        self.directory: Path | None = outcome.directory if kept is None else None
        self.files: tuple[Path, ...] = outcome.files if kept is None else ()
        self._kept = kept
        self._reported_in: Path | None = None  # the folder of the page that `make_report` wrote of it

    # ---- numbers

    @property
    def name(self) -> str:
        """The model's name or path."""
        return str(self.outcome.manifest["model"]["name"])

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """Every metric and parent."""
        found = dict(self.outcome.scores)
        for name, score in found.items():
            if score.curves:
                found[name] = TrajectoryScore(**vars(score), name=name)
        return found

    @property
    def summary(self) -> dict[str, float | None]:
        """The asked-for metrics' values; None where a value is missing."""
        return {name: self.scores[name].agg_value for name in self.outcome.top}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of all metrics that have one (of forget_quality: of its KS distance)."""
        ends = {name: stat.get("interval") for name, stat in self.outcome.stats.items()}
        return {name: (e[0], e[1]) for name, e in ends.items() if e}

    @property
    def manifest(self) -> Mapping[str, object]:
        """How the numbers came about: model, data, definitions, versions, cost; plain data."""
        return self.outcome.manifest

    @property
    def cost(self) -> dict[str, float]:
        """What the model was asked for: score_tokens, tokens_produced, ..."""
        return {str(k): v for k, v in self.outcome.manifest.get("cost", {}).items() if isinstance(v, (int, float))}

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers must know."""
        return [str(note) for note in self.outcome.manifest.get("notes", ())]

    def __getitem__(self, name: str) -> Score:
        if name not in self.scores:
            raise unknown_name("metric", name, self.scores)
        return self.scores[name]

    # ---- rows

    def rows(self, metric: str) -> list[dict[str, object]]:
        """One metric's per-row values as a list of records (attacks: forget and holdout rows, told apart by `set`)."""
        score = self[metric]
        if score.value_by_index is not None:
            return [{"index": i, **v} for i, v in score.value_by_index.items()]
        sets = {k: v for k, v in score.extra.items() if isinstance(v, Mapping) and "value_by_index" in v}
        return [{"set": k, "index": i, **r} for k, v in sets.items() for i, r in v["value_by_index"].items()]

    def texts(self, metric: str | None = None) -> list[WrittenText]:
        """What the model wrote, row by row: of one metric, or of all that read texts."""
        names = list(self.scores) if metric is None else [metric]
        return [
            WrittenText(
                metric=name,
                index=str(row["index"]),
                input=str(row.get("input", "")),
                reference=str(row.get("ground_truth", "")),
                text=str(row["generation"]),
            )
            for name in names
            for row in self.rows(name)
            if row.get("generation") is not None
        ]

    def lines(self) -> list[ResultLine]:
        """The asked-for metrics as records: what `to_pandas` and the table in a notebook show."""
        return [self._line(name) for name in self.outcome.top]

    def _line(self, name: str) -> ResultLine:
        from vestige.show.tables import describe, own_interval

        score, stat, spec = self[name], self.outcome.stats.get(name, {}), self.outcome.metrics.get(name)
        low, high = own_interval(stat) or (None, None)
        count = stat.get("n") or (len(score.value_by_index) if score.value_by_index is not None else None)
        words = describe(spec, score, stat) if spec is not None else ""
        return ResultLine(
            metric=name, value=score.agg_value, low=low, high=high, n=count, reading=words, reason=score.reason
        )

    def to_pandas(self, metric: str | None = None) -> DataFrame:
        """The asked-for metrics (value, low, high, n, reading, reason), or one metric's rows, as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError(f"to_pandas needs pandas; run `{how_to_install('pandas')}` or use .rows().") from None
        if metric is not None:
            return pandas.DataFrame(self.rows(metric)).set_index("index")
        frame = pandas.DataFrame(self.lines()).set_index("metric")
        return frame.astype({"value": float, "low": float, "high": float, "n": "Int64"})

    # ---- files

    def save(self, out: Place) -> Path:
        """Writes a result that is not on disk to a folder, as if `out` had been given. Returns the folder."""
        place = Path(out).expanduser()
        if self._kept is None:
            raise UserError(f"This result is on disk already, in {self.directory}.")
        write_files(self._kept, place)
        names = [file.name for file in self.outcome.files]
        self.directory, self.files, self._kept = place, tuple(place / name for name in names), None
        return place

    @contextmanager
    def placed(self, name: str = "") -> Iterator[Path]:
        """A run directory with its files, for as long as it takes."""
        if self._kept is None:
            assert self.directory is not None
            yield self.directory
            return
        with temporary() as scratch:
            write_files(self._kept, scratch / (name or self.short_name))
            yield scratch / (name or self.short_name)

    @property
    def short_name(self) -> str:
        """What tables call it: the folder's name, or the model's."""
        if self.directory is not None:
            return self.directory.resolve().name
        # A model's name comes from outside: it becomes one plain folder name, never `..` and never a hidden one.
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.name).name).lstrip(".") or "run"

    # ---- its page

    @property
    def report(self) -> Path | None:
        """The page that shows this run: what `make_report` wrote, or one in the folder `report` inside or beside it."""
        found = self._in_report()
        return None if found is None else found[0]

    @property
    def verdict(self) -> RunVerdict | None:
        """The verdict on the model, where a page has one: it takes the runs of the models before and without."""
        found = self._in_report()
        return None if found is None else found[1]

    def reported(self, folder: Path) -> None:
        """Called by `make_report`."""
        self._reported_in = folder

    def _in_report(self) -> tuple[Path, RunVerdict | None] | None:
        from vestige.report.build import read_report
        from vestige.report.gather import PAGE

        if self.directory is None:
            return None
        mine = self.directory.resolve()
        for folder in (self._reported_in, mine / "report", mine.parent / "report"):
            report = None if folder is None or not (folder / PAGE).is_file() else read_report(folder)
            if folder is None or report is None:
                continue
            sources = [s for s in report["sources"] if (folder / str(s.get("path", ""))).resolve() == mine]
            if not sources:
                continue
            models = {model for source in sources for model in source.get("models", ())}
            said = next((a["verdict"] for a in report["audits"] if a["model"] in models), None)
            verdict = RunVerdict(said["word"], said["title"], said["headline"]) if said else None
            return folder / PAGE, verdict
        return None

    # ---- looks

    def __repr__(self) -> str:
        from vestige.show.tables import harness_report, summary

        outcome = self.outcome
        if "harness" in outcome.manifest:
            return harness_report(outcome).strip()
        where = f"files in {self.files[0].parent}" if self.files else self._where()
        head = f"{self.name}  (dialect {outcome.dialect}; {where})"
        return f"{head}\n{summary(outcome.metrics, outcome.top, self.scores, outcome.retain, outcome.stats)}"

    def _where(self) -> str:
        return "not on disk: result.save(DIR) writes it" if self.directory is None else f"files in {self.directory}"

    def _repr_html_(self) -> str:
        """A small table for notebooks. Everything in it is escaped: names of models and reasons come from outside."""
        heads = "".join(f"<th>{head}</th>" for head in ("metric", "value", "95 % interval", "n", "reading"))
        body = "".join(_html_row(line) for line in self.lines())
        where = escape(self._where()) if self.directory is None else f"<code>{escape(str(self.directory))}</code>"
        return (
            f"<div><b>{escape(self.name)}</b> <small>dialect {escape(self.outcome.dialect)}; {where}</small>"
            f"{self._verdict_html()}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _verdict_html(self) -> str:
        found = self._in_report()
        if found is None:
            return ""
        page, verdict = found
        words = "" if verdict is None else f"<b>{escape(verdict.title)}</b>: {escape(verdict.headline)} "
        return f'<p>{words}<a href="{escape(page.resolve().as_uri())}">report</a></p>'


def _html_row(line: ResultLine) -> str:
    low, high = line["low"], line["high"]
    span = "" if low is None or high is None else f"{number(low)} to {number(high)}"
    count = "" if line["n"] is None else str(line["n"])
    cells = [(line["metric"], "left"), (number(line["value"]), "right"), (span, "right"), (count, "right")]
    cells.append((line["reason"] or line["reading"], "left"))
    return "<tr>" + "".join(f'<td style="text-align:{side}">{escape(words)}</td>' for words, side in cells) + "</tr>"
