"""A report from finished runs: models, values, audits, sections; and what needs stored evidence, paired differences and
traces. No model runs.

    paths --gather--> runs --identify_models--> models --build_report--> report.json --render_page--> index.html

report.json is plain JSON; docs/report.md describes it. Callers: commands.py, api.py, audit;
report/view.py, which rebuilds it when runs change; report/verify.py, which compares.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from math import isclose
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta.axes import FLOOR, UDS_ENDS, Methods, definitions, from_results
from vestige.meta.files import checked_meta_eval
from vestige.meta.tree import ResultTree, methods_of, tree_meta
from vestige.numeric import counted, number
from vestige.report.audits import OUTPUTS, audit, note_unequal_tests
from vestige.report.gather import PAGE, REPORT, FoundRuns, Json, gather, row_traces, source_json
from vestige.report.metrics import describe_metric
from vestige.report.models import (
    COLUMNS,
    ModelMention,
    Models,
    ReportModel,
    add_axes,
    depth_end,
    depth_values,
    evaluation_values,
    identify_models,
    method_models,
    value,
)
from vestige.report.page import render_page
from vestige.report.rows import ALL_ROWS, ROWS
from vestige.report.sections import collapse, heat, meta_evaluation, training, trajectories
from vestige.runs.compare import Stored, differences, judged, read_stored
from vestige.runs.directory import open_run, write_bytes
from vestige.runs.files import relative, write_json
from vestige.runs.manifest import refuse_other_kind
from vestige.runs.run import UNSTATED, Number, RunSource, mixtures, number_of
from vestige.secrets import hidden, homes, shorten
from vestige.show.progress import Bar, hushed

SCHEMA = 1
LEVEL = 0.95
TITLE = "Did it forget?"
RESAMPLES = 2000
MARGIN = 0.05  # what counts as equal on metrics between 0 and 1, as in `vestige compare`
SAME = 1e-5  # as a share: packed and plain batches differ by less
MOST_PAIRS = 40  # paired differences of a report; `vestige compare` prints the rest
MOST_HEAT = 6  # rows of a trajectory run whose every step is kept
MOST_AUDITS = 60  # each holds rows and distributions: a thousand of them would make no page
PARETO_X = ("uds", "privacy_floored", "forget_quality", "forget_Q_A_Prob", "forget_Prob", "forget_Q_A_ROUGE")
PARETO_Y = ("utility_rel", "model_utility", "retain_Q_A_ROUGE", "retain_ROUGE")

log = logging.getLogger("vestige.report")


@dataclass(frozen=True)
class ReportRequest:
    """What to report on, where to, and what its maker says of it."""

    runs: Sequence[Path]
    out: Path = Path("saves/report")
    title: str = TITLE
    full: Sequence[str] = ()
    retain: Sequence[str] = ()
    unlearned: Sequence[str] = ()  # where a name says something else
    rows: int = ROWS
    accept_mixture: bool = False  # of runs that were not measured alike
    shorten_paths: bool = False  # ~ in the place of people's homes
    progress: bool = False


# ---- the file --------------------------------------------------------------------------------------------------------


def empty_report(title: str) -> Json:
    """A report without content: every part is there."""
    words = f"Floored: a part below {FLOOR:g} counts as {FLOOR:g}, so that one clipped part does not erase the rest."
    return {
        "schema": SCHEMA,
        "title": title,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "vestige": __version__,
        "level": LEVEL,
        "protocols": [],
        "sources": [],
        "problems": [],
        "columns": [],
        "models": [],
        "audits": [],
        "comparisons": [],
        "trajectories": [],
        "collapse": [],
        "metrics": {},
        "axes": {"definitions": definitions(), "floor": FLOOR, "floor_words": words},
        "pareto": None,
        "meta": None,
    }


def check_report(report: Any) -> None:
    """UserError where data is not a report that this version reads."""
    schema = report.get("schema") if isinstance(report, Mapping) else None
    if schema != SCHEMA:
        raise UserError(f"it does not hold a report of this version (schema is {schema!r}, not {SCHEMA})")
    missing = [part for part in empty_report("") if part not in report]
    if missing:
        raise UserError(f"{missing[0]} is missing")


def read_report(path: Path) -> Json | None:
    """The report in a directory (or file), checked; None where there is none."""
    file = path / REPORT if path.is_dir() else path
    if file.name != REPORT or not file.is_file():
        return None
    try:
        report = read_json(file)
        check_report(report)
    except (ValueError, UserError) as error:
        raise UserError(f"{file} cannot be read ({error}); run vestige report again.") from None
    return dict(report)


def request_again(report: Mapping[str, Any], place: Path) -> ReportRequest:
    """The request that made a report which lies in `place`; its runs are named relative to that."""
    asked = dict(report.get("asked") or {})
    runs = asked.pop("runs", ())
    if not runs:
        raise UserError(f"{place / REPORT} does not say which runs it was made from; run vestige report again.")
    return ReportRequest([place / run for run in runs], place, **asked)


def write_report(request: ReportRequest) -> Json:
    """report.json and index.html in the asked directory; the data comes first, and stays if the page cannot be made."""
    out = request.out
    refuse_other_kind(out, "report")
    report: Json = hidden(build_report(request))
    text = json.dumps(report, ensure_ascii=False)
    if request.shorten_paths:
        report = json.loads(shorten(text))
    elif places := homes(text):
        log.warning(
            "The report names a person's home directory (%s); --shorten-paths writes ~ in its place.", places[0]
        )
    with open_run(out, "report", [REPORT, PAGE]) as run:
        write_json(out / REPORT, report, indent=None)
        write_bytes(out / PAGE, render_page(report).encode("utf-8"))
        run.finish()
    return report


def summary(report: Json, out: Path) -> str:
    """For the terminal: what is in it, and the verdicts."""
    names = {model["id"]: model["name"] for model in report["models"]}
    lines = [f"{report['title']}: {counted(len(names), 'model')}, {counted(len(report['sources']), 'source')}"]
    for one in report["audits"][:MOST_PAIRS]:
        lines.append(f"  {names[one['model']]}: {one['verdict']['title']}. {one['verdict']['headline']}")
    for problem in report["problems"]:
        where = problem.get("where")
        lines.append(f"problem: {problem['text']}" + (f" ({os.path.normpath(out / where)})" if where else ""))
    return "\n".join([*lines, f"files: {out / REPORT}, {out / PAGE}"])


# ---- the whole -------------------------------------------------------------------------------------------------------


def build_report(request: ReportRequest) -> Json:
    """The data of a report. Nothing is written."""
    found = gather(request.runs)
    with hushed():  # what a run lacks is shown in the report
        report, models = assemble(found, request)
        pairs = _pairs(report)
        curves = [(run, model) for model in models.all for run in model.evaluations if run.is_trajectory]
        with Bar("comparing models", len(pairs) + len(curves), "pair", request.progress) as bar:
            for compared in _compare(models, found, pairs):
                report["comparisons"] += compared
                bar.add(1)
            for run, _ in curves:
                _add_heat(report, found, run.source)
                bar.add(1)
    report["problems"] = []
    for problem in found.problems:
        where = {"where": relative(Path(problem["where"]), request.out)} if "where" in problem else {}
        report["problems"].append({**problem, **where})
    asked: Json = {"runs": [relative(run, request.out) for run in request.runs], "title": request.title}
    asked |= {"full": list(request.full), "retain": list(request.retain), "rows": request.rows}
    if request.unlearned:
        asked["unlearned"] = list(request.unlearned)
    if request.accept_mixture:
        asked["accept_mixture"] = True
    report["asked"] = asked
    if found.left_out:
        report["left_out"] = list(found.left_out)
    return report


def assemble(found: FoundRuns, request: ReportRequest) -> tuple[Json, Models]:
    """The report, but for what needs stored evidence, with its models."""
    models = identify_models(found, request.full, request.retain, request.unlearned)
    for model in models.all:
        for run in model.evaluations:
            take_values(found, model, evaluation_values(run), run.source.path)
    for model in models.all:
        if model.depth is not None:
            take_values(found, model, depth_values(model.depth), model.depth.source.path)
            for role, reference in model.links.items():
                if role in UDS_ENDS:
                    reference.values.setdefault("uds", depth_end(role, model.depth))
    for note in mixtures(_measured(found, models), request.accept_mixture):
        found.problem(note)
    methods = _add_methods(found, models)
    add_axes([model for model in models.all if model.evaluations], found)
    report = empty_report(request.title)
    report["trajectories"] = [
        curve
        for model in models.all
        for run in model.evaluations
        if run.is_trajectory
        for curve in trajectories(run, model.id)
    ]
    report["training"] = [training(run) for run in found.watched_runs]
    report["collapse"] = [record for run in found.collapse_runs for record in collapse(run)]
    report["audits"] = _audits(found, models, request.rows)
    report["meta"] = _meta(found, models, methods)
    report["models"] = [model.to_json() for model in models.all]
    _describe_metrics(report, models)
    have = {key for model in models.all for key, v in model.values.items() if v["v"] is not None}
    x, y = (next((key for key in keys if key in have), None) for keys in (PARETO_X, PARETO_Y))
    report["pareto"] = {"x": x, "y": y} if x and y else None
    protocols = {str(v["protocol"]) for model in models.all for v in model.values.values() if v.get("protocol")}
    report["protocols"] = sorted(protocols)
    drop_repeated(report)
    for source in found.sources:
        named = [model.id for model in models.all if source.id in model.sources]
        report["sources"].append(source_json(source, request.out, named))
    report["problems"] = found.problems
    return dict(plain(report)), models


def plain(value: Any) -> Any:
    """The same data as JSON can hold it: no NaN, no infinity, no tuple, text keys."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float) or hasattr(value, "__float__"):  # numpy has numbers of its own
        return float(value) if abs(value) < float("inf") else None
    return str(value)


# ---- values ----------------------------------------------------------------------------------------------------------


def take_values(found: FoundRuns, model: ReportModel, values: Mapping[str, Json], where: Path) -> None:
    """Adds a run's values to a model's; where two runs measure the same, the one with more rows is shown.

    Another value by another dialect is to be expected: the number says so in a note. By the same one it is a problem.
    """
    twice: list[str] = []
    for key, new in values.items():
        old = model.values.get(key)
        if old is None or old["v"] is None:
            model.values[key] = dict(new)
        elif new["v"] is not None and not same_number(new["v"], old["v"]):
            shown, other = old, new
            if (new.get("n") or 0) > (old.get("n") or 0):
                shown, other = new, old
            model.values[key] = dict(shown)
            if old.get("dialect") != new.get("dialect"):
                note = f"another run has {number(other['v'])} by dialect {other.get('dialect')}"
                model.values[key]["note"] = note
            else:
                twice.append(key)
    if twice:
        found.problem(
            f"{model.name} was measured in more than one run, with different values of {', '.join(twice)}; "
            "the run with more rows (else the first) is shown.",
            where,
        )


def _measured(found: FoundRuns, models: Models) -> Iterator[tuple[str, dict[str, Number]]]:
    """How the models of a family measured each metric; other families may have other rows and templates."""
    runs = {run.source.id: run for run in found.evaluations}
    by_family: dict[tuple[str, str], dict[str, Number]] = {}
    for model in models.all:
        for metric, shown in model.values.items():
            protocol = shown.get("protocol") or UNSTATED
            if shown["v"] is None or protocol == UNSTATED:
                continue
            run = runs.get(shown["source"])
            manifest = run.judged.manifest if run else {}
            measured = number_of(manifest, metric) if manifest else Number(None, protocol)
            family = run.manifest.family if run else ""
            by_family.setdefault((metric, family), {})[model.name] = measured
    for (metric, _), numbers in by_family.items():
        yield metric, numbers


def _add_methods(found: FoundRuns, models: Models) -> dict[str, Methods]:
    """Rows of published tables and trees as models; returns what was read of each source, by its path."""
    out: dict[str, Methods] = {}
    for source in found.of("methods"):
        tree: ResultTree | None = source.data.get("tree")
        try:
            methods = methods_of(tree) if tree else from_results(source.data, str(source.path))
        except UserError as error:
            found.leave_out(str(error), source.path)
            continue
        for text in methods.notes:
            found.problem(text, source.path)
        # The published metrics as measured, of which the table holds only parts of axes.
        raw: dict[str, dict[str, Json]] = {}
        for (_, name), measured in tree.models.items() if tree else ():
            raw[name] = {
                key: value(n.value, source.id, "not in the file", protocol=n.protocol)
                for key, n in measured.numbers.items()
                if key in OUTPUTS
            }
        for row in method_models(methods, source.id, raw):
            model = models.register(ModelMention(row["name"], role=row["role"]), source.id)
            model.role = model.role or row["role"]
            model.method = model.method or row["method"]
            model.epoch = model.epoch or row["epoch"]
            model.settings = model.settings or row["settings"]
            take_values(found, model, row["values"], source.path)
        out[str(source.path)] = methods
    return out


def _describe_metrics(report: Json, models: Models) -> None:
    """Definitions of every metric that some model or curve has, and the columns of the table of models.

    Axes come first, then what the runs were asked for, then the rest, but for metrics that only serve others.
    """
    described: Json = {}
    asked: list[str] = []
    measured: set[str] = set()
    for model in models.all:
        for run in model.evaluations:
            asked += run.top
            measured |= set(run.results)
            for metric in run.results:
                if metric not in described or not described[metric]["formula"]:
                    described[metric] = describe_metric(metric, run.handler(metric), run.aggregator(metric))
    metrics = report["metrics"]
    have = set()
    for model in models.all:
        for key, shown in model.values.items():
            metrics.setdefault(key, described.get(key) or describe_metric(key))
            if shown["v"] is not None:
                have.add(key)
    serving = measured - set(asked)
    rest = [key for key in metrics if key not in serving]
    report["columns"] = [key for key in dict.fromkeys([*COLUMNS, *asked, *rest]) if key in have]
    curves = [*report["trajectories"], *(curve for one in report["audits"] for curve in one["attacks"])]
    for curve in curves:
        metrics.setdefault(curve["metric"], describe_metric(curve["metric"], curve["metric"]))


def same_number(a: float, b: float) -> bool:
    """Whether two runs measured the same, but for rounding.

    >>> same_number(0.7008811, 0.7008812), same_number(9.6e-6, 9.5e-6), same_number(0.0, 0.0)
    (True, False, True)
    """
    return isclose(a, b, rel_tol=SAME)


def drop_repeated(report: Json) -> None:
    """One number under two names: suites name the same metric differently, and a page that shows both asks why.

    Of columns with the same meaning and the same numbers the first is kept; evidence keeps the names it uses.
    """
    named = {point.get("metric") for one in report["audits"] for point in one["verdict"].get("evidence") or ()}
    for key in list(report["columns"]):
        first = next((k for k in report["columns"] if k != key and _repeats(report, k, key)), None)
        if first is None or (key in named and first in named):
            continue
        gone = first if key in named else key
        report["columns"].remove(gone)
        for model in report["models"]:
            model["values"].pop(gone, None)


def _repeats(report: Json, first: str, second: str) -> bool:
    """Whether two metrics mean the same, and have a number in the same models, and it is the same."""
    a, b = report["metrics"][first], report["metrics"][second]
    # Attacks that differ in their formula only share a title, and now and then a number.
    if not a.get("title") or any(a.get(fact) != b.get(fact) for fact in ("title", "definition", "formula")):
        return False
    for model in report["models"]:
        x, y = (model["values"].get(key, {}).get("v") for key in (first, second))
        if (x is None) != (y is None) or (x is not None and not same_number(x, y)):
            return False
    return True


# ---- audits and meta-evaluation --------------------------------------------------------------------------------------


def _audits(found: FoundRuns, models: Models, most_rows: int) -> list[Json]:
    """One for each unlearned model with rows, layers or attacks; those with most to show come first."""

    def evidence(model: ReportModel) -> int:
        return bool(model.evaluations) + bool(model.depth) + bool(model.attacks)

    chosen: list[ReportModel] = []
    for role in ("unlearned", "full", "other"):
        chosen = chosen or [model for model in models.all if model.role == role and evidence(model)]
    chosen.sort(key=evidence, reverse=True)
    if len(chosen) > MOST_AUDITS:
        left = len(chosen) - MOST_AUDITS
        found.problem(f"{left} models are in the tables only: no more than {MOST_AUDITS} are audited row by row.")
        chosen = chosen[:MOST_AUDITS]
    rows = most_rows
    if chosen and most_rows == ROWS:
        rows = max(1, min(ROWS, ALL_ROWS // (2 * len(chosen))))
    if rows < most_rows:
        found.problem(f"{len(chosen)} models are audited: {rows} rows of a split are kept of each (--rows N for more).")
    out = [audit(models, found, model, rows) for model in chosen]
    note_unequal_tests(out, {model.id: model.name for model in chosen})
    return out


def _meta(found: FoundRuns, models: Models, methods: Mapping[str, Methods]) -> Json | None:
    sources = sorted(found.of("meta"), key=lambda s: "tree" in s.data)  # a finished file before a tree's values
    if not sources:
        return None
    source = sources[0]
    if len(sources) > 1:
        found.problem(f"there are {len(sources)} sources of meta-evaluation; {source.path} is shown.")
    data = source.data
    try:
        if "tree" in data:  # judged as `vestige import` judges it
            tree: ResultTree = data["tree"]
            made = tree_meta(tree.root, methods.get(str(tree.root)) or methods_of(tree), data["attacks"])
            for note in made.notes:
                found.problem(f"{note}.", source.path)
            data = made.body
        return meta_evaluation(checked_meta_eval(data, source.path), models.all, source.id)
    except UserError as error:
        found.leave_out(str(error), source.path)
        return None


# ---- what needs stored evidence --------------------------------------------------------------------------------------


def _pairs(report: Json) -> list[tuple[str, str]]:
    """Audited models against their references, then against each other."""
    audits = report["audits"]
    pairs = [(one[role], one["model"]) for one in audits for role in ("retain", "full") if one[role]]
    pairs += combinations([one["model"] for one in audits], 2)
    return list(dict.fromkeys(pairs))[:MOST_PAIRS]


def _compare(models: Models, found: FoundRuns, pairs: Sequence[tuple[str, str]]) -> Iterator[list[Json]]:
    """The paired differences of each pair: one record, or none."""
    by_id = {model.id: model for model in models.all}
    stored: dict[str, Stored | None] = {}

    def read(model: ReportModel) -> Stored | None:
        run = next(iter(model.plain_evaluations), None)
        if run is None:
            return None
        try:
            return read_stored(run.source.path, model.name)
        except UserError as error:  # results of several suites in one place, or of a plug-in not loaded here
            found.problem(f"no paired differences of {model.name}: {error}", run.source.path)
            return None

    for a, b in pairs:
        for id in (a, b):
            if id not in stored:
                stored[id] = read(by_id[id])
        base, other = stored[a], stored[b]
        if base is None or other is None:
            yield []
            continue
        shared = [m for m in by_id[a].plain_evaluations[0].top if m in by_id[b].plain_evaluations[0].top]
        tested = {other.name: differences(base, other, shared, RESAMPLES)}
        found_differences, reasons = judged(tested, base, MARGIN)[other.name]
        metrics = []
        for d in found_differences:
            lo, hi = d.interval
            one: Json = {"metric": d.metric, "value": d.value, "lo": lo, "hi": hi, "p": d.p, "holm": d.holm}
            one["reading"] = d.reading
            if d.of:
                one["of"] = d.of
            metrics.append(one)
        words = f"the same rows for both, drawn again {RESAMPLES} times; Holm over {len(metrics)} differences"
        yield [{"a": a, "b": b, "metrics": metrics, "reasons": dict(reasons), "rows": words}]


def _add_heat(report: Json, found: FoundRuns, source: RunSource) -> None:
    """The steps of a few rows, put with the first curve of that run."""
    curve = next((t for t in report["trajectories"] if t["source"] == source.id), None)
    results = source.data["results"]
    name = next((metric for metric, body in results.items() if isinstance(body["agg_value"], Mapping)), "")
    if curve is None or not name:
        return
    try:
        curve["heat"] = [heat(row) for row in row_traces(source.path, name)[:MOST_HEAT]]
    except (UserError, OSError) as error:
        found.problem(f"no picture of single steps: {error}", source.path)
