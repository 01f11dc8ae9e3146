"""The verbs that show results: report, table, plot, view."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.flags import shared_flags

if TYPE_CHECKING:
    from vestige.report.build import ReportRequest

ROWS = 400
SOURCES = "directories of runs, sweeps, or result files; any mixture"


def add_verbs(verbs: Any) -> None:
    report = verbs.add_parser("report", help="one page from any mixture of runs: did it forget?")
    report.set_defaults(do=run_report, late="runs")
    _sources(report, "report", out={"default": "saves/report"})
    _table(verbs)
    _plot(verbs)
    view = verbs.add_parser("view", help="serve a report here, rebuilt when its runs change")
    view.set_defaults(do=run_view, late="runs")
    _sources(view, "view", words=f"a report, or {SOURCES}")
    view.add_argument("--port", type=int, default=0, metavar="N", help="default: any that is free")
    view.add_argument("--every", type=float, default=3.0, metavar="SECONDS", help="between looks at the runs (3)")


def _table(verbs: Any) -> None:
    table = verbs.add_parser("table", help="a table of models or metrics: Markdown, LaTeX, CSV")
    table.set_defaults(do=run_table, late="runs")
    _sources(
        table,
        "table",
        words=f"a report, or {SOURCES}",
        out={"metavar": "FILE", "says": "default: the terminal"},
    )
    table.add_argument("--of", default="models", metavar="models|meta", help="default: models")
    table.add_argument("--format", default="markdown", metavar="NAME", help="markdown (default) | latex | csv")
    table.add_argument("--latex", action="store_true", help="a whole table for a paper, with intervals and notes")
    table.add_argument("--columns", metavar="NAME,...", help="name, role, method, epoch, settings and metrics")
    table.add_argument("--sort", metavar="NAME", help="by this column, high to low")
    table.add_argument("--digits", type=int, metavar="N", help="after the point (default: four that mean something)")
    table.add_argument("--intervals", action="store_true", help="with 95 %% intervals")
    table.add_argument("--best", action="store_true", help="mark the best unlearned model of each column")
    table.add_argument("--marks", action="store_true", help="a star where a model surely differs from the retain model")


def _plot(verbs: Any) -> None:
    plot = verbs.add_parser("plot", help="a picture for a paper, from the same data as the page")
    plot.set_defaults(do=run_plot, late="runs")
    shown = "scatter, histogram, before-after, layers, recovery, trajectory, collapse"
    _sources(
        plot,
        "plot",
        "RUN... WHAT",
        f"a report or runs, then one of {shown}",
        out={"required": True, "metavar": "FILE", "says": "ends in .png, .svg or .pdf"},
        metrics="the one to draw",
    )
    plot.add_argument("--name", metavar="NAME", help="models whose name has this part (default: the first audited)")
    plot.add_argument("--attack", metavar="NAME", help="recovery: its name; before-after: relearning | quantization")
    plot.add_argument("--width", metavar="column|page|INCHES", help="for a paper: 3.25 in, 6.75 in, or so many")
    plot.add_argument("--x", metavar="NAME", help="scatter: a column")
    plot.add_argument("--y", metavar="NAME", help="scatter: a column")


def _sources(p: argparse.ArgumentParser, verb: str, sources: str = "RUN", words: str = SOURCES, **here: Any) -> None:
    p.add_argument("runs", nargs="+", metavar=sources, help=words)
    who = {"action": "append", "says": "its name or path; may be repeated"}
    shared_flags(p, verb, full=who, retain_model=who, rows={"default": ROWS}, **here)


def request_of(args: argparse.Namespace, out: Path) -> ReportRequest:
    from vestige.integrations.plugins import load_plugins
    from vestige.report.build import TITLE, ReportRequest

    if args.rows < 1:
        raise UserError(f"--rows is {args.rows}; keep at least 1 row of a split.")
    load_plugins(args.plugin)
    return ReportRequest(
        runs=[Path(run) for run in args.runs],
        out=out,
        title=args.title or TITLE,
        full=args.full,
        retain=args.retain_model,
        rows=args.rows,
        accept_mixture=args.accept_mixture,
        shorten_paths=getattr(args, "shorten_paths", False),
        progress=not args.quiet,
    )


def run_report(args: argparse.Namespace) -> int:
    from vestige.report.build import summary, write_report

    out = Path(args.out)
    report = write_report(request_of(args, out))
    print(summary(report, out))
    return _status(report, args)


def _status(report: dict[str, Any], args: argparse.Namespace) -> int:
    left_out = report.get("left_out") or []
    if not left_out or args.skip_broken:
        return 0
    words = f"{len(left_out)} runs or files were left out" if len(left_out) > 1 else "1 run or file was left out"
    print(f"vestige: {words} (see the problems above); mend them, or give --skip-broken.", file=sys.stderr)
    return 1


def report_of(args: argparse.Namespace) -> dict[str, Any]:
    """The data of a report that is there, or made of runs; then nothing is written."""
    from vestige.report.build import build_report, read_report

    found = read_report(Path(args.runs[0]))
    if found is None:
        made = build_report(request_of(args, Path()))
        for problem in made["problems"]:  # tables go to standard output, so that is not the place
            if problem["text"] in made.get("left_out", ()):
                print(f"problem: {problem['text']} ({problem.get('where', '')})", file=sys.stderr)
        return made
    if len(args.runs) > 1:
        raise UserError(f"{args.runs[0]} is a report; give it alone, or give runs.")
    return {**found, "left_out": []}  # what it lacks was printed when it was made


def run_table(args: argparse.Namespace) -> int:
    from vestige.errors import unknown_name
    from vestige.report.tables import meta_table, models_table
    from vestige.show.tables import FORMATS, TableLook, paper_table

    if args.format not in FORMATS:
        raise unknown_name("format", args.format, FORMATS)
    if args.of not in ("models", "meta"):
        raise unknown_name("table", args.of, ("models", "meta"))
    if args.digits is not None and not 0 <= args.digits <= 17:
        raise UserError(f"--digits is {args.digits}; give a number from 0 to 17.")
    columns = [c.strip() for c in args.columns.split(",") if c.strip()] if args.columns else None
    report = report_of(args)
    table = meta_table(report, columns) if args.of == "meta" else models_table(report, columns, args.sort)
    if args.latex:
        digits = 2 if args.digits is None else args.digits
        text = paper_table(table, TableLook(digits, True, True, args.of == "models"), report["title"])
    else:
        text = FORMATS[args.format](table, TableLook(args.digits, args.intervals, args.best, args.marks))
    if args.out:
        from vestige.writing import one_file_bytes

        one_file_bytes(Path(args.out), f"{text}\n".encode())
    print(f"files: {args.out}" if args.out else text)
    return _status(report, args)


def run_plot(args: argparse.Namespace) -> int:
    from vestige.errors import unknown_name
    from vestige.report.figures import FIGURES, Choice, draw, width_in_inches

    *args.runs, what = args.runs
    if what not in FIGURES or not args.runs:
        raise unknown_name("picture", what, FIGURES, "Say it last: vestige plot RUN... WHAT -o FILE.")
    if args.metrics and ("," in args.metrics or args.metrics == "all"):
        raise UserError(f"A picture shows one metric; --metrics is {args.metrics}.")
    choice, width = Choice(args.name, args.metrics, args.attack, args.x, args.y), width_in_inches(args.width)
    report = report_of(args)
    print(f"files: {draw(report, what, choice, Path(args.out), width)}")
    return _status(report, args)


def run_view(args: argparse.Namespace) -> int:
    from vestige.report.build import read_report, request_again
    from vestige.report.view import Viewer

    first = Path(args.runs[0])
    report = read_report(first)
    request = request_of(args, Path()) if report is None else request_again(report, first)
    if args.every <= 0:
        raise UserError(f"--every is {args.every:g}; give a number of seconds above 0.")
    if not 0 <= args.port < 65536:
        raise UserError(f"--port is {args.port}; give a number from 0 to 65535.")
    with Viewer(request, args.port, args.every) as viewer:
        print(f"{viewer.address}  (this machine only; stop with Ctrl-C)", flush=True)
        viewer.stopped.wait()
    return 0
