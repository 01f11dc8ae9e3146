"""`vestige compare`: runs side by side, and whether the differences between them could be chance.

Two runs on the same rows are compared row by row: whatever rows are drawn, they are drawn for both, so that what the
runs share (some questions are easy) cancels. Nothing is written and no model runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from vestige.engine.references import difference, load_references, references_of
from vestige.engine.scores import SEED, Estimate, NoInterval, Run, family, rounded
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError, unknown_name
from vestige.metrics.cards import full_name
from vestige.numeric import number
from vestige.runs import run as kinds
from vestige.runs.evaluation import with_column
from vestige.runs.files import read_scores, result_file
from vestige.runs.run import Number, data_fingerprints, mixtures, number_of, read_manifest
from vestige.show.tables import comparison, table
from vestige.stats import bootstrap, clusters
from vestige.store.archive import moved
from vestige.suites.dialect_points import refuse_other_number
from vestige.suites.spec import SuiteSpec
from vestige.types import Score

# Metrics that live between 0 and 1, where one margin means one thing; per cent and losses have no such scale.
WITHOUT_SCALE = {"privleak", "rel_diff", "loss"}


@dataclass
class Stored:
    """A run to compare: its name, its numbers, and what is behind them if it has a manifest."""

    name: str
    scores: Mapping[str, Score]
    run: Run | None
    why_not: str = ""  # why only its numbers can be shown

    def dialect(self) -> str:
        return str(self.run.manifest["dialect"]["name"]) if self.run else ""


@dataclass(frozen=True)
class Difference:
    """One metric of one run less that of the yardstick."""

    metric: str
    value: float
    interval: tuple[float, float]
    p: float
    of: str = ""
    holm: float = 1.0  # p after allowing for all the metrics looked at
    reading: str = ""
    clusters: int | None = None  # the fewest of any data set behind it; None: rows are the unit


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs side by side; printing it gives the table of `vestige compare`."""

    base: str  # the first run, the yardstick
    values: dict[str, dict[str, float | None]]  # run -> metric -> value
    differences: dict[str, list[Difference]]  # each other run less the first
    reasons: dict[str, dict[str, str]]  # run -> metric -> why its difference could not be tested
    metrics: list[str]
    margin: float
    resamples: int
    notes: list[str]  # mixtures that were accepted

    def rows(self) -> list[dict[str, object]]:
        """Every difference as a record, for a table or a data frame."""
        return [{"run": run, "base": self.base, **asdict(d)} for run, found in self.differences.items() for d in found]

    def __repr__(self) -> str:
        lines = [comparison(self.metrics, self.values)]
        for run, found in self.differences.items():
            lines += ["", f"{run} less {self.base}", "", _shown(found, self.reasons[run])]
        lines += ["", _legend(self.margin, self.resamples, [d for found in self.differences.values() for d in found])]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def compare(
    paths: Sequence[Path],
    metrics: str | None = None,
    margin: float = 0.05,
    resamples: int = 10_000,
    cluster: str | None = None,
    accept_mixture: bool = False,
) -> Comparison:
    """Values side by side, and each run against the first. `metrics`: names with commas between them, or "all".

    `cluster`: the column whose rows hang together, from the runs' data files; None: what the runs themselves say.
    """
    if len(paths) < 2:
        raise UserError("Comparing takes at least two runs: vestige compare RUN_A RUN_B.")
    if margin < 0 or resamples < 100:
        raise UserError("--margin cannot be negative, and --resamples must be at least 100.")
    runs = [read_stored(path, name, cluster) for path, name in zip(paths, _short(paths), strict=True)]
    names = _metrics(runs, metrics)
    notes = mixtures([(name, _measured(runs, name)) for name in names], accept_mixture)
    values = {r.name: {m: r.scores[m].agg_value for m in names if m in r.scores} for r in runs}
    found = {other.name: differences(runs[0], other, names, resamples) for other in runs[1:]}
    found = judged(found, runs[0], margin)
    return Comparison(
        base=runs[0].name,
        values=values,
        differences={run: tested for run, (tested, _) in found.items()},
        reasons={run: reasons for run, (_, reasons) in found.items()},
        metrics=names,
        margin=margin,
        resamples=resamples,
        notes=notes,
    )


def _measured(runs: Sequence[Stored], metric: str) -> dict[str, Number]:
    """How each run that keeps a manifest measured a metric."""
    return {r.name: number_of(r.run.manifest, metric) for r in runs if r.run and metric in r.scores}


def _short(paths: Sequence[Path]) -> list[str]:
    """The last part of each path; the whole path where that would name two runs alike."""
    names = [p.parent.name if p.suffix == ".json" else p.resolve().name for p in paths]
    names = [name if names.count(name) == 1 else str(p) for name, p in zip(names, paths, strict=True)]
    return [n if n not in names[:i] else f"{n} ({names[:i].count(n) + 1})" for i, n in enumerate(names)]


def read_stored(path: Path, name: str, cluster: str | None = None) -> Stored:
    """A run by its directory or its result file; without a manifest only its numbers can be shown.

    So it is with kinds of runs that keep no metric row by row (depth, stress, ...).
    """
    kind = kinds.kind_of(path) if path.is_dir() else None
    if kind is not None and not kinds.kind(kind).by_row:
        plain = {m: v for m, v in kinds.kind(kind).values(path).items() if v is None or isinstance(v, (int, float))}
        scores = {m: Score(None if v is None else float(v)) for m, v in plain.items()}
        return Stored(name, scores, None, f"{name} is a {kind} run, whose numbers are not compared row by row")
    if not path.exists() or (path.is_dir() and not any(path.glob("*_EVAL.json"))):
        raise UserError(f"{path} is not a run: it {'holds no *_EVAL.json' if path.exists() else 'does not exist'}.")
    file = result_file(path)
    scores = {m: Score.from_json(v) for m, v in read_scores(file).items()}
    if not (file.parent / "manifest.json").is_file():
        return Stored(name, scores, None, f"{file} has no manifest.json beside it: its rows are not known")
    manifest = read_manifest(file.parent)
    if cluster is not None:
        manifest = with_column(file.parent, manifest, cluster)
    suite = suite_from_manifest(manifest)
    try:
        references = load_references(suite, manifest["dialect"]["name"], moved(file.parent))
    except UserError as error:
        logging.getLogger("vestige.results").warning("%s: %s", name, error)
        references = {}
    return Stored(name, scores, Run(suite, scores, manifest, references))


def _metrics(runs: Sequence[Stored], asked: str | None) -> list[str]:
    """What to show: what was asked for, or what the first run with a manifest was asked for."""
    everywhere = list(dict.fromkeys(m for r in runs for m in r.scores))
    if asked and asked != "all":
        names = [m.strip() for m in asked.split(",") if m.strip()]
        return list(dict.fromkeys(_named(name, runs, everywhere) for name in names))
    top = next((list(r.run.suite.top) for r in runs if r.run), everywhere)
    return everywhere if asked == "all" else [m for m in top if any(m in r.scores for r in runs)]


def _named(name: str, runs: Sequence[Stored], everywhere: Sequence[str]) -> str:
    """A metric of the runs by its name, or by a short name if it is that number in every run that has a manifest."""
    full = name if name in everywhere else full_name(name)
    if full not in everywhere:
        raise unknown_name("metric of these runs", name, everywhere)
    for r in runs:
        if r.run and full in r.run.suite.metrics:
            spec = r.run.suite.metrics[full]
            refuse_other_number(name, spec.handler, spec.params, r.dialect())
    return full


def differences(
    base: Stored, other: Stored, names: Sequence[str], resamples: int
) -> tuple[list[Difference], dict[str, str]]:
    """Paired differences where there can be any, and for the other metrics the reason why not."""
    pairs: dict[str, tuple[Estimate, Estimate]] = {}
    reasons: dict[str, str] = {}
    for name in names:
        why = _obstacle(base, other, name)
        if not why and base.run and other.run:
            try:
                pairs[name] = base.run.estimate(name), other.run.estimate(name)
            except NoInterval as reason:
                why = f"no resampling: {reason}"
        if why:
            reasons[name] = why
    less = {name: bootstrap.combined(np.subtract, b.statistic, a.statistic) for name, (a, b) in pairs.items()}
    drawn = {name: pair for name, pair in pairs.items() if not _clustered(*pair)}
    resampler = bootstrap.Resampler([s for pair in drawn.values() for e in pair for s in e.samples], resamples, SEED)
    draws = resampler.draws({name: less[name] for name in drawn})
    out = []
    for name, (a, b) in pairs.items():
        if name not in drawn:
            found, p, why, units = _by_cluster(a, b, less[name], resamples)
        else:
            found = bootstrap.interval(draws[name], min(a.smallest, b.smallest))
            p = 1.0 if found is None else _p(a, b, draws[name])
            why, units = "some resamplings have no value (too few rows)", None
        if found is None:
            reasons[name] = why
        else:
            ends = rounded(found[0]), rounded(found[1])
            out.append(Difference(name, b.value - a.value, ends, p, a.of, clusters=units))
    return out, reasons


def _clustered(a: Estimate, b: Estimate) -> bool:
    return a.clustered or b.clustered


def _by_cluster(
    a: Estimate, b: Estimate, less: bootstrap.Statistic, resamples: int
) -> tuple[tuple[float, float] | None, float, str, int]:
    """The interval of a difference with clusters as the unit, its p, why it has none, and how many clusters."""
    samples = (*a.samples, *b.samples)
    found = clusters.jackknife(less, samples)
    if a.deviation and b.deviation:  # a distance is attained at a place of its own in each run: both may be off
        both = bootstrap.combined(np.add, a.deviation, b.deviation)
        draws = bootstrap.Resampler(samples, resamples, SEED).draws({"x": both})["x"]
        reach, why = clusters.reach(draws, samples)
        if reach is None:
            return None, 1.0, why, found.clusters
        ends = found.value - reach, found.value + reach
        return ends, clusters.share_beyond(draws, abs(found.value), samples), "", found.clusters
    p = found.p() or 0.0
    if a.rows is not None and b.rows is not None and a.rows.rows == b.rows.rows:
        of = a.rows.clusters or b.rows.clusters or a.rows.rows
        p = bootstrap.sign_flip_p(clusters.cluster_sums(b.rows.values - a.rows.values, of), resamples, SEED)
    return found.interval(), p, found.reason, found.clusters


def _obstacle(base: Stored, other: Stored, name: str) -> str:
    """Why two runs' values of a metric cannot be compared row by row, or nothing."""
    for r in (base, other):
        if r.run is None:
            return r.why_not
        if name not in r.scores or name not in r.run.suite.metrics:
            return f"{r.name} did not compute it"
        if r.scores[name].curves is not None:
            return (
                "it is curves over denoising steps, not one number; `vestige diff` names where they are farthest apart"
            )
        if r.scores[name].agg_value is None:
            return f"{r.name} has no value: {r.scores[name].reason}"
    assert base.run is not None and other.run is not None
    if data_fingerprints(base.run.manifest, name) != data_fingerprints(other.run.manifest, name):
        return "the runs read other rows"
    mine, theirs = _yardsticks(base.run, name), _yardsticks(other.run, name)
    if mine != theirs:
        for r, values in ((base, mine), (other, theirs)):
            if set(values) == {None}:
                return f"{r.name} had no retain logs, the other run had some; evaluate both with the same"
        return "the runs were compared with different retain models"
    apart = difference(other.run.manifest, base.run.suite, name, base.dialect())
    return f"the runs differ in {apart}" if apart else ""


def _yardsticks(run: Run, name: str) -> list[float | None]:
    """The retain model's values that a metric was set against."""
    scores = [s for m in family(run.suite, name) for s in references_of(run.suite.metrics[m], run.references).values()]
    return [score.agg_value if score else None for by_key in scores for score in by_key.values()]


def _p(a: Estimate, b: Estimate, draws: bootstrap.Array) -> float:
    """For plain means the signs of the rows' differences are flipped, which is exact; else from the resamplings."""
    if a.rows is not None and b.rows is not None and a.rows.rows == b.rows.rows:
        return bootstrap.sign_flip_p(b.rows.values - a.rows.values, len(draws), SEED)
    return bootstrap.two_sided_p(draws)


Found = tuple[list[Difference], dict[str, str]]


def judged(found: Mapping[str, Found], base: Stored, margin: float) -> dict[str, Found]:
    """Holm's correction over every difference shown, and what each interval says about equality."""
    adjusted = iter(bootstrap.holm([d.p for differences, _ in found.values() for d in differences]))
    suite: SuiteSpec | None = base.run.suite if base.run else None

    def judge(d: Difference) -> Difference:
        free = suite is not None and suite.metrics[d.metric].handler in WITHOUT_SCALE
        reading, p = bootstrap.equivalence(d.interval, 0.0 if free else margin), next(adjusted)
        if reading == bootstrap.DIFFERS and p >= 1 - bootstrap.LEVEL:
            reading = bootstrap.CANNOT_TELL  # of many intervals some exclude zero by chance
        return replace(d, holm=p, reading=reading)

    return {name: ([judge(d) for d in differences], reasons) for name, (differences, reasons) in found.items()}


def _shown(found: Sequence[Difference], reasons: Mapping[str, str]) -> str:
    rows = [
        [
            f"{d.metric} (D)" if d.of == "ks_statistic" else d.metric,
            number(d.value),
            f"{number(d.interval[0])} to {number(d.interval[1])}",
            number(d.p),
            number(d.holm),
            d.reading,
        ]
        for d in found
    ]
    heads = ["metric", "difference", "95 % interval", "p", "p (Holm)", "reading"]
    lines = [table(rows, heads, right=(1, 2, 3, 4))] if rows else []
    by_reason: dict[str, list[str]] = {}
    for metric, why in reasons.items():
        by_reason.setdefault(why, []).append(metric)
    return "\n".join([*lines, *(f"not compared: {', '.join(ms)}: {why}" for why, ms in by_reason.items())])


def _legend(margin: float, resamples: int, tests: Sequence[Difference]) -> str:
    if not tests:
        return "No differences could be tested."
    unit = f"Rows were drawn again {resamples:,} times, the same rows for both runs."
    if fewest := min((d.clusters for d in tests if d.clusters is not None), default=None):
        unit = f"Rows hang together: the unit is the cluster (at least {fewest}), the same clusters for both runs."
    return (
        f"{unit} Holm: over the {len(tests)} differences "
        f"shown.\nMargin {number(margin)} on metrics between 0 and 1 (--margin); on privleak, relative differences and "
        "losses there is none,\nthey differ or cannot be told apart. Intervals speak of other rows, not of other "
        "training seeds."
    )
