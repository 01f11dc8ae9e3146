"""Another processor, imitated: `pytest --jitter SEED`.

Another processor adds in another order, so its sums end in other last bits. Two things follow, and this file brings
both about on any machine:

- a model that is trained ends elsewhere. The weights of a model that is about to be trained are multiplied by
  1 + 1e-7 * noise, in memory: files are never touched, nor models that are only evaluated (the golden ones);
- a sum whose order is not fixed differs. Where the order must not matter, arguments come in a shuffled order.

Nothing in src/ knows of this. A finder wraps a few functions when their modules are imported, in the tests' own process
and, through sitecustomize.py and the environment, in every Python process that a test starts.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.machinery import PathFinder
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

VARIABLE = "VESTIGE_TEST_JITTER"
SIZE = 1e-7
_random = Random()
_seed = 0


# ---- weights ------------------------------------------------------------------------------------------------------


def shaken(model: Any) -> Any:
    """The model with noise on every weight. Equal weights of one seed get equal noise: what must be reproducible is."""
    import torch

    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.is_floating_point() and not p.is_meta:
                draw = torch.Generator().manual_seed(zlib.crc32(f"{_seed}/{name}/{tuple(p.shape)}".encode()))
                noise = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.device)
                p.copy_(p.double().mul(1 + SIZE * noise).to(p.dtype))
    return model


def _before(place: int | str) -> Callable[[Any], Any]:
    """The function with the model among its arguments shaken first."""

    def wrap(function: Any) -> Any:
        @wraps(function)
        def shaking(*args: Any, **named: Any) -> Any:
            first = args[0] if args else next(iter(named.values()))
            shaken(first.model if place == "model" else first)
            return function(*args, **named)

        return shaking

    return wrap


def _made(function: Any) -> Any:
    """The function with the model it makes shaken."""
    return wraps(function)(lambda *args, **named: shaken(function(*args, **named)))


# ---- order --------------------------------------------------------------------------------------------------------


def mixed(things: Any) -> Any:
    """The same things in another order: of a mapping, a sequence, or the rows of an array."""
    if isinstance(things, Mapping):
        return dict(_random.sample(list(things.items()), len(things)))
    if hasattr(things, "shape"):
        return things[_random.sample(range(len(things)), len(things))] if things.ndim else things
    things = list(things)
    return _random.sample(things, len(things))


def _first(function: Any) -> Any:
    """The function with its first argument in another order."""
    return wraps(function)(lambda things, *args, **named: function(mixed(things), *args, **named))


def _both(function: Any) -> Any:
    return wraps(function)(lambda a, b, *args, **named: function(mixed(a), mixed(b), *args, **named))


def _mean_score(function: Any) -> Any:
    """Rows in another order, but listed as they were: only the sum is meant."""

    def shuffling(by_index: Any, *args: Any, **named: Any) -> Any:
        from dataclasses import replace

        plain = function(by_index, *args, **named)
        return replace(plain, agg_value=function(mixed(by_index), *args, **named).agg_value)

    return wraps(function)(shuffling)


def _inputs(kind: Any) -> Any:
    """Inputs whose parents come in another order."""
    init = kind.__init__

    @wraps(init)
    def shuffling(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        object.__setattr__(self, "parents", mixed(self.parents))

    kind.__init__ = shuffling
    return kind


def _sample(kind: Any) -> Any:
    """A sample whose rows come in another order, each with its value and its cluster."""
    init = kind.__init__

    @wraps(init)
    def shuffling(self: Any, group: str, rows: Any, values: Any, clusters: Any = None) -> None:
        order = _random.sample(range(len(rows)), len(rows))
        moved = None if clusters is None else tuple(clusters[i] for i in order)
        init(self, group, tuple(rows[i] for i in order), values[order], moved)

    kind.__init__ = shuffling
    return kind


# module -> name in it -> how it is wrapped. A name that is not there is an error, so that none is lost unseen.
WRAPPED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "vestige.unlearn.loop": {"unlearn": _before(0)},
    "vestige.unlearn.trainer": {"train": _before("model")},
    "known_models.fluency": {"_new_judge": _made},
    "vestige.numeric": {"total": _first, "mean": _first, "spread": _first},
    "vestige.stats.vectors": {"harmonic_mean": _first, "auc": _both, "ks": _both},
    "vestige.stats.bootstrap": {"harmonic_mean": _first, "Sample": _sample},
    "vestige.suites.registry": {"Inputs": _inputs},
    "vestige.suites.handlers.common": {"mean_score": _mean_score},
    "vestige.metrics.trajectory": {"distribution": _first},
    "vestige.meta.axes": {"guarded_mean": _first, "plain_mean": _first},
}


# ---- how it gets there --------------------------------------------------------------------------------------------


def wrap(module: ModuleType) -> None:
    for name, how in WRAPPED[module.__name__].items():
        setattr(module, name, how(getattr(module, name)))


class Finder(PathFinder):
    """Finds modules as ever, and wraps what the table names once a module is there."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in WRAPPED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is cls else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = _then_wrap(spec.loader.exec_module)  # type: ignore[method-assign]
                return spec
        return None


def _then_wrap(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def both(module: ModuleType) -> None:
        execute(module)
        wrap(module)

    return both


def install(seed: int) -> None:
    """In this process, and in all that it starts."""
    global _seed
    early = sorted(set(WRAPPED) & set(sys.modules))
    if early:
        raise RuntimeError(f"jitter comes too late: {', '.join(early)} are imported already")
    _seed = seed
    _random.seed(f"{seed}/order")
    sys.meta_path.insert(0, Finder)
    os.environ[VARIABLE] = str(seed)
    here = str(Path(__file__).parent)
    before = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != here]
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *before])


def from_environment() -> None:
    if os.environ.get(VARIABLE):
        install(int(os.environ[VARIABLE]))
