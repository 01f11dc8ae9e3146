"""`vestige compare`: runs side by side, and whether the differences between them could be chance.

Two runs on the same rows are compared row by row: whatever rows are drawn, they are drawn for both, so that what the
runs share (some questions are easy) cancels. Nothing is written and no model runs.

Why two runs disagree: what differs between them, which numbers and rows moved, and what that is due to.

`vestige diff RUN_A RUN_B` compares each part of a run (model, tokenizer, template, data, mask, precision, libraries,
definitions) by what the manifests say, then every metric both runs have, row by row. A part may differ without being
able to move a number, such as the name of a folder with the same weights; such a difference is shown as harmless.

`vestige compare RUN published`: a run next to figures that were printed elsewhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vestige.configs.compose import PACKAGE_DIR
from vestige.engine.references import difference, load_references, references_of
from vestige.engine.scores import SEED, Estimate, NoInterval, Run, family, rounded
from vestige.engine.stored import dialect_for, stored_scores, suite_from_manifest
from vestige.errors import UserError, unknown_name
from vestige.guard import read_json
from vestige.metrics.cards import full_name
from vestige.numeric import mean, number
from vestige.runs import run as kinds
from vestige.runs.archive import moved
from vestige.runs.evaluation import with_column
from vestige.runs.files import load_rows, read_scores, result_file
from vestige.runs.run import Number, data_fingerprints, mixtures, number_of, read_manifest
from vestige.show.progress import hushed
from vestige.show.tables import comparison, table
from vestige.stats import bootstrap, clusters
from vestige.suites.dialect_points import refuse_other_number
from vestige.suites.spec import RESERVED, SuiteSpec
from vestige.types import Rows, Score

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

    `cluster`: the column that groups related rows, from the runs' data files; None: as the runs recorded it.
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
        unit = f"Rows are related: the unit is the cluster (at least {fewest}), the same clusters for both runs."
    return (
        f"{unit} Holm: over the {len(tests)} differences "
        f"shown.\nMargin {number(margin)} on metrics between 0 and 1 (--margin); on privleak, relative differences and "
        "losses there is none,\nthey differ or cannot be told apart. Intervals cover sampling of rows, "
        "not of training seeds."
    )


# ==== why ===========================================================================================================

Manifest = Mapping[str, Any]
ROUNDING = 1e-6  # values of a row that are closer than this are the same
# The field of a row that is the metric's value, by preference.
VALUE_FIELDS = ("score", "rougeL_recall", "prob")
WIDTH = 100  # of a text in the list of rows


@dataclass(frozen=True)
class RunPart:
    """One part of a run: what differs in it, and what differs without being able to move a number."""

    name: str
    differs: Sequence[str] = ()
    harmless: Sequence[str] = ()
    known: bool = True  # False: a manifest does not record it


@dataclass
class MetricChange:
    """One metric in two runs."""

    metric: str
    a: float | None
    b: float | None
    asked: bool = False  # asked for in both runs, not only a parent
    rows: dict[str, tuple[float, float]] = field(default_factory=dict)  # "3" or "holdout 3" -> values in A and B
    texts: dict[str, list[str]] = field(default_factory=dict)  # the same keys -> question, answer, what was generated

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def changed_rows(self) -> list[str]:
        """Rows whose value changed, the largest change first."""
        distances = {row: abs(b - a) for row, (a, b) in self.rows.items()}
        changed = [row for row in distances if distances[row] > ROUNDING]
        return sorted(changed, key=lambda row: (-distances[row], row))


def explain_difference(a: Path, b: Path, rows: int = 3, metrics: Sequence[str] | None = None) -> str:
    """The parts, the verdict, the metrics and the rows that changed most, as text."""
    one, other = read_manifest(a), read_manifest(b)
    if one["config"]["suite"] != other["config"]["suite"]:
        raise UserError(f"{a} is a run of {one['config']['suite']}, {b} of {other['config']['suite']}: not comparable.")
    edited = edited_rows(a, b, one, other)
    parts = compare_parts(one, other, edited)
    changes = compare_metrics(a, b, one, other, metrics)
    lines = [f"A: {a}", f"B: {b}", "", parts_table(parts), "", verdict(parts, changes, edited), ""]
    lines.append(_metrics_table(changes, _scores_by_other_definition(a, one, other, parts)))
    for change in changes:
        if change.rows and (change.asked or metrics):
            lines += ["", *_row_lines(change, rows, edited)]
    return "\n".join(lines)


# ---- the parts of a run ----------------------------------------------------------------------------------------------


def compare_parts(a: Manifest, b: Manifest, edited: Mapping[str, list[str]]) -> list[RunPart]:
    """Every part of two runs, by their manifests. `edited`: data set -> rows whose text is not the same."""
    return [
        _compare_models(a["model"], b["model"]),
        _compare_tokenizers(a.get("tokenizer"), b.get("tokenizer")),
        _compare_templates(a, b),
        _compare_data(a, b, edited),
        _compare_masks(a, b),
        _compare_precision(a["model"], b["model"]),
        RunPart("library", changed_keys(a["versions"], b["versions"])),
        _compare_definitions(a, b),
    ]


def change_in_words(key: str, a: Any, b: Any) -> str:
    return f"{key}: {_shorten(a)} -> {_shorten(b)}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-17:]}"


def changed_keys(a: Mapping[str, Any], b: Mapping[str, Any], keys: Sequence[str] | None = None) -> list[str]:
    """What differs between two mappings, key by key."""
    changes = []
    for key in sorted({*a, *b}) if keys is None else keys:
        if a.get(key) != b.get(key):
            changes.append(change_in_words(key, a.get(key), b.get(key)))
    return changes


def _compare_models(a: Manifest, b: Manifest) -> RunPart:
    if a["fingerprint"] != b["fingerprint"]:
        words = f"weights: {a['name']} ({a['fingerprint'][:8]}) -> {b['name']} ({b['fingerprint'][:8]})"
        return RunPart("model", [words])
    if a["name"] != b["name"]:
        return RunPart("model", harmless=[change_in_words("name (same weights)", a["name"], b["name"])])
    return RunPart("model")


def _compare_tokenizers(a: Manifest | None, b: Manifest | None) -> RunPart:
    """Vocabulary and special tokens; the pad token belongs to the mask, the chat template to the template."""
    if not a or not b:
        return RunPart("tokenizer", known=False)
    digests, special = [], []
    for tokenizer in (a, b):
        digests.append({key: tokenizer[key][:8] for key in ("vocabulary", "pipeline")})
        tokens = dict(tokenizer.get("special_tokens") or {})
        tokens.pop("pad_token", None)
        special.append(tokens)
    return RunPart("tokenizer", [*changed_keys(digests[0], digests[1]), *changed_keys(special[0], special[1])])


def _compare_templates(a: Manifest, b: Manifest) -> RunPart:
    settings = changed_keys(a.get("template") or {}, b.get("template") or {})
    before, after = a.get("prompt"), b.get("prompt")
    if before is None or after is None:
        return RunPart("template", settings, known=bool(settings))
    if before != after:
        return RunPart("template", [*settings, _prompt_difference(before, after)])
    # The same prompt comes out: settings and template text make no difference.
    texts = [(manifest.get("tokenizer") or {}).get("chat_template") for manifest in (a, b)]
    if texts[0] != texts[1]:
        settings.append("chat template text (same prompt comes out)")
    return RunPart("template", harmless=settings)


def _prompt_difference(a: str, b: str) -> str:
    """The stretch in which two prompts differ, with a little of the text around it."""
    shorter = min(len(a), len(b))
    start = 0
    while start < shorter and a[start] == b[start]:
        start += 1
    end = 0
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    first = max(0, start - 12)
    stretches = [repr(text[first : max(len(text) - end, start) + 12]) for text in (a, b)]
    return f"the prompt reads {_shorten(stretches[0])} in A, {_shorten(stretches[1])} in B"


def _compare_data(a: Manifest, b: Manifest, edited: Mapping[str, list[str]]) -> RunPart:
    """Data sets that metrics of both runs read, by the fingerprint of their rows and how they were read."""
    differs: list[str] = []
    harmless: list[str] = []
    for key, other_key in _common_data(a, b):
        if key not in a["data"] or other_key not in b["data"]:
            continue
        mine, theirs = a["data"][key], b["data"][other_key]
        name, rows = mine["name"], edited.get(mine["name"], [])
        if mine["rows"] != theirs["rows"]:
            differs.append(f"{name}: {mine['rows']} rows -> {theirs['rows']} rows")
        elif rows:
            shown = ", ".join(rows[:8]) + (", ..." if len(rows) > 8 else "")
            differs.append(f"{name}: {len(rows)} {'row' if len(rows) == 1 else 'rows'} changed ({shown})")
        elif mine["fingerprint"] != theirs["fingerprint"]:
            harmless.append(f"{name}: its file differs only in what is not read here")
        elif key != other_key:
            differs.append(f"{name}: same rows, read with other settings")
    return RunPart("data", list(dict.fromkeys(differs)), list(dict.fromkeys(harmless)))


def _common_data(a: Manifest, b: Manifest) -> list[tuple[str, str]]:
    """The keys, in either manifest, of each data set that a metric of both runs reads."""
    pairs = []
    for metric in sorted(set(a["data_of"]) & set(b["data_of"])):
        mine, theirs = a["data_of"][metric], b["data_of"][metric]
        pairs += [(mine[access], theirs[access]) for access in sorted(set(mine) & set(theirs))]
    return list(dict.fromkeys(pairs))


def _compare_masks(a: Manifest, b: Manifest) -> RunPart:
    """Which tokens attention does not see."""
    facts = []
    for manifest in (a, b):
        hidden = manifest["hidden_tokens"]
        facts.append(
            {
                "mask": manifest["dialect"]["mask"],
                "hides": _hidden_token(manifest),
                "answers with a hidden token": hidden,
            }
        )
    changes = changed_keys(facts[0], facts[1], list(facts[0]))
    if a["hidden_tokens"] or b["hidden_tokens"]:
        return RunPart("mask", changes)
    # A mask that hides nothing is like any other that hides nothing.
    return RunPart("mask", harmless=[f"{change} (nothing is hidden in either)" for change in changes])


def _hidden_token(manifest: Manifest) -> str | None:
    """The token the mask hides: pad, or the end token where there is none (as open-unlearning sets it)."""
    if manifest["dialect"]["mask"] != "pad-id" or "tokenizer" not in manifest:
        return None
    special = manifest["tokenizer"].get("special_tokens") or {}
    end = special.get("eos_token")
    token = special.get("pad_token") or end
    return f"{token} (pad = eos)" if token == end else token


def _compare_precision(a: Manifest, b: Manifest) -> RunPart:
    if a["fingerprint"] == b["fingerprint"] and a["evidence"] == b["evidence"]:
        return RunPart("dtype")  # one identity: precision, attention and device are in it
    if "dtype" not in a or "dtype" not in b:
        return RunPart("dtype", known=False)
    return RunPart("dtype", changed_keys(a, b, ("dtype", "attention", "device", "quantization")))


def _compare_definitions(a: Manifest, b: Manifest) -> RunPart:
    """Dialect, settings of metrics, decoding, and what a metric is compared with."""
    dialects = [{"dialect": m["dialect"]["name"], "version": m["dialect"]["version"]} for m in (a, b)]
    changes = changed_keys(dialects[0], dialects[1], ("dialect", "version"))
    mine, theirs = a["config"]["metrics"], b["config"]["metrics"]
    for name in sorted(set(mine) & set(theirs)):
        settings = {*mine[name], *theirs[name]} - {"datasets", "collators", "pre_compute", "reference_logs"}
        for key in sorted(settings):
            if mine[name].get(key) != theirs[name].get(key):
                changes.append(change_in_words(f"{name}.{key}", mine[name].get(key), theirs[name].get(key)))
        logs = []
        for metrics in (mine, theirs):
            references = metrics[name].get("reference_logs", {})
            logs.append(sorted(str(reference.get("path")) for reference in references.values()))
        if logs[0] != logs[1] and not _hold_the_same(*logs):
            changes.append(change_in_words("retain logs", *logs))
    return RunPart("definition", list(dict.fromkeys(changes)))


def _hold_the_same(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether files at other paths hold the same bytes."""
    if len(a) != len(b):
        return False
    for one, other in zip(a, b, strict=True):
        if not Path(one).is_file() or not Path(other).is_file() or Path(one).read_bytes() != Path(other).read_bytes():
            return False
    return True


def parts_table(parts: Sequence[RunPart]) -> str:
    rows = []
    for part in parts:
        changes = [*part.differs, *(f"no effect: {change}" for change in part.harmless)]
        state = "DIFFERS" if part.differs else "same"
        rows.append([part.name, state if part.known else "not recorded", changes[0] if changes else ""])
        rows += [["", "", change] for change in changes[1:]]
    return table(rows, ["part", "", "what"])


def verdict(parts: Sequence[RunPart], changes: Sequence[MetricChange], edited: Mapping[str, list[str]]) -> str:
    """One sentence: what the disagreement is due to, as far as the manifests tell."""
    different = [part for part in parts if part.differs]
    names = " and ".join(part.name for part in different)
    equal = all(change.difference in (0, None) and not change.changed_rows for change in changes)
    unknown = ", ".join(part.name for part in parts if not part.known)
    caveat = f" (Not recorded in both manifests: {unknown}.)" if unknown else ""
    if not different and equal:
        return f"Verdict: the runs are the same in every recorded part and in every number.{caveat}"
    if not different:
        return f"Verdict: no recorded part differs, yet numbers do; batch order and hardware are not recorded.{caveat}"
    if equal:
        return f"Verdict: the runs differ in the {names}, but in no number.{caveat}"
    if len(different) > 1:
        return f"Verdict: the runs differ in the {names}; together these account for the rows that moved.{caveat}"
    differs = different[0].differs
    words = differs[0] if len(differs) == 1 else f"{differs[0]} (and {len(differs) - 1} more)"
    cause = "the moved rows are due to that"
    if names == "data":
        known = {row for rows in edited.values() for row in rows}
        others = {row.split()[-1] for change in changes for row in change.changed_rows} - known
        cause = "only rows that changed have moved"
        if others:
            cause = f"yet other rows moved too ({', '.join(sorted(others)[:8])})"
    return f"Verdict: the runs differ only in the {names}: {words}: {cause}.{caveat}"


# ---- metrics and rows ------------------------------------------------------------------------------------------------


def stored_rows(run: Path) -> dict[str, Rows]:
    path = run / "evidence" / "examples.json.gz"
    if not path.is_file():
        raise UserError(f"{run} has no evidence/examples.json.gz; give a whole run directory.")
    return load_rows(path)


def edited_rows(a: Path, b: Path, one: Manifest, other: Manifest) -> dict[str, list[str]]:
    """Data set -> rows whose text is not the same in both runs.

    Questions are compared as part of their prompts, so only where both runs wrap them in the same way.
    """
    same_prompt = one.get("prompt") is not None and one.get("prompt") == other.get("prompt")
    mine, theirs = stored_rows(a), stored_rows(b)
    edited: dict[str, list[str]] = {}
    for key, other_key in sorted(_common_data(one, other)):
        if key not in mine or other_key not in theirs:
            continue
        before, after = _row_texts(mine[key], same_prompt), _row_texts(theirs[other_key], same_prompt)
        rows = {row for row in before if row in after and before[row] != after[row]}
        if rows:
            name = mine[key].name
            edited[name] = sorted({*edited.get(name, []), *rows}, key=lambda row: (len(row), row))
    return edited


def _row_texts(rows: Rows, with_prompt: bool) -> dict[str, list[str]]:
    texts = {}
    for row in rows.examples:
        texts[row[0].index] = [e.answer + e.input_text if with_prompt else e.answer for e in row]
    return texts


def compare_metrics(a: Path, b: Path, one: Manifest, other: Manifest, only: Sequence[str] | None) -> list[MetricChange]:
    """Every metric both runs have, those asked for in both first."""
    mine, theirs = read_scores(result_file(a)), read_scores(result_file(b))
    asked = [name for name in one["config"]["top"] if name in other["config"]["top"]]
    names = [*asked, *sorted(name for name in mine if name in theirs and name not in asked)]
    if only is not None:
        wanted = [name if name in names else full_name(name) for name in only]
        for name in wanted:
            if name not in names:
                raise unknown_name("metric in both runs", name, names)
        names = wanted
    rows = stored_rows(a)
    changes = []
    for name in names:
        if name not in mine or name not in theirs:
            continue
        before, after = Score.from_json(mine[name]), Score.from_json(theirs[name])
        if before.curves is not None and after.curves is not None:
            changes += _compare_curves(name, before.curves, after.curves, name in asked)
            continue
        change = MetricChange(name, before.agg_value, after.agg_value, name in asked)
        _compare_rows(change, mine[name], theirs[name], one["config"]["metrics"].get(name, {}).get("rouge_type"))
        _add_questions(change, one, rows)
        changes.append(change)
    return changes


def _compare_curves(name: str, a: Mapping[str, Any], b: Mapping[str, Any], asked: bool) -> list[MetricChange]:
    """One entry for each metric of a trajectory, at the point where the two runs are farthest apart."""
    farthest: dict[str, MetricChange] = {}
    others = dict(_list_curves(b))
    for place, curve in _list_curves(a):
        *path, metric = place
        for step, (before, after) in enumerate(zip(curve, others.get(place, []), strict=False)):
            change = MetricChange(f"{name}: {metric} ({'/'.join(path)}, step {step})", before, after, asked)
            known = farthest.setdefault(metric, change)
            if abs(change.difference or 0) > abs(known.difference or 0):
                farthest[metric] = change
    return list(farthest.values())


def _list_curves(nested: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every curve with the names that lead to it: view (unless left out), trajectory, metric."""
    curves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in nested.items():
        curves += _list_curves(value, (*path, key)) if isinstance(value, Mapping) else [((*path, key), value)]
    return curves


def _compare_rows(change: MetricChange, a: Mapping[str, Any], b: Mapping[str, Any], rouge: str | None) -> None:
    mine, theirs = _entries_by_row(a), _entries_by_row(b)
    for row, entry in mine.items():
        other = theirs.get(row, {})
        before, after = _row_value(entry, rouge), _row_value(other, rouge)
        if before is None or after is None:
            continue
        change.rows[row] = before, after
        texts = {"A": entry.get("generation"), "B": other.get("generation")}
        change.texts[row] = [f"{run} says: {text}" for run, text in texts.items() if isinstance(text, str)]


def _entries_by_row(score: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Per-row entries; those of an attack's two sets under "forget 3" and "holdout 3"."""
    if score.get("value_by_index"):
        return {str(row): entry for row, entry in score["value_by_index"].items()}
    entries = {}
    for key, part in sorted(score.items()):
        if isinstance(part, Mapping) and part.get("value_by_index"):
            for row, entry in part["value_by_index"].items():
                entries[f"{key} {row}"] = entry
    return entries


def _row_value(entry: Mapping[str, Any], rouge: str | None) -> float | None:
    fields = [rouge, *VALUE_FIELDS] if rouge else VALUE_FIELDS
    for name in fields:
        if name in entry:
            values = entry[name] if isinstance(entry[name], list) else [entry[name]]
            known = [value for value in values if value is not None]
            return mean(known) if known else None
    return None


def _add_questions(change: MetricChange, manifest: Manifest, stored: Mapping[str, Rows]) -> None:
    sources = _data_of(change.metric, manifest)
    for key in change.rows:
        access, _, index = key.rpartition(" ")
        rows = stored.get(sources.get(access) or next(iter(sources.values()), ""))
        for row in rows.examples if rows else ():
            if row[0].index == index:
                question = [f"question: {row[0].input_text.strip()}", f"answer: {row[0].answer}"]
                change.texts[key] = [*question, *change.texts.get(key, [])]
                break


def _data_of(metric: str, manifest: Manifest) -> dict[str, str]:
    """The data a metric reads; a metric made of parents reads what its first parent reads."""
    own = manifest["data_of"].get(metric)
    if own:
        return dict(own)
    for parent in manifest["config"]["metrics"].get(metric, {}).get("pre_compute") or {}:
        return _data_of(parent, manifest)
    return {}


def _scores_by_other_definition(a: Path, one: Manifest, other: Manifest, parts: Sequence[RunPart]) -> dict[str, float]:
    """A's numbers by B's dialect and settings, from A's evidence: what of the difference is the definition's alone.

    Metrics compared with a retain model are left out: their retain logs would have to be scored again as well.
    """
    if not any(part.name == "definition" and part.differs for part in parts):
        return {}
    metrics, theirs = one["config"]["metrics"], other["config"]["metrics"]
    settings: dict[str, dict[str, Any]] = {}
    for name in set(metrics) & set(theirs):
        for key in set(metrics[name]) & set(theirs[name]) - RESERVED:
            value = theirs[name][key]
            if metrics[name][key] != value and not isinstance(value, (dict, list)):
                settings.setdefault(name, {})[key] = value
    try:
        with hushed():  # what is missing there was printed when A was made
            dialect = dialect_for(one, other["dialect"]["name"], a)
            scores = stored_scores(a, suite_from_manifest(one, settings), dialect, {})
    except UserError:
        return {}  # the other definition needs other evidence
    values = {}
    for name, score in scores.items():
        if score.agg_value is not None and not metrics[name].get("reference_logs"):
            values[name] = score.agg_value
    return values


def _metrics_table(changes: Sequence[MetricChange], by_definition: Mapping[str, float]) -> str:
    heads = ["metric", "A", "B", "B - A", "rows moved"]
    if by_definition:
        heads.insert(2, "A by B's definition")
    rows = []
    for change in changes:
        count = f"{len(change.changed_rows)} of {len(change.rows)}" if change.rows else "-"
        row = [change.metric, number(change.a), number(change.b), number(change.difference), count]
        if by_definition:
            row.insert(2, number(by_definition.get(change.metric)))
        rows.append(row)
    return table(rows, heads, right=tuple(range(1, len(heads))))


def _row_lines(change: MetricChange, count: int, edited: Mapping[str, list[str]]) -> list[str]:
    """The rows that changed most, with their values and texts."""
    names = change.changed_rows
    if not names[:count]:
        return [f"{change.metric}: no row moved"]
    texts_changed = {row for rows in edited.values() for row in rows}
    cells = []
    for name in names[:count]:
        before, after = change.rows[name]
        mark = "text changed" if name.split()[-1] in texts_changed else ""
        cells.append([name, number(before), number(after), number(after - before), mark])
    head, line, *body = table(cells, ["row", "A", "B", "B - A", ""], right=(1, 2, 3)).splitlines()
    lines = [f"{change.metric}: {len(names)} of {len(change.rows)} rows moved, most of all:"]
    lines += [f"  {head}".rstrip(), f"  {line}".rstrip()]
    for name, values in zip(names, body, strict=False):
        lines.append(f"  {values}")
        for text in change.texts.get(name, []):
            flat = " ".join(text.split())
            if len(flat) > WIDTH:  # the middle is left out, because both ends of a prompt tell
                flat = f"{flat[: WIDTH // 3]} ... {flat[-(WIDTH - WIDTH // 3 - 5) :]}"
            lines.append(f"      {flat}")
    return lines


# ==== published =====================================================================================================

FORGET_ROWS = {40, 200, 400}  # of TOFU's splits


def load_published() -> dict[str, Any]:
    return dict(read_json(PACKAGE_DIR / "published_tofu.json"))


def published_table(summary: Mapping[str, float | None], suite: str, cautions: Sequence[str]) -> str:
    """The published figures of a suite, a table for each model and split; `summary` as a row of its own on top."""
    published = load_published()
    tables = [table for table in published["repro"] if table["suite"] == suite]
    if not tables:
        raise UserError(f"No published figures for suite '{suite}'; there are some for tofu and muse.")
    blocks = []
    for entry in tables:
        for name, figures in _by_split(entry["rows"]).items():
            blocks.append(f"{entry['model']}, {name}\n{_one_table(figures, summary)}")
    notes = [f"caution: {c}" for c in cautions] + _disagreements(published, tables)
    return "\n\n".join([*blocks, "\n".join([*notes, f"source: {published['source']}", _setup(published["setup"])])])


def _by_split(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, str]]]:
    """Split -> method -> metric -> the figure as printed."""
    out: dict[str, dict[str, dict[str, str]]] = {}
    for r in rows:
        out.setdefault(r["split"], {}).setdefault(r["method"], {})[r["metric"]] = r["printed"]
    return out


def _one_table(figures: Mapping[str, Mapping[str, str]], summary: Mapping[str, float | None]) -> str:
    metrics = list(dict.fromkeys(m for row in figures.values() for m in row))
    rows = [[method, *(row.get(m, "-") for m in metrics)] for method, row in figures.items()]
    rows.insert(0, ["this run", *(number(summary.get(m)) for m in metrics)])
    return table(rows, ["method", *metrics], right=tuple(range(1, len(metrics) + 1)))


def _disagreements(published: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the same project prints another figure in its leaderboard."""
    models = {t["model"] for t in tables}
    first = {
        (t["model"], r["method"], r["split"], r["metric"]): r["printed"] for t in published["repro"] for r in t["rows"]
    }
    out = []
    for t in published["leaderboard"]:
        for r in t["rows"]:
            printed = first.get((t["model"], r["method"], r["split"], r["metric"]))
            if t["model"] in models and printed is not None and printed != r["printed"]:
                words = f"{r['metric']} of {r['method']} ({t['model']}, {r['split']})"
                out.append(f"note: {words} is {printed} in its reproduction page, {r['printed']} in its leaderboard")
    return out


def _setup(setup: Mapping[str, Any]) -> str:
    keys = ("hardware", "effective_batch_size", "epochs", "learning_rate", "optimizer")
    return f"setup:  {', '.join(f'{k} {setup[k]}' for k in keys)}; {setup['note']}"


def published(run: Path) -> str:
    """For the command line: published figures with a run's own numbers on top."""
    results = read_scores(result_file(run))
    summary = {m: body.get("agg_value") for m, body in results.items()}
    directory = run if run.is_dir() else run.parent
    manifest = read_manifest(directory) if (directory / "manifest.json").is_file() else None
    suite = manifest["config"]["suite"] if manifest else ("muse" if "retain_knowmem_ROUGE" in summary else "tofu")
    return published_table(summary, suite, _cautions(manifest))


def _cautions(manifest: Mapping[str, Any] | None) -> list[str]:
    """What makes this run's numbers another kind of number than the published ones."""
    if manifest is None:
        return ["the run has no manifest: dialect, rows and precision are not known"]
    out = []
    if manifest["dialect"]["name"] != "open-unlearning":
        out.append(f"the run's dialect is {manifest['dialect']['name']}, the figures are in open-unlearning's")
    if manifest["config"].get("max_samples"):
        out.append(f"the run read only the first {manifest['config']['max_samples']} rows of each data set")
    if manifest["model"].get("dtype", "bfloat16") != "bfloat16":
        out.append(f"the run is in {manifest['model']['dtype']}; open-unlearning's default is bfloat16")
    forget = {d["rows"] for d in manifest["data"].values() if d["name"] == "TOFU_QA_forget"}
    if forget and not forget & FORGET_ROWS:
        out.append(f"the run has {max(forget)} forget rows; TOFU's splits have 40, 200 and 400 (p-values depend on n)")
    return out
