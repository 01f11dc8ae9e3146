"""vestige measures what a language model still knows after it was made to forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vestige.api import (
        Result,
        attack,
        compare_runs,
        evaluate,
        load_run,
        make_report,
        measure_collapse,
        measure_depth,
        plan,
        score,
    )
    from vestige.errors import UserError
    from vestige.watch.callback import Callback
    from vestige.watch.loop import Watch

__version__ = "0.1.0"
# Functions are verbs, rooms are nouns: importing a package vestige.NAME would rebind a function of that name.
__all__ = [
    "Callback",
    "Result",
    "UserError",
    "Watch",
    "attack",
    "compare_runs",
    "evaluate",
    "load_run",
    "make_report",
    "measure_collapse",
    "measure_depth",
    "plan",
    "score",
]
# What is not a function of the api room; imported on first use like the others.
ELSEWHERE = {
    "Callback": "vestige.watch.callback",
    "UserError": "vestige.errors",
    "Watch": "vestige.watch.loop",
}


def __getattr__(name: str) -> Any:
    """The names of `__all__`, imported on first use: `import vestige` stays instant."""
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(ELSEWHERE.get(name, "vestige.api")), name)
    raise AttributeError(f"module 'vestige' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
