"""Measures what a language model still knows after it was made to forget.

    import vestige

    result = vestige.evaluate("MODEL", "tofu", data="DIR", out="saves/eval/mine")
    print(result)

    evaluate          scores of a checkpoint or of a model in memory
    plan              what that would cost
    load_run          the Result of a finished evaluation
    read_evidence     what the model predicted for each answer, what it wrote: by content key
    score             a Result by another definition, without a model
    compare_runs      could the differences between runs be chance?
    measure_depth     is it gone from the layers, or only from the answers?
    measure_collapse  does reasoning still depend on its prompt?
    attack            does what was forgotten come back?
    make_report       one page from any mixture of runs
    Callback, Watch   the same numbers while a model is being trained
    CollapseDetector, CollapseCallback  the collapse metrics inside a trainer
    trajectories_from_logits  the four kinds of trajectory from logits that a sampler saved
    Result            what evaluate, score and load_run return
    UserError         the one exception for bad input: a sentence that says what to do

`help(vestige.evaluate)` shows a function's keywords; they mean what the flags of the command line mean.
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from vestige.adapters.trajectory_tensors import trajectories_from_logits
    from vestige.api import (
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
    from vestige.collapse.callback import CollapseCallback
    from vestige.collapse.detector import CollapseDetector
    from vestige.errors import UserError
    from vestige.runs.evidence import read_evidence
    from vestige.runs.result import Result
    from vestige.unlearn.watch import Callback, Watch

__version__ = "0.1.0"
# Functions are verbs, packages are nouns: importing a package vestige.NAME would rebind a function of that name.
__all__ = [
    "Callback",
    "CollapseCallback",
    "CollapseDetector",
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
    "read_evidence",
    "score",
    "trajectories_from_logits",
]
# Where names that are not functions of api.py are; imported on first use like the others.
_ELSEWHERE = {
    "Callback": "vestige.unlearn.watch",
    "CollapseCallback": "vestige.collapse.callback",
    "CollapseDetector": "vestige.collapse.detector",
    "Result": "vestige.runs.result",
    "UserError": "vestige.errors",
    "Watch": "vestige.unlearn.watch",
    "read_evidence": "vestige.runs.evidence",
    "trajectories_from_logits": "vestige.adapters.trajectory_tensors",
}


def __getattr__(name: str) -> object:
    """The names of `__all__`, imported on first use: `import vestige` stays instant."""
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(_ELSEWHERE.get(name, "vestige.api")), name)
    raise AttributeError(f"module 'vestige' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
