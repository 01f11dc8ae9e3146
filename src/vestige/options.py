"""Every option of the command line and of the Python functions, described once.

An option is an `Annotated` alias: its Python type and an `Option` with the help text. A function that takes the option
annotates its parameter with the alias, and everything else is generated from the signature: the flag (`--batch-tokens`
for `batch_tokens`), the list of keywords in `help()`, and the setting of an evaluation's configuration that the option
stands for. To add an option to a verb, add a parameter to its function; a new option is one line here.

The second half translates flags of other tools ("did you mean").
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_args, get_origin

from vestige.errors import UserError, did_you_mean
from vestige.in_memory import ModelGiven, Place, RowsInMemory, RowTables, TokenizerLike

if TYPE_CHECKING:
    from vestige.runs.result import Result

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Option:
    """What one option means, wherever it is written."""

    help: str
    value: str = ""  # what follows the flag, as help shows it; empty for a switch
    key: str = ""  # the configuration setting it stands for; {suite} is the suite's name
    values: tuple[str, ...] = ()  # the values there are
    python: str = ""  # what a Python function takes besides
    flag: str = ""  # its name on the command line, where that is not the parameter's
    short: str = ""  # -o
    repeated: bool = False  # the flag may be given several times
    several: bool = False  # the flag takes several values
    optional: str = ""  # the value when the flag is given without one
    positional: bool = False  # a word of the command, not a flag
    hidden: bool = False


DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "cuda:1", "mps")
QUANTIZATIONS = ("4bit", "8bit")
COMPUTE_DTYPES = ("bfloat16", "float16", "float32")
DIALECTS = ("open-unlearning", "strict", "tofu", "muse", "depth-score")
LIST_KINDS = ("suites", "metrics", "handlers", "dialects", "models", "datasets", "methods", "experiments")
SOURCES = "directories of runs, sweeps, or result files; any mixture"
PICTURES = "scatter, histogram, before-after, layers, recovery, trajectory, collapse"

# ---- what is measured ------------------------------------------------------------------------------------------------

_MODEL = Option(
    "the model: a directory, .gguf file, PEFT adapter or hub id",
    "PATH",
    "model.model_args.pretrained_model_name_or_path",
    python="or the model in memory; or (base, adapter)",
)
Model = Annotated[Place, _MODEL]
MaybeModel = Annotated[Place | None, _MODEL]
ModelPaths = Annotated[Place | tuple[Place, Place], _MODEL]
AnyModel = Annotated[ModelGiven, _MODEL]
Models = Annotated[Sequence[Place], Option(_MODEL.help, "PATH", flag="model", repeated=True)]
Suite = Annotated[str, Option("which benchmark, such as tofu or muse", "NAME")]
MaybeSuite = Annotated[str | None, Option("which benchmark, such as tofu or muse", "NAME")]
Full = Annotated[Place | None, Option("the model before unlearning", "MODEL", "eval.{suite}.full_model_path")]
Fulls = Annotated[
    str | Sequence[str], Option("the model before unlearning: its name or path", "MODEL", flag="full", repeated=True)
]
_RETAIN_MODEL = "the model trained without the forget rows"
RetainModel = Annotated[Place | None, Option(_RETAIN_MODEL, "MODEL")]
RetainModels = Annotated[
    str | Sequence[str], Option(f"{_RETAIN_MODEL}: its name or path", "MODEL", flag="retain-model", repeated=True)
]
_DATA = Option("folder with forget.jsonl, retain.jsonl, holdout.jsonl, ...", "DIR", python="or the rows themselves")
Data = Annotated[Place | RowTables, _DATA]
MaybeData = Annotated[Place | RowTables | None, _DATA]
ForgetData = Annotated[Place | RowsInMemory | RowTables, Option("rows to forget", "FILE", python=_DATA.python)]
Forget = Annotated[str | None, Option("rows to forget: question and answer, or text", "FILE")]
Forgets = Annotated[
    Sequence[str], Option("rows to forget: question and answer, or text", "FILE", flag="forget", repeated=True)
]
RetainRows = Annotated[str | None, Option("rows to keep", "FILE", flag="retain")]
RetainRowFiles = Annotated[Sequence[str], Option("rows to keep", "FILE", flag="retain", repeated=True)]
Holdout = Annotated[str | None, Option("rows like the forget rows, never trained on", "FILE")]
_LOGS = "result file or run directory of the retain model"
RetainLogs = Annotated[
    "Place | Result | Sequence[Place | Result] | None",
    Option(_LOGS, "RUN", "eval.{suite}.retain_logs_path", python="or its Result"),
]
SeveralRetainLogs = Annotated[
    Sequence[str] | None, Option(f"{_LOGS}, or of several", "RUN", "eval.{suite}.retain_logs_path", several=True)
]
AcceptMixture = Annotated[
    bool,
    Option(
        "combine runs of another template, dialect, precision or other rows, with a note",
        key="eval.{suite}.accept_mixture",
    ),
]
Metrics = Annotated[
    Sequence[str] | str | None, Option("which metrics", "all|NAME,...", python="a list, or text with commas")
]
Metric = Annotated[str | None, Option("the metric to draw", "NAME", flag="metrics")]
Tasks = Annotated[
    Sequence[str | Mapping[str, object]] | str | None,
    Option("lm_eval: names or YAML files of lm-evaluation-harness tasks", "NAME,..."),
]
IncludePath = Annotated[
    Place | None,
    Option("lm_eval: folder with task YAML files of your own", "DIR", "eval.{suite}.include_path"),
]
ReferenceModel = Annotated[
    Place | None, Option("second model for mia_reference", "PATH", "eval.{suite}.reference_model_path")
]
TrajectoryViews = Annotated[
    str | None,
    Option("a diffusion model: the suite's metrics at denoising steps", "NAME", values=("both", "full", "eos")),
]
Benchmark = Annotated[str | None, Option("trajectory-eval: of which benchmark", "NAME", values=("tofu", "muse"))]
Limit = Annotated[int | None, Option("first N rows of every data set", "N", "data.max_samples")]
Cluster = Annotated[
    str | None,
    Option(
        "column that groups related rows (same author or document), for confidence intervals; none: no column",
        "COLUMN",
        "stats.cluster",
    ),
]
Dialect = Annotated[str | None, Option("which set of metric definitions to use", "NAME", "dialect", values=DIALECTS)]
SystemPrompt = Annotated[str | None, Option("system prompt of every chat", "TEXT", "model.template_args.system_prompt")]

# ---- where results go ------------------------------------------------------------------------------------------------

_OUT = "where results go"
Out = Annotated[
    Place | None, Option(_OUT, "DIR", "paths.output_dir", short="o", python="without it nothing is left on disk")
]
OutDir = Annotated[Place, Option(_OUT, "DIR", short="o")]
OutFile = Annotated[str | None, Option(_OUT, "FILE", short="o")]
TaskName = Annotated[str | None, Option("names the directory of results where --out does not", "NAME", "task_name")]
Overwrite = Annotated[bool, Option("start over: replace what is there already", key="eval.{suite}.overwrite")]
ShortenPaths = Annotated[bool, Option("write ~ for paths that name a person's home")]
SkipBroken = Annotated[bool, Option("status 0 although runs were left out")]

# ---- how a model is loaded and run -----------------------------------------------------------------------------------

_ARGS = "model.model_args"
Dtype = Annotated[str | None, Option("precision of the weights", "NAME", f"{_ARGS}.torch_dtype", DTYPES)]
Device = Annotated[str | None, Option("where it runs", "NAME", f"{_ARGS}.device", DEVICES)]
_TOKENIZER = Option(
    "instead of the model's own",
    "PATH",
    "model.tokenizer_args.pretrained_model_name_or_path",
    python="of a model in memory: the tokenizer itself",
)
Tokenizer = Annotated[Place | None, _TOKENIZER]
AnyTokenizer = Annotated[TokenizerLike | Place | None, _TOKENIZER]
TrustRemoteCode = Annotated[bool, Option("run code that comes with the model", key=f"{_ARGS}.trust_remote_code")]
Quantization = Annotated[
    str | None, Option("load the weights in fewer bits", "NAME", f"{_ARGS}.quantization", QUANTIZATIONS)
]
ComputeDtype = Annotated[
    str | None,
    Option("what 4-bit layers multiply in (bfloat16)", "NAME", f"{_ARGS}.compute_dtype", COMPUTE_DTYPES),
]
ModelSettings = Annotated[
    Mapping[str, object] | None, Option("how a checkpoint is loaded: dtype, device, trust_remote_code, ...")
]
Server = Annotated[
    str | None,
    Option(
        "model servers that run it (vLLM, OpenAI form): named as there, its tokenizer read here",
        "URL,...",
        "server.url",
    ),
]
ServerKeyEnv = Annotated[
    str | None, Option("environment variable that holds the servers' key", "NAME", "server.key_env")
]
BatchTokens = Annotated[int | None, Option("tokens in one forward (default: what fits)", "N", "batch_tokens")]
BatchSize = Annotated[int | None, Option("rows in one forward", "N", "max_rows")]
Seed = Annotated[int | None, Option("random seed", "N", "seed")]
Temperature = Annotated[float, Option("sampling temperature", "X")]
Tokenization = Annotated[str | None, Option("how prompt and answer become tokens", "NAME")]

# ---- how a model is trained ------------------------------------------------------------------------------------------

Epochs = Annotated[float | None, Option("passes over the rows", "N")]
LearningRate = Annotated[float | None, Option("learning rate", "X")]
Accumulation = Annotated[int | None, Option("forwards in one step of the optimiser", "N")]
Learn = Annotated[
    Sequence[str], Option("rows to learn: question and answer, or text; may be repeated", "FILE", repeated=True)
]
Method = Annotated[str | None, Option("NPO, GradDiff, RMU, ... (trainer=NAME)", "NAME")]
Alternate = Annotated[str | None, Option("answers to prefer (DPO): refusals, or a column", "idk|COLUMN")]
Knobs = Annotated[Sequence[str], Option("of the method: beta=0.3", "NAME=VALUE", flag="knob", repeated=True)]
Lora = Annotated[int | None, Option("train an adapter (rank 8), not all", "RANK", optional="8")]
EvalData = Annotated[str | None, Option("evaluate after each epoch on this folder", "DIR")]
KeepBest = Annotated[str | None, Option("keep the best checkpoint: closest, or weights NAME=WEIGHT,...", "RULE")]

# ---- depth -----------------------------------------------------------------------------------------------------------

_UNLEARNED = Option("the checkpoints to measure", "PATH", several=True)
Unlearned = Annotated[Place | Sequence[Place], _UNLEARNED]
MaybeUnlearned = Annotated[Sequence[str] | None, _UNLEARNED]
FullModel = Annotated[Place, Option("the model before unlearning", "MODEL")]
Retain = Annotated[Place, Option(_RETAIN_MODEL, "MODEL")]
Layers = Annotated[str | Sequence[int] | None, Option("which layers are patched", "auto|0-15|0,2|0-24:2")]
LastLayer = Annotated[str | None, Option("before or after the source's final norm", "residual|peer")]
DeltaThreshold = Annotated[float | None, Option("minimum S1 drop (nats) for a layer to count (default 0.05)", "X")]
Baselines = Annotated[str | Sequence[str] | None, Option("also cka, logit_lens, fisher", "NAME,...")]
Plots = Annotated[bool, Option("draw the layer profile, the heat map and the tokens")]
PatchScope = Annotated[str | None, Option("which positions are patched", "span|boundary|all")]
EmScope = Annotated[str | None, Option("which tokens are scored", "entity|full")]
S1Cache = Annotated[Place | None, Option("where retain -> full is kept (OUT/s1_cache); or a published .json", "DIR")]
AttnImplementation = Annotated[str | None, Option("how attention is computed", "sdpa|eager")]

# ---- collapse --------------------------------------------------------------------------------------------------------

Rollouts = Annotated[Place | Sequence[Place], Option("a rollout file, or several", "ROLLOUTS")]
RolloutWords = Annotated[
    Sequence[str], Option("rollout files, and Hydra overrides", "ROLLOUTS | KEY=VALUE", positional=True, several=True)
]
RolloutFormat = Annotated[str, Option("auto, native, verl, trl, ragen-jsonl, ...", "NAME", flag="rollout-format")]
PromptTemplate = Annotated[str, Option("raw | chatml-restore", "NAME")]
Steps = Annotated[Sequence[int], Option("the step of each file", "N", flag="step", repeated=True)]
Scheduled = Annotated[bool, Option("only the steps that compute_freq asks for")]
Ema = Annotated[Place | None, Option("running means: read if there, written at the end", "FILE")]
SkipLong = Annotated[bool, Option("leave out rows that are longer than the model reads")]
Parity = Annotated[str | None, Option("RAGEN's draws, tokens and 29 numbers only", "ragen")]
ComputeFreq = Annotated[int | None, Option("only step 1 and multiples of N (default: all steps)", "N")]
MicroBatchSize = Annotated[int | None, Option("reasonings scored together", "N")]
FirstTurnEnabled = Annotated[bool | None, Option("measure first turns", "true|false")]
MultiTurnEnabled = Annotated[bool | None, Option("measure whole trajectories", "true|false")]
TurnEnabled = Annotated[bool | None, Option("also turns drawn evenly", "true|false")]
NumSamples = Annotated[int | str | None, Option("turns looked at of each kind", "N|all")]
StdEps = Annotated[float | None, Option("added to the spread that scores are divided by", "X")]
EmaDecay = Annotated[float | None, Option("how slowly running means move", "X")]
ContextWindowMode = Annotated[str | None, Option("full: a prompt with all that came before it", "NAME")]
Columns = Annotated[
    str | None, Option("prompts to cross with: auto | group | distinct | sample", "NAME", flag="cross-columns")
]
OnError = Annotated[str | None, Option("raise, or skip what cannot be measured and say so", "NAME")]
ReasoningMode = Annotated[str, Option("tags | whole (the whole response)", "NAME", flag="reasoning")]
OpenTag = Annotated[str, Option("reasoning begins after it (default: <think>)", "TEXT")]
CloseTag = Annotated[str, Option("and ends before it (default: </think>)", "TEXT")]
ReasoningPattern = Annotated[str | None, Option("instead of tags; its first group is the reasoning", "REGEX")]
Unclosed = Annotated[str, Option("drop | keep reasoning without its close tag", "NAME")]

# ---- attacks and audits ----------------------------------------------------------------------------------------------

Attacks = Annotated[
    str | Sequence[str] | Mapping[str, float | Sequence[float] | None],
    Option("words (relearn=5,20), or a mapping from attack to budgets; None: the attack's own"),
]
HeldOut = Annotated[bool, Option("relearn on half of the forget rows, measure the other")]
Examples = Annotated[int | None, Option("relearn: teach only the first N rows", "N")]
Keep = Annotated[bool, Option("keep attacked checkpoints in OUT/checkpoints")]
AttackPlot = Annotated[str | None, Option("draw recovery against budget (FILE_ATTACK.png)", "FILE", flag="plot")]
Before = Annotated[str, Option("the model before unlearning", "PATH")]
After = Annotated[str, Option("the model after unlearning", "PATH")]
Minutes = Annotated[float, Option("time it may take: tests that do not fit are left out, and named", "N")]
Skip = Annotated[
    Sequence[str],
    Option("tests to leave out: layers, jailbreak, relearn, prune, quantise", "NAME,...", repeated=True),
]

# ---- finished runs ---------------------------------------------------------------------------------------------------

RunPath = Annotated[Place, Option("a run directory")]
RunOrResult = Annotated["Place | Result", Option("a run directory, or a Result")]
RunsOrResults = Annotated["Place | Result | Sequence[Place | Result]", Option("run directories, or Results")]
Changes = Annotated[Mapping[str, Mapping[str, object]] | None, Option("metric -> setting -> value")]
ChangeWords = Annotated[
    Sequence[str],
    Option("dialect=NAME, METRIC.KEY=VALUE (mia_min_k.k=0.2)", "CHANGES", positional=True, several=True),
]
Margin = Annotated[float, Option("what counts as equal on 0..1 metrics", "X")]
Resamples = Annotated[int | None, Option("bootstrap samples behind each interval", "N")]
RowsShown = Annotated[int, Option("rows shown of each metric or split", "N")]
Title = Annotated[str | None, Option("heading of the page or picture", "TEXT")]
HashesOnly = Annotated[bool, Option("check the files, score nothing again")]
Baseline = Annotated[str | None, Option("of a tree runs/: whose full model all are relative to (ep10)", "EPOCH")]
TableOf = Annotated[str, Option("what the rows are", "models|meta", flag="of")]
TableFormat = Annotated[str, Option("markdown | latex | csv", "NAME", flag="format")]
Latex = Annotated[bool, Option("a whole table for a paper, with intervals and notes")]
TableColumns = Annotated[
    str | None, Option("name, role, method, epoch, settings and metrics", "NAME,...", flag="columns")
]
Sort = Annotated[str | None, Option("by this column, high to low", "NAME")]
Digits = Annotated[int | None, Option("after the point (default: four that mean something)", "N")]
Intervals = Annotated[bool, Option("with 95 % intervals")]
Best = Annotated[bool, Option("mark the best unlearned model of each column")]
Marks = Annotated[bool, Option("a star where a model surely differs from the retain model")]
PlotName = Annotated[
    str | None, Option("models whose name has this part (default: the first audited)", "NAME", flag="name")
]
PlotAttack = Annotated[
    str | None, Option("recovery: its name; before-after: relearning | quantization", "NAME", flag="attack")
]
Width = Annotated[str | None, Option("for a paper: 3.25 in, 6.75 in, or so many", "column|page|INCHES")]
PlotX = Annotated[str | None, Option("scatter: a column", "NAME", flag="x")]
PlotY = Annotated[str | None, Option("scatter: a column", "NAME", flag="y")]
Port = Annotated[int, Option("port to serve it on (default: any that is free)", "N")]
Every = Annotated[float, Option("between looks at the runs", "SECONDS")]
PublishTo = Annotated[str, Option("whose form", "wandb|mlflow|tensorboard|hub|json", flag="to")]
Online = Annotated[bool, Option("send it (wandb, mlflow: as their own settings say); default: files only")]
HubDataset = Annotated[str, Option("hub: which data set of the hub was evaluated", "ORG/NAME", flag="dataset")]
Project = Annotated[str, Option("wandb, mlflow: project or experiment", "NAME")]
Robustness = Annotated[str, Option("symmetric | one-sided", "RULE")]
Thresholds = Annotated[str | None, Option("default: optimal_thresholds.json in --out, if it is there", "FILE")]
Utility = Annotated[str | None, Option("default: method_results.json in --out, if it is there", "FILE")]
LeastUtility = Annotated[float, Option("least utility of a model that counts, as a share", "X")]
OwnThresholds = Annotated[bool, Option("s_mia_* by their own, not by their attack's")]
Floor = Annotated[float, Option("axes: least value of a part", "X")]

# ---- at scale --------------------------------------------------------------------------------------------------------

Gpus = Annotated[str | None, Option("one process for each of these GPUs", "ID,...", flag="gpu")]
StartIdx = Annotated[int, Option("only the plan's models from this one on", "I")]
EndIdx = Annotated[int | None, Option("and before this one", "J")]
Slots = Annotated[int | None, Option("processes at a time (default: half the cores; 0: in this one)", "N")]
Retries = Annotated[int | None, Option("how often a failed task is tried again", "N")]
Ray = Annotated[str | None, Option("on a Ray cluster (`local`: here)", "ADDRESS", optional="auto")]
ClearCache = Annotated[bool, Option("remove downloads of this sweep that no task needs any longer")]
ListTasks = Annotated[bool, Option("print the tasks and where they stand, and stop", flag="list")]
MetaFiles = Annotated[bool, Option("write what `vestige meta` reads from the runs, and stop", flag="meta")]
Clean = Annotated[str | None, Option("remove runs not in the plan, or all runs", "stale|all", optional="stale")]
JobSet = Annotated[Sequence[str], Option("gpu.type=A100-40, image=...", "KEY=VALUE", flag="set", repeated=True)]
JobFile = Annotated[str | None, Option("YAML with the same settings", "FILE", flag="file")]
JobKind = Annotated[str | None, Option("default: rayjob for sweep, job for the rest", "job|rayjob", flag="kind")]
DryRun = Annotated[bool, Option("print it, do not submit it")]

# ---- configuration ---------------------------------------------------------------------------------------------------

ConfigDir = Annotated[Place | None, Option("your own config groups, before ours", "DIR")]
ConfigName = Annotated[str | None, Option("the root configuration", "NAME", hidden=True)]
Overrides = Annotated[Sequence[str], Option("Hydra overrides, as words on the command line", "KEY=VALUE")]
Multirun = Annotated[bool, Option("comma lists in overrides make several runs", short="m")]
Cfg = Annotated[bool, Option("print the composed configuration and stop")]
_PLUGIN = "with metrics, attacks, methods, data sets, ... of your own"
Plugin = Annotated[Sequence[str], Option(f"Python file {_PLUGIN}", "FILE", repeated=True)]
Plugins = Annotated[Place | Sequence[Place], Option(f"Python file, or files, {_PLUGIN}", "FILE")]
Progress = Annotated[bool, Option("progress bars on stderr")]
NoDiffusion = Annotated[bool, Option("leave out the diffusion models")]

# ---- words of a command ----------------------------------------------------------------------------------------------


def _word(help: str, value: str, several: bool = False) -> Option:
    return Option(help, value, positional=True, several=several)


EvalWords = Annotated[Sequence[str], _word("a suite (tofu) and/or Hydra overrides", "SUITE | KEY=VALUE", True)]
DepthWords = Annotated[Sequence[str], _word("settings as Hydra keys: last_layer=peer, retain=PATH", "KEY=VALUE", True)]
TrainWords = Annotated[Sequence[str], _word("Hydra overrides", "KEY=VALUE", True)]
AttackWords = Annotated[Sequence[str], _word("", "ATTACK[=BUDGET,...]", True)]
RunWord = Annotated[str, _word("a run directory (saves/eval/NAME)", "RUN")]
FirstRun = Annotated[str, _word("a run directory", "RUN_A")]
SecondRun = Annotated[str, _word("another", "RUN_B")]
RunWords = Annotated[Sequence[str], _word("run directories", "RUN", True)]
JobWords = Annotated[Sequence[str], _word("of the job (default: vestige), as --set name=NAME", "NAME", True)]
SourceWords = Annotated[Sequence[str], _word(SOURCES, "RUN", True)]
ReportWords = Annotated[Sequence[str], _word(f"a report, or {SOURCES}", "RUN", True)]
PictureWords = Annotated[Sequence[str], _word(f"a report or runs, then one of {PICTURES}", "RUN... WHAT", True)]
File = Annotated[str, _word("a file", "FILE")]
MaybeName = Annotated[str | None, _word("forget_quality, extraction_strength, strict, ...", "NAME")]
ListKind = Annotated[str, _word(f"one of {', '.join(LIST_KINDS)} (default: all of them)", "KIND")]
MetaQuestion = Annotated[str, _word("the question", "faithfulness|robustness|axes|verdict")]
PlanFile = Annotated[str, _word("a YAML file with models and suites", "PLAN")]


def options_of(function: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Option, Callable[[str], Any]]]:
    """The parameters of a function that are options: name -> parameter, its Option, and what reads its value.

    Annotations are read as they are written (names of aliases in this module), so that asking for them imports nothing.
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        alias = globals().get(str(parameter.annotation).rpartition(".")[2])
        if get_origin(alias) is Annotated:
            python_type, option = get_args(alias)
            found[name] = (parameter, option, _value_type(python_type))
    return found


def _value_type(annotation: Any) -> Callable[[str], Any]:
    """What turns a word of the command line into the option's value, from the option's Python type."""
    if annotation in (int, float, str):
        return annotation
    if annotation is bool:
        return _true_or_false
    kinds = [_value_type(part) for part in get_args(annotation) if part is not type(None)]
    if int in kinds and str in kinds:
        return _int_or_text
    return kinds[0] if kinds else str


def _int_or_text(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def _true_or_false(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {word!r}")
    return word.lower() == "true"


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration settings of options by parameter name; options that were not given (None, False) are left out.

    >>> settings_of({"limit": 3, "dialect": None, "overwrite": True, "cfg": True})
    {'data.max_samples': 3, 'eval.{suite}.overwrite': True}
    """
    settings = {}
    for name, value in values.items():
        key = _KEYS.get(name)
        if key and value is not None and value is not False:
            settings[key] = value
    return settings


def setting_types() -> dict[str, Any]:
    """The types that plain values of an evaluation's settings have, by parameter name."""
    types: dict[str, Any] = {}
    for name in _KEYS:
        alias = globals()["".join(part.capitalize() for part in name.split("_"))]
        kind = get_args(alias)[0]
        if kind is bool:
            types[name] = bool | None
        else:
            types[name] = int | None if kind == int | None else str | None
    return types


def option_named(name: str) -> Option:
    """The option of a parameter's name, such as `batch_size`."""
    alias = globals()["".join(part.capitalize() for part in name.split("_"))]
    option = alias.__metadata__[0]
    assert isinstance(option, Option)
    return option


def name_everywhere(name: str) -> str:
    """An option as an error names it: typed, in Python, and in a configuration.

    >>> name_everywhere("batch_size")
    '--batch-size (batch_size= in Python, max_rows= in a configuration)'
    """
    return f"--{name.replace('_', '-')} ({name}= in Python, {option_named(name).key}= in a configuration)"


# Parameter names of an evaluation's options -> the setting that each stands for.
_KEYS = {
    name: option_named(name).key
    for name in (
        "model", "full", "retain_logs", "accept_mixture", "include_path", "reference_model", "limit", "cluster",
        "dialect", "system_prompt", "out", "task_name", "overwrite", "dtype", "device", "tokenizer",
        "trust_remote_code", "quantization", "compute_dtype", "server", "server_key_env", "batch_tokens",
        "batch_size", "seed",
    )
}  # fmt: skip


# ---- Python functions ------------------------------------------------------------------------------------------------


def public(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the Python interface: its docstring lists its keywords, and a misspelt one is a UserError that
    names the nearest (Python's own TypeError has no suggestion before version 3.13)."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                called = function.__name__
                raise UserError(
                    f"{called}() has no keyword '{name}'.{did_you_mean(name, names)} help(vestige.{called}) lists them."
                )
        return function(*args, **kwargs)

    call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_keyword_list(function)}"
    return call


def _keyword_list(function: Callable[..., Any]) -> str:
    lines = ["Keywords:", ""]
    for name, (_, option, _) in options_of(function).items():
        text = f"{option.help}: {' | '.join(option.values)}" if option.values else option.help
        text = f"{text} ({option.python})" if option.python else text
        lines += textwrap.wrap(
            text, 112, initial_indent=f"    {name}: ", subsequent_indent=" " * 8, break_on_hyphens=False
        )
    return "\n".join(lines)


# ---- flags of other tools --------------------------------------------------------------------------------------------

# The words that do the same here <- flags of other tools. A flag without a word of ours takes its own value along.
SAME: dict[str, str] = {
    "--out": "output-dir output-path output save-dir",
    "--model": "model-path model-name-or-path pretrained-model-name-or-path pretrained",
    "--tokenizer": "tokenizer-name tokenizer-path",
    "--limit": "max-samples num-examples max-rows",
    "--batch-size": "per-device-train-batch-size per-device-eval-batch-size eval-batch-size",
    "--lr": "learning-rate",
    "--epochs": "num-train-epochs num-epochs",
    "--accumulation": "gradient-accumulation-steps",
    "--seed": "random-seed",
    "--dtype": "torch-dtype precision",
    "--device cpu": "cpu no-cuda use-cpu",
    "--device cuda": "cuda use-cuda",
    "--dtype float16": "fp16 half",
    "--dtype bfloat16": "bf16",
    "--dtype float32": "fp32",
    "--quantization 4bit": "load-in-4bit",
    "--quantization 8bit": "load-in-8bit",
    "--overwrite": "force overwrite-output-dir no-resume",
    "--quiet": "silent no-progress disable-tqdm",
}
FOREIGN: dict[str, list[str]] = {}
for _ours, _theirs in SAME.items():
    FOREIGN |= dict.fromkeys(_theirs.split(), _ours.split())

# Flags of other tools that nothing here needs; they change nothing, and the note says why.
NEEDLESS = {
    "resume": "rerun the same command to resume",
    "log-samples": "every row is in the result file",
    "verbose": "--debug shows tracebacks, `vestige plan` what would run",
    "offline": "what is on this machine is used first; HF_HUB_OFFLINE=1 forbids the network",
}

# Flags of other tools that have another shape here: what to write instead.
ANSWERS = {
    "gpu": "write --device cuda:N; several GPUs: `vestige sweep PLAN --gpu 0,1`, or accelerate launch -m vestige",
    "gpus": "write --device cuda:N; several GPUs: `vestige sweep PLAN --gpu 0,1`, or accelerate launch -m vestige",
    "batch-size": "batches are measured in tokens: --batch-tokens N, or batch_tokens of a suite in a sweep's plan",
    "resume-from-checkpoint": "rerun the same command to resume",
    "model-args": "write --model PATH, --dtype NAME, ...; others are words: model.model_args.NAME=VALUE",
    "num-fewshot": "that is a setting of lm_eval: +eval.lm_eval.simple_evaluate_args.num_fewshot=N",
    "dry-run": "`vestige plan` with the same words shows what would run",
    "workers": "many models at a time: `vestige sweep PLAN --slots N`",
    "num-workers": "many models at a time: `vestige sweep PLAN --slots N`",
    "wandb": "`vestige publish RUN --to wandb` sends a finished run",
}


def translate_flags(verb: str, words: Sequence[str], options: Collection[str]) -> tuple[list[str], list[str]]:
    """A command in our flags, and a note for each that was written otherwise. `options` are the verb's own.

    >>> translate_flags("eval", ["tofu", "--output_dir=runs"], ["--out"])[0]
    ['tofu', '--out=runs']
    """
    translated: list[str] = []
    notes: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-")  # other tools write underscores
        if not flag.startswith("--") or len(flag) < 4:
            translated.append(word)
        elif f"--{name}" in options:
            translated.append(f"--{name}{equals}{value}")
        elif name in NEEDLESS:
            notes.append(f"--{name} is not needed: {NEEDLESS[name]}.")
        elif name in FOREIGN and FOREIGN[name][0] in options:
            *first, last = FOREIGN[name]
            translated += [*first, f"{last}{equals}{value}"]
            notes.append(f"--{name} is {' '.join(FOREIGN[name])} here.")
        elif name in ANSWERS:
            raise UserError(f"vestige {verb} has no flag --{name}; {ANSWERS[name]}.")
        else:
            translated.append(word)
    return translated, notes
