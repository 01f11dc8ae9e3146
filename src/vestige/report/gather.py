"""What a report is made of, found on disk: runs of every kind, from any mixture of directories. Nothing is computed.

    paths --gather--> FoundRuns: evaluations, depth runs, attacks, ... as records, and what could not be read

A directory is known by the files in it, not by its name. What holds no run itself is looked through. This is the only
module of the report that reads files of runs; a run whose form is not that of its kind is left out and named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from vestige.engine.stored import load_evidence, suite_from_manifest, words_of
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.io import misfit
from vestige.meta.checks import in_file
from vestige.meta.files import META_EVAL, METHOD_RESULTS, with_new_keys
from vestige.meta.pools import Number
from vestige.meta.pools import read_run as read_numbers
from vestige.meta.tree import (
    attack_files,
    epochs_of,
    faithfulness_file,
    is_epoch,
    is_legacy,
    is_root,
    other_folders,
    read_tree,
    read_tree_attacks,
)
from vestige.metrics.dialects import get_dialect
from vestige.metrics.trajectory import VIEWS
from vestige.runs.files import load_rows, relative
from vestige.runs.manifest import read_run
from vestige.runs.run import KINDS, META_FILES, RunSource, kind, read_manifest
from vestige.suites.handlers.texts import secrets_in
from vestige.suites.handlers.trajectory_reading import TrajectoryRun, prompt_of
from vestige.suites.registry import Inputs
from vestige.types import Rows, Trace
from vestige.verdict.runs import Evaluated

Json = dict[str, Any]  # an object of a JSON file

REPORT, PAGE = "report.json", "index.html"  # what a report directory holds
DEEPEST = 6  # levels of directories looked through
NOT_RUNS = {"evidence", "s1_cache", "checkpoints", "attacked", "logs", "tasks", "models"}
CLOSED = {"eval", "trajectory", "depth", "stress", "collapse"}  # runs whose directories hold no other runs

UNFINISHED_ATTACK = (
    "the attacks in {} did not finish (or are still under way): the attacked copies measured there are not models of "
    "their own and were left out; run the same vestige stress again."
)

# ---- evaluations -----------------------------------------------------------------------------------------------------

Cell = float | list[float | None] | None  # of a row: one value, or one for each of its answers
NO_SOURCE = RunSource("", Path(), (), {})


@dataclass(frozen=True)
class ResultRow:
    """One row of a metric: the fields that the page shows."""

    input: Any = ""
    ground_truth: Any = ""
    generation: Any = None
    score: Cell = None
    prob: Cell = None
    rougeL_recall: Cell = None  # noqa: N815 - the key of the files
    secret: list[str] | None = None


@dataclass(frozen=True)
class RowSet:
    """One of the two data sets of a membership attack."""

    value_by_index: dict[str, ResultRow] = field(default_factory=dict)

    def column(self, name: str) -> list[float]:
        """The rows' finite values of one field."""
        found = (finite(getattr(row, name, None)) for row in self.value_by_index.values())
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class MetricResult(RowSet):
    """One metric of a *_EVAL.json, ours or open-unlearning's. A trajectory has curves in place of a number."""

    agg_value: float | Json | None = None
    reason: str = ""
    notes: list[Any] = field(default_factory=list)
    forget: RowSet = field(default_factory=RowSet)
    holdout: RowSet = field(default_factory=RowSet)

    @property
    def is_curve(self) -> bool:
        return isinstance(self.agg_value, dict)


@dataclass(frozen=True)
class Statistic:
    """The interval of a metric. `of`: it is about another number, whose value is `value`."""

    interval: tuple[float, float] | None = None
    n: int | None = None
    of: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Clusters:
    """Which rows belong together: the column, its values, and for each row the place of its value."""

    by: Any = ""
    names: list[Any] = field(default_factory=list)
    of: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    name: str
    fingerprint: str
    clusters: Clusters = field(default_factory=Clusters)


@dataclass(frozen=True)
class MetricSettings:
    handler: Any = ""
    aggregator: Any = ""


@dataclass(frozen=True)
class Config:
    suite: Any = ""
    metrics: dict[str, MetricSettings] = field(default_factory=dict)
    top: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Manifest:
    """What the page tells of how an evaluation was made. Results of other tools have none: every field is empty."""

    config: Config = field(default_factory=Config)
    model: Json = field(default_factory=dict)
    tokenizer: Json = field(default_factory=dict)
    dialect: Json = field(default_factory=dict)
    data: dict[str, DataSet] = field(default_factory=dict)
    data_of: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: Json = field(default_factory=dict)
    prompt: Any = ""
    created: Any = ""

    @property
    def family(self) -> str:
        """What models must share to be held against each other: the suite, and how they cut text into tokens."""
        vocabulary = self.tokenizer.get("vocabulary")
        return f"{self.config.suite} {vocabulary}" if vocabulary else ""


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation. `judged` is the same as the judge of a verdict reads it, with the files as they are."""

    results: dict[str, MetricResult]
    stats: dict[str, Statistic]
    manifest: Manifest
    task: Json
    source: RunSource = NO_SOURCE
    judged: Evaluated = field(default_factory=lambda: Evaluated({}))

    @property
    def is_trajectory(self) -> bool:
        return self.source.kind == "trajectory"

    @property
    def top(self) -> list[str]:
        """The metrics that were asked for; without a manifest all of them."""
        asked = self.manifest.config.top or list(self.results)
        return [metric for metric in asked if metric in self.results]

    def handler(self, metric: str) -> str:
        """What computed a metric."""
        return self.judged.handler(metric)

    def aggregator(self, metric: str) -> str:
        settings = self.manifest.config.metrics.get(metric)
        return str(settings.aggregator or "") if settings else ""

    def stat(self, metric: str) -> Statistic:
        return self.stats.get(metric) or Statistic()

    def data_of(self, metric: str) -> list[str]:
        """The names of the data sets that a metric read."""
        return sorted(self.manifest.data_of.get(metric, {}).values())

    def fingerprints(self, metric: str) -> list[str]:
        data = self.manifest.data
        return sorted(data[key].fingerprint for key in self.data_of(metric) if key in data)

    def rows_read(self, metric: str) -> tuple[dict[str, str], dict[str, list[str]]]:
        """The question and the secret of each row, as the data had them; nothing of runs that keep no rows."""
        keys = self.data_of(metric)
        path = self.source.path / "evidence" / "examples.json.gz"
        if len(keys) != 1 or not path.is_file():
            return {}, {}
        try:
            data = _stored_rows(path, path.stat().st_mtime_ns).get(keys[0])
        except (UserError, OSError):
            return {}, {}  # damaged: `vestige verify` reports it, and the results can be shown without
        if data is None or not data.facts:
            return {}, {}
        questions = {}
        for row, fact in zip(data.examples, data.facts, strict=True):
            if isinstance(fact.get("question"), str):
                questions[row[0].index] = str(fact["question"])
        secrets = {i: list(secret) for i, secret in secrets_in(data).items() if secret}
        return questions, secrets


@lru_cache(8)
def _stored_rows(path: Path, changed: int) -> dict[str, Rows]:
    return load_rows(path)


# Of a trajectory metric: trajectory type -> metric -> a value for each step, or how the rows are spread.
Curves = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class Spread:
    ci_low: list[float | None] | None = None
    ci_high: list[float | None] | None = None
    n: list[float | None] | float | None = None
    count: list[float | None] | float | None = None


Spreads = dict[str, dict[str, Spread | None] | None]


@dataclass(frozen=True)
class StepFacts:
    step_values: list[Any] | None = None


def _curves_misfit(results: Json) -> str:
    """What is wrong with the nested values of a trajectory: by view or, in the flat shape, without."""
    for name, body in results.items():
        nested, spread = body.get("agg_value"), body.get("step_distribution") or {}
        if not isinstance(nested, Mapping):
            continue
        by_view = set(nested) <= set(VIEWS)
        words = misfit(nested, dict[str, Curves] if by_view else Curves)
        words = words or misfit(spread, dict[str, Spreads | None] if by_view else Spreads)
        words = words or misfit(body.get("trajectory_step_metadata"), StepFacts | None)
        if words:
            return f"{name}: {words}"
    return ""


# ---- other kinds of runs ---------------------------------------------------------------------------------------------

Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Layer:
    layer: int
    s1_drop: float | None = None
    s2_drop: float | None = None
    s1_interval: Ends | None = None
    s2_interval: Ends | None = None


@dataclass(frozen=True)
class DepthSummary:
    avg_uds: float | None = None
    interval: tuple[float, float] | None = None
    n: int | None = None
    reason: Any = ""
    layers: list[int] = field(default_factory=list)
    profile: list[Layer] = field(default_factory=list)
    delta_threshold: Any = None
    fingerprints: Json = field(default_factory=dict)
    quantization: Any = ""
    unlearn_model: Any = ""
    full_model: Any = ""
    retain_model: Any = ""


@dataclass(frozen=True)
class DepthExample:
    idx: Any = ""
    question: Any = ""
    prefix: Any = ""
    reference_text: Any = ""
    entity: Any = ""
    entity_text: Any = ""
    uds: float | None = None
    s1_deltas: list[Any] = field(default_factory=list)
    s2_deltas: list[Any] = field(default_factory=list)
    layer_records: list[Json] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    token_logprobs: Any = None


@dataclass(frozen=True)
class DepthRun:
    summary: DepthSummary
    records: list[DepthExample]
    source: RunSource = NO_SOURCE
    numbers: dict[str, Number] = field(default_factory=dict)  # the score and the baselines


@dataclass(frozen=True)
class AttackedRow:
    """What one metric run gave of an attacked copy; `attack` is "none" for the model as it was."""

    attack: str
    model: str  # model | retain
    values: Json
    budget: float | None = None
    notes: list[Any] = field(default_factory=list)
    settings: Json = field(default_factory=dict)


@dataclass(frozen=True)
class StressSubjects:
    model: str = ""
    retain_model: str = ""
    metrics: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StressRun:
    rows: list[AttackedRow]
    manifests: dict[str, Manifest]  # model | retain -> of its evaluation before any attack
    asked: StressSubjects = field(default_factory=StressSubjects)
    attacks: dict[str, Json] = field(default_factory=dict)
    source: RunSource = NO_SOURCE
    # model | retain -> folder -> the evaluation of the attacked copy, where the run kept it
    evaluations: dict[str, dict[str, Evaluated]] = field(default_factory=dict)


@dataclass(frozen=True)
class CollapseStep:
    step: int
    ema: Json
    metrics: Json
    verdicts: Json = field(default_factory=dict)
    notes: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class CollapseRun:
    steps: list[CollapseStep]
    settings: Json
    notes: list[Any] = field(default_factory=list)
    source: RunSource = NO_SOURCE


@dataclass(frozen=True)
class Look:
    """One evaluation of a training run that was watched."""

    step: int
    values: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    why: str
    seconds: float
    epoch: float | None = None
    share: float | None = None
    kept: float | None = None
    score: float | None = None
    verdict: Json = field(default_factory=dict)


@dataclass(frozen=True)
class WatchedRun:
    suite: str
    retain: dict[str, float | None]
    before: dict[str, float | None]
    looks: list[Look]
    best: int | None = None
    source: RunSource = NO_SOURCE


@dataclass(frozen=True)
class SweepPlan:
    attacks: Json | list[Any] = field(default_factory=list)
    attack_facts: dict[str, Json] = field(default_factory=dict)
    retain: str = ""


@dataclass(frozen=True)
class SweepTask:
    id: str
    status: str
    error: str = ""


@dataclass(frozen=True)
class Sweep:
    plan: SweepPlan
    tasks: list[SweepTask] = field(default_factory=list)
    source: RunSource = NO_SOURCE


# ---- what was found --------------------------------------------------------------------------------------------------


@dataclass
class FoundRuns:
    """Everything found, by kind, and what could not be read."""

    sources: list[RunSource] = field(default_factory=list)  # of every kind, in the order of the paths
    evaluations: list[Evaluation] = field(default_factory=list)
    depth_runs: list[DepthRun] = field(default_factory=list)
    stress_runs: list[StressRun] = field(default_factory=list)
    collapse_runs: list[CollapseRun] = field(default_factory=list)
    watched_runs: list[WatchedRun] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # the problems that cost the report a run

    def of(self, kind: str) -> list[RunSource]:
        return [source for source in self.sources if source.kind == kind]

    def problem(self, text: str, where: Path | str = "") -> None:
        entry = {"text": text}
        if where:
            entry["where"] = str(where)
        if entry not in self.problems:
            self.problems.append(entry)

    def leave_out(self, text: str, where: Path | str = "") -> None:
        """A run (or file) that is there and cannot be shown: the command says so with its status."""
        self.problem(text, where)
        if text not in self.left_out:
            self.left_out.append(text)

    def read(self, path: Path, kind: type = dict) -> Any:
        """JSON of the kind expected; otherwise a problem is noted and the file passed over."""
        try:
            data = with_new_keys(read_json(path))
        except (OSError, ValueError) as error:
            self.leave_out(f"{path.name} cannot be read ({type(error).__name__}); it was left out.", path)
            return None
        if not isinstance(data, kind):
            self.leave_out(f"{path.name} does not hold a JSON {kind.__name__}; it was left out.", path)
            return None
        return data

    def take(self, source: RunSource) -> None:
        """Adds a run with its record; one that does not have the form of its kind is left out and named."""
        for text in source.problems:
            self.problem(text, source.path)
        if source.kind not in RECORDS:
            self.sources.append(source)  # meta and methods are checked by those who read them
            return
        data = without_nulls(source.data)
        form = RECORDS[source.kind]
        words = misfit(data, form)
        if not words and source.kind == "trajectory":
            words = _curves_misfit(source.data["results"])
        if words:
            words = f"it does not have the form of its kind ({source.kind}): {words}."
            self.leave_out(f"{source.path.name} was left out: {words}", source.path)
            return
        record: Any = replace(msgspec.convert(data, form), source=source)
        if form is Evaluation:
            files = source.data
            record = replace(record, judged=Evaluated(files["results"], files["manifest"], files["stats"]))
            self.evaluations.append(record)
        elif form is DepthRun:
            try:
                numbers = read_numbers(Path(source.files[0]))
            except UserError as error:
                self.leave_out(f"{source.path.name} was left out: {error}", source.path)
                return
            self.depth_runs.append(replace(record, numbers=numbers))
        elif form is StressRun:
            self.stress_runs.append(replace(record, evaluations=_attacked_evaluations(source.data)))
        elif form is CollapseRun:
            self.collapse_runs.append(record)
        elif form is WatchedRun:
            self.watched_runs.append(record)
        else:
            self.sweeps.append(record)
        self.sources.append(source)


RECORDS: dict[str, Any] = {
    "eval": Evaluation,
    "trajectory": Evaluation,
    "depth": DepthRun,
    "stress": StressRun,
    "collapse": CollapseRun,
    "watch": WatchedRun,
    "sweep": Sweep,
}


def without_nulls(data: Any, levels: int = 4) -> Any:
    """The same data without keys whose value is null: absent and null mean the same in files.

    It goes as deep as the files nest their own objects; what lies below are numbers by name, where null is a value.
    """
    if levels == 0:
        return data
    if isinstance(data, list):
        return [without_nulls(item, 1) if isinstance(item, Mapping) else item for item in data]
    if isinstance(data, Mapping):
        return {key: without_nulls(value, levels - 1) for key, value in data.items() if value is not None}
    return data


def _attacked_evaluations(data: Mapping[str, Any]) -> dict[str, dict[str, Evaluated]]:
    out: dict[str, dict[str, Evaluated]] = {}
    for who, by_folder in (data.get("evals") or {}).items():
        for folder, files in by_folder.items():
            out.setdefault(who, {})[folder] = Evaluated(files["results"], files["manifest"])
    return out


def finite(value: Any) -> float | None:
    """A number that JSON has, else None.

    >>> finite(0.5), finite(float("nan")), finite(None), finite(True)
    (0.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < float("inf") else None


# ---- looking through directories -------------------------------------------------------------------------------------


def gather(paths: Sequence[Path]) -> FoundRuns:
    """All runs under the paths, each once."""
    found = FoundRuns()
    seen: set[str] = set()
    for path in paths:
        problems_before = len(found.problems)
        if not path.exists():
            raise UserError(f"{path} does not exist; give directories of finished runs.")
        if is_epoch(path):  # a part of the tree would give verdicts on a part of what was measured
            raise UserError(f"{path} is one epoch of a result tree; give the folder above it, which has the baselines.")
        here = list(_look(path, found, DEEPEST))
        for source in here:
            if source.id not in seen:
                found.take(source)
            seen.add(source.id)
        if not here and len(found.problems) == problems_before:
            raise UserError(
                f"{path} holds no finished run: no *_EVAL.json, depth summary.json, stress.json, metrics.json of "
                f"collapse, watch.json, {META_EVAL} or {METHOD_RESULTS}."
            )
    return found


def _look(path: Path, found: FoundRuns, depth: int) -> Iterator[RunSource]:
    if path.is_file():
        if path.name in META_FILES or not any(known.shows(path) for known in KINDS.values()):
            yield from in_file(path, found.read)
        elif not _is_unfinished_attack(path.parent, found):
            yield from _in_directory(path.parent, found)
        return
    if (path / REPORT).is_file() and (path / PAGE).is_file():
        return  # a report is not one of its own sources
    if _is_unfinished_attack(path, found):
        return
    if is_root(path):
        yield from _in_tree(path, found, depth)
        return
    here = list(_in_directory(path, found))
    yield from here
    if depth == 0 or CLOSED & {source.kind for source in here}:
        return
    for inner in _folders(path):
        holds_results = inner.name == "models" and any(inner.glob("*/*_EVAL.json"))
        if inner.name not in NOT_RUNS or holds_results:
            yield from _look(inner, found, depth - 1)


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _in_directory(path: Path, found: FoundRuns) -> Iterable[RunSource]:
    """What every kind of run has to show of a directory; most directories hold one kind."""
    for known in KINDS.values():
        if known.seen_in(path):
            yield from kind(known.name).gather(path, found.read)


def _is_unfinished_attack(path: Path, found: FoundRuns) -> bool:
    """A `vestige stress` that was killed, or is still at work: the evaluations inside are of attacked copies.

    A stress.json of a run before is left out as well: the evaluations beside it may be of another model by now.
    """
    try:
        run = read_run(path)
    except UserError:
        return False  # vestige verify reports it
    unfinished = run is not None and run.kind == "stress" and run.unfinished
    if unfinished:
        found.leave_out(UNFINISHED_ATTACK.format(path.name), path)
    return unfinished


def _in_tree(root: Path, found: FoundRuns, depth: int) -> Iterator[RunSource]:
    """A published result tree: its summaries are one source, its depth runs are read one by one, legacy is left alone.

    What else lies in it (meta_eval/, folders of other kinds) is looked through as everywhere.
    """
    try:
        tree = read_tree(root)
    except UserError as error:
        found.leave_out(f"the result tree {root.name} was left out: {error}", root)
        return
    yield RunSource("methods", root, tree.read, {"tree": tree})
    attacked = attack_files(root)
    behind = [file for file in (faithfulness_file(root), *attacked.values()) if file is not None]
    try:
        attacks = read_tree_attacks(attacked) if attacked else None
    except UserError as error:
        found.leave_out(f"robustness of the result tree was left out: {error}", root)
    else:
        if behind:
            yield RunSource("meta", root / "meta_eval", tuple(behind), {"tree": tree, "attacks": attacks})
    epochs = epochs_of(root)
    depth_runs = sorted(place for epoch in epochs for place in (epoch / "uds").glob("*/"))
    rest = [folder for folder in _folders(root) if folder not in epochs]
    for inner in (*depth_runs, *other_folders(root), *rest):
        if depth > 0 and not is_legacy(inner) and inner.name not in NOT_RUNS:
            yield from _look(inner, found, depth - 1)


# ---- files -----------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_json(source: RunSource, base: Path, models: Sequence[str]) -> Json:
    """A source as the report names it: relative paths, and a digest of every file."""
    files = [{"path": relative(f, source.directory), "sha256": digest(f)} for f in source.files]
    lines = "\n".join(f"{f['sha256']}  {f['path']}" for f in files)
    return {
        "id": source.id,
        "path": relative(source.path, base),
        "kind": source.kind,
        "files": files,
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "models": list(models),
        "facts": dict(source.facts),
    }


def list_changes(paths: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """When each JSON file under the paths last changed, and its size: a cheap way to see that runs moved on."""
    out = {}
    for path in paths:
        for file in [path] if path.is_file() else _json_files(path, DEEPEST + 2):
            try:
                stat = file.stat()
            except OSError:
                continue  # it went away between listing and looking
            out[str(file)] = stat.st_mtime_ns, stat.st_size
    return out


def _json_files(path: Path, depth: int) -> Iterator[Path]:
    for inner in path.iterdir():
        if inner.name.startswith(".") or (inner.name in NOT_RUNS and inner.name != "models"):
            continue
        if inner.suffix == ".json" and inner.name != REPORT:
            yield inner
        elif depth > 0 and inner.is_dir():
            yield from _json_files(inner, depth - 1)


# ---- traces of denoising ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowTrace:
    """How one row's answer came about."""

    index: str
    prompt: str
    answer: str
    trace: Trace
    stream: int  # which of the trace's label streams is the answer
    tokens: list[str]  # the answer's tokens, position by position


def row_traces(directory: str | Path, metric: str = "trajectory_metrics") -> list[RowTrace]:
    """The traces behind a trajectory metric: one for each row of its first data set."""
    place = Path(directory)
    manifest = read_manifest(place)
    suite = suite_from_manifest(manifest)
    spec = suite.metrics.get(metric)
    if spec is None or spec.children is None:
        raise UserError(f"{place} holds no trajectory metric '{metric}'; evaluate one with --trajectory-views both.")
    stored = load_rows(place / "evidence" / "examples.json.gz")
    keys = manifest["data_of"].get(metric) or {}
    first = f"{spec.children.top[0]}/"
    if not any(access.startswith(first) for access in keys) or any(key not in stored for key in keys.values()):
        raise UserError(f"{place} does not keep the rows of '{metric}'; evaluate it again.")
    words = words_of(place)
    inputs = Inputs(
        spec=spec,
        dialect=get_dialect(manifest["dialect"]["name"]),
        data={access: stored[key] for access, key in keys.items()},
        evidence=load_evidence(place, manifest),
        words=words,
    )
    run = TrajectoryRun(inputs)
    rows = next(data for access, data in run.data.items() if access.startswith(first))
    out = []
    for row in rows.examples:
        target = row[0].target
        if target is None or words is None:
            continue
        prompt = prompt_of(target)
        tokens = [words.decode([token]) for token in target.labels]
        stream = run.stream[prompt, target.labels]
        out.append(RowTrace(row[0].index, row[0].input_text, row[0].answer, run.traces[prompt], stream, tokens))
    return out
