"""The axes of a comparison of unlearning methods: Mem, MIA, Privacy, Utility, utility_rel, Overall. Pure numbers.

Every part lies between 0 and 1, and 1 is good: forgotten, private, useful. An axis is a harmonic mean of its parts, and
the published one has a weakness: a similarity that was cut off at 0 makes its axis 0, and the axes above it, whatever
the rest says (99 of 150 published models have an Overall of 0.000000). So every axis can be had in two ways:

    published   parts as they are; 1e-12 keeps the division alive
    floored     a part below the floor counts as the floor, and the parts so raised are named

The floor is 0.05: about one standard error of a similarity of AUCs on 400 + 400 rows, so nothing that could be measured
is hidden. A floored axis is never below the floor, and orders models which the published one puts at 0 together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

EPS = 1e-12
FLOOR = 0.05

MEM = ("one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth")
MIA = ("s_loss", "s_zlib", "s_mink", "s_minkpp")
UTILITY = (
    "retain_q_prob", "retain_q_rouge", "retain_truth_ratio", "ra_q_prob", "ra_q_rouge", "ra_truth_ratio", "wf_q_prob",
    "wf_q_rouge", "wf_truth_ratio",
)  # fmt: skip
PARTS = (*MEM, *MIA, *UTILITY, "fluency", "uds")
AXES = ("mem", "privacy_mia", "privacy", "model_utility", "utility", "utility_rel", "overall", "overall_no_uds")

Value = float | None


@dataclass(frozen=True)
class Axes:
    """All axes of one model. What has no value is None, and `reasons` says why."""

    mem: Value = None
    privacy_mia: Value = None
    privacy: Value = None
    model_utility: Value = None
    utility: Value = None
    utility_rel: Value = None
    overall: Value = None
    overall_no_uds: Value = None  # the same without the depth score: Mem, MIA, utility_rel
    floor: float | None = None  # None: as published
    floored: tuple[str, ...] = ()  # the parts that were raised to the floor
    reasons: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in AXES}


def similarity(auc: Value, retain_auc: Value) -> Value:
    """s_x: how near an attack's AUC is to the retain model's; 1 is equal, 0 is as far as the AUC itself, or further.

    >>> similarity(0.3, 0.4), similarity(0.9, 0.4), similarity(0.3, 0.0)
    (0.75, 0.0, None)
    """
    if auc is None or retain_auc is None or retain_auc <= EPS:
        return None
    return float(np.clip(1 - abs(auc - retain_auc) / retain_auc, 0, 1))


def guarded_mean(values: Sequence[float]) -> float:
    """The published harmonic mean: 1e-12 added to each part, so that a zero gives next to nothing, not an error.

    >>> round(guarded_mean([1.0, 0.5]), 6), guarded_mean([0.0, 1.0]) < 1e-11
    (0.666667, True)
    """
    return len(values) / sum(1 / (v + EPS) for v in values)


def plain_mean(values: Sequence[float]) -> Value:
    """The harmonic mean without a guard; None when a part is not above 0, where it has no meaning.

    >>> plain_mean([0.5, 0.5]), plain_mean([0.0, 1.0])
    (0.5, None)
    """
    return None if min(values) <= 0 else len(values) / sum(1 / v for v in values)


def relative_utility(utility: float, full_utility: float) -> float:
    """Utility as a share of the full model's, not above 1: better than before unlearning is not rewarded.

    >>> round(relative_utility(0.35, 0.7), 9), relative_utility(0.8, 0.7)
    (0.5, 1.0)
    """
    return min(1.0, utility / (full_utility + EPS))


def axes(parts: Mapping[str, Value], full_utility: Value = None, floor: float | None = None) -> Axes:
    """The axes of one model from its parts (PARTS); `floor` as in the module's text, None for the published way."""
    raised = () if floor is None else tuple(p for p in PARTS if _below(parts.get(p), floor))
    have = {p: (floor if p in raised else parts.get(p)) for p in PARTS}
    out: dict[str, Value] = {}
    reasons: dict[str, str] = {}

    def mean(axis: str, names: Sequence[str], guarded: bool = True) -> None:
        """One harmonic mean, of parts or of axes already there; missing in, missing out, with a reason."""
        values = [have.get(n, out.get(n)) for n in names]
        known = [v for v in values if v is not None]
        missing = [n for n, v in zip(names, values, strict=True) if v is None]
        out[axis] = None if missing else (guarded_mean(known) if guarded else plain_mean(known))
        if missing:
            reasons[axis] = f"no {', '.join(missing)}"
        elif out[axis] is None:
            lost = [n for n, v in zip(names, known, strict=True) if v <= 0]
            reasons[axis] = f"{', '.join(lost)} not above 0: the plain harmonic mean has no value"

    mean("mem", MEM, guarded=False)
    mean("privacy_mia", MIA)
    mean("privacy", ("privacy_mia", "uds"))
    mean("model_utility", UTILITY)
    mean("utility", ("model_utility", "fluency"))
    utility = out["utility"]
    out["utility_rel"] = None
    if utility is None:
        reasons["utility_rel"] = "no utility"
    elif full_utility is None:
        reasons["utility_rel"] = "the full model's utility is not known"
    else:
        out["utility_rel"] = relative_utility(utility, full_utility)
    mean("overall", ("mem", "privacy", "utility_rel"))
    mean("overall_no_uds", ("mem", "privacy_mia", "utility_rel"), guarded=False)
    return Axes(**out, floor=floor, floored=raised, reasons=reasons)


def _below(value: Value, floor: float) -> bool:
    return value is not None and value < floor


def erased(rows: Sequence[Axes], below: float = 1e-6) -> int:
    """How many models have an Overall that is 0 to six decimals: those that one clipped part has erased."""
    return sum(1 for a in rows if a.overall is not None and a.overall < below)
