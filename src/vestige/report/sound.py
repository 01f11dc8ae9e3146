"""Runs whose numbers contradict each other or name what there is not are left out, and the report says so.

Their form was checked when they were found (gather.py). What the parts below refuse is a UserError; anything else that
they raise is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Callable

from vestige.errors import UserError
from vestige.report import depth_part
from vestige.report.gather import FoundRuns
from vestige.store.kinds import RunSource

TRIALS: dict[str, Callable[[RunSource], object]] = {"depth": depth_part.values}


def keep_sound(found: FoundRuns) -> None:
    """Every source whose reader may refuse it is read once on trial; those refused are left out and named."""
    kept = []
    for source in found.sources:
        try:
            TRIALS.get(source.kind, lambda s: None)(source)
        except UserError as error:
            found.leave_out(f"{source.path.name} was left out: {error}", source.path)
        else:
            kept.append(source)
    found.sources[:] = kept
