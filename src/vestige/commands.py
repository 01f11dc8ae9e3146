"""The verbs of the command line: one typed function each. Its parameters are its flags and words (options.py).

A verb that has a Python function (`vestige eval` and `vestige.evaluate`) takes that function's options and names only
what is different here. cli.py makes the argument parser from the signatures. Whatever runs a model is imported when a
verb runs, so that `--help` is instant.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige import api
from vestige.errors import UserError, nothing_computed, unknown_name
from vestige.in_memory import load_plugin_files, name_list
from vestige.options import *

if TYPE_CHECKING:
    from vestige.report.build import ReportRequest

MINUTES = 30.0  # of an audit, unless the user says otherwise


@dataclass(frozen=True)
class Verb:
    """One verb: its function, the Python function whose options it shares, and what help says of it."""

    name: str
    question: str  # the group of verbs that `vestige --help` shows it in
    help: str
    run: Callable[..., int]
    like: Callable[..., Any] | None = None
    without: tuple[str, ...] = ()  # options of `like` that the command line has not
    same_as: str = ""  # the verb that has the same options
    notes: Mapping[str, str] = field(default_factory=dict)  # parameter -> what is special about it in this verb
    required: tuple[str, ...] = ()
    only_typed: bool = False  # options that were not typed are None, whatever the default of the Python function
    late: str = ""  # the parameter that takes words which come after flags
    epilog: str = ""
    description: str = ""


VERBS: dict[str, Verb] = {}


def verb(name: str, question: str, help: str, **facts: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Registers a function as a verb."""

    def register(function: Callable[..., int]) -> Callable[..., int]:
        VERBS[name] = Verb(name, question, help, function, **facts)
        return function

    return register


def parameters_of(verb: Verb) -> dict[str, Any]:
    """The options of a verb by parameter name: those of the function that it is like, and its own."""
    if verb.same_as:
        return parameters_of(VERBS[verb.same_as])
    shared = options_of(verb.like) if verb.like else {}
    parameters = {name: found for name, found in shared.items() if name not in verb.without}
    return parameters | options_of(verb.run)


def run_verb(verb: Verb, values: Mapping[str, Any]) -> int:
    """Runs a verb on what the command line said."""
    keywords = {name: values[name] for name in parameters_of(verb)}
    signature = inspect.signature(verb.run).parameters
    if "progress" in signature:
        keywords["progress"] = not values["quiet"]
    if "command" in signature:  # what `vestige job` is to run
        keywords["command"] = values.get("command", ())
    return verb.run(**keywords)


# ---- measure ---------------------------------------------------------------------------------------------------------

# Options of `vestige.evaluate` that are words, or that have another name on the command line.
PYTHON_ONLY = ("suite", "progress", "overrides", "plugins", "retain_logs")


@verb(
    "eval",
    "measure",
    "evaluate a checkpoint",
    like=api.evaluate,
    without=PYTHON_ONLY,
    late="words",
    description="Evaluate a checkpoint.",
    notes={
        "retain_model": "it is evaluated first, and the model compared with it",
        "metrics": "instead of the suite's own",
        "out": "default: saves/eval/<task_name>",
        "batch_size": "at most; default: 128",
    },
    epilog="""examples:
  vestige eval tofu --model PATH --data DIR --retain-logs saves/eval/retain
  vestige eval experiment=eval/tofu/default model=Llama-3.2-1B-Instruct \\
      model.model_args.pretrained_model_name_or_path=PATH task_name=NAME""",
)
def evaluate(
    words: EvalWords = (),
    *,
    retain_model: RetainModel = None,
    retain_logs: SeveralRetainLogs = None,
    config_name: ConfigName = "eval.yaml",
    multirun: Multirun = False,
    cfg: Cfg = False,
    plugin: Plugin = (),
    progress: bool = True,
    **options: Any,
) -> int:
    from vestige.engine.evaluate import evaluate_config
    from vestige.show.progress import hushed

    logs = list(retain_logs or ())
    request: dict[str, Any] = {
        "words": words,
        "config_name": config_name,
        "multirun": multirun,
        "plugin": plugin,
        "progress": progress,
    }
    if retain_model and not cfg:
        first = _evaluations(**request, **options, retain_logs=logs or None)[0]
        place = str(first.output_dir / "retain-model")
        retain = {**options, "model": retain_model, "out": place}
        print(f"Evaluating the retain model {retain_model} ...", flush=True)
        with hushed():  # it has no retain logs itself
            evaluate_config(_evaluations(**request, **retain)[0], accumulate=True)
        logs.append(place)
    runs = _evaluations(**request, **options, retain_logs=logs or None)
    if cfg:
        return _print_configs(runs)
    reasons: list[str] = []
    for run in runs:
        outcome = evaluate_config(run, accumulate=True)
        _print_outcome(outcome, run)
        # A run without any value is a failure, though its files and reasons are written.
        if outcome.top and all(outcome.scores[name].missing for name in outcome.top):
            reasons += [outcome.scores[name].reason for name in outcome.top]
    if reasons:
        raise nothing_computed("metrics", reasons)
    return 0


@verb(
    "audit",
    "measure",
    "did it forget? two checkpoints and your own rows",
    required=("before", "after", "forget"),
    notes={"minutes": f"default: {MINUTES:g}"},
    epilog="example: vestige audit --before A --after B --forget f.jsonl --retain r.jsonl",
)
def audit(
    before: Before,
    after: After,
    forget: Forget,
    *,
    retain: RetainRows = None,
    holdout: Holdout = None,
    retain_model: RetainModel = None,
    out: OutDir = "saves/audit",
    minutes: Minutes = MINUTES,
    skip: Skip = (),
    limit: Limit = None,
    cluster: Cluster = None,
    system_prompt: SystemPrompt = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
    device: Device = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    server: Server = None,
    server_key_env: ServerKeyEnv = None,
    batch_tokens: BatchTokens = None,
    batch_size: BatchSize = None,
    plugin: Plugin = (),
    progress: bool = True,
) -> int:
    options = locals()
    from vestige.audit.run import audit as run_audit
    from vestige.audit.work import TESTS, Audit

    subject = ("before", "after", "forget", "retain", "holdout", "retain_model", "minutes")
    settings = {name: value for name, value in options.items() if name not in (*subject, "out", "skip", "plugin")}
    settings |= {"plugins": load_plugin_files(plugin), "progress": None if progress else False}
    skipped = [name.strip() for names in skip for name in names.split(",")]
    for name in skipped:
        if name not in TESTS:
            raise unknown_name("test", name, TESTS, "(--skip)")
    asked = {name: options[name] for name in subject}
    return run_audit(Audit(**asked, skip=skipped, out=Path(out), settings=settings))


@verb(
    "plan",
    "measure",
    "say what an evaluation would cost",
    same_as="eval",
    late="words",
    description="Say what it would cost.",
    epilog="example: vestige plan tofu --model PATH --data DIR",
)
def plan(retain_model: RetainModel = None, cfg: Cfg = False, progress: bool = True, **request: Any) -> int:
    from vestige.runs.plan import plan_of

    runs = _evaluations(**request, progress=progress, verb="plan")
    if cfg:
        return _print_configs(runs)
    for run in runs:
        print(plan_of(run))
    return 0


def _evaluations(
    words: Sequence[str],
    config_name: str,
    multirun: bool,
    plugin: Sequence[str],
    progress: bool,
    verb: str = "eval",
    **options: Any,
) -> list[Any]:
    """The evaluations that a command line means: friendly flags, Hydra overrides, or both."""
    from vestige.engine.config import expand_multirun, make_configs

    files = load_plugin_files(plugin) if plugin else []
    suites: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_override = "=" in word or word.startswith(("+", "~"))
        (overrides if is_override else suites).append(word)
    model, config_dir = options.get("model"), options.get("config_dir")
    paths = [word for word in suites if "/" in word or Path(word).is_dir()]
    if paths and model is None:
        raise UserError(f"'{paths[0]}' is not a suite; a model is given as --model {paths[0]}.")
    if len(suites) > 1:
        raise UserError(f"One suite at a time, please: {', '.join(suites)}. Overrides are written KEY=VALUE.")
    own_configuration = config_dir or config_name != "eval.yaml"  # it may say everything
    if not (suites or overrides or model or own_configuration):
        raise UserError(f"No suite and no model given; write `vestige {verb} tofu --model PATH --data DIR`.")
    metrics = name_list(options.pop("metrics"))
    if metrics == []:
        raise UserError("--metrics is empty; name metrics (see `vestige ls metrics`) or write all.")
    keywords = {
        **options,
        "suite": suites[0] if suites else None,
        "metrics": metrics,
        "plugins": files,
        "config_name": config_name,
        "progress": None if progress else False,
    }
    if multirun:
        return expand_multirun(overrides, lambda chosen: make_configs(**keywords, overrides=chosen))
    return make_configs(**keywords, overrides=overrides)


def _print_configs(runs: Sequence[Any]) -> int:
    from omegaconf import OmegaConf

    from vestige.runs.manifest import config_json

    for run in runs:
        body = {**config_json(run.describe()), "output_dir": str(run.output_dir)}
        if hasattr(run, "dialect"):
            body["dialect"] = run.dialect
        print(OmegaConf.to_yaml(OmegaConf.create(body)))
    return 0


def _print_outcome(outcome: Any, run: Any) -> None:
    from vestige.show.tables import harness_report, summary, without_retain

    if "harness" in outcome.manifest:
        print(harness_report(outcome))
        return
    rows = {}  # several metrics may read one source
    for data in outcome.manifest["data"].values():
        rows[data["source"]] = data["rows"]
    about = f"{run.suite.name}, dialect {outcome.dialect}, {sum(rows.values())} rows read"
    print(f"\n{outcome.manifest['model']['name']}  ({about})")
    print(f"prompt: {outcome.manifest['prompt']!r}\n")
    print(summary(outcome.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats))
    for note in dict.fromkeys(outcome.notes):  # several metrics may read one file
        print(f"note: {note}")
    missing = "" if run.retain_logs else without_retain(outcome.metrics, outcome.scores)
    if missing:
        print(f"\n{missing}")
    print(f"\nfiles: {', '.join(map(str, outcome.files))}")
    cost, seconds = outcome.manifest["cost"], outcome.manifest["seconds"]
    parts = [
        f"{cost['score_tokens']:,} tokens scored",
        f"{cost['tokens_produced']:,} generated ({cost['tokens_proven']:,} of them without a step)",
    ]
    if cost["denoise_tokens"]:
        parts.append(f"{cost['denoise_tokens']:,} denoised in {cost['denoise_forwards']:,} passes")
    print(f"cost:  {', '.join(parts)}, {seconds['total']:.1f} s")


@verb(
    "score",
    "measure",
    "score a run again from its evidence, without a model",
    late="changes",
    notes={"retain_logs": "instead of the one it was evaluated with"},
    epilog="example: vestige score saves/eval/NAME dialect=strict",
)
def score(
    run: RunWord,
    changes: ChangeWords = (),
    *,
    dialect: Dialect = None,
    retain_logs: RetainLogs = None,
    cluster: Cluster = None,
    accept_mixture: AcceptMixture = False,
    plugin: Plugin = (),
) -> int:
    from vestige.guard import parse_yaml
    from vestige.runs.run import Rescoring, score_run

    load_plugin_files(plugin)
    settings: dict[str, dict[str, Any]] = {}
    for word in changes:
        key, _, text = word.partition("=")
        metric, _, name = key.partition(".")
        if key == "dialect":
            dialect = text
        elif name and text:
            try:
                settings.setdefault(metric, {})[name] = parse_yaml(text)
            except ValueError as error:
                raise UserError(f"Cannot read the value of '{word}' ({error}); write METRIC.KEY=VALUE.") from None
        else:
            raise UserError(f"Cannot read '{word}'; write dialect=NAME or METRIC.KEY=VALUE.")
    logs = None if retain_logs is None else str(retain_logs)
    print(score_run(Path(run), Rescoring(dialect, settings, logs, cluster, accept_mixture)))
    return 0


@verb("demo", "measure", "build the lab (tiny models, minutes) and evaluate it")
def demo(*, out: OutDir = "saves/demo", seed: Seed = 0, no_diffusion: NoDiffusion = False) -> int:
    from vestige.lab.demo import demo as run_demo

    return run_demo(Path(out), seed or 0, not no_diffusion)


# ---- look deeper -----------------------------------------------------------------------------------------------------


@verb(
    "depth",
    "look deeper",
    "is it gone from the layers, or only from the answers?",
    like=api.measure_depth,
    without=("unlearned", "full", "retain", "data", "progress", "plugins", "resamples"),
    only_typed=True,
    late="words",
    notes={
        "data": "its forget rows are read",
        "forget": "and, where known, entity and prefix",
        "out": "default: saves/depth",
        "quantization": "of the unlearned models only",
        "batch_size": "default: 8",
        "tokenization": "separate | joint: prompt and answer apart, or as one text",
        "config_dir": "with a depth.yaml",
    },
    epilog="example: vestige depth --unlearned U --full F --retain-model R --forget f.jsonl",
)
def depth(
    words: DepthWords = (),
    *,
    unlearned: MaybeUnlearned = None,
    full: Full = None,
    retain_model: RetainModel = None,
    data: MaybeData = None,
    forget: Forget = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = (),
    progress: bool = True,
    **options: Any,
) -> int:
    from vestige.depth.ask import ask_from
    from vestige.depth.run import depth_run, report
    from vestige.types import BAD_LOGITS

    load_plugin_files(plugin)
    # Only what was typed: the rest is for depth.yaml and KEY=VALUE words to say.
    flags = {**options, "unlearned": unlearned, "full": full, "retain": retain_model}
    flags["data"] = _forget_file(forget, None if data is None else str(data))
    flags["baselines"] = name_list(options["baselines"])
    settings = [*words, *([] if progress else ["progress=false"])]
    results = depth_run(ask_from(flags, settings, Path(config_dir) if config_dir else None))
    if results:  # in a team of processes the leader has them
        print(report(results))
    if results and all(BAD_LOGITS in result.reason for result in results):
        raise nothing_computed("depth scores", [result.reason for result in results])
    return 0


def _forget_file(file: str | None, folder: str | None) -> str | None:
    """The file of forget rows: named, or the one in a folder."""
    from vestige.data.rows import file_in

    if folder is None:
        return file
    if file is not None:
        raise UserError("The forget rows are named twice, by --forget and by --data; give one of them.")
    found = file_in(folder, "forget")
    if found is None:
        raise UserError(f"--data {folder} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget.")
    return found


@verb(
    "collapse",
    "look deeper",
    "does reasoning still depend on its prompt?",
    late="files",
    notes={
        "models": "one for all files, or one for each",
        "temperature": "of the rollouts; default: 1",
        "tokenization": "exact | separate",
        "resamples": "and behind the permutation null",
    },
    epilog="example: vestige collapse rollouts.jsonl --model PATH",
)
def collapse(
    files: RolloutWords = (),
    *,
    models: Models = (),
    out: OutDir = "saves/collapse",
    dtype: Dtype = None,
    device: Device = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    batch_tokens: BatchTokens = None,
    temperature: Temperature = 1.0,
    steps: Steps = (),
    format: RolloutFormat = "auto",
    prompt_template: PromptTemplate = "raw",
    parity: Parity = None,
    compute_freq: ComputeFreq = None,
    micro_batch_size: MicroBatchSize = None,
    first_turn_enabled: FirstTurnEnabled = None,
    multi_turn_enabled: MultiTurnEnabled = None,
    turn_enabled: TurnEnabled = None,
    num_samples: NumSamples = None,
    std_eps: StdEps = None,
    ema_decay: EmaDecay = None,
    columns: Columns = None,
    seed: Seed = None,
    resamples: Resamples = None,
    ema: Ema = None,
    skip_long: SkipLong = False,
    reasoning: ReasoningMode = "tags",
    open_tag: OpenTag = "<think>",
    close_tag: CloseTag = "</think>",
    reasoning_pattern: ReasoningPattern = None,
    unclosed: Unclosed = "drop",
    tokenization: Tokenization = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = (),
    progress: bool = True,
) -> int:
    options = locals()
    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.run import CollapseAsk, reasoning_for, scheduled_settings
    from vestige.collapse.run import collapse as run_collapse

    load_plugin_files(plugin)
    overrides = [word for word in files if "=" in word and not Path(word).exists()]
    rollouts = [word for word in files if word not in overrides]
    if not rollouts:
        raise UserError("No rollouts given; name one or more files (JSONL, parquet, .pkl, .pt).")
    flags = {name: options[name] for name in CollapseSettings.__dataclass_fields__ if name in options}
    settings, scheduled = scheduled_settings(overrides, flags, Path(config_dir) if config_dir else None)
    loading = {"dtype": dtype, "device": device, "tokenizer": tokenizer}
    model_args = {name: value for name, value in loading.items() if value}
    report = run_collapse(
        CollapseAsk(
            files=rollouts,
            models=models,
            settings=settings,
            reasoning=reasoning_for(
                settings,
                open=open_tag,
                close=close_tag,
                pattern=reasoning_pattern,
                mode=reasoning,
                unclosed=unclosed,
                tokenization=tokenization,
            ),
            format=format,
            prompt_template=prompt_template,
            steps=steps,
            scheduled=scheduled,
            temperature=temperature,
            ema=Path(ema) if ema else None,
            skip_long=skip_long,
            out=Path(out),
            batch_tokens=batch_tokens,
            model_args={**model_args, "trust_remote_code": trust_remote_code},
            progress=progress,
        )
    )
    print(report)
    if not any(outcome.samples for outcome in report.outcomes):
        reasons = [reason for outcome in report.outcomes for reason in outcome.reasons.values()]
        raise nothing_computed("collapse metrics", reasons)
    return 0


@verb("explain", "look deeper", "what a metric, handler or dialect means")
def explain(name: MaybeName = None, *, config_dir: ConfigDir = None, plugin: Plugin = ()) -> int:
    from vestige.runs.explain import explain as describe

    load_plugin_files(plugin)
    print(describe(name, Path(config_dir) if config_dir else None))
    return 0


@verb(
    "ls",
    "look deeper",
    "names there are: metrics, suites, models, data, ...",
    epilog="Names that other commands take: suites and metrics for `vestige eval SUITE --metrics NAME,...`, dialects "
    "for --dialect, methods for `vestige unlearn --method`, models, datasets and experiments for Hydra words such as "
    "model=NAME. `vestige explain NAME` says what one means.",
)
def ls(what: ListKind = "all", *, config_dir: ConfigDir = None, plugin: Plugin = ()) -> int:
    from vestige.runs.explain import listing

    load_plugin_files(plugin)
    print(listing(what, Path(config_dir) if config_dir else None))
    return 0


# ---- attack ----------------------------------------------------------------------------------------------------------


@verb(
    "stress",
    "attack",
    "attack a checkpoint: does what was forgotten come back?",
    like=api.attack,
    without=("attacks", "out", "suite", "progress", "plugins"),
    late="attacks",
    required=("model", "data"),
    notes={
        "model": "the unlearned one",
        "retain_model": "the control",
        "metrics": "default: probability, ROUGE and extraction strength",
        "temperature": "of leak's samples; default: 1",
        "compute_dtype": "quantise=4",
        "epochs": "relearn; default: 1",
        "lr": "relearn; default: 2e-5",
        "batch_size": "relearn; default: 8",
        "accumulation": "relearn; default: 4",
    },
)
def stress(
    attacks: AttackWords = (),
    *,
    model: Model,
    data: Data,
    out: OutDir = "saves/stress",
    suite: Suite = "tofu",
    plot: AttackPlot = None,
    plugin: Plugin = (),
    progress: bool = True,
    retain_model: RetainModel = None,
    **options: Any,
) -> int:
    from vestige.stress.attacks import OURS
    from vestige.stress.run import (
        NO_WEIGHTS,
        can_be_served,
        draw,
        explain_columns,
        judge_attacks,
        make_stress,
        plan_words,
        relearning_r,
        show,
        show_r,
    )
    from vestige.stress.run import stress as run_stress

    files = load_plugin_files(plugin)
    chosen = attacks or [name for name in OURS if not options["server"] or can_be_served(name)]
    ask = make_stress(
        str(model),
        str(data),
        chosen,
        out=out,
        retain_model=None if retain_model is None else str(retain_model),
        plugins=files,
        suite=suite,
        progress=progress,
        **options,
    )
    print(plan_words(ask), flush=True)
    results = run_stress(ask)
    rows = [row for row in results if not row.reason]
    print(f"\n{model}\n\n{show(rows)}\n\n{explain_columns(rows)}\n")
    if entries := relearning_r([asdict(row) for row in rows]):
        print(f"{show_r(entries)}\n")
    if sentences := judge_attacks(ask.out):
        print("\n".join([*sentences, ""]))
    if left_out := [name for name in OURS if not attacks and name not in ask.attacks]:
        print(f"not possible through a server: {', '.join(left_out)} ({NO_WEIGHTS})")
    for row in results:
        if row.reason:
            print(f"not tested: {row.name}, because {row.reason}")
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        print(f"note: {note}")
    pictures = draw(rows, Path(plot), ask.out) if plot else []
    if plot and not pictures:
        print("note: no attack had more than one budget, so no curve can be drawn (relearn=5,20 gives one).")
    print(f"files: {', '.join(str(file) for file in (ask.out / 'stress.json', *pictures))}")
    return 0 if len(rows) == len(results) else 1


# ---- make ------------------------------------------------------------------------------------------------------------

TRAINING_NOTES = {
    "model": "to start from",
    "epochs": "default: 10",
    "lr": "default: 1e-5",
    "batch_size": "default: 8",
    "accumulation": "default: 4",
    "metrics": "to evaluate after each epoch",
    "retain_logs": "the yardstick of evaluations; keeps the closest checkpoint",
}


def _training(
    *,
    model: MaybeModel = None,
    retain_logs: RetainLogs = None,
    accept_mixture: AcceptMixture = False,
    metrics: Metrics = None,
    limit: Limit = None,
    system_prompt: SystemPrompt = None,
    out: Out = None,
    task_name: TaskName = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
    device: Device = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    batch_size: BatchSize = None,
    seed: Seed = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    accumulation: Accumulation = None,
    lora: Lora = None,
    eval_data: EvalData = None,
    keep_best: KeepBest = None,
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    cfg: Cfg = False,
    plugin: Plugin = (),
    progress: bool = True,
) -> None:
    """The options that `train` and `unlearn` share."""


@verb(
    "train",
    "make",
    "fine-tune a model on rows",
    description="Fine-tune a model on rows.",
    like=_training,
    late="words",
    notes={**TRAINING_NOTES, "out": "default: saves/train/<task_name>"},
)
def train(words: TrainWords = (), *, learn: Learn = (), **options: Any) -> int:
    return _make_checkpoint("train", words, learn=learn, **options)


@verb(
    "unlearn",
    "make",
    "make a model forget rows",
    description="Make a model forget rows.",
    like=_training,
    late="words",
    notes={
        **TRAINING_NOTES,
        "out": "default: saves/unlearn/<task_name>",
        "forget": "may be repeated",
        "retain": "may be repeated",
        "data": "in place of --forget, --retain and --eval-data",
    },
    epilog="example: vestige unlearn --method NPO --model PATH --forget f.jsonl --retain r.jsonl --out DIR",
)
def unlearn(
    words: TrainWords = (),
    *,
    method: Method = None,
    forget: Forgets = (),
    retain: RetainRowFiles = (),
    data: MaybeData = None,
    alternate: Alternate = None,
    knobs: Knobs = (),
    **options: Any,
) -> int:
    return _make_checkpoint(
        "unlearn",
        words,
        method=method,
        forget=forget,
        retain=retain,
        data=None if data is None else str(data),
        alternate=alternate,
        knobs=knobs,
        **options,
    )


def _make_checkpoint(verb: str, words: Sequence[str], cfg: bool, plugin: Sequence[str], **options: Any) -> int:
    from vestige.unlearn.config import check_training, training_config
    from vestige.unlearn.run import run_training

    config = training_config(verb, words, plugins=load_plugin_files(plugin), **options)
    if cfg:
        from omegaconf import OmegaConf

        check_training(config)
        body = {name: value for name, value in vars(config).items() if name != "evaluation"}
        print(OmegaConf.to_yaml(OmegaConf.create({**body, "output_dir": str(config.output_dir)})))
        return 0
    outcome = run_training(config)
    record = outcome.record
    losses = [loss for loss in record["losses"] if loss is not None]
    what = record["settings"]["method"] or "fine-tuning"
    rows = ", ".join(f"{sum(s['rows'] for s in read)} {kind} rows" for kind, read in record["data"].items())
    print(f"\n{record['model']['name']}  ({what}, {rows}, {len(record['losses'])} steps, {record['seconds']:.1f} s)")
    if losses:
        print(f"loss:  {losses[0]:.4f} -> {losses[-1]:.4f}")
    for look in record["evals"]:
        values = "  ".join(f"{name} {_decimal(value)}" for name, value in look["values"].items())
        closeness = "" if look["score"] is None else f"  score {look['score']:.4f}"
        print(f"epoch {look['epoch']:g}:  {values}{closeness}")
    if record["evals"]:
        print(f"evaluations took {record['eval_seconds']:.1f} s of the {record['seconds']:.1f} s")
    if record["best"]:
        print(f"best:  epoch {record['best']['epoch']:g}, in {outcome.directory / 'best'}")
    for note in outcome.notes:
        print(f"note: {note}")
    print(f"files: {outcome.directory}")
    return 0


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


# ---- compare and prove -----------------------------------------------------------------------------------------------


@verb(
    "compare",
    "compare and prove",
    "runs side by side; could their differences be chance?",
    late="runs",
    notes={
        "runs": "two or more; the first is the yardstick",
        "margin": "0.05",
        "metrics": "default: those the first run was asked for",
    },
    epilog="example: vestige compare saves/eval/A saves/eval/B",
)
def compare(
    runs: RunWords,
    *,
    metrics: Metrics = None,
    margin: Margin = 0.05,
    resamples: Resamples = 10_000,
    cluster: Cluster = None,
    accept_mixture: AcceptMixture = False,
    plugin: Plugin = (),
) -> int:
    from vestige.runs.compare import compare as compare_paths

    if runs[-1] == "published":  # a run next to printed figures
        from vestige.runs.compare import published

        print(published(Path(runs[0])))
        return 0
    load_plugin_files(plugin)
    chosen = None if metrics is None else str(metrics)
    print(compare_paths([Path(run) for run in runs], chosen, margin, resamples or 0, cluster, accept_mixture))
    return 0


@verb(
    "diff",
    "compare and prove",
    "why two runs disagree, and which rows moved",
    notes={"metrics": "default: all that both have", "rows": "default: 3"},
)
def diff(run_a: FirstRun, run_b: SecondRun, *, metrics: Metrics = None, rows: RowsShown = 3) -> int:
    from vestige.runs.compare import explain_difference

    chosen = None if metrics == "all" else name_list(metrics)
    print(explain_difference(Path(run_a), Path(run_b), rows, chosen))
    return 0


ROWS = 400


def _page(
    *,
    full: Fulls = (),
    retain_model: RetainModels = (),
    rows: RowsShown = ROWS,
    title: Title = None,
    accept_mixture: AcceptMixture = False,
    plugin: Plugin = (),
) -> None:
    """The options that report, table, plot and view share."""


@verb(
    "report",
    "compare and prove",
    "one page from any mixture of runs: did it forget?",
    like=_page,
    late="runs",
    epilog="example: vestige report saves/eval saves/depth -o report",
)
def report(
    runs: SourceWords,
    *,
    out: OutDir = "saves/report",
    shorten_paths: ShortenPaths = False,
    skip_broken: SkipBroken = False,
    progress: bool = True,
    **page: Any,
) -> int:
    from vestige.report.build import summary, write_report

    place = Path(out)
    written = write_report(_report_request(runs, page, place, shorten_paths, progress))
    print(summary(written, place))
    return _left_out_status(written, skip_broken)


def _report_request(
    runs: Sequence[str],
    page: Mapping[str, Any],
    out: Path = Path(),
    shorten_paths: bool = False,
    progress: bool = False,
) -> ReportRequest:
    from vestige.report.build import TITLE, ReportRequest

    if page["rows"] < 1:
        raise UserError(f"--rows is {page['rows']}; keep at least 1 row of a split.")
    load_plugin_files(page["plugin"])
    return ReportRequest(
        runs=[Path(run) for run in runs],
        out=out,
        title=page["title"] or TITLE,
        full=page["full"],
        retain=page["retain_model"],
        rows=page["rows"],
        accept_mixture=page["accept_mixture"],
        shorten_paths=shorten_paths,
        progress=progress,
    )


def _left_out_status(report: Mapping[str, Any], skip_broken: bool) -> int:
    left_out = report.get("left_out") or []
    if not left_out or skip_broken:
        return 0
    words = f"{len(left_out)} runs or files were left out" if len(left_out) > 1 else "1 run or file was left out"
    print(f"vestige: {words} (see the problems above); mend them, or give --skip-broken.", file=sys.stderr)
    return 1


def _read_or_build_report(runs: Sequence[str], page: Mapping[str, Any], progress: bool) -> dict[str, Any]:
    """The data of a report that exists, or of one made from runs; then nothing is written."""
    from vestige.report.build import build_report, read_report

    existing = read_report(Path(runs[0]))
    if existing is not None:
        if len(runs) > 1:
            raise UserError(f"{runs[0]} is a report; give it alone, or give runs.")
        return {**existing, "left_out": []}  # what it lacks was printed when it was made
    built: dict[str, Any] = build_report(_report_request(runs, page, progress=progress))
    for problem in built["problems"]:  # tables go to standard output, so that is not the place
        if problem["text"] in built.get("left_out", ()):
            print(f"problem: {problem['text']} ({problem.get('where', '')})", file=sys.stderr)
    return built


@verb(
    "table",
    "compare and prove",
    "a table of models or metrics: Markdown, LaTeX, CSV",
    like=_page,
    late="runs",
    notes={"out": "default: the terminal"},
)
def table(
    runs: ReportWords,
    *,
    out: OutFile = None,
    of: TableOf = "models",
    format: TableFormat = "markdown",
    latex: Latex = False,
    columns: TableColumns = None,
    sort: Sort = None,
    digits: Digits = None,
    intervals: Intervals = False,
    best: Best = False,
    marks: Marks = False,
    skip_broken: SkipBroken = False,
    progress: bool = True,
    **page: Any,
) -> int:
    from vestige.report.tables import meta_table, models_table
    from vestige.show.tables import FORMATS, TableLook, paper_table

    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if of not in ("models", "meta"):
        raise unknown_name("table", of, ("models", "meta"))
    if digits is not None and not 0 <= digits <= 17:
        raise UserError(f"--digits is {digits}; give a number from 0 to 17.")
    data = _read_or_build_report(runs, page, progress)
    names = name_list(columns)
    made = meta_table(data, names) if of == "meta" else models_table(data, names, sort)
    if latex:
        text = paper_table(made, TableLook(2 if digits is None else digits, True, True, of == "models"), data["title"])
    else:
        text = FORMATS[format](made, TableLook(digits, intervals, best, marks))
    if out:
        from vestige.runs.named_files import named_file

        with named_file(Path(out)) as half:
            half.write_text(f"{text}\n", encoding="utf-8")
    print(f"files: {out}" if out else text)
    return _left_out_status(data, skip_broken)


@verb(
    "plot",
    "compare and prove",
    "a picture for a paper, from the same data as the page",
    like=_page,
    late="runs",
    required=("out",),
    notes={"out": "ends in .png, .svg or .pdf"},
)
def plot(
    runs: PictureWords,
    *,
    out: OutFile,
    metrics: Metric = None,
    name: PlotName = None,
    attack: PlotAttack = None,
    width: Width = None,
    x: PlotX = None,
    y: PlotY = None,
    skip_broken: SkipBroken = False,
    progress: bool = True,
    **page: Any,
) -> int:
    from vestige.report.figures import FIGURES, Choice, draw, width_in_inches

    *sources, what = runs
    if what not in FIGURES or not sources:
        raise unknown_name("picture", what, FIGURES, "Say it last: vestige plot RUN... WHAT -o FILE.")
    if metrics and ("," in metrics or metrics == "all"):
        raise UserError(f"A picture shows one metric; --metrics is {metrics}.")
    choice, inches = Choice(name, metrics, attack, x, y), width_in_inches(width)
    data = _read_or_build_report(sources, page, progress)
    print(f"files: {draw(data, what, choice, Path(str(out)), inches)}")
    return _left_out_status(data, skip_broken)


@verb(
    "view",
    "compare and prove",
    "serve a report here, rebuilt when its runs change",
    like=_page,
    late="runs",
    notes={"every": "3"},
)
def view(
    runs: ReportWords,
    *,
    port: Port = 0,
    every: Every = 3.0,
    progress: bool = True,
    **page: Any,
) -> int:
    from vestige.report.build import read_report, request_again
    from vestige.report.view import Viewer

    first = Path(runs[0])
    existing = read_report(first)
    request = _report_request(runs, page, progress=progress) if existing is None else request_again(existing, first)
    if every <= 0:
        raise UserError(f"--every is {every:g}; give a number of seconds above 0.")
    if not 0 <= port < 65536:
        raise UserError(f"--port is {port}; give a number from 0 to 65535.")
    with Viewer(request, port, every) as viewer:
        print(f"{viewer.address}  (this machine only; stop with Ctrl-C)", flush=True)
        viewer.stopped.wait()
    return 0


@verb(
    "verify",
    "compare and prove",
    "is a run whole; do numbers follow from its evidence?",
    late="runs",
    notes={"runs": "archives or report directories too"},
)
def verify(runs: RunWords, *, hashes_only: HashesOnly = False, plugin: Plugin = ()) -> int:
    from vestige.runs.verify import show
    from vestige.runs.verify import verify as verify_path
    from vestige.show.progress import hushed

    load_plugin_files(plugin)
    with hushed():  # what a metric lacks was printed when it was computed
        verdicts = [verify_path(Path(run), again=not hashes_only) for run in runs]
    print("\n".join(show(verdict) for verdict in verdicts))
    return 1 if any(verdict.findings for verdict in verdicts) else 0


@verb("pack", "compare and prove", "runs in one archive that can be scored again anywhere", late="runs")
def pack(
    runs: RunWords, *, out: OutFile = "proof.zip", shorten_paths: ShortenPaths = False, plugin: Plugin = ()
) -> int:
    from vestige.runs.archive import pack as pack_runs

    load_plugin_files(plugin)
    archive = Path(str(out))
    contents, digest = pack_runs([Path(run) for run in runs], archive, shorten_paths)
    for name, root in contents.runs.items():
        print(f"{name}  root {root}")
    size = archive.stat().st_size / 2**20
    print(f"{archive}  {len(contents.files)} files, {size:.2f} MB, sha256 {digest}")
    return 0


@verb(
    "unpack",
    "compare and prove",
    "the runs of an archive as directories again",
    required=("out",),
    notes={"archive": "an archive of vestige pack", "out": "a folder that is not there yet"},
)
def unpack(archive: File, *, out: OutDir) -> int:
    from vestige.runs.archive import unpack as unpack_runs

    for run in unpack_runs(Path(archive), Path(out)):
        print(run)
    return 0


@verb(
    "publish",
    "compare and prove",
    "a run for W&B, MLflow, TensorBoard, the hub",
    required=("to",),
    notes={"run": "or a training that was watched", "out": "default: saves/publish/RUN/TOOL"},
)
def publish(
    run: RunWord,
    *,
    to: PublishTo,
    online: Online = False,
    dataset: HubDataset = "",
    project: Project = "vestige",
    out: Out = None,
    plugin: Plugin = (),
) -> int:
    from vestige.runs.publish import publish as publish_run

    load_plugin_files(plugin)
    print(publish_run(Path(run), to, Path(out) if out else None, online, project, dataset))
    return 0


@verb(
    "import",
    "compare and prove",
    "read result files of open-unlearning or locuslab/tofu",
    notes={
        "file": "TOFU_EVAL.json, MUSE_EVAL.json, eval_log_aggregated.json or runs/",
        "out": "TOFU_EVAL.json and TOFU_SUMMARY.json; default: nowhere",
        "retain_logs": "of any of these kinds",
    },
)
def import_results(file: File, *, out: Out = None, retain_logs: RetainLogs = None, baseline: Baseline = None) -> int:
    from vestige.runs.imports import import_file, show

    place = Path(out) if out else None
    logs = Path(str(retain_logs)) if retain_logs else None
    if Path(file).is_dir():
        from vestige.meta.run import import_tree, is_tree

        if is_tree(Path(file)):
            if logs is not None:
                raise UserError("A result tree brings its retain model's AUCs along; leave --retain-logs out.")
            print(import_tree(Path(file), place, baseline=baseline))
            return 0
    if baseline is not None:
        raise UserError("--baseline belongs to a result tree (runs/ with ep5, ep10); leave it out for a file.")
    print(show(import_file(Path(file), place, logs), Path(file)))
    return 0


@verb(
    "meta",
    "compare and prove",
    "metrics put to the test: faithfulness, robustness, axes",
    notes={
        "file": "a YAML list of finished runs (axes: or a method_results.json; verdict: a folder with truth.json)",
        "metrics": "instead of every metric the runs hold",
        "resamples": "default: 2000; 0: no intervals",
        "rows": "axes; default: 20, 0: all",
        "accept_mixture": "thresholds and halves; an AUC or an axis is never made of a mixture",
    },
)
def meta(
    what: MetaQuestion,
    file: File,
    *,
    out: OutDir = "saves/meta",
    metrics: Metrics = None,
    resamples: Resamples = 2000,
    rows: RowsShown = 20,
    accept_mixture: AcceptMixture = False,
    robustness: Robustness = "symmetric",
    thresholds: Thresholds = None,
    utility: Utility = None,
    least_utility: LeastUtility = 0.8,
    own_thresholds: OwnThresholds = False,
    floor: Floor = 0.05,
    plugin: Plugin = (),
) -> int:
    from vestige.meta.run import MetaAsk
    from vestige.meta.run import meta as run_meta

    load_plugin_files(plugin)
    names = name_list(metrics)
    if names == []:
        raise UserError("--metrics is empty; name metrics, or leave it out for every metric the runs hold.")
    ask = MetaAsk(
        file=Path(file),
        out=Path(out),
        metrics=names,
        resamples=resamples or 0,
        rule=robustness,
        thresholds=Path(thresholds) if thresholds else None,
        utility=Path(utility) if utility else None,
        least_utility=least_utility,
        own_thresholds=own_thresholds,
        accept_mixture=accept_mixture,
        floor=floor,
        rows=rows,
    )
    print(run_meta(what, ask))
    return 0


# ---- run at scale ----------------------------------------------------------------------------------------------------


@verb(
    "sweep",
    "run at scale",
    "models x suites x attacks of a plan; again for the rest",
    notes={
        "plugin": "besides `plugins` of the plan",
        "server": "instead of `server` of the plan",
        "server_key_env": "instead of `server_key_env` of the plan",
    },
    epilog="example: vestige sweep plan.yaml (again for the rest)",
)
def sweep(
    plan: PlanFile,
    *,
    gpus: Gpus = None,
    start_idx: StartIdx = 0,
    end_idx: EndIdx = None,
    slots: Slots = None,
    retries: Retries = None,
    ray: Ray = None,
    clear_cache: ClearCache = False,
    list_tasks: ListTasks = False,
    meta_files: MetaFiles = False,
    clean: Clean = None,
    server: Server = None,
    server_key_env: ServerKeyEnv = None,
    plugin: Plugin = (),
) -> int:
    from vestige.sweep import run as sweeps
    from vestige.sweep.plan import read_plan

    devices = tuple(name_list(gpus) or ())
    if gpus is not None and not devices:
        raise UserError("--gpu is empty; give GPU numbers or UUIDs, as in --gpu 0,1.")
    how = sweeps.How(devices, slots, start_idx, end_idx, retries, ray)
    for flag, value in (("--slots", slots), ("--retries", retries)):
        if value is not None and value < 0:
            raise UserError(f"{flag} must be at least 0, it is {value}.")
    if start_idx < 0 or (end_idx is not None and end_idx <= start_idx):
        raise UserError(
            f"--start-idx {start_idx} --end-idx {end_idx} holds no model; models count from 0, and the end is not "
            "included."
        )
    if gpus is not None and ray is not None:
        raise UserError("--gpu is for this machine; on Ray write gpus: 1 (a task's share) in the plan instead.")
    if clean not in (None, "stale", "all"):
        raise unknown_name("value of --clean", str(clean), ("stale", "all"))
    given = {"server": server, "server_key_env": server_key_env, "clear_cache": clear_cache or None}
    tasks = read_plan(Path(plan), plugin, {name: value for name, value in given.items() if value is not None})
    if list_tasks:
        print(sweeps.listing(tasks))
        return 0
    if meta_files:
        print(sweeps.meta_files(tasks))
        return 0
    if clean:
        print(sweeps.clean(tasks, clean == "all"))
        return 0
    return sweeps.sweep(tasks, how)


@verb(
    "job",
    "run at scale",
    "any vestige command as a Kubernetes Job or RayJob",
    late="job",
    epilog="After `--`: the command as you would type it, with or without the word `vestige`.",
)
def job(
    job: JobWords = (),
    *,
    settings: JobSet = (),
    file: JobFile = None,
    kind: JobKind = None,
    dry_run: DryRun = False,
    command: Sequence[str] = (),
) -> int:
    from vestige.sweep.job import check, read_settings, render, submit, to_yaml

    if kind not in (None, "job", "rayjob"):
        raise unknown_name("kind of job", str(kind), ("job", "rayjob"))
    if len(job) > 1:
        raise UserError(f"A job has one name; '{job[1]}' is one more (a command is written after `--`).")
    if job and any(word.startswith("name=") for word in settings):
        raise UserError(f"The job is named twice: '{job[0]}' and --set name=...; give one of them.")
    name = job[0] if job else None
    takes_server = bool(command) and command[0] in VERBS and "server" in parameters_of(VERBS[command[0]])
    body = render(read_settings(settings, Path(file) if file else None, name), command, kind, takes_server)
    checked = check(body)
    if dry_run:
        print(to_yaml(body), end="")
        print(f"# {checked}", file=sys.stderr)
        return 0
    print(submit(body))
    return 0
