"""The forms of the files in run directories, as far as their readers rely on them.

A report, which also reads what other tools wrote, has records of its own (report/gather.py).

In: nothing. Out: types for `schema.check_form` and `schema.misfit`. Callers: the `kind.py` of each room,
store/kinds.py, store/files.py, engine/stored.py. They are imported where a file is read:
most evaluations read none.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, Required, TypedDict

import msgspec

Number = float | None
FactsForm = dict[str, Any]
Cell = float | list[float | None] | None  # of a row: one value, or one for each of its answers
Ends = tuple[Number, Number]

# ---- results --------------------------------------------------------------------------------------------------------


class RowForm(TypedDict, total=False):
    """The fields of a row that are numbers; beside them are texts, reasons and lists of plug-ins."""

    score: Cell
    prob: Cell
    avg_loss: Cell
    rouge1_recall: Cell
    rougeL_recall: Cell
    rougeL_f1: Cell


RowsForm = dict[str, RowForm]  # by row number


class Set(TypedDict, total=False):
    """One of the two data sets of a membership attack."""

    value_by_index: RowsForm | None


class ResultForm(TypedDict, total=False):
    """One metric of a *_EVAL.json, ours or open-unlearning's. A trajectory has curves in place of a number."""

    agg_value: float | dict[str, Any] | None
    value_by_index: RowsForm | None
    reason: str | None
    notes: list[str] | None
    forget: Set | None
    holdout: Set | None
    step_distribution: dict[str, Any] | None
    trajectory_step_metadata: StepFacts | None


ResultsForm = dict[str, ResultForm]


class StepFacts(TypedDict, total=False):
    step_values: list[Any] | None


class Stat(TypedDict, total=False):
    interval: tuple[float, float] | None
    n: int | None
    of: str | None
    value: Number


# ---- manifests ------------------------------------------------------------------------------------------------------


class ClustersForm(TypedDict):
    """Which rows hang together (runs/manifest.py)."""

    by: str
    names: list[str]
    of: dict[str, int]  # row -> place of its cluster's name


class Rowset(TypedDict):
    rows: int
    source: str
    fingerprint: str
    name: str
    clusters: NotRequired[ClustersForm]


class Definition(TypedDict, total=False):
    """definition.json, beside scores by another definition."""

    dialect: Required[DialectName]
    changes: dict[str, dict[str, Any]] | None
    retain_logs: str | None


class DialectName(TypedDict):
    name: str


class NamedDialect(TypedDict):
    name: str
    version: int
    mask: str


class MetricForm(TypedDict, total=False):
    """A metric as the configuration in a manifest has it; its own settings are beside these."""

    handler: Required[str]
    datasets: dict[str, FactsForm] | None
    pre_compute: dict[str, FactsForm] | None
    reference_logs: dict[str, FactsForm] | None
    generation_args: FactsForm | None
    collators: FactsForm | None


class Statistics(TypedDict, total=False):
    resamples: int
    cluster: str


class ConfigForm(TypedDict, total=False):
    suite: Required[str]
    metrics: Required[dict[str, MetricForm]]
    settings: Required[FactsForm]
    top: Required[list[str]]
    stats: Statistics
    max_samples: int | None


class ModelForm(TypedDict, total=False):
    evidence: Required[str]
    fingerprint: Required[str]
    name: Required[str]
    dtype: str | None
    quantization: Any


class Tokenizer(TypedDict, total=False):
    fingerprint: str
    vocabulary: Required[str]
    chat_template: str | None
    special_tokens: dict[str, Any]


class ManifestForm(TypedDict, total=False):
    """Of an evaluation by metrics: enough to score it again."""

    config: Required[ConfigForm]
    dialect: Required[NamedDialect]
    model: Required[ModelForm]
    data: Required[dict[str, Rowset]]
    data_of: Required[dict[str, dict[str, str]]]
    unavailable: Required[dict[str, str]]
    hidden_tokens: Required[int]
    references: dict[str, str] | None
    patched: dict[str, str] | None
    versions: Required[dict[str, str | None]]
    template: FactsForm
    tokenizer: Tokenizer
    prompt: str


class HarnessConfigForm(TypedDict, total=False):
    suite: Required[str]


class HarnessManifest(TypedDict, total=False):
    """Of a run of another harness: its configuration is its own affair."""

    config: Required[HarnessConfigForm]
    model: FactsForm


# ---- other kinds of runs --------------------------------------------------------------------------------------------


class Layer(TypedDict, total=False):
    layer: Required[int]
    s1_drop: Required[Number]
    s2_drop: Required[Number]
    s1_interval: Ends | None
    s2_interval: Ends | None


class DepthSummary(TypedDict, total=False):
    avg_uds: Required[Number]
    fingerprints: FactsForm | None
    interval: Ends | None
    n: int | None
    layers: list[int] | None
    profile: list[Layer] | None


class AttackedForm(TypedDict, total=False):
    attack: Required[str]
    model: Required[str]
    budget: Required[Number]
    values: Required[dict[str, Any]]
    notes: list[Any] | None


class CollapseRow(TypedDict, total=False):
    """A line of rows.jsonl."""

    step: Required[int]
    label: Required[str]


class CollapseStep(TypedDict, total=False):
    step: Required[int]
    ema: Required[FactsForm]
    metrics: Required[FactsForm]
    verdicts: FactsForm | None
    notes: dict[str, list[Any] | None] | None


class Collapse(TypedDict, total=False):
    steps: Required[list[CollapseStep]]
    settings: Required[FactsForm]
    notes: list[Any] | None


class LookForm(TypedDict, total=False):
    """One look of watch.json."""

    step: Required[int]
    epoch: Required[Number]
    values: Required[dict[str, Number]]
    intervals: Required[dict[str, tuple[float, float]]]
    share: Required[Number]
    kept: Required[Number]
    score: Required[Number]
    why: Required[str]
    seconds: Required[float]
    tokens: Required[int]
    directory: Required[str]
    reasons: dict[str, str]
    verdict: FactsForm


class WatchForm(TypedDict):
    """What was seen of a training run."""

    suite: str
    retain: dict[str, Number]
    before: dict[str, Number]
    best: int | None
    looks: list[LookForm]


class TaskForm(TypedDict, total=False):
    id: Required[str]
    status: Required[str]
    error: str | None


class SweepPlanForm(TypedDict, total=False):
    attacks: dict[str, Any] | list[Any] | None
    attack_facts: dict[str, FactsForm]
    retain: str | None


class Sweep(TypedDict, total=False):
    plan: Required[SweepPlanForm]
    tasks: list[TaskForm] | None


# ---- rows in tokens -----------------------------------------------------------------------------------------------


class PromptForm(TypedDict):
    ids: list[int]
    hidden: list[int]


class TargetForm(PromptForm):
    start: int


class ExampleForm(TypedDict, total=False):
    target: Required[TargetForm | None]
    prompt: Required[PromptForm]
    index: Required[str]
    answer: Required[str]
    input_text: str
    reference: str
    label_text: str
    problem: str


class TokenRowsForm(TypedDict, total=False):
    """The tokenised rows of one data set (store/files.py)."""

    name: Required[str]
    many: Required[bool]
    source: Required[str]
    fingerprint: Required[str]
    examples: Required[list[Annotated[list[ExampleForm], msgspec.Meta(min_length=1)]]]
    facts: list[dict[str, Any]]
