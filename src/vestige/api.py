"""The Python interface: one function per question. A keyword means what the flag of that name means (options.py).

The functions take paths, names and numbers, as the command line does, and models, rows and results in memory. They
return objects that print what the command line prints. Packages that run models are imported when a function is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from vestige.errors import UserError
from vestige.in_memory import (
    ModelSubject,
    as_path,
    as_text,
    forget_rows,
    load_plugin_files,
    model_subject,
    name_list,
    place_for,
    read_files,
    rows_as_folder,
    rows_or_folder,
)
from vestige.options import *
from vestige.options import public

if TYPE_CHECKING:  # these import torch or numpy; help() is instant without them
    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.reasoning import Reasoning
    from vestige.collapse.run import CollapseReport
    from vestige.depth.run import DepthResult
    from vestige.runs.compare import Comparison
    from vestige.runs.plan import CostPlan, ServedPlan
    from vestige.runs.result import Result
    from vestige.stress.run import AttackRow

log = logging.getLogger("vestige.api")

# ---- evaluations -----------------------------------------------------------------------------------------------------


@public
def evaluate(
    model: AnyModel,
    suite: Suite = "tofu",
    *,
    tokenizer: AnyTokenizer = None,
    data: MaybeData = None,
    retain_logs: RetainLogs = None,
    out: Out = None,
    metrics: Metrics = None,
    progress: Progress = False,
    limit: Limit = None,
    cluster: Cluster = None,
    dialect: Dialect = None,
    system_prompt: SystemPrompt = None,
    reference_model: ReferenceModel = None,
    full: Full = None,
    task_name: TaskName = None,
    overwrite: Overwrite = False,
    accept_mixture: AcceptMixture = False,
    seed: Seed = None,
    batch_tokens: BatchTokens = None,
    batch_size: BatchSize = None,
    dtype: Dtype = None,
    device: Device = None,
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    trust_remote_code: TrustRemoteCode = False,
    trajectory_views: TrajectoryViews = None,
    benchmark: Benchmark = None,
    tasks: Tasks = None,
    include_path: IncludePath = None,
    server: Server = None,
    server_key_env: ServerKeyEnv = None,
    config_dir: ConfigDir = None,
    overrides: Overrides = (),
    plugins: Plugins = (),
) -> Result:
    """Evaluates a checkpoint (a path or hub id), a model in memory (with its `tokenizer`), or a pair (base, adapter).

        result = vestige.evaluate("MODEL", "tofu", data="DIR", out="saves/eval/mine", limit=100)
        print(result, result.summary["forget_Q_A_Prob"])
        live = vestige.evaluate(model, tokenizer=tokenizer, data={"forget": dataset, "retain": frame})

    `data` is a folder, or a mapping from names of files ("forget") to rows in memory: a `datasets.Dataset`, a pandas
    frame, a list of dictionaries. `retain_logs` may be a Result. Without `out` nothing is left on disk; `result.save`
    writes it later. A training run may call this between two steps: random state, gradients and the train or eval mode
    of each module are afterwards as they were before, and a model stays on the devices where it is.
    """
    keywords = locals()
    from vestige.engine.evaluate import evaluate_config
    from vestige.runs.result import Result

    last = model[-1] if isinstance(model, tuple) else model
    name = Path(last).expanduser().name if isinstance(last, (str, Path)) else "in-memory"
    with model_subject("evaluate", model, tokenizer) as subject, place_for(out, name or "run") as place:
        config, rows = _evaluation(subject, {**keywords, "out": place})
        loaded = subject.load() if subject.load else None
        outcome = evaluate_config(config, loaded, accumulate=True)
        del rows  # rows in memory live as long as something holds them
        return Result(outcome, None if out is not None else read_files(place))


def _evaluation(subject: ModelSubject, keywords: Mapping[str, Any]) -> tuple[Any, Any]:
    """The configuration that the keywords of `evaluate` mean, and the rows in memory that it reads."""
    from vestige.engine.config import make_config

    folder, rows = rows_or_folder(keywords["data"])
    plain = {name: as_text(value) for name, value in keywords.items()}
    plain |= {
        "model": subject.path,
        "adapter_base": subject.adapter_base,
        "tokenizer": subject.tokenizer,
        "data": folder,
        "metrics": name_list(keywords["metrics"]),
        "tasks": keywords["tasks"],
        "retain_logs": _log_paths(keywords["retain_logs"]),
        "plugins": load_plugin_files(keywords["plugins"]),
    }
    return make_config(**plain), rows


def _log_paths(logs: Any) -> Any:
    """Retain logs by their paths; a Result stands for its directory."""
    from vestige.runs.result import Result

    if isinstance(logs, Result):
        if logs.directory is None:
            raise UserError("These retain logs are not on disk; evaluate the retain model with out=DIR, or save them.")
        return str(logs.directory)
    if isinstance(logs, (list, tuple)):
        return [_log_paths(one) for one in logs]
    return as_text(logs)


@overload
def plan(
    model: ModelPaths,
    suite: Suite = "tofu",
    *,
    tokenizer: Tokenizer = None,
    data: MaybeData = None,
    retain_logs: RetainLogs = None,
    out: Out = None,
    metrics: Metrics = None,
    progress: Progress = False,
    limit: Limit = None,
    cluster: Cluster = None,
    dialect: Dialect = None,
    system_prompt: SystemPrompt = None,
    reference_model: ReferenceModel = None,
    full: Full = None,
    task_name: TaskName = None,
    overwrite: Overwrite = False,
    accept_mixture: AcceptMixture = False,
    seed: Seed = None,
    batch_tokens: BatchTokens = None,
    batch_size: BatchSize = None,
    dtype: Dtype = None,
    device: Device = None,
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    trust_remote_code: TrustRemoteCode = False,
    trajectory_views: TrajectoryViews = None,
    benchmark: Benchmark = None,
    tasks: Tasks = None,
    include_path: IncludePath = None,
    server: None = None,
    server_key_env: None = None,
    config_dir: ConfigDir = None,
    overrides: Overrides = (),
    plugins: Plugins = (),
) -> CostPlan: ...
@overload
def plan(
    model: ModelPaths,
    suite: Suite = "tofu",
    *,
    server: str,
    tokenizer: Tokenizer = None,
    data: MaybeData = None,
    retain_logs: RetainLogs = None,
    out: Out = None,
    metrics: Metrics = None,
    progress: Progress = False,
    limit: Limit = None,
    cluster: Cluster = None,
    dialect: Dialect = None,
    system_prompt: SystemPrompt = None,
    reference_model: ReferenceModel = None,
    full: Full = None,
    task_name: TaskName = None,
    overwrite: Overwrite = False,
    accept_mixture: AcceptMixture = False,
    seed: Seed = None,
    batch_tokens: BatchTokens = None,
    batch_size: BatchSize = None,
    dtype: Dtype = None,
    device: Device = None,
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    trust_remote_code: TrustRemoteCode = False,
    trajectory_views: TrajectoryViews = None,
    benchmark: Benchmark = None,
    tasks: Tasks = None,
    include_path: IncludePath = None,
    server_key_env: ServerKeyEnv = None,
    config_dir: ConfigDir = None,
    overrides: Overrides = (),
    plugins: Plugins = (),
) -> ServedPlan: ...
@public
def plan(
    model: ModelPaths,
    suite: Suite = "tofu",
    *,
    tokenizer: Tokenizer = None,
    data: MaybeData = None,
    retain_logs: RetainLogs = None,
    out: Out = None,
    metrics: Metrics = None,
    progress: Progress = False,
    limit: Limit = None,
    cluster: Cluster = None,
    dialect: Dialect = None,
    system_prompt: SystemPrompt = None,
    reference_model: ReferenceModel = None,
    full: Full = None,
    task_name: TaskName = None,
    overwrite: Overwrite = False,
    accept_mixture: AcceptMixture = False,
    seed: Seed = None,
    batch_tokens: BatchTokens = None,
    batch_size: BatchSize = None,
    dtype: Dtype = None,
    device: Device = None,
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    trust_remote_code: TrustRemoteCode = False,
    trajectory_views: TrajectoryViews = None,
    benchmark: Benchmark = None,
    tasks: Tasks = None,
    include_path: IncludePath = None,
    server: Server = None,
    server_key_env: ServerKeyEnv = None,
    config_dir: ConfigDir = None,
    overrides: Overrides = (),
    plugins: Plugins = (),
) -> CostPlan | ServedPlan:
    """What an evaluation would cost, before it is paid for. Loads no model and writes nothing.

        cost = vestige.plan("MODEL", "tofu", data="DIR", out="saves/eval/mine")
        print(cost, cost.answers.tokens, cost.seconds)

    The keywords are those of `evaluate`; answers that are in `out` already cost nothing. The result prints as
    `vestige plan` and has the counts as fields: asked, answers (distinct, cached, tokens, batches), references,
    prompts, new_tokens, memory, seconds, unavailable, ... With `server` it says what the servers can and what they
    would be sent (a ServedPlan).
    """
    keywords = locals()
    from vestige.runs.plan import plan_of

    for part in model if isinstance(model, tuple) else (model,):
        if not isinstance(part, (str, Path)):
            raise UserError(f"plan() takes paths or hub ids, not {type(part).__name__}; save the model first.")
    with model_subject("plan", model, tokenizer) as subject:
        config, rows = _evaluation(subject, keywords)
        planned = plan_of(config)
    del rows
    return planned


# ---- finished runs ---------------------------------------------------------------------------------------------------


@public
def load_run(run: RunPath) -> Result:
    """A finished evaluation, read back from its directory. Runs no model and writes nothing.

        result = vestige.load_run("saves/eval/mine")
        print(result.summary, result.intervals, result.rows("forget_Q_A_Prob")[0])

    The numbers are those of the result files; a file that has changed since the run was finished is refused.
    """
    from vestige.runs.evaluation import load_outcome
    from vestige.runs.result import Result

    load_plugin_files(())
    return Result(load_outcome(Path(run).expanduser()))


@public
def score(
    run: RunOrResult,
    dialect: Dialect = None,
    retain_logs: RetainLogs = None,
    changes: Changes = None,
    cluster: Cluster = None,
    accept_mixture: AcceptMixture = False,
) -> Result:
    """Scores a finished evaluation again from its evidence, without a model; another definition if asked.

        strict = vestige.score("saves/eval/mine", dialect="strict")
        print(strict, vestige.score("saves/eval/mine", changes={"mia_min_k": {"k": 0.2}}).files)

    `changes` maps metric -> setting -> value. Another definition gets a folder of its own below the run (scores/NAME),
    so that the run's files keep meaning what its manifest says. `cluster` changes the run's own intervals from then on.
    """
    from vestige.runs.evaluation import rescore
    from vestige.runs.result import Result

    load_plugin_files(())
    options = (dialect, changes, _log_paths(retain_logs), cluster, accept_mixture)
    if not isinstance(run, Result):
        return Result(rescore(Path(run).expanduser(), *options))
    with run.placed() as place:
        outcome = rescore(place, *options)
        return Result(outcome, read_files(place) if run.directory is None else None)


@public
def compare_runs(
    *runs: RunOrResult,
    metrics: Metrics = None,
    margin: Margin = 0.05,
    resamples: Resamples = 10_000,
    cluster: Cluster = None,
    accept_mixture: AcceptMixture = False,
) -> Comparison:
    """Runs side by side, and whether each one's difference from the first could be chance. Writes nothing.

        found = vestige.compare_runs("saves/eval/retain", "saves/eval/mine")
        print(found)
        print(found.differences["mine"][0].holm, found.rows()[0])

    Runs are directories, result files or Results, also those that are not on disk.
    """
    from vestige.runs.compare import compare
    from vestige.runs.result import Result

    load_plugin_files(())
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
        names = name_list(metrics)
        chosen = None if names is None else ",".join(names)
        return compare(places, chosen, margin, resamples or 0, cluster, accept_mixture)


@public
def make_report(
    runs: RunsOrResults,
    out: OutDir,
    *,
    title: Title = None,
    full: Fulls = (),
    retain: RetainModels = (),
    rows: RowsShown = 400,
    shorten_paths: ShortenPaths = False,
    accept_mixture: AcceptMixture = False,
    progress: Progress = False,
    plugins: Plugins = (),
) -> Path:
    """Writes the page of any mixture of runs, and returns its path. The data is in report.json beside it.

        page = vestige.make_report(["saves/eval", "saves/depth"], "saves/report", title="My model")
        print(page)

    Runs are directories or Results with one. Runs that cannot be read are left out with a warning, and listed on the
    page. `full` and `retain` are names of the reference models (one or a list), where the runs do not say them.
    """
    from vestige.report.build import TITLE, ReportRequest, write_report
    from vestige.report.gather import PAGE
    from vestige.runs.result import Result

    load_plugin_files(plugins)
    if rows < 1:
        raise UserError(f"rows is {rows}; keep at least 1 row of a split.")
    several = [runs] if isinstance(runs, (str, Path, Result)) else list(runs)
    places: list[Path] = []
    for run in several:
        if isinstance(run, Result) and run.directory is None:
            raise UserError(
                "This result is not on disk, and a page names the runs behind it; call result.save(DIR) first."
            )
        places.append(run.directory if isinstance(run, Result) else Path(run).expanduser())  # type: ignore[arg-type]
    place = Path(out).expanduser()
    request = ReportRequest(
        runs=places,
        out=place,
        title=title or TITLE,
        full=[full] if isinstance(full, str) else list(full),
        retain=[retain] if isinstance(retain, str) else list(retain),
        rows=rows,
        accept_mixture=accept_mixture,
        shorten_paths=shorten_paths,
        progress=progress,
    )
    report = write_report(request)
    for problem in report.get("left_out") or ():
        log.warning("Left out of the report: %s", problem)
    for run in several:
        if isinstance(run, Result):
            run.reported(place)
    return place / PAGE


# ---- deeper questions ------------------------------------------------------------------------------------------------


@public
def measure_depth(
    unlearned: Unlearned,
    full: FullModel,
    retain: Retain,
    data: ForgetData,
    *,
    out: Out = None,
    layers: Layers = None,
    limit: Limit = None,
    cluster: Cluster = "auto",
    last_layer: LastLayer = "residual",
    delta_threshold: DeltaThreshold = 0.05,
    baselines: Baselines = (),
    plots: Plots = False,
    patch_scope: PatchScope = "span",
    em_scope: EmScope = "entity",
    tokenization: Tokenization = "separate",
    s1_cache: S1Cache = None,
    attn_implementation: AttnImplementation = None,
    batch_size: BatchSize = 8,
    dtype: Dtype = "auto",
    device: Device = "auto",
    quantization: Quantization = None,
    compute_dtype: ComputeDtype = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    resamples: Resamples = 2000,
    seed: Seed = 0,
    progress: Progress = False,
    plugins: Plugins = (),
) -> list[DepthResult]:
    """Is it gone from the layers, or only from what the model says? One result per unlearned checkpoint.

        [depth] = vestige.measure_depth("MODEL", "FULL", "RETAIN", "DIR/forget.jsonl", out="saves/depth", limit=50)
        print(depth.uds, depth.interval)

    `data` is a file of forget rows, or the rows: a `datasets.Dataset`, a pandas frame, a list of dictionaries. Without
    `out` nothing is left on disk.
    """
    keywords = locals()
    from vestige.adapters.preserve_state import preserve_state
    from vestige.depth.ask import make_ask
    from vestige.depth.run import depth_run

    load_plugin_files(plugins)
    many = [unlearned] if isinstance(unlearned, (str, Path)) or not isinstance(unlearned, Iterable) else unlearned
    rows = forget_rows(data)
    settings = {name: as_text(value) for name, value in keywords.items() if name != "plugins"}
    settings |= {
        "unlearned": [as_path("measure_depth", "unlearned", path) for path in many],
        "full": as_path("measure_depth", "full", full),
        "retain": as_path("measure_depth", "retain", retain),
        "data": as_text(data) if rows is None else rows.path,
    }
    with preserve_state(), place_for(out) as place:
        results = depth_run(make_ask(**{**settings, "out": place}))
    if out is None:
        for result in results:
            result.files = []
    return results


@public
def measure_collapse(
    rollouts: Rollouts,
    model: AnyModel,
    tokenizer: AnyTokenizer = None,
    out: Out = None,
    *,
    settings: CollapseSettings | None = None,
    reasoning: Reasoning | None = None,
    format: RolloutFormat = "auto",
    prompt_template: PromptTemplate = "raw",
    steps: Steps = (),
    scheduled: Scheduled = False,
    temperature: Temperature = 1.0,
    ema: Ema = None,
    skip_long: SkipLong = False,
    batch_tokens: BatchTokens = None,
    model_args: ModelSettings = None,
    compute_freq: ComputeFreq = None,
    micro_batch_size: MicroBatchSize = None,
    first_turn_enabled: FirstTurnEnabled = None,
    multi_turn_enabled: MultiTurnEnabled = None,
    turn_enabled: TurnEnabled = None,
    num_samples: NumSamples = None,
    std_eps: StdEps = None,
    ema_decay: EmaDecay = None,
    context_window_mode: ContextWindowMode = None,
    columns: Columns = None,
    seed: Seed = None,
    resamples: Resamples = None,
    parity: Parity = None,
    on_error: OnError = None,
    progress: Progress = False,
    plugins: Plugins = (),
) -> CollapseReport:
    """Does reasoning still depend on its prompt? Rollout files, and the checkpoint or model in memory that wrote them.

        report = vestige.measure_collapse("rollouts.jsonl", "MODEL", num_samples="all", resamples=200)
        print(report)
        print(report.metrics[1]["collapse_first_turn_sample/mi_seq_estimate"])  # step -> name -> number

    Settings may also come whole: settings=CollapseSettings(...), reasoning=Reasoning(...) (how reasoning is found in a
    response); None leaves them as they are there. `model_args` says how a checkpoint is loaded (dtype, device, ...).
    Without `out` nothing is written.
    """
    keywords = locals()
    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.run import measure

    load_plugin_files(plugins)
    changed = {}
    for field in fields(CollapseSettings):
        if keywords[field.name] is not None:
            changed[field.name] = keywords[field.name]
    with model_subject("measure_collapse", model, tokenizer) as subject:
        loading = dict(model_args or {})
        if subject.adapter_base:
            loading["adapter_base"] = subject.adapter_base
        return measure(
            rollouts,
            subject.path if subject.load is None else subject.load(),
            subject.tokenizer,
            out,
            settings,
            reasoning,
            model_args=loading,
            format=format,
            prompt_template=prompt_template,
            steps=list(steps),
            scheduled=scheduled,
            skip_long=skip_long,
            temperature=temperature,
            ema=ema,
            batch_tokens=batch_tokens,
            progress=progress,
            **changed,
        )


@public
def attack(
    model: Model,
    data: Data,
    attacks: Attacks,
    out: Out = None,
    retain_model: RetainModel = None,
    *,
    metrics: Metrics = None,
    suite: MaybeSuite = None,
    limit: Limit = None,
    cluster: Cluster = None,
    held_out: HeldOut = False,
    examples: Examples = None,
    keep: Keep = False,
    temperature: Temperature = 1.0,
    epochs: Epochs = None,
    lr: LearningRate = None,
    batch_size: BatchSize = None,
    accumulation: Accumulation = None,
    compute_dtype: ComputeDtype = None,
    system_prompt: SystemPrompt = None,
    dtype: Dtype = None,
    device: Device = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    server: Server = None,
    server_key_env: ServerKeyEnv = None,
    progress: Progress = False,
    plugins: Plugins = (),
) -> list[AttackRow]:
    """Does what was forgotten come back? The checkpoint measured before and after each attack, one row for each.

        rows = vestige.attack("MODEL", "DIR", ["relearn=5,20", "leak"], retain_model="RETAIN")
        rows = vestige.attack("MODEL", "DIR", {"relearn": [5, 20], "leak": None})  # the same attacks
        print([(row.model, row.attack, row.budget, row.values) for row in rows])

    `retain_model` is the control: a model that never knew, under the same attacks. Without `out` nothing is left on
    disk.
    """
    keywords = locals()
    from vestige.adapters.preserve_state import preserve_state
    from vestige.stress.run import SETTINGS, make_stress, stress

    files = load_plugin_files(plugins)
    control = None if retain_model is None else as_path("attack", "retain_model", retain_model)
    settings = {name: as_text(keywords[name]) for name in SETTINGS}
    path = as_path("attack", "model", model)
    with preserve_state(), rows_as_folder(data) as folder, place_for(out) as place:
        return stress(make_stress(path, folder, attacks, place, control, plugins=files, **settings))
