"""The common case said in a few words: `vestige eval tofu --model PATH --data DIR`, and the Python API's arguments.

In: an EvalAsk. Out: a RunConfig, or a HarnessConfig. Callers: engine/flags.py, api.py, and every room that evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR
from vestige.data.rows import local_data
from vestige.engine.config import AnyConfig, HarnessConfig, RunConfig, compose_runs
from vestige.errors import UserError, unknown_name
from vestige.flags import settings_of


@dataclass(frozen=True)
class EvalAsk:
    """What the friendly flags say. None means: not said."""

    suite: str = "tofu"
    model: str | None = None
    data: str | None = None
    retain_logs: str | Sequence[str] | None = None  # several: other seeds of the retain model
    out: str | None = None
    task_name: str | None = None
    metrics: Sequence[str] | None = None  # ["all"] for every metric of the suite
    tasks: Sequence[Any] | str | None = None  # of lm_eval: names, paths, task configs
    include_path: str | None = None
    reference_model: str | None = None
    full: str | None = None  # the model before unlearning: reads texts for said_likelihood
    dialect: str | None = None
    system_prompt: str | None = None
    batch_tokens: int | None = None
    batch_size: int | None = None  # rows in one forward, at most
    limit: int | None = None
    cluster: str | None = None  # the column whose rows hang together
    dtype: str | None = None
    device: str | None = None
    tokenizer: str | None = None
    adapter_base: str | None = None  # of Python's pair (base, adapter)
    quantization: str | None = None
    compute_dtype: str | None = None  # of 4-bit layers
    trust_remote_code: bool = False
    server: str | None = None  # addresses of servers that run the model, separated by commas
    server_key_env: str | None = None  # the environment variable that holds their key
    server_by_name: bool = False  # several models: each is asked at those of the servers that list it
    overwrite: bool = False
    trajectory_views: str | None = None  # both | full | eos: the suite along a denoising path
    benchmark: str | None = None  # of trajectory-eval
    seed: int | None = None
    progress: bool | None = None
    overrides: Sequence[str] = ()
    config_dir: str | None = None
    plugins: Sequence[str] = ()


# Flags that mean something to one kind of evaluation only; said to the other kind they would change nothing.
METRICS_ONLY = ("data", "retain_logs", "reference_model", "full", "dialect", "batch_tokens", "seed", "cluster")
TASKS_ONLY = ("tasks", "include_path")


def to_run(ask: EvalAsk) -> AnyConfig:
    """The configuration of a friendly request."""
    suites = sorted(p.stem for p in (PACKAGE_DIR / "eval").glob("*.yaml"))
    ask = _along_trajectories(ask, suites)
    if ask.suite not in suites and ask.config_dir is None:
        raise unknown_name("suite", ask.suite, suites)
    if ask.model is None and not any(o.startswith("model") for o in ask.overrides):
        raise UserError("No model given; add --model PATH (a directory, a .gguf file or a hub id).")
    chosen = any(o.startswith("model=") for o in ask.overrides)
    overrides = [f"eval={ask.suite}", *([] if chosen else ["model=local"]), *ask.overrides]
    config_dir = Path(ask.config_dir) if ask.config_dir else None
    run = compose_runs(overrides, "eval.yaml", config_dir, ask.metrics, ask.plugins, _values(ask))[0]
    idle = METRICS_ONLY if isinstance(run, HarnessConfig) else TASKS_ONLY
    said = [f"--{name.replace('_', '-')}" for name in idle if getattr(ask, name) is not None]
    if said:
        raise UserError(f"{said[0]} means nothing to '{ask.suite}'; leave it out.")
    if isinstance(run, HarnessConfig) and ask.tasks is not None:
        return replace(run, settings={**run.settings, "tasks": ask.tasks})
    if ask.data and isinstance(run, RunConfig):
        run = replace(run, missing="skip", local=local_data(ask.suite, run.settings.get("local_data"), str(ask.data)))
    return run


VIEWS = {"both": "[full,eos]", "full": "[full]", "eos": "[eos]"}


def _along_trajectories(ask: EvalAsk, suites: Sequence[str]) -> EvalAsk:
    """`trajectory-eval --benchmark B` and `B --trajectory-views V` both mean the suite B_trajectory."""
    if ask.suite not in ("trajectory-eval", "trajectory_eval") and ask.benchmark is not None:
        raise UserError("--benchmark belongs to `vestige eval trajectory-eval`; here the suite's name says it.")
    if ask.trajectory_views is not None and ask.trajectory_views not in VIEWS:
        raise unknown_name("view", ask.trajectory_views, VIEWS, "(--trajectory-views)")
    base = ask.benchmark or "tofu" if ask.suite in ("trajectory-eval", "trajectory_eval") else ask.suite
    wanted = base if "trajectory" in base else f"{base}_trajectory"
    if ask.suite not in ("trajectory-eval", "trajectory_eval") and ask.trajectory_views is None:
        return ask
    if wanted not in suites and ask.config_dir is None:
        known = [s.removesuffix("_trajectory") for s in suites if s.endswith("_trajectory")]
        raise unknown_name("benchmark with trajectories", base, known)
    views = ask.trajectory_views
    said = [f"eval.{wanted}.metrics.trajectory_metrics.trajectory_config.include_views={VIEWS[views]}"] if views else []
    return replace(ask, suite=wanted, overrides=[*said, *ask.overrides])


def _values(ask: EvalAsk) -> dict[str, Any]:
    """What the ask says, as settings of the configuration (the table of flags knows their keys)."""
    said = {**vars(ask), "task_name": ask.task_name or _task_name(ask)}
    logs = said["retain_logs"]
    said["retain_logs"] = logs[0] if isinstance(logs, (list, tuple)) and len(logs) == 1 else logs
    more: dict[str, Any] = {"progress": ask.progress, "model.model_args.adapter_base": ask.adapter_base}
    more["server.by_name"] = True if ask.server and ask.server_by_name else None
    if ask.suite == "lm_eval":  # the harness makes its own prompts, from its own setting
        more["eval.lm_eval.simple_evaluate_args.system_instruction"] = said.pop("system_prompt")
    return {**settings_of(said, ask.suite), **{key: value for key, value in more.items() if value is not None}}


def _task_name(ask: EvalAsk) -> str:
    if ask.out:
        return Path(ask.out).absolute().name.replace("..", "_") or "run"
    chosen = [o.partition("=")[2] for o in ask.overrides if re.match(r"model=|model.*name_or_path=", o)]
    name = Path(str(ask.model or (chosen[-1] if chosen else "run"))).name
    return f"{ask.suite}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name).removesuffix('.gguf')}"
