"""The other questions: `vestige.measure_depth`, `measure_collapse`, `attack`. Keywords are the flags of their verbs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.api.asking import as_path, as_text, folder_of, keywords_checked, load_all_plugins, place_for, subject
from vestige.data.rows import GivenRows, as_given
from vestige.given import ModelGiven, Place, RowsInMemory, RowTables, TokenizerLike

if TYPE_CHECKING:  # they import torch; help() is instant without it
    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.reasoning import Reasoning
    from vestige.collapse.run import CollapseReport
    from vestige.depth.run import DepthResult
    from vestige.stress.run import AttackRow


@keywords_checked
def measure_depth(
    unlearned: Place | Sequence[Place],
    full: Place,
    retain: Place,
    data: Place | RowsInMemory | RowTables,
    *,
    out: Place | None = None,
    layers: str | Sequence[int] | None = None,
    limit: int | None = None,
    cluster: str = "auto",
    last_layer: str = "residual",
    delta_threshold: float = 0.05,
    baselines: str | Sequence[str] = (),
    plots: bool = False,
    patch_scope: str = "span",
    em_scope: str = "entity",
    tokenization: str = "separate",
    s1_cache: Place | None = None,
    attn_implementation: str | None = None,
    batch_size: int = 8,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str | None = None,
    compute_dtype: str | None = None,
    tokenizer: Place | None = None,
    trust_remote_code: bool = False,
    resamples: int = 2000,
    seed: int = 0,
    progress: bool = False,
    plugins: Place | Sequence[Place] = (),
) -> list[DepthResult]:
    """Is it gone from the layers, or only from what the model says? One result per unlearned checkpoint.

        [depth] = vestige.measure_depth("MODEL", "FULL", "RETAIN", "DIR/forget.jsonl", out="saves/depth", limit=50)
        print(depth.uds, depth.interval)

    `data` is a file of forget rows, or the rows: a `datasets.Dataset`, a pandas frame, a list of dictionaries. Without
    `out` nothing is left on disk.

    Keywords:

        unlearned: the checkpoints to measure
        full: the model before unlearning
        retain: the model trained without the forget rows
        data: rows to forget: question and answer, or text (or the rows themselves)
        out: where results go (without it nothing is left on disk)
        layers: which layers are patched: auto | 0-15 | 0,2 | 0-24:2
        limit: first N rows of every data set
        cluster: column whose rows hang together, for intervals (author, document); none: no column
        last_layer: before or after the source's final norm: residual | peer
        delta_threshold: a layer counts above it (0.05)
        baselines: also cka, logit_lens, fisher
        plots: draw the layer profile, the heat map and the tokens
        patch_scope: which positions are patched: span | boundary | all
        em_scope: which tokens are scored: entity | full
        tokenization: how prompt and answer become tokens
        s1_cache: where retain -> full is kept (OUT/s1_cache); or a published .json
        attn_implementation: how attention is computed: sdpa | eager
        batch_size: rows in one forward
        dtype: numbers of the weights: auto | float32 | bfloat16 | float16
        device: where it runs: auto | cpu | cuda | cuda:1 | mps
        quantization: load the weights in fewer bits: 4bit | 8bit
        compute_dtype: what 4-bit layers multiply in (bfloat16): bfloat16 | float16 | float32
        tokenizer: instead of the model's own
        trust_remote_code: run code that comes with the model
        resamples: bootstrap samples behind each interval
        seed: where random draws start
        progress: progress bars on stderr
        plugins: Python file, or files, with metrics, attacks, data sets, ... of your own
    """
    said = locals()
    from vestige.depth.ask import make_ask
    from vestige.depth.run import depth_run
    from vestige.integrations.undisturbed import undisturbed

    load_all_plugins(plugins)
    many = [unlearned] if isinstance(unlearned, (str, Path)) or not isinstance(unlearned, Iterable) else unlearned
    rows = _forget_rows(data)
    models: dict[str, Any] = {name: as_path("measure_depth", name, said[name]) for name in ("full", "retain")}
    models |= {"unlearned": [as_path("measure_depth", "unlearned", path) for path in many]}
    models |= {"data": as_text(data) if rows is None else rows.path}
    plain = {name: as_text(value) for name, value in said.items() if name not in (*models, "plugins", "out")}
    with undisturbed(), place_for(out) as place:
        found = depth_run(make_ask(**plain, **models, out=place))
    for one in found if out is None else ():
        one.files = []
    return found


def _forget_rows(data: Any) -> GivenRows | None:
    if isinstance(data, (str, Path)) or data is None:
        return None
    tables = hasattr(data, "items") and not hasattr(data, "columns")
    return as_given(data if tables else {"forget": data})


@keywords_checked
def measure_collapse(
    rollouts: Place | Sequence[Place],
    model: ModelGiven,
    tokenizer: TokenizerLike | Place | None = None,
    out: Place | None = None,
    *,
    settings: CollapseSettings | None = None,
    reasoning: Reasoning | None = None,
    format: str = "auto",
    prompt_template: str = "raw",
    steps: Sequence[int] = (),
    scheduled: bool = False,
    temperature: float = 1.0,
    ema: Place | None = None,
    skip_long: bool = False,
    batch_tokens: int | None = None,
    model_args: Mapping[str, object] | None = None,
    compute_freq: int | None = None,
    micro_batch_size: int | None = None,
    first_turn_enabled: bool | None = None,
    multi_turn_enabled: bool | None = None,
    turn_enabled: bool | None = None,
    num_samples: int | str | None = None,
    std_eps: float | None = None,
    ema_decay: float | None = None,
    context_window_mode: str | None = None,
    columns: str | None = None,
    seed: int | None = None,
    resamples: int | None = None,
    parity: str | None = None,
    on_error: str | None = None,
    progress: bool = False,
    plugins: Place | Sequence[Place] = (),
) -> CollapseReport:
    """Does reasoning still depend on its prompt? Rollout files, and the checkpoint or model in memory that wrote them.

        report = vestige.measure_collapse("rollouts.jsonl", "MODEL", num_samples="all", resamples=200)
        print(report)
        print(report.metrics[1]["collapse_first_turn_sample/mi_seq_estimate"])  # step -> name -> number

    Settings may also come whole: settings=CollapseSettings(...), reasoning=Reasoning(...); None leaves them as they
    are there. `model_args` says how a checkpoint is loaded (dtype, device, ...). Without `out` nothing is written.

    Keywords:

        rollouts: a rollout file, or several
        model: the model: a directory, .gguf file, PEFT adapter or hub id (or the model in memory; or (base, adapter))
        tokenizer: instead of the model's own (of a model in memory: the tokenizer itself)
        out: where results go (without it nothing is left on disk)
        settings: a CollapseSettings, in place of single settings
        reasoning: a Reasoning: how reasoning is found in a response
        format: auto, native, verl, trl, ragen-jsonl, ...
        prompt_template: raw | chatml-restore
        steps: the step of each file
        scheduled: only the steps that compute_freq asks for
        temperature: sampling temperature
        ema: running means: read if there, written at the end
        skip_long: leave out rows that are longer than the model reads
        batch_tokens: tokens in one forward (default: what fits)
        model_args: how a checkpoint is loaded: dtype, device, trust_remote_code, ...
        compute_freq: only step 1 and multiples of N (default: all steps)
        micro_batch_size: reasonings scored together
        first_turn_enabled: measure first turns: true | false
        multi_turn_enabled: measure whole trajectories: true | false
        turn_enabled: also turns drawn evenly: true | false
        num_samples: turns looked at of each kind: N | all
        std_eps: added to the spread that scores are divided by
        ema_decay: how slowly running means move
        context_window_mode: full: a prompt with all that came before it
        columns: prompts to cross with: auto | group | distinct | sample
        seed: where random draws start
        resamples: bootstrap samples behind each interval
        parity: RAGEN's draws, tokens and 29 numbers only
        on_error: raise, or skip what cannot be measured and say so
        progress: progress bars on stderr
        plugins: Python file, or files, with metrics, attacks, data sets, ... of your own
    """
    said = locals()
    from dataclasses import fields

    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.run import measure

    load_all_plugins(plugins)
    own = {f.name: said[f.name] for f in fields(CollapseSettings) if said[f.name] is not None}
    how: dict[str, Any] = {
        "format": format,
        "prompt_template": prompt_template,
        "steps": list(steps),
        "scheduled": scheduled,
        "skip_long": skip_long,
    }
    how |= {"temperature": temperature, "ema": ema, "batch_tokens": batch_tokens, "progress": progress}
    with subject("measure_collapse", model, tokenizer) as about:
        loading = {**(model_args or {}), **({"adapter_base": about.adapter_base} if about.adapter_base else {})}
        held = about.path if about.load is None else about.load()
        return measure(rollouts, held, about.tokenizer, out, settings, reasoning, model_args=loading, **how, **own)


@keywords_checked
def attack(
    model: Place,
    data: Place | RowTables,
    attacks: str | Sequence[str] | Mapping[str, float | Sequence[float] | None],
    out: Place | None = None,
    retain_model: Place | None = None,
    *,
    metrics: str | Sequence[str] | None = None,
    suite: str | None = None,
    limit: int | None = None,
    cluster: str | None = None,
    held_out: bool = False,
    examples: int | None = None,
    keep: bool = False,
    temperature: float = 1.0,
    epochs: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    accumulation: int | None = None,
    compute_dtype: str | None = None,
    system_prompt: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    tokenizer: Place | None = None,
    trust_remote_code: bool = False,
    server: str | None = None,
    server_key_env: str | None = None,
    progress: bool = False,
    plugins: Place | Sequence[Place] = (),
) -> list[AttackRow]:
    """Does what was forgotten come back? The checkpoint measured before and after each attack, one row for each.

        rows = vestige.attack("MODEL", "DIR", ["relearn=5,20", "leak"], retain_model="RETAIN")
        rows = vestige.attack("MODEL", "DIR", {"relearn": [5, 20], "leak": None})  # the same attacks
        print([(row.model, row.attack, row.budget, row.values) for row in rows])

    `retain_model` is the control: a model that never knew, under the same attacks. Without `out` nothing is left on
    disk.

    Keywords:

        model: the model: a directory, .gguf file, PEFT adapter or hub id
        data: folder with forget.jsonl, retain.jsonl, holdout.jsonl, ... (or the rows themselves)
        attacks: words (relearn=5,20), or a mapping from attack to budgets; None: the attack's own
        out: where results go (without it nothing is left on disk)
        retain_model: the model trained without the forget rows
        metrics: which metrics (a list, or text with commas)
        suite: which benchmark, such as tofu or muse
        limit: first N rows of every data set
        cluster: column whose rows hang together, for intervals (author, document); none: no column
        held_out: relearn on half of the forget rows, measure the other
        examples: relearn: teach only the first N rows
        keep: keep attacked checkpoints in OUT/checkpoints
        temperature: sampling temperature
        epochs: passes over the rows
        lr: learning rate
        batch_size: rows in one forward
        accumulation: forwards in one step of the optimiser
        compute_dtype: what 4-bit layers multiply in (bfloat16): bfloat16 | float16 | float32
        system_prompt: system prompt of every chat
        dtype: numbers of the weights: auto | float32 | bfloat16 | float16
        device: where it runs: auto | cpu | cuda | cuda:1 | mps
        tokenizer: instead of the model's own
        trust_remote_code: run code that comes with the model
        server: model servers that run it (vLLM, OpenAI form): named as there, its tokenizer read here
        server_key_env: environment variable that holds the servers' key
        progress: progress bars on stderr
        plugins: Python file, or files, with metrics, attacks, data sets, ... of your own
    """
    said = locals()
    from vestige.integrations.undisturbed import undisturbed
    from vestige.stress.run import SETTINGS, make_stress, stress

    files = load_all_plugins(plugins)
    control = None if retain_model is None else as_path("attack", "retain_model", retain_model)
    plain = {name: as_text(said[name]) for name in SETTINGS}
    path = as_path("attack", "model", model)
    with undisturbed(), folder_of(data) as folder, place_for(out) as place:
        return stress(make_stress(path, folder, attacks, place, control, plugins=files, **plain))
