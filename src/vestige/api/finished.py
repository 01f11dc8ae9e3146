"""Finished runs: `vestige.load_run`, `score`, `compare_runs`, `make_report`. No model runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from vestige.api.asking import keywords_checked, listed, load_all_plugins
from vestige.api.evaluating import logs_of
from vestige.api.result import Result, result_of
from vestige.errors import UserError
from vestige.given import Place
from vestige.results.compare import Comparison

log = logging.getLogger("vestige.api")


@keywords_checked
def load_run(run: Place) -> Result:
    """A finished evaluation, read back from its directory. Runs no model and writes nothing.

        result = vestige.load_run("saves/eval/mine")
        print(result.summary, result.intervals, result.rows("forget_Q_A_Prob")[0])

    The numbers are those of the result files; a file that has changed since the run was finished is refused.
    """
    from vestige.results.load import load_outcome

    load_all_plugins(())
    return Result(load_outcome(Path(run).expanduser()))


@keywords_checked
def score(
    run: Place | Result,
    dialect: str | None = None,
    retain_logs: Place | Result | None = None,
    changes: Mapping[str, Mapping[str, object]] | None = None,
    cluster: str | None = None,
    accept_mixture: bool = False,
) -> Result:
    """Scores a finished evaluation again from its evidence, without a model; another definition if asked.

        strict = vestige.score("saves/eval/mine", dialect="strict")
        print(strict, vestige.score("saves/eval/mine", changes={"mia_min_k": {"k": 0.2}}).files)

    `changes` maps metric -> setting -> value. Another definition gets a folder of its own below the run (scores/NAME),
    so that the run's files keep meaning what its manifest says. `cluster` changes the run's own intervals from then on.

    Keywords:

        run: a run directory, or a Result
        dialect: whose definitions: open-unlearning | strict | tofu | muse | depth-score
        retain_logs: result file or run directory of the retain model (or its Result)
        changes: metric -> setting -> value
        cluster: column whose rows hang together, for intervals (author, document); none: no column
        accept_mixture: combine runs of another template, dialect, precision or other rows, with a note
    """
    from vestige.results.rescore import rescore

    load_all_plugins(())
    how = (dialect, changes, logs_of(retain_logs), cluster, accept_mixture)
    if isinstance(run, Result):
        with run.placed() as place:
            return result_of(rescore(place, *how), place if run.directory is None else None)
    return Result(rescore(Path(run).expanduser(), *how))


@keywords_checked
def compare_runs(
    *runs: Place | Result,
    metrics: Sequence[str] | str | None = None,
    margin: float = 0.05,
    resamples: int = 10_000,
    cluster: str | None = None,
    accept_mixture: bool = False,
) -> Comparison:
    """Runs side by side, and whether each one's difference from the first could be chance. Writes nothing.

        found = vestige.compare_runs("saves/eval/retain", "saves/eval/mine")
        print(found)
        print(found.differences["mine"][0].holm, found.rows()[0])

    Runs are directories, result files or Results, also those that are not on disk.

    Keywords:

        runs: run directories, or Results
        metrics: which metrics (a list, or text with commas)
        margin: what counts as equal on 0..1 metrics (0.05)
        resamples: bootstrap samples behind each interval
        cluster: column whose rows hang together, for intervals (author, document); none: no column
        accept_mixture: combine runs of another template, dialect, precision or other rows, with a note
    """
    from vestige.results.compare import compare

    load_all_plugins(())
    names = listed(metrics)
    with ExitStack() as stack:
        places: list[Path] = []
        for run in runs:
            if isinstance(run, Result):
                taken = [place.name for place in places]
                name = run.short_name
                unique = name if name not in taken else f"{name}-{len(places) + 1}"
                places.append(stack.enter_context(run.placed(unique)))
            elif isinstance(run, (str, Path)):
                places.append(Path(run).expanduser())
            else:
                raise UserError(
                    f"compare_runs() takes runs one by one, as paths or Results, not a {type(run).__name__}; write "
                    "compare_runs(a, b), or compare_runs(*runs) for a list."
                )
        chosen = None if names is None else ",".join(names)
        return compare(places, chosen, margin, resamples, cluster, accept_mixture)


@keywords_checked
def make_report(
    runs: Place | Result | Sequence[Place | Result],
    out: Place,
    *,
    title: str = "Did it forget?",
    full: str | Sequence[str] = (),
    retain: str | Sequence[str] = (),
    rows: int = 400,
    shorten_paths: bool = False,
    accept_mixture: bool = False,
    progress: bool = False,
    plugins: Place | Sequence[Place] = (),
) -> Path:
    """Writes the page of any mixture of runs, and returns its path. The data is in report.json beside it.

        page = vestige.make_report(["saves/eval", "saves/depth"], "saves/report", title="My model")
        print(page)

    Runs are directories or Results with one. Runs that cannot be read are left out with a warning, and listed on the
    page. `full` and `retain` are names of the reference models (one or a list), where the runs do not say them.

    Keywords:

        runs: run directories, or Results
        out: where results go
        title: heading of the page or picture
        full: the model before unlearning
        retain: the model trained without the forget rows
        rows: rows shown of each metric or split
        shorten_paths: write ~ for paths that name a person's home
        accept_mixture: combine runs of another template, dialect, precision or other rows, with a note
        progress: progress bars on stderr
        plugins: Python file, or files, with metrics, attacks, data sets, ... of your own
    """
    from vestige.report.build import ReportRequest, write_report
    from vestige.report.gather import PAGE

    load_all_plugins(plugins)
    if rows < 1:
        raise UserError(f"rows is {rows}; keep at least 1 row of a split.")
    several = [runs] if isinstance(runs, (str, Path, Result)) else list(runs)
    place = Path(out).expanduser()
    request = ReportRequest(
        runs=[_on_disk(run) for run in several],
        out=place,
        title=title,
        full=[full] if isinstance(full, str) else list(full),
        retain=[retain] if isinstance(retain, str) else list(retain),
        rows=rows,
        accept_mixture=accept_mixture,
        shorten_paths=shorten_paths,
        progress=progress,
    )
    report = write_report(request)
    for words in report.get("left_out") or ():
        log.warning("Left out of the report: %s", words)
    for run in several:
        if isinstance(run, Result):
            run.reported(place)
    return place / PAGE


def _on_disk(run: Place | Result) -> Path:
    if not isinstance(run, Result):
        return Path(run).expanduser()
    if run.directory is None:
        raise UserError("This result is not on disk, and a page names the runs behind it; call result.save(DIR) first.")
    return run.directory
