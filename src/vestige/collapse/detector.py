"""The collapse detector: trajectories in, numbers under W&B's names out, whatever computes the log-probabilities.

    sample turns -> columns -> cross matrix (a scorer) -> 29 numbers per label, and ours beside them

It keeps the running means between steps; `state_dict` carries them over a restart.

In: Rollouts of one step, and a scorer (collect/cross.py, or a trainer's own function). Out: numbers, verdicts and notes
per label. Callers: collapse/run.py for files, collapse/callback.py inside a trainer.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from vestige.collapse import sampling
from vestige.collapse.reasoning import Trajectory, Turn
from vestige.collect.cross import CrossLogProbs, CrossScorer, PairLogProbs, pairwise_scorer
from vestige.errors import UserError, reraise_ours, unknown_name
from vestige.metrics.collapse import (
    FIRST_TURN,
    RESAMPLES,
    TRAJECTORY,
    TURN,
    Cross,
    Ema,
    caveats,
    coverage,
    cross_of,
    extras,
    first_turn_coverage,
    intervals,
    label_metrics,
    permutation_null,
    should_compute,
    verdict,
)

log = logging.getLogger("vestige.collapse")

Scorer = Callable[[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], CrossLogProbs]
COLUMNS = ("auto", "group", "distinct", "sample")


@dataclass(frozen=True)
class CollapseSettings:
    """The `collapse_detection` block. The defaults are those of RAGEN's guide."""

    compute_freq: int = 5
    micro_batch_size: int = 128
    first_turn_enabled: bool = True
    multi_turn_enabled: bool = True
    turn_enabled: bool = False  # turns drawn evenly; RAGEN has the code but no switch
    num_samples: int | str = 64  # or "all"
    std_eps: float = 1e-3
    ema_decay: float = 0.9
    context_window_mode: str = "full"
    columns: str = "auto"  # a column is: a group (first turns) or a sampled turn (the others)
    seed: int = 0
    resamples: int = RESAMPLES  # behind intervals and the permutation null; 0: none
    parity: str | None = None  # ragen: its draws, its 29 numbers and nothing else
    on_error: str = "auto"  # files: raise; trainers: skip, which says it and goes on

    def __post_init__(self) -> None:
        rules = {
            "compute_freq": (_whole(self.compute_freq, 1), "a whole number from 1"),
            "micro_batch_size": (_whole(self.micro_batch_size, 1), "a whole number from 1"),
            "num_samples": (_whole(self.num_samples, 1) or str(self.num_samples).lower() == "all", "all or from 1"),
            "std_eps": (_number(self.std_eps) and self.std_eps >= 0, "0 or more"),
            "ema_decay": (_number(self.ema_decay) and 0 <= self.ema_decay <= 1, "from 0 to 1"),
            "resamples": (_whole(self.resamples, 0), "a whole number from 0"),
            "seed": (_whole(self.seed, 0), "a whole number from 0"),
        }
        for name, (kept, rule) in rules.items():
            if not kept:
                raise UserError(f"collapse_detection.{name} must be {rule}, it is {getattr(self, name)!r}.")
        for name, known in (("columns", COLUMNS), ("parity", (None, "ragen")), ("on_error", ("auto", "raise", "skip"))):
            if getattr(self, name) not in known:
                raise unknown_name(f"collapse_detection.{name}", str(getattr(self, name)), [k for k in known if k])

    @classmethod
    def from_config(cls, block: Mapping[str, object] | None) -> CollapseSettings:
        """From a `collapse_detection` block; names it does not know are refused."""
        given: dict[str, Any] = dict(block or {})
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("collapse_detection setting", str(name), known)
        if given.get("compute_freq", 0) is None:  # as our own files have it: not said
            del given["compute_freq"]
        return cls(**given)

    @property
    def count(self) -> int | None:
        return None if isinstance(self.num_samples, str) else self.num_samples

    @property
    def enabled(self) -> bool:
        return self.first_turn_enabled or self.multi_turn_enabled or self.turn_enabled


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class SampledRows:
    """One label: the turns looked at, the matrix, and the numbers made of it."""

    turns: tuple[Turn, ...]
    columns: tuple[tuple[int, ...], ...]  # the prompt of each column
    cross: Cross
    log_probs: CrossLogProbs
    metrics: dict[str, float | None]
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return verdict(self.metrics)


@dataclass
class Measured:
    """What one step gave. `metrics` has W&B's names and only numbers; what is missing has a reason."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    samples: dict[str, SampledRows] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)  # why turns have no reasoning, and how many
    turns: int = 0


class CollapseDetector:
    """Computes collapse metrics of a step's trajectories.

    Give a `scorer` (a CrossScorer, or anything with its call), or a `log_prob_fn` for trainers of another make:
    (prompts, reasonings), two lists of token ids -> for each pair the log-probabilities of the reasoning's tokens.
    """

    def __init__(
        self,
        settings: CollapseSettings | None = None,
        scorer: Scorer | None = None,
        log_prob_fn: PairLogProbs | None = None,
    ) -> None:
        self.settings = settings or CollapseSettings()
        if scorer is not None and log_prob_fn is not None:
            raise UserError("Give either a scorer or a log_prob_fn, not both.")
        if log_prob_fn is not None:
            scorer = pairwise_scorer(log_prob_fn, self.settings.micro_batch_size)
        self.scorer = scorer
        self.ema = Ema(self.settings.ema_decay)

    def should_compute(self, step: int) -> bool:
        return should_compute(step, self.settings.compute_freq, self.settings.enabled)

    def state_dict(self) -> dict[str, Any]:
        return self.ema.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The running means of an earlier run; the decay stays that of the settings."""
        self.ema = Ema.from_json(state)
        self.ema.decay = self.settings.ema_decay

    def compute(self, trajectories: Sequence[Trajectory], step: int = 1, seed: int | None = None) -> Measured:
        """The metrics of one step, whatever its number; ask `should_compute` first to keep a rhythm."""
        s = self.settings
        out = Measured(step)
        if s.context_window_mode != "full":
            out.reasons["all"] = "context_window_mode is not full: a turn's prompt is not what the model saw"
            return out
        if s.parity and any(t.group is None for m in trajectories for t in m.turns):
            out.reasons["all"] = "no group ids"
            return out
        every = [t for m in trajectories for t in m.turns]
        out.turns = len(every)
        out.left_out = dict(Counter(t.problem or "empty reasoning" for t in every if not t.z))
        out.metrics |= coverage([len(m.valid) for m in trajectories], [len(m.turns) for m in trajectories])
        self._labels(out, trajectories, s.seed if seed is None else seed)
        return out

    def _labels(self, out: Measured, trajectories: Sequence[Trajectory], seed: int) -> None:
        """Several turns first, first turns afterwards: the order RAGEN draws in."""
        s = self.settings
        legacy = np.random.RandomState(seed) if s.parity else None
        counts = [len(m.valid) for m in trajectories]
        for label, on in ((TRAJECTORY, s.multi_turn_enabled), (TURN, s.turn_enabled)):
            if on:
                start = time.perf_counter()
                draws = self._draw(label, counts, out.step, seed, legacy)
                self._label(out, label, [trajectories[m].valid[t] for m, t in draws], seed)
                name = "multi_turn" if label == TRAJECTORY else "turn"
                out.metrics[f"timing_s/collapse_{name}_step"] = time.perf_counter() - start
        if s.first_turn_enabled:
            start = time.perf_counter()
            firsts = [m.turns[0] for m in trajectories if m.turns and m.turns[0].turn == 0]
            if firsts:
                lengths = [len(t.z) for t in firsts]
                out.metrics |= first_turn_coverage(lengths)
                chosen = (
                    sampling.legacy_first_turns(lengths, s.count, legacy) if legacy is not None
                    else sampling.first_turns(lengths, s.count, sampling.generator(seed, out.step, FIRST_TURN))
                )  # fmt: skip
                self._label(out, FIRST_TURN, [firsts[i] for i in chosen], seed)
            elif all(name.startswith("timing_s/") for name in out.metrics):
                raise UserError("These rollouts have no first turns (turn 0), and nothing else is left to compute.")
            else:
                out.reasons[FIRST_TURN] = "these rollouts have no first turns (turn 0)"
            out.metrics["timing_s/collapse_first_turn_step"] = time.perf_counter() - start

    def _draw(
        self, label: str, counts: list[int], step: int, seed: int, legacy: np.random.RandomState | None
    ) -> list[sampling.IndexPair]:
        if legacy is not None:
            old = sampling.legacy_trajectory_turns if label == TRAJECTORY else sampling.legacy_even_turns
            return old(counts, self.settings.count, legacy)
        new = sampling.trajectory_turns if label == TRAJECTORY else sampling.even_turns
        return new(counts, self.settings.count, sampling.generator(seed, step, label))

    def _label(self, out: Measured, label: str, turns: list[Turn], seed: int) -> None:
        try:
            done = self._sampled(label, turns, out.step, seed)
        except Exception as error:  # of the model that scores, or of rollouts that do not fit; a trainer goes on
            reraise_ours(error)
            swallowed = self.settings.parity and isinstance(error, GroupMismatch)
            if not swallowed and self.settings.on_error != "skip":
                raise
            log.warning("%s: no collapse metrics at step %d: %s", label, out.step, error)
            out.reasons[label] = str(error)
            return
        if isinstance(done, str):
            out.reasons[label] = done
            return
        out.samples[label] = done
        out.metrics |= {f"{label}/{name}": value for name, value in done.metrics.items() if value is not None}

    def _sampled(self, label: str, turns: list[Turn], step: int, seed: int) -> SampledRows | str:
        """The numbers of some turns, or why there are none."""
        s = self.settings
        if not turns:
            return "no turn has reasoning"
        columns, own, notes = make_columns(turns, self._columns_for(label), strict=bool(s.parity))
        if len(columns) < 2:
            return f"all {len(turns)} sampled turns have one and the same prompt: there is nothing to compare with"
        if self.scorer is None:
            raise UserError("The detector has neither a scorer nor a log_prob_fn; give one of them.")
        found = self.scorer(columns, [t.z for t in turns])
        cross = cross_of(found.sums, found.lengths, own, columns)
        if not np.isfinite(cross.sums).all():
            return "the model gives some reasoning no finite log-probability"
        metrics, spans = numbers_of(cross, label, step, s, self.ema, seed)
        if s.parity:
            return SampledRows(tuple(turns), tuple(columns), cross, found, metrics)
        if len(turns) < 2:
            notes.append("one row only: no z-scores")
        notes += caveats(metrics, s.std_eps, spans)
        return SampledRows(tuple(turns), tuple(columns), cross, found, metrics, spans, tuple(notes))

    def _columns_for(self, label: str) -> str:
        if self.settings.columns != "auto":
            return self.settings.columns
        return "group" if label == FIRST_TURN else "sample"


StepNumbers = dict[str, float | None]


def numbers_of(
    cross: Cross, label: str, step: int, settings: CollapseSettings, ema: Ema, seed: int
) -> tuple[StepNumbers, dict[str, tuple[float, float]]]:
    """Every number of one matrix, and the intervals among them. The running means advance by this call."""
    metrics: StepNumbers = dict(label_metrics(cross, label, ema, settings.std_eps))
    if settings.parity:
        return metrics, {}
    rng = sampling.generator(seed, step, label + "/chance")
    if len(cross.sums) < 2:  # the spread of one row is 0, and what is divided by it means nothing
        metrics |= dict.fromkeys([m for m in metrics if m.startswith("mi_zscore")], None)
    metrics |= extras(cross) | permutation_null(cross, rng, settings.resamples)
    spans = intervals(cross, rng, settings.resamples)
    for name, (low, high) in spans.items():
        metrics |= {f"{name}_ci_low": low, f"{name}_ci_high": high}
    return metrics, spans


class GroupMismatch(UserError):  # noqa: N818 - named for what it found
    """Rows of one group have different prompts."""


def make_columns(
    turns: Sequence[Turn], how: str, strict: bool = False
) -> tuple[list[tuple[int, ...]], list[int], list[str]]:
    """The columns' prompts, each row's own column, and what had to be done about the groups.

    Groups are in the order of their numbers, as RAGEN's are. A group with different prompts is an error when strict;
    otherwise all columns are made by prompt, with a note.
    """
    if how == "sample":
        return [t.x for t in turns], list(range(len(turns))), []
    notes: list[str] = []
    if how == "group" and all(t.group is not None for t in turns):
        prompts: dict[str, tuple[int, ...]] = {}
        mixed = [t for t in turns if prompts.setdefault(str(t.group), t.x) != t.x]
        if not mixed:
            order = sorted(prompts, key=_natural)
            place = {g: j for j, g in enumerate(order)}
            return [prompts[g] for g in order], [place[str(t.group)] for t in turns], []
        words = f"group {mixed[0].group} holds different prompts (first at {mixed[0].where or 'a later row'})"
        if strict:
            raise GroupMismatch(words)
        notes.append(f"{words}; columns are made by prompt instead of group")
    distinct = list(dict.fromkeys(t.x for t in turns))
    at = {x: j for j, x in enumerate(distinct)}
    return distinct, [at[t.x] for t in turns], notes


def _natural(name: str) -> tuple[int, int, str]:
    """Numbers by size, before words."""
    return (0, int(name), "") if name.lstrip("-").isdecimal() else (1, 0, name)


def model_scorer(model: Any, settings: CollapseSettings, **options: Any) -> CrossScorer:
    """A scorer for a Hugging Face model; `micro_batch_size` is how many reasonings share a packed row."""
    return CrossScorer(model, rows_together=settings.micro_batch_size, **options)
