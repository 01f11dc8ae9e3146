"""The axes of a comparison of unlearning methods: Mem, MIA, Privacy, Utility, utility_rel, Overall. Pure numbers.

Every part lies between 0 and 1, and 1 is good: forgotten, private, useful. An axis is a harmonic mean of its parts, and
the published one has a weakness: a similarity that was cut off at 0 makes its axis 0, and the axes above it, whatever
the rest says (99 of 150 published models have an Overall of 0.000000). So every axis is available in two ways:

    published   parts as they are; 1e-12 keeps the division alive
    floored     a part below the floor counts as the floor, and the parts so raised are named

The floor is 0.05: about one standard error of a similarity of AUCs on 400 + 400 rows, so nothing that could be measured
is hidden. A floored axis is never below the floor, and orders models which the published one puts at 0 together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vestige.numeric import total

EPS = 1e-12
FLOOR = 0.05

MEM = ("one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth")
MIA = ("s_loss", "s_zlib", "s_mink", "s_minkpp")
UTILITY = (
    "retain_q_prob", "retain_q_rouge", "retain_truth_ratio", "ra_q_prob", "ra_q_rouge", "ra_truth_ratio", "wf_q_prob",
    "wf_q_rouge", "wf_truth_ratio",
)  # fmt: skip
PARTS = (*MEM, *MIA, *UTILITY, "fluency", "uds")


@dataclass(frozen=True)
class Axis:
    """One axis as data: computing it, its formula in print and its label all come from here."""

    key: str
    label: str
    parts: tuple[str, ...]  # of PARTS, or axes above it in AXIS_TABLE
    way: str  # plain: harmonic mean; guarded: with 1e-12 in each part; relative: a share of the full model's


AXIS_TABLE = (
    Axis("mem", "Mem", MEM, "plain"),
    Axis("privacy_mia", "MIA", MIA, "guarded"),
    Axis("privacy", "Privacy", ("privacy_mia", "uds"), "guarded"),
    Axis("model_utility", "MU", UTILITY, "guarded"),
    Axis("utility", "Utility", ("model_utility", "fluency"), "guarded"),
    Axis("utility_rel", "Utility (rel.)", ("utility",), "relative"),
    Axis("overall", "Overall", ("mem", "privacy", "utility_rel"), "guarded"),
    Axis("overall_no_uds", "Overall without UDS", ("mem", "privacy_mia", "utility_rel"), "plain"),
)
AXES = tuple(axis.key for axis in AXIS_TABLE)

PART_LABELS: dict[str, str] = {
    "one_minus_es": "1 - ES",
    "one_minus_em": "1 - EM",
    "one_minus_paraprob": "1 - ParaProb",
    "one_minus_truth": "1 - Truth Ratio",
    "s_loss": "s_LOSS",
    "s_zlib": "s_ZLib",
    "s_mink": "s_Min-K",
    "s_minkpp": "s_Min-K++",
    "retain_q_prob": "Retain Prob",
    "retain_q_rouge": "Retain ROUGE",
    "retain_truth_ratio": "Retain Truth Ratio",
    "ra_q_prob": "Real Authors Prob",
    "ra_q_rouge": "Real Authors ROUGE",
    "ra_truth_ratio": "Real Authors Truth Ratio",
    "wf_q_prob": "World Facts Prob",
    "wf_q_rouge": "World Facts ROUGE",
    "wf_truth_ratio": "World Facts Truth Ratio",
    "fluency": "Fluency",
    "uds": "UDS",
}
LABELS: dict[str, str] = {**PART_LABELS, **{axis.key: axis.label for axis in AXIS_TABLE}}

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
    fluent: bool = True  # False: Utility is the model utility alone
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
    return len(values) / total(1 / (v + EPS) for v in values)


def plain_mean(values: Sequence[float]) -> Value:
    """The harmonic mean without a guard; None when a part is not above 0, where it has no meaning.

    >>> plain_mean([0.5, 0.5]), plain_mean([0.0, 1.0])
    (0.5, None)
    """
    return None if min(values) <= 0 else len(values) / total(1 / v for v in values)


def relative_utility(utility: float, full_utility: float) -> float:
    """Utility as a share of the full model's, not above 1: better than before unlearning is not rewarded.

    >>> round(relative_utility(0.35, 0.7), 9), relative_utility(0.8, 0.7)
    (0.5, 1.0)
    """
    return min(1.0, utility / (full_utility + EPS))


def axes(
    parts: Mapping[str, Value],
    full_utility: Value = None,
    floor: float | None = None,
    fluent: bool = True,
    full_reason: str = "the full model's utility is not known",
) -> Axes:
    """The axes of one model from its parts (PARTS); `floor` as in the module's text, None for the published way.

    `fluent`: whether fluency was measured in any of the models that are shown together. Where it was not, Utility is
    the model utility, by one definition for all of them. `full_reason`: why `full_utility` is None.
    """
    raised = () if floor is None else tuple(p for p in PARTS if _below(parts.get(p), floor))
    have: dict[str, Value] = {p: (floor if p in raised else parts.get(p)) for p in PARTS}
    out: dict[str, Value] = {}
    reasons: dict[str, str] = {}
    for axis in AXIS_TABLE:
        of_axis = {p: have.get(p, out.get(p)) for p in axis.parts if fluent or p != "fluency"}
        missing = [p for p, v in of_axis.items() if v is None]
        known = {p: v for p, v in of_axis.items() if v is not None}
        if missing:
            out[axis.key], reason = None, _why_missing(missing, reasons)
        elif axis.way == "relative":
            (utility,) = known.values()
            out[axis.key] = None if full_utility is None else relative_utility(utility, full_utility)
            reason = full_reason
        elif axis.way == "guarded":
            out[axis.key], reason = guarded_mean(list(known.values())), ""
        else:
            lost = [p for p, v in known.items() if v <= 0]
            out[axis.key] = plain_mean(list(known.values()))
            reason = f"{', '.join(lost)} not above 0: the plain harmonic mean has no value"
        if out[axis.key] is None:
            reasons[axis.key] = reason
    return Axes(**out, floor=floor, floored=raised, fluent=fluent, reasons=reasons)


def _why_missing(missing: Sequence[str], reasons: Mapping[str, str]) -> str:
    """What was not measured; of an axis that is itself missing, what it lacks.

    >>> _why_missing(["one_minus_es", "one_minus_em", "utility"], {"utility": "no fluency"})
    'no one_minus_es, one_minus_em; no fluency'
    """
    parts = [p for p in missing if p not in reasons]
    own = [f"no {', '.join(parts)}"] if parts else []
    return "; ".join(dict.fromkeys([*own, *(reasons[p] for p in missing if p in reasons)]))


def formula(axis: Axis) -> str:
    """An axis in print.

    >>> formula(AXIS_TABLE[2]), formula(AXIS_TABLE[5])
    ('Privacy = HM(MIA, UDS)', 'Utility (rel.) = min(1, Utility / Utility of the full model)')
    """
    names = [LABELS[p] for p in axis.parts]
    if axis.way == "relative":
        return f"{axis.label} = min(1, {names[0]} / {names[0]} of the full model)"
    return f"{axis.label} = HM({', '.join(names)})"


WAYS = {
    "plain": "Harmonic mean; it has no value when a part is not above 0.",
    "guarded": f"Harmonic mean with {EPS:g} added to each part: a part that is 0 makes it 0.",
    "relative": "Not above 1: better than before unlearning is not rewarded.",
}


def definitions() -> list[dict[str, object]]:
    """Every axis in plain data, for pages and tables: nobody types a formula or a label a second time."""
    return [
        {"key": a.key, "label": a.label, "formula": formula(a), "parts": list(a.parts), "words": WAYS[a.way]}
        for a in AXIS_TABLE
    ]


def _below(value: Value, floor: float) -> bool:
    return value is not None and value < floor


def erased(rows: Sequence[Axes], below: float = 1e-6) -> int:
    """How many models have an Overall that is 0 to six decimals: those that one clipped part has erased."""
    return sum(1 for a in rows if a.overall is not None and a.overall < below)
