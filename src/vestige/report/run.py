"""`vestige report`: what report/ gathers from files, and what needs stored evidence: paired differences, traces.

In: run directories of any kind. Out: report.json and index.html. Callers: report/flags.py; report/view.py, which
rebuilds it when runs change; report/verify.py, which compares.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.numeric import counted
from vestige.report.assemble import PageAsk, PageWork, assemble
from vestige.report.eval_part import top
from vestige.report.format import PAGE, REPORT, Report, check_report, finite
from vestige.report.gather import FoundRuns, gather
from vestige.report.page import render_page
from vestige.report.traces import row_traces
from vestige.results.compare import Difference, Stored, differences, judged, read_stored
from vestige.runs.directory import open_run, write_bytes
from vestige.runs.manifest import refuse_other_kind
from vestige.schema import misfit
from vestige.secrets import hidden, homes, shorten
from vestige.show.progress import Bar, hushed
from vestige.store.files import relative, write_json
from vestige.store.kinds import RunSource
from vestige.types import IGNORE

RESAMPLES = 2000
MARGIN = 0.05  # what counts as equal on metrics between 0 and 1, as in `vestige compare`
MOST_PAIRS = 40  # paired differences of a report; `vestige compare` prints the rest
MOST_HEAT = 6  # rows of a trajectory run whose every step is kept

log = logging.getLogger("vestige.report")


@dataclass(frozen=True)
class ReportAsk:
    """What to report on, and where to."""

    runs: Sequence[Path]
    out: Path = Path("saves/report")
    ask: PageAsk = field(default_factory=PageAsk)
    shorten_paths: bool = False  # ~ in the place of people's homes
    progress: bool = False


def build_report(ask: ReportAsk) -> Report:
    """The data of a report. Nothing is written."""
    found = gather(ask.runs)
    with hushed():  # what a run lacks is shown in the report
        report, work = assemble(found, ask.ask, ask.out)
        pairs = _pairs(report)
        with Bar("comparing models", len(pairs) + len(work.trajectories), "pair", ask.progress) as bar:
            report["comparisons"] = []
            for compared in _comparisons(work, pairs):
                report["comparisons"] += compared
                bar.add(1)
            for source, model in work.trajectories:
                _add_heat(report, found, source, model)
                bar.add(1)
    report["problems"] = [_seen_from(p, ask.out) for p in found.problems]
    report["asked"] = _asked(ask)
    if found.left_out:
        report["left_out"] = list(found.left_out)
    return report


def _seen_from(problem: Mapping[str, str], base: Path) -> dict[str, str]:
    where = problem.get("where")
    return {**problem, "where": relative(Path(where), base)} if where else dict(problem)


def _asked(ask: ReportAsk) -> dict[str, Any]:
    """How to make it again: `vestige verify` and `vestige view` do."""
    runs = [relative(r, ask.out) for r in ask.runs]
    told = {"title": ask.ask.title, "rows": ask.ask.rows}
    named = {"unlearned": list(ask.ask.unlearned)} if ask.ask.unlearned else {}
    told |= {"accept_mixture": True} if ask.ask.accept_mixture else {}
    return {"runs": runs, "full": list(ask.ask.full), "retain": list(ask.ask.retain), **named, **told}


def read_report(path: Path) -> Report | None:
    """The report in a directory (or file), checked; None where there is none."""
    file = path / REPORT if path.is_dir() else path
    if file.name != REPORT or not file.is_file():
        return None
    try:
        report = read_json(file)
        wrong = check_report(report)
    except ValueError:
        wrong = ["it does not hold a report"]
    if wrong:
        raise UserError(f"{file} cannot be read: {wrong[0]}; run vestige report again.")
    return dict(report)


class _Asked(TypedDict):
    runs: list[str]
    title: str
    full: list[str]
    retain: list[str]
    rows: int
    unlearned: NotRequired[list[str]]
    accept_mixture: NotRequired[bool]


def again(report: Mapping[str, Any], place: Path) -> ReportAsk:
    """The ask that made a report which lies in `place`."""
    asked: Any = report.get("asked")
    if misfit(asked, _Asked) or not asked["runs"]:
        raise UserError(f"{place / REPORT} does not say which runs it was made from; run vestige report again.")
    ask = PageAsk(str(asked["title"]), tuple(asked["full"]), tuple(asked["retain"]), int(asked["rows"]),
                  tuple(asked.get("unlearned", ())), bool(asked.get("accept_mixture")))  # fmt: skip
    return ReportAsk([place / r for r in asked["runs"]], place, ask)


def write_report(ask: ReportAsk) -> Report:
    """report.json and index.html in the asked directory; the data comes first, and stays if the page cannot be made."""
    refuse_other_kind(ask.out, "report")
    report = hidden(build_report(ask))
    text = json.dumps(report, ensure_ascii=False)
    if ask.shorten_paths:
        report = json.loads(shorten(text))
    elif places := homes(text):
        log.warning(
            "The report names a person's home directory (%s); --shorten-paths writes ~ in its place.", places[0]
        )
    with open_run(ask.out, "report", [REPORT, PAGE]) as run:
        write_json(ask.out / REPORT, report, indent=None)
        write_bytes(ask.out / PAGE, render_page(report).encode("utf-8"))
        run.finish()
    return report


def summary(report: Report, out: Path) -> str:
    """For the terminal: what is in it, and the verdicts."""
    names = {m["id"]: m["name"] for m in report["models"]}
    lines = [f"{report['title']}: {counted(len(names), 'model')}, {counted(len(report['sources']), 'source')}"]
    for a in report["audits"][:MOST_PAIRS]:
        lines.append(f"  {names[a['model']]}: {a['verdict']['title']}. {a['verdict']['headline']}")
    for problem in report["problems"]:
        where = problem.get("where")
        lines.append(f"problem: {problem['text']}" + (f" ({os.path.normpath(out / where)})" if where else ""))
    return "\n".join([*lines, f"files: {out / REPORT}, {out / PAGE}"])


# ---- paired differences ------------------------------------------------------------------------------------------


def _comparisons(work: PageWork, pairs: Sequence[tuple[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """Audited models against their references, then against each other: of each pair one, or none."""
    stored: dict[str, Stored | None] = {}
    for a, b in pairs:
        for id in (a, b):
            if id not in stored:
                stored[id] = _stored(work, id)
        base, other = stored[a], stored[b]
        if base is None or other is None:
            yield []
        else:
            yield [_comparison(a, b, base, other, _shared(work, a, b))]


def _pairs(report: Report) -> list[tuple[str, str]]:
    audits = report["audits"]
    references = [(a[role], a["model"]) for a in audits for role in ("retain", "full") if a[role]]
    rest = combinations([a["model"] for a in audits], 2)
    return list(dict.fromkeys([*references, *rest]))[:MOST_PAIRS]


def _evaluation(work: PageWork, id: str) -> RunSource | None:
    return next((s for s in work.evals.get(id, ()) if s.kind == "eval"), None)


def _stored(work: PageWork, id: str) -> Stored | None:
    source, entry = _evaluation(work, id), work.roster.by_id(id)
    if source is None or entry is None:
        return None
    try:
        return read_stored(source.path, entry.name)
    except UserError as error:  # results of several suites in one place, or of a plug-in not loaded here
        work.found.problem(f"no paired differences of {entry.name}: {error}", source.path)
        return None


def _shared(work: PageWork, a: str, b: str) -> list[str]:
    tops = [top(s) for id in (a, b) if (s := _evaluation(work, id))]
    return [m for m in tops[0] if all(m in t for t in tops)]


def _comparison(a: str, b: str, base: Stored, other: Stored, names: Sequence[str]) -> dict[str, Any]:
    found, reasons = judged({other.name: differences(base, other, names, RESAMPLES)}, base, MARGIN)[other.name]
    metrics = [_difference(d) for d in found]
    words = f"the same rows for both, drawn again {RESAMPLES} times; Holm over {len(found)} differences"
    return {"a": a, "b": b, "metrics": metrics, "reasons": dict(reasons), "rows": words}


def _difference(d: Difference) -> dict[str, Any]:
    lo, hi = d.interval
    body = {"metric": d.metric, "value": d.value, "lo": lo, "hi": hi, "p": d.p, "holm": d.holm, "reading": d.reading}
    return {**body, **({"of": d.of} if d.of else {})}


# ---- traces of denoising -----------------------------------------------------------------------------------------


def _add_heat(report: Report, found: FoundRuns, source: RunSource, model: str) -> None:
    """The steps of a few rows, put with the first curve of that run."""
    curve = next((t for t in report["trajectories"] if t["source"] == source.id), None)
    name = next((m for m, body in source.data["results"].items() if isinstance(body["agg_value"], Mapping)), "")
    if curve is None or not name:
        return
    try:
        curve["heat"] = [_heat(row) for row in row_traces(source.path, name)[:MOST_HEAT]]
    except (UserError, OSError) as error:
        found.problem(f"no picture of single steps: {error}", source.path)


def _heat(row: Any) -> dict[str, Any]:
    """One row's answer: how likely each of its tokens was in each pass, and when it was decided."""
    trace, n = row.trace, len(row.tokens)
    labels = trace.labels[row.stream, :n]
    plane = np.where(labels == IGNORE, np.nan, trace.logprob[row.stream][:, :n].astype(float))
    return {
        "i": str(row.index),
        "question": row.prompt,
        "answer": row.answer,
        "tokens": list(row.tokens),
        "steps": list(range(trace.steps)),
        "logprob": [[finite(float(x)) for x in step] for step in plane],
        "fixed": [int(x) for x in trace.fixed[:n]],
        "right": [bool(x) for x in trace.final[:n] == labels],
    }
