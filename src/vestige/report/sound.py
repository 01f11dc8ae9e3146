"""Files written by hand, by old versions or by other tools may lack what a reader expects: such a run is left out, and
the report says so, instead of failing as a whole."""

from __future__ import annotations

from collections.abc import Callable

from vestige.errors import UserError
from vestige.report import attacks_part, curves_part, depth_part, eval_part, rows_part
from vestige.report.gather import Found, Source

STRANGE = (UserError, KeyError, TypeError, ValueError, AttributeError, IndexError)


def _evaluation(s: Source) -> None:
    for read in (eval_part.met, eval_part.provenance, eval_part.values, eval_part.top):
        read(s)
    runs = {"m": [s]}
    rows_part.says(runs, "m", None, 1)
    rows_part.likely(runs)
    rows_part.curves(runs)
    curves_part.trajectories(s, "m")


def _depth(s: Source) -> None:
    depth_part.met(s)
    depth_part.end("retain", s)
    depth_part.layers(s, "m", len(s.data["records"]))


def _stress(s: Source) -> None:
    both = {"model": "m", "retain": "r"}
    attacks_part.met(s)
    attacks_part.curves(s, both, both)


def _sweep(s: Source) -> None:
    plan = s.data["plan"]
    list(plan.get("attacks") or ())


TRIALS: dict[str, Callable[[Source], object]] = {
    "eval": _evaluation,
    "trajectory": _evaluation,
    "depth": _depth,
    "stress": _stress,
    "sweep": _sweep,
    "collapse": curves_part.collapse,
}


def keep_sound(found: Found) -> None:
    """Every source read once on trial; those that cannot be understood are left out and named."""
    kept = []
    for source in found.sources:
        try:
            TRIALS.get(source.kind, lambda s: None)(source)
        except STRANGE as error:
            why = f"it does not have the form of a run of this kind ({source.kind}; {type(error).__name__}: {error})"
            found.problem(f"{source.path.name} was left out: {why}.", source.path)
        else:
            kept.append(source)
    found.sources[:] = kept
