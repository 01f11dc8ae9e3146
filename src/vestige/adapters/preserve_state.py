"""Using a model in memory without a trace: training continues as if no evaluation had happened.

preserve_state    random state and the model's own state, restored when the block ends
attached_for_now  an adapter on a model in memory, for the length of a block
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from vestige.errors import UserError
from vestige.models.args import ModelArgs
from vestige.models.load import attach_adapter
from vestige.models.locate import Place, find_directory


@contextmanager
def preserve_state(model: Any = None) -> Iterator[None]:
    """Restores random state (Python's, NumPy's, torch's on every device) and the model's own state.

    Without it a training run that is evaluated would draw other dropout, other shuffles and other samples from then on.
    Of the model: each module's train or eval mode, gradients, and its settings (generation sets `use_cache`). Inside,
    autocast is off, so that the numbers are those of the same weights in a file. Memory is freed afterwards.

    >>> before = random.getstate()
    >>> with preserve_state():
    ...     random.seed(3)
    >>> random.getstate() == before
    True
    """
    python, numpy = random.getstate(), np.random.get_state()
    apple = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
            if isinstance(model, torch.nn.Module):
                stack.enter_context(_preserve_model(model))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if apple is not None:
            torch.mps.set_rng_state(apple)


@contextmanager
def _preserve_model(model: torch.nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]  # each: part of a model may be frozen in eval
    weights = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    owners = [model.config, getattr(model, "generation_config", None)] if hasattr(model, "config") else []
    settings = [(owner, dict(vars(owner))) for owner in owners if owner is not None and hasattr(owner, "__dict__")]
    # bitsandbytes would pack 4-bit weights for this CPU in their place (models/quantised.py): training would go on with
    # other numbers, and layers whose rows end within a block cannot be packed at all.
    fast: list[Any] = [module for module in model.modules() if getattr(module, "support_avx512bf16_for_cpu", False)]
    for module in fast:
        module.support_avx512bf16_for_cpu = False
    wrapped = vars(model).get("forward")  # accelerate wraps it in autocast, and keeps the plain one
    for weight, _, _ in weights:
        weight.grad = None
    if wrapped is not None and "_original_forward" in vars(model):
        model.forward = vars(model)["_original_forward"]
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped
        for weight, gradient, wanted in weights:
            weight.grad = gradient
            weight.requires_grad_(wanted)
        for module, mode in modes:
            module.training = mode
        for module in fast:
            module.support_avx512bf16_for_cpu = True
        for owner, before in settings:
            vars(owner).clear()
            vars(owner).update(before)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def attached_for_now(model: Any, adapter: str) -> Iterator[Any]:
    """An adapter on a model that is in memory, and taken off again: the model's own modules are put back."""
    directory = find_directory(adapter, ModelArgs(path=adapter))[0]
    if not (directory / "adapter_config.json").is_file():
        raise UserError(f"'{adapter}' is not an adapter: it has no adapter_config.json; a pair is (base, adapter).")
    base = Place("model", f"the {type(model).__name__} in memory", directory, directory)
    before = dict(vars(model))
    held = attach_adapter(model, Place("adapter", adapter, directory, directory, base=base), None)
    try:
        yield held
    finally:
        held.unload()
        for name in [n for n in vars(model) if n not in before]:  # peft marks the base, too
            delattr(model, name)
