"""vestige measures what a language model still knows after it was made to forget."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Result", "collapse", "evaluate"]


def __getattr__(name: str) -> Any:
    """The names of `__all__`, imported on first use: `import vestige` stays instant."""
    if name == "collapse":
        from vestige.collapse.run import measure

        return measure
    if name in __all__:
        from vestige import api

        return getattr(api, name)
    raise AttributeError(f"module 'vestige' has no attribute '{name}'")
