"""Reading a denoising run: which forward pass each position is looked at, and how much of the window counts.

A trajectory is a map sigma(step, position) -> pass. What a Trace keeps of a position depends on that position's logits
alone, so a trajectory only re-indexes planes: no vocabulary axis, and every ordinary metric works on the result.

    Trace --follow(trajectory)--> Path --stats(answer, length)--> TokenStats (steps, tokens) --any metric--> (steps,)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vestige import numeric
from vestige.errors import UserError, unknown_name
from vestige.types import ARRAY_FIELDS, IGNORE, Array, TokenStats, Trace

# Pass to look at, from a position's fixation pass, the step (as a column) and the last step's number. Whole numbers
# only: floor(F * (s / S)) in floats is one too small for hundreds of small (F, s, S).
TRAJECTORIES: dict[str, Callable[[Array, Array, int], Array]] = {
    "steps": lambda fixed, step, last: step,
    "fixation_start": lambda fixed, step, last: np.minimum(step, fixed),
    "fixation_end": lambda fixed, step, last: np.maximum(0, fixed - last + step),
    "fixation_ratio": lambda fixed, step, last: fixed * step // max(last, 1),
    # The guide's prose describes two others: `fixation` walks back from the fixation pass, `ratio` never reaches it.
    "fixation": lambda fixed, step, last: np.maximum(0, fixed - step),
    "ratio": lambda fixed, step, last: fixed * step // (last + 1),
}
DEFAULT_TRAJECTORIES = ("steps", "fixation_start", "fixation_end", "fixation_ratio")
VIEWS = ("full", "eos")
ALIGNMENTS = ("causal", "same_position")
TEXT_SOURCES = ("logits_argmax", "canvas_plus_step_x0", "committed_only")


def spread_of(result: Mapping[str, Any], view: str, trajectory: str, metric: str) -> Mapping[str, Any]:
    """How the rows of a curve are spread, step by step; nothing where they are spread before an aggregator.

    `result`: a trajectory metric of a result file, `view` empty where it has no level of views.

    >>> spread_of({"step_distribution": {"steps": {"rouge": {"mean": [0.5]}}}}, "", "steps", "rouge")
    {'mean': [0.5]}
    """
    if metric in (result.get("before_aggregator") or {}):
        return {}
    found: Any = result.get("step_distribution")
    for key in (view, trajectory, metric):
        if key:
            found = (found or {}).get(key)
    return found if isinstance(found, Mapping) else {}


def fixation(fixed: Sequence[int] | Array, steps: int) -> Array:
    """Fixation passes made fit for a map: a position never decided (-1) counts as decided in the last pass.

    >>> fixation([0, 2, -1], steps=4).tolist()
    [0, 2, 3]
    """
    if steps < 1:
        raise UserError(f"A trajectory needs at least one step, got {steps}: the sampler did not report any step.")
    passes = np.asarray(fixed, dtype=np.int64)
    odd = passes[(passes < -1) | (passes >= steps)]
    if odd.size:
        raise UserError(
            f"Fixation steps must lie in [0, {steps - 1}] (-1: never decided), got {int(odd[0])}: "
            "count forward passes from 0, or captures if only some passes were kept."
        )
    return np.where(passes < 0, steps - 1, passes)


def sigma(name: str, fixed: Sequence[int] | Array, steps: int) -> Array:
    """The pass to look at for each (step, position).

    >>> sigma("fixation_ratio", [3, 0], steps=4).tolist()
    [[0, 0], [1, 0], [2, 0], [3, 0]]
    """
    if name not in TRAJECTORIES:
        raise UserError(f"Unknown trajectory '{name}' (known: {', '.join(TRAJECTORIES)})")
    passes = fixation(fixed, steps)
    source = TRAJECTORIES[name](passes, np.arange(steps)[:, None], steps - 1)
    return np.broadcast_to(source, (steps, len(passes))).copy()


def views(spec: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """Which parts of the window to report: a name, several, or nothing said (both).

    >>> views(), views("eos")
    (('full', 'eos'), ('eos',))
    """
    several = spec if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
    names = [str(name) for name in several] if spec else VIEWS
    for name in names:
        if name not in VIEWS:
            raise unknown_name("view", name, VIEWS, "Set trajectory_config.include_views to one or both.")
    return tuple(dict.fromkeys(names))


def effective_length(final: Sequence[int] | Array, eos_ids: int | Sequence[int] | None) -> int:
    """How many positions the finished text uses: up to its first end token, that token included.

    One number a continuation: the same for every step, trajectory and metric.

    >>> effective_length([7, 8, 2, 2], eos_ids=2), effective_length([7, 8, 9, 9], eos_ids=[2, 5])
    (3, 4)
    """
    ends = np.isin(np.asarray(final), [] if eos_ids is None else np.atleast_1d(np.asarray(eos_ids)))
    return int(ends.argmax()) + 1 if ends.any() else len(ends)


def view_length(view: str, final: Sequence[int] | Array, eos_ids: int | Sequence[int] | None) -> int:
    """How many positions a view covers."""
    return effective_length(final, eos_ids) if views(view) == ("eos",) else len(final)


def window(labels: Sequence[int], length: int, alignment: str = "same_position") -> tuple[int, ...]:
    """An answer's tokens laid on the window's rows, IGNORE where there is none.

    A denoiser's row l predicts token l (`same_position`). `causal` pairs row l with token l + 1, as published code does
    by mistake: it is kept to reproduce its numbers. Its last row, and the answer's first token, score nothing.

    >>> window([5, 6], 4), window([5, 6, 7], 3, "causal")
    ((5, 6, -100, -100), (6, 7, -100))
    """
    laid = tuple(labels[:length]) + (IGNORE,) * max(0, length - len(labels))
    return laid if _same_position(alignment) else (*laid[1:], *(IGNORE,) * bool(length))


def scored_length(length: int, alignment: str = "same_position") -> int:
    """How many rows of a view of `length` positions have their label inside it: under `causal` one fewer.

    >>> scored_length(10), scored_length(10, "causal"), scored_length(1, "causal")
    (10, 9, 0)
    """
    return length if _same_position(alignment) else max(0, length - 1)


def _same_position(alignment: str) -> bool:
    if alignment not in ALIGNMENTS:
        raise UserError(f"logit_alignment must be 'causal' or 'same_position', got '{alignment}'")
    return alignment == "same_position"


@dataclass(frozen=True)
class Path:
    """A trace read along one trajectory. Each plane is re-indexed once, when first asked for."""

    trace: Trace
    source: Array  # (steps, positions) the pass each cell shows

    @property
    def steps(self) -> int:
        return int(self.source.shape[0])

    def _along(self, plane: Array) -> Array:
        index = np.broadcast_to(self.source, (*plane.shape[:-2], *self.source.shape))
        return np.take_along_axis(plane, index, axis=-2)

    @cached_property
    def top1(self) -> Array:
        return self._along(self.trace.top1)

    @cached_property
    def mean(self) -> Array:
        return self._along(self.trace.mean)

    @cached_property
    def std(self) -> Array:
        return self._along(self.trace.std)

    @cached_property
    def logprob(self) -> Array:
        return self._along(self.trace.logprob)

    @cached_property
    def seen(self) -> Array:
        """Where the sampler ever looked: a block sampler that meets the end leaves later blocks alone."""
        return np.asarray((self.trace.proposal >= 0).any(axis=0))

    @cached_property
    def decided(self) -> Array:
        """Where the pass shown already saw a decided token: the pass before it left one standing there."""
        before = np.maximum(self.source - 1, 0)
        return (self.source > 0) & np.take_along_axis(self.trace.accepted, before, axis=0)

    def stats(self, stream: int = 0, length: int | None = None) -> TokenStats:
        """What the model thought of one answer at every step: (steps, tokens), labelled positions only."""
        labels = self.trace.labels[stream, :length]
        at = np.flatnonzero((labels != IGNORE) & self.seen[:length])
        shape = (self.steps, len(at))
        order = fixation(self.trace.fixed, self.trace.steps)[at]
        return TokenStats(
            label=np.broadcast_to(labels[at], shape),
            top1=self.top1[:, at],
            logprob=self.logprob[stream][:, at],
            mean=self.mean[:, at],
            std=self.std[:, at],
            order=np.broadcast_to(order, shape),
            steps=self.trace.steps,
        )

    def in_decision_order(self, labels: Sequence[int], stream: int, length: int, alignment: str) -> TokenStats:
        """What `stats` has, for extraction strength: each label counted at the pass that decided its own position.

        Under `causal` the first choice for label l is that of row l - 1, and label 0 is compared with row 0, as
        published code has it. `labels` is the answer itself: a causal window does not hold its first token.
        """
        if _same_position(alignment):
            return self.stats(stream, length)
        laid = np.asarray(window(labels, self.source.shape[1]))[:length]
        rows = np.maximum(np.arange(len(laid)) - 1, 0)
        at = np.flatnonzero((laid != IGNORE) & self.seen[: len(laid)] & self.seen[rows])
        shape, rows = (self.steps, len(at)), rows[at]
        # log p of label 0 under row 0 was never asked for. Nothing here reads it, but broken logits must show.
        unasked = np.where(np.isnan(self.mean[:, rows]), np.nan, 0.0)
        return TokenStats(
            label=np.broadcast_to(laid[at], shape),
            top1=self.top1[:, rows],
            logprob=np.where(at == 0, unasked, self.logprob[stream][:, rows]),
            mean=self.mean[:, rows],
            std=self.std[:, rows],
            order=np.broadcast_to(fixation(self.trace.fixed, self.trace.steps)[at], shape),
            steps=self.trace.steps,
        )

    def ids(self, source: str = "logits_argmax", length: int | None = None) -> list[Array]:
        """The text at every step, as token ids.

        `logits_argmax`: the first choice everywhere. `canvas_plus_step_x0`: the token already written, else what the
        pass would write. `committed_only`: only tokens already written.
        """
        if source not in TEXT_SOURCES:
            raise unknown_name("text source", source, TEXT_SOURCES, "(rouge_prediction_source)")
        if source == "logits_argmax":
            return [row[row >= 0] for row in self.top1[:, :length]]
        canvas, stands = self._along(self.trace.canvas)[:, :length], self.decided[:, :length]
        if source == "committed_only":
            return [row[there] for row, there in zip(canvas, stands, strict=True)]
        both = np.where(stands, canvas, self._along(self.trace.proposal)[:, :length])
        return [row[row >= 0] for row in both]


def follow(trace: Trace, trajectory: str, steps: Sequence[int] | None = None) -> Path:
    """A trace along a named trajectory, at some of its steps or at all: make it once, then ask it for any answer, view
    or text.
    """
    source = sigma(trajectory, trace.fixed, trace.steps)
    return Path(trace, source if steps is None else source[steps])


def read(trace: Trace, stream: int = 0, trajectory: str = "steps", length: int | None = None) -> TokenStats:
    """One answer along one trajectory, for a single look; `follow` is for several."""
    return follow(trace, trajectory).stats(stream, length)


def at_step(t: TokenStats, step: int) -> TokenStats:
    """One step of a (steps, tokens) reading, as views into it."""
    if not 0 <= step < len(t.top1):
        raise UserError(f"step_index {step} out of range [0, {len(t.top1) - 1}]")
    return replace(t, **{name: getattr(t, name)[step] for name in (*ARRAY_FIELDS, "order")})


def for_steps(t: TokenStats, steps: int) -> TokenStats:
    """A (steps, tokens) reading made `steps` long: a run that ended earlier keeps its last step.

    >>> from vestige.types import stats
    >>> for_steps(stats(logprob=[[-1.0], [-2.0]]), 3).logprob[:, 0].tolist()
    [-1.0, -2.0, -2.0]
    """
    at = np.minimum(np.arange(steps), len(t.top1) - 1)
    # Contiguous, so that a sum over tokens adds in the order in which it does at one step alone.
    top1, logprob, mean, std = (np.ascontiguousarray(x[at]) for x in (t.top1, t.logprob, t.mean, t.std))
    label, order = (np.broadcast_to(x[0], top1.shape) for x in (t.label, t.order))  # the same at every step
    return replace(t, label=label, top1=top1, logprob=logprob, mean=mean, std=std, order=order)


def in_text_order(t: TokenStats) -> TokenStats:
    """The same statistics with tokens counted by position, for suffix extraction strength.

    >>> from vestige.types import stats
    >>> in_text_order(replace(stats(hit=[1, 1]), order=np.array([7, 3]), steps=9)).steps
    2
    """
    return replace(t, order=np.broadcast_to(np.arange(t.tokens), t.top1.shape), steps=t.tokens)


# ---- Which steps of a denoising run are reported, and what many runs say about each step --------------------------
#
# The guide can be read in two ways where only some passes are reported (`fixation_steps_count`):
#
# - `captures`: a trajectory is made of the reported passes alone, and a token is fixed in the last of them at or before
#   the pass that wrote it. This is what a sampler gives that keeps no other logits. Values along fixation trajectories
#   depend on the interval.
# - `passes`: a trajectory is made of all passes, and some of its steps are reported, always the last one. Every value
#   is the one that a report of all passes has at the same step.

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


# ---- Decisions that are taken back: what DiffusionGemma accepted on its way and does not keep ---------------------
#
# Each pass decides afresh which positions it accepts, so a position has a first acceptance, the beginning of its final
# unbroken run of acceptances (the one trajectories use), and acceptances taken back in between.


def first_accepted(accepted: Array) -> Array:
    """F_first: the first pass that accepted each position; -1: none did. `accepted` is (passes, positions).

    >>> first_accepted(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], bool)).tolist()
    [1, 2, -1]
    """
    return np.where(accepted.any(axis=0), accepted.argmax(axis=0), -1)


def revoked(accepted: Array) -> Array:
    """How often an acceptance of each position was taken back by the next pass.

    >>> revoked(np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 1, 1]], bool)).tolist()
    [2, 0, 0]
    """
    return np.asarray((accepted[:-1] & ~accepted[1:]).sum(axis=0))


def written(trace: Trace) -> Array:
    """The token that stood accepted after each pass (passes, positions); -1 where none did."""
    return np.where(trace.accepted, trace.proposal, -1)


def ever_accepted(trace: Trace, labels: Array) -> Array:
    """Where the true token was accepted by some pass and later taken back: not accepted any more, or another token.

    The last pass can take back too: the text is its first choice, whatever was accepted before.
    """
    true = written(trace) == labels[None, :]
    lost = true & ~np.concatenate([true[1:], (trace.final == labels)[None, :]])
    return np.asarray(lost.any(axis=0))


@dataclass(frozen=True)
class Revision:
    """What became of one answer's tokens: counts over its labelled positions, and over the whole window."""

    tokens: int  # labelled positions that were looked at
    ever: int  # whose true token was accepted and later taken back
    hidden: int  # of those, not in the final text
    window: int  # positions looked at, labelled or not
    accepted: int  # of those, accepted by some pass
    taken_back: int  # of those, taken back at least once
    revoked: int  # acceptances taken back, all of them


def revision(trace: Trace, stream: int, length: int | None = None) -> Revision:
    """One answer's, in the first `length` positions of the window."""
    seen: Array = np.array((trace.proposal >= 0).any(axis=0))
    seen[len(seen) if length is None else length :] = False
    labels = trace.labels[stream] if len(trace.labels) else np.full(len(seen), IGNORE)
    scored = seen & (labels != IGNORE)
    ever = ever_accepted(trace, labels) & scored
    times = revoked(trace.accepted)[seen]
    once: Array = np.asarray(trace.accepted.any(axis=0))
    return Revision(
        tokens=int(scored.sum()),
        ever=int(ever.sum()),
        hidden=int((ever & (trace.final != labels)).sum()),
        window=int(seen.sum()),
        accepted=int(once[seen].sum()),
        taken_back=int((times > 0).sum()),
        revoked=int(times.sum()),
    )


def summary(found: Mapping[str, Revision]) -> dict[str, Any]:
    """The two numbers over rows, and what they are made of. A share of nothing is None."""
    rows: Sequence[Revision] = list(found.values())

    def total(name: str) -> int:
        return sum(int(getattr(r, name)) for r in rows)

    asked = [r for r in rows if r.tokens]
    return {
        "revoked": {"count": total("revoked"), "share": _share(total("taken_back"), total("accepted"))},
        "ever_accepted": {
            "rows": _share(sum(r.ever > 0 for r in asked), len(asked)),
            "tokens": _share(total("ever"), total("tokens")),
            "hidden_rows": _share(sum(r.hidden > 0 for r in asked), len(asked)),
            "hidden_tokens": _share(total("hidden"), total("tokens")),
        },
        "by_index": {i: vars(r) for i, r in found.items()},
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
