"""Numbers that a function of all scores, or an evaluator in code, adds to a run: in a suite they are metrics, too."""

from __future__ import annotations

from vestige.suites.registry import Inputs, handler
from vestige.types import Score

FROM_CODE = "from_code"


@handler(FROM_CODE)
def from_code(inputs: Inputs) -> Score:
    """A number that code adds to a run (postprocess, evaluators)."""
    return Score(None, reason="the code that gave it a value did not do so this time")
