"""Which steps of a denoising run are reported, and what many runs say about each step.

The guide can be read in two ways where only some passes are reported (`fixation_steps_count`):

- `captures`: a trajectory is made of the reported passes alone, and a token is fixed in the last of them at or before
  the pass that wrote it. This is what a sampler gives that keeps no other logits. Values along fixation trajectories
  depend on the interval.
- `passes`: a trajectory is made of all passes, and some of its steps are reported, always the last one. Every value is
  the one that a report of all passes has at the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vestige import numeric
from vestige.errors import UserError
from vestige.types import Array, Trace

FIXATION_COUNTS = ("captures", "passes")
STATISTICS = ("mean", "std", "median", "p25", "p75", "min", "max", "ci_low", "ci_high")
NORMAL_95 = 1.96


def captures(committed: Sequence[int] | Array, interval: int) -> list[int]:
    """The passes to report when one is wanted for every `interval` decided tokens.

    A pass is taken once the number of tokens decided before it reaches the next multiple of the interval.

    >>> captures([0, 3, 6, 9, 12], interval=4)
    [0, 2, 3, 4]
    """
    if isinstance(interval, bool) or int(interval) != interval or interval < 1:
        raise UserError(f"trajectory_sample_interval must be a whole number of tokens, 1 or more; got {interval!r}.")
    taken, due = [], 0
    for step, count in enumerate(committed):
        if count >= due:
            taken.append(step)
            due = (int(count) // int(interval) + 1) * int(interval)
    return taken


def reported_steps(trace: Trace, interval: int) -> list[int]:
    """The passes to report of a trajectory made of all passes: the captured ones, and the last."""
    return sorted({*captures(trace.committed, interval), trace.steps - 1})


def thin(trace: Trace, interval: int) -> Trace:
    """The trace with only its captured passes; `committed` then says how many tokens stood before each of them.

    Fixation is counted in captures: the last one at or before the pass that wrote the token, because later ones see it.
    """
    kept = np.asarray(captures(trace.committed, interval), dtype=np.int64)
    written = np.searchsorted(kept, trace.fixed, side="right") - 1
    return replace(
        trace,
        fixed=np.where(trace.fixed < 0, -1, written),
        committed=trace.committed[kept],
        accepted=trace.accepted[np.append(kept[1:] - 1, trace.steps - 1)],  # as it stood when the next capture came
        logprob=trace.logprob[:, kept],
        **{name: getattr(trace, name)[kept] for name in ("canvas", "proposal", "top1", "mean", "std")},
    )


def extend(values: Sequence[float | None] | Array, steps: int) -> Array:
    """One run's curve made `steps` long: a run that ended earlier keeps its last value.

    >>> extend([0.5, 0.25], 4).tolist()
    [0.5, 0.25, 0.25, 0.25]
    """
    curve = np.asarray(values, dtype=float)
    if len(curve) > steps:
        raise UserError(f"A curve of {len(curve)} steps does not fit into {steps}: extend to the longest run.")
    rest = np.full(steps - len(curve), curve[-1] if len(curve) else np.nan)
    return np.concatenate([curve, rest])


def distribution(values: Sequence[Sequence[float | None]] | Array) -> dict[str, Array]:
    """What (runs, steps) values say of each step. Missing ones (None, NaN) are left out; a step without any is NaN.

    Population deviation, linear percentiles, and mean +- 1.96 deviations / sqrt(n).

    >>> {k: v.tolist() for k, v in distribution([[1.0, None], [3.0, None]]).items() if k in ("mean", "std")}
    {'mean': [2.0, nan], 'std': [1.0, nan]}
    """
    table = np.asarray(values, dtype=float)
    if table.ndim != 2:
        raise UserError(f"distribution needs a (runs, steps) table, got shape {table.shape}.")
    if len(table) and not np.isnan(table).any():
        return _describe(table)
    columns = [_describe(c[~np.isnan(c)]) for c in table.T]  # each step has its own number of values
    return {name: np.asarray([c[name] for c in columns], dtype=float) for name in STATISTICS}


def _describe(values: Array) -> dict[str, Array]:
    """The statistics over the first axis."""
    if not len(values):
        return dict.fromkeys(STATISTICS, np.asarray(np.nan))
    columns = values.reshape(len(values), -1).T
    mean, std = (np.reshape([fold(c) for c in columns], values.shape[1:]) for fold in (numeric.mean, numeric.spread))
    p25, median, p75 = np.percentile(values, [25, 50, 75], axis=0)
    half = NORMAL_95 * std / np.sqrt(len(values))
    found = (mean, std, median, p25, p75, values.min(axis=0), values.max(axis=0), mean - half, mean + half)
    return dict(zip(STATISTICS, (np.asarray(x) for x in found), strict=True))
