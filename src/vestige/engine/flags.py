"""Options of an evaluation as a record. (Callers move to `make_config(**options)`.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vestige.engine.config import AnyConfig, expand_multirun, make_config

__all__ = ["EvalAsk", "expand_multirun", "to_run"]


@dataclass(frozen=True)
class EvalAsk:
    """What the flags say, or the keywords of Python. None means: not said."""

    suite: str | None = "tofu"  # None: an experiment, or a configuration of the user's own, chooses
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
    accept_mixture: bool = False  # of this run and its retain logs
    trajectory_views: str | None = None  # both | full | eos: the suite along a denoising path
    benchmark: str | None = None  # of trajectory-eval
    seed: int | None = None
    progress: bool | None = None
    overrides: Sequence[str] = ()
    config_dir: str | None = None
    config_name: str = "eval.yaml"
    plugins: Sequence[str] = ()


def to_run(ask: EvalAsk) -> AnyConfig:
    return make_config(**vars(ask))
