"""What is known about each metric besides its formula. A registry is a dict."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class MetricFacts:
    name: str
    knows: str  # which end means "the model still knows": high, low, one (near 1) or half (away from 0.5)
    source: str
    doc: str  # the first line of the docstring


METRICS: dict[str, MetricFacts] = {}  # of the modules imported so far


def facts_of(name: str) -> MetricFacts | None:
    """What a formula's function records of itself. A run imports the formulas it uses, so others are imported now."""
    if name not in METRICS:
        package = import_module("vestige.metrics")
        for module in pkgutil.iter_modules(package.__path__, "vestige.metrics."):
            import_module(module.name)
    return METRICS.get(name)


def metric(knows: str, source: str) -> Callable[[F], F]:
    """Records facts about a metric; the function stays a plain function."""

    def record(function: F) -> F:
        first = (function.__doc__ or "").strip().splitlines()[0]
        METRICS[function.__name__] = MetricFacts(function.__name__, knows, source, first)
        return function

    return record
