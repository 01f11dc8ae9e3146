"""What the collapse callback asks of somebody else's trainer; how it logs is in adapters/trainers.py."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vestige.metrics.collapse import LABELS


def is_training(trainer: Any) -> bool:
    """Whether rollouts made now are for training: TRL's trainers too go by the model's mode."""
    return bool(getattr(getattr(trainer, "model", None), "training", True))


def updates_early(trainer: Any) -> bool:
    """DeepSpeed changes the weights inside the backward pass, before any callback is asked."""
    return bool(getattr(trainer, "is_deepspeed_enabled", False))


def generation_interval(trainer: Any) -> int | None:
    """For how many steps of the optimiser TRL uses the same rollouts; None where a trainer does not say."""
    args = getattr(trainer, "args", None)
    times = [getattr(args, name, None) for name in ("num_iterations", "steps_per_generation")]
    gathered = getattr(args, "gradient_accumulation_steps", None)
    if not all(isinstance(n, int) and n > 0 for n in (*times, gathered)):
        return None
    return math.ceil(times[0] * times[1] / gathered)  # type: ignore[operator]


def temperature_of(trainer: Any) -> float:
    """The temperature that a trainer samples its rollouts with."""
    found = getattr(getattr(trainer, "args", None), "temperature", None)
    return float(found) if isinstance(found, (int, float)) and found > 0 else 1.0


def prompt_tokens(trainer: Any, prompts: Sequence[Any]) -> Sequence[Any]:
    """The tokens that TRL's trainer makes of its prompts: template settings, tools and special tokens included."""
    tokenize = getattr(trainer, "_tokenize_prompts", None)
    return [None] * len(prompts) if tokenize is None else list(tokenize(list(prompts))[0])


def plain_function(reward: Any) -> Any:
    """What a partial function is a part of."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def is_async(reward: Callable[..., Any]) -> bool:
    """Whether calling it gives something to wait for, an object with such a `__call__` included."""
    inner = plain_function(reward)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def name_of(reward: Any) -> str:
    inner = plain_function(reward)
    return str(getattr(inner, "__name__", type(inner).__name__))


def means_logged(history: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]] | None:
    """The running means as they were last logged. A checkpoint carries the log up to its own step, and no further.

    >>> means_logged([{"loss": 3.0}, {"collapse_turn_sample/marginal_std_ema": 0.5, "step": 1}])
    {'per_token': {'collapse_turn_sample': 0.5}, 'per_seq': {}}
    """
    found: dict[str, dict[str, float]] = {"per_token": {}, "per_seq": {}}
    for entry in history:
        for label in LABELS:
            for table, name in (("per_token", "marginal_std_ema"), ("per_seq", "marginal_std_ema_seq")):
                value = entry.get(f"{label}/{name}")
                if isinstance(value, (int, float)):
                    found[table][label] = float(value)
    return found if any(found.values()) else None
