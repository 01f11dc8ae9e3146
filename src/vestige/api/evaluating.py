"""`vestige.evaluate` and `vestige.plan`: the keywords are the flags of `vestige eval`, with their meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from vestige.api.asking import (
    ModelSubject,
    as_text,
    keywords_checked,
    listed,
    load_all_plugins,
    place_for,
    rows_or_folder,
    subject,
)
from vestige.api.result import Result, result_of
from vestige.costs.estimate import CostPlan
from vestige.engine.flags import EvalAsk
from vestige.errors import UserError
from vestige.given import ModelGiven, Place, RowTables, TokenizerLike

if TYPE_CHECKING:
    from vestige.costs.served import ServedPlan


@keywords_checked
def evaluate(
    model: ModelGiven,
    suite: str = "tofu",
    *,
    tokenizer: TokenizerLike | Place | None = None,
    data: Place | RowTables | None = None,
    retain_logs: Place | Result | Sequence[Place | Result] | None = None,
    out: Place | None = None,
    metrics: Sequence[str] | str | None = None,
    progress: bool = False,
    limit: int | None = None,
    cluster: str | None = None,
    dialect: str | None = None,
    system_prompt: str | None = None,
    reference_model: Place | None = None,
    full: Place | None = None,
    task_name: str | None = None,
    overwrite: bool = False,
    accept_mixture: bool = False,
    seed: int | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    quantization: str | None = None,
    compute_dtype: str | None = None,
    trust_remote_code: bool = False,
    trajectory_views: str | None = None,
    benchmark: str | None = None,
    tasks: Sequence[str | Mapping[str, object]] | str | None = None,
    include_path: Place | None = None,
    server: str | None = None,
    server_key_env: str | None = None,
    config_dir: Place | None = None,
    overrides: Sequence[str] = (),
    plugins: Place | Sequence[Place] = (),
) -> Result:
    """Evaluates a checkpoint (a path or hub id), a model in memory (with its `tokenizer`), or a pair (base, adapter).

        result = vestige.evaluate("MODEL", "tofu", data="DIR", out="saves/eval/mine", limit=100)
        print(result, result.summary["forget_Q_A_Prob"])
        live = vestige.evaluate(model, tokenizer=tokenizer, data={"forget": dataset, "retain": frame})

    `data` is a folder, or a mapping from names of files ("forget") to rows in memory: a `datasets.Dataset`, a pandas
    frame, a list of dictionaries. `retain_logs` may be a Result. Without `out` nothing is left on disk; `result.save`
    writes it later. A training run may call this between two steps: random state, gradients and the train or eval mode
    of each module are afterwards as they were before, and a model stays on the devices where it is.

    Keywords:

        model: the model: a directory, .gguf file, PEFT adapter or hub id (or the model in memory; or (base, adapter))
        suite: which benchmark, such as tofu or muse
        tokenizer: instead of the model's own (of a model in memory: the tokenizer itself)
        data: folder with forget.jsonl, retain.jsonl, holdout.jsonl, ... (or the rows themselves)
        retain_logs: result file or run directory of the retain model (or its Result)
        out: where results go (without it nothing is left on disk)
        metrics: which metrics (a list, or text with commas)
        progress: progress bars on stderr
        limit: first N rows of every data set
        cluster: column whose rows hang together, for intervals (author, document); none: no column
        dialect: whose definitions: open-unlearning | strict | tofu | muse | depth-score
        system_prompt: system prompt of every chat
        reference_model: second model for mia_reference
        full: the model before unlearning
        task_name: names the directory of results where --out does not
        overwrite: start over: replace what is there already
        accept_mixture: combine runs of another template, dialect, precision or other rows, with a note
        seed: where random draws start
        batch_tokens: tokens in one forward (default: what fits)
        batch_size: rows in one forward
        dtype: numbers of the weights: auto | float32 | bfloat16 | float16
        device: where it runs: auto | cpu | cuda | cuda:1 | mps
        quantization: load the weights in fewer bits: 4bit | 8bit
        compute_dtype: what 4-bit layers multiply in (bfloat16): bfloat16 | float16 | float32
        trust_remote_code: run code that comes with the model
        trajectory_views: a diffusion model: the suite's metrics at denoising steps: both | full | eos
        benchmark: trajectory-eval: of which benchmark: tofu | muse
        tasks: lm_eval: names or YAML files of lm-evaluation-harness tasks
        include_path: lm_eval: folder with task YAML files of your own
        server: model servers that run it (vLLM, OpenAI form): named as there, its tokenizer read here
        server_key_env: environment variable that holds the servers' key
        config_dir: your own config groups, before ours
        overrides: Hydra overrides, as words on the command line
        plugins: Python file, or files, with metrics, attacks, data sets, ... of your own
    """
    said = locals()
    with subject("evaluate", model, tokenizer) as about, place_for(out, _run_name(model)) as place:
        return _evaluated(said, about, str(place), place if out is None else None)


def _evaluated(said: Mapping[str, Any], about: ModelSubject, out: str, kept_in: Any) -> Result:
    from vestige.engine.evaluate import evaluate_config
    from vestige.engine.flags import to_run

    folder, held = rows_or_folder(said["data"])  # rows in memory live as long as something holds them
    config = to_run(eval_ask({**said, "data": folder, "out": out}, about))
    outcome = evaluate_config(config, about.load() if about.load else None, accumulate=True)
    del held
    return result_of(outcome, kept_in)


@overload
def plan(
    model: Place | tuple[Place, Place],
    suite: str = "tofu",
    *,
    tokenizer: Place | None = None,
    data: Place | RowTables | None = None,
    retain_logs: Place | Result | Sequence[Place | Result] | None = None,
    out: Place | None = None,
    metrics: Sequence[str] | str | None = None,
    progress: bool = False,
    limit: int | None = None,
    cluster: str | None = None,
    dialect: str | None = None,
    system_prompt: str | None = None,
    reference_model: Place | None = None,
    full: Place | None = None,
    task_name: str | None = None,
    overwrite: bool = False,
    accept_mixture: bool = False,
    seed: int | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    quantization: str | None = None,
    compute_dtype: str | None = None,
    trust_remote_code: bool = False,
    trajectory_views: str | None = None,
    benchmark: str | None = None,
    tasks: Sequence[str | Mapping[str, object]] | str | None = None,
    include_path: Place | None = None,
    server: None = None,
    server_key_env: None = None,
    config_dir: Place | None = None,
    overrides: Sequence[str] = (),
    plugins: Place | Sequence[Place] = (),
) -> CostPlan: ...
@overload
def plan(
    model: Place,
    suite: str = "tofu",
    *,
    server: str,
    server_key_env: str | None = None,
    tokenizer: Place | None = None,
    data: Place | RowTables | None = None,
    out: Place | None = None,
    metrics: Sequence[str] | str | None = None,
    limit: int | None = None,
    dialect: str | None = None,
    system_prompt: str | None = None,
    config_dir: Place | None = None,
    overrides: Sequence[str] = (),
    plugins: Place | Sequence[Place] = (),
) -> ServedPlan: ...
@keywords_checked
def plan(
    model: Place | tuple[Place, Place],
    suite: str = "tofu",
    *,
    tokenizer: Place | None = None,
    data: Place | RowTables | None = None,
    retain_logs: Place | Result | Sequence[Place | Result] | None = None,
    out: Place | None = None,
    metrics: Sequence[str] | str | None = None,
    progress: bool = False,
    limit: int | None = None,
    cluster: str | None = None,
    dialect: str | None = None,
    system_prompt: str | None = None,
    reference_model: Place | None = None,
    full: Place | None = None,
    task_name: str | None = None,
    overwrite: bool = False,
    accept_mixture: bool = False,
    seed: int | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    quantization: str | None = None,
    compute_dtype: str | None = None,
    trust_remote_code: bool = False,
    trajectory_views: str | None = None,
    benchmark: str | None = None,
    tasks: Sequence[str | Mapping[str, object]] | str | None = None,
    include_path: Place | None = None,
    server: str | None = None,
    server_key_env: str | None = None,
    config_dir: Place | None = None,
    overrides: Sequence[str] = (),
    plugins: Place | Sequence[Place] = (),
) -> CostPlan | ServedPlan:
    """What an evaluation would cost, before it is paid for. Loads no model and writes nothing.

        cost = vestige.plan("MODEL", "tofu", data="DIR", out="saves/eval/mine")
        print(cost, cost.answers.tokens, cost.seconds)

    The keywords are those of `evaluate`; answers that are in `out` already cost nothing. The result prints as
    `vestige plan` and has the counts as fields: asked, answers (distinct, cached, tokens, batches), references,
    prompts, new_tokens, memory, seconds, unavailable, ... With `server` it says what the servers can and what they
    would be sent (a ServedPlan).
    """
    said = locals()
    from vestige.costs.served import plan_of
    from vestige.engine.flags import to_run

    for part in model if isinstance(model, tuple) else (model,):
        if not isinstance(part, (str, Path)):
            raise UserError(f"plan() takes paths or hub ids, not {type(part).__name__}; save the model first.")
    folder, held = rows_or_folder(data)
    with subject("plan", model, tokenizer) as about:
        made = plan_of(to_run(eval_ask({**said, "data": folder}, about)))
    del held
    return made


def _run_name(model: ModelGiven) -> str:
    """How a run that is not kept is called: after its model."""
    last = model[-1] if isinstance(model, tuple) else model
    return (Path(last).expanduser().name or "run") if isinstance(last, (str, Path)) else "in-memory"


def eval_ask(said: Mapping[str, Any], about: ModelSubject) -> EvalAsk:
    """The keywords of `evaluate`, as the record that flags become, too."""
    plain = {name: as_text(value) for name, value in said.items() if name not in ("model", "tokenizer", "tasks")}
    plain["metrics"] = listed(said["metrics"])
    plain["plugins"] = load_all_plugins(said["plugins"])
    plain["retain_logs"] = logs_of(said["retain_logs"])
    tasks = said["tasks"]
    return EvalAsk(model=about.path, adapter_base=about.adapter_base, tokenizer=about.tokenizer, tasks=tasks, **plain)


def logs_of(logs: Any) -> Any:
    """Retain logs by their paths; a Result stands for its directory."""
    if isinstance(logs, Result):
        if logs.directory is None:
            raise UserError("These retain logs are not on disk; evaluate the retain model with out=DIR, or save them.")
        return str(logs.directory)
    if isinstance(logs, (list, tuple)):
        return [logs_of(one) for one in logs]
    return as_text(logs)
