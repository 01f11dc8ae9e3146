"""A look at a model that somebody else is training: afterwards everything is as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def undisturbed(model: Any = None) -> Iterator[None]:
    """Random state (Python's, NumPy's, torch's on every device) and each module's train or eval mode, put back.

    Without it a training run that is looked at draws other dropout, other shuffles and other samples from then on.

    >>> before = random.getstate()
    >>> with undisturbed():
    ...     random.seed(3)
    >>> random.getstate() == before
    True
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [module.training for module in modules]  # each on its own: part of a model may be frozen in eval
    python, numpy = random.getstate(), np.random.get_state()
    apple = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if apple is not None:
            torch.mps.set_rng_state(apple)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
