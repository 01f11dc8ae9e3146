"""Numbers in words: what a value says about whether the model still knows. One short clause each."""

from __future__ import annotations

import math
from collections.abc import Callable


def _bands(*bands: tuple[float, str]) -> Callable[[float], str]:
    """The words of the first band whose upper end is not below the value."""

    def read(value: float) -> str:
        return next(words for top, words in bands if value <= top)

    return read


END = math.inf

_auc = _bands(
    (0.35, "forget rows look stranger than fresh ones (over-forgotten)"),
    (0.45, "forget rows look slightly stranger than fresh ones"),
    (0.55, "an attacker cannot tell forget rows from fresh ones"),
    (0.75, "an attacker has some success in telling forget rows"),
    (0.95, "an attacker usually recognises forget rows"),
    (END, "an attacker recognises forget rows: still known"),
)
_probability = _bands((0.05, "hardly likely"), (0.3, "somewhat likely"), (0.7, "likely"), (END, "near certain: known"))
_share = _bands((0.3, "little"), (0.6, "part"), (0.9, "most"), (END, "nearly all"))

READINGS: dict[str, Callable[[float], str]] = {
    "probability": _probability,
    "probability_confidence_ordered": _probability,
    "probability_w_options": _bands(
        (0.3, "prefers wrong options"), (0.6, "undecided between options"), (END, "prefers the truth")
    ),
    "loss": _bands((0.5, "low loss: known"), (2.0, "moderate loss"), (END, "high loss: not known")),
    "exact_memorization": lambda v: f"{_share(v)} of the tokens are its first choice",
    "extraction_strength": lambda v: f"finishes {_share(v)} of the answer by itself",
    "extraction_strength_decided": lambda v: f"{_share(v)} of the denoising is free of misses",
    "bleu": lambda v: f"shares {_share(v)} of its word sequences with the reference",
    "rouge": lambda v: f"says {_share(v)} of the reference",
    "truth_ratio": _bands((0.3, "tells right from wrong poorly"), (0.7, "in between"), (END, "strong")),
    "ks_test": _bands(
        (0.001, "clearly not like the retain model"),
        (0.05, "not like the retain model"),
        (END, "not distinguishable from the retain model"),
    ),
    "hm_aggregate": _bands(
        (0.1, "at least one ability is gone"), (0.4, "low: compare with the retain model"), (END, "abilities are there")
    ),
    "privleak": _bands(
        (-20, "leaks: forget rows still recognisable (under-forgotten)"),
        (20, "about what the retain model shows"),
        (END, "forget rows stand out as strange (over-forgotten)"),
    ),
    "rel_diff": lambda v: f"{abs(v):.0f} % {'above' if v >= 0 else 'below'} the reference",
    "uds": _bands(
        (0.2, "nearly all of it is still in the layers"),
        (0.5, "much of it is still in the layers"),
        (0.8, "some of it is still in the layers"),
        (END, "gone from the layers, as in the retain model"),
    ),
    "classifier_prob": _bands(
        (0.3, "rarely in that class"), (0.7, "sometimes in that class"), (END, "mostly in that class")
    ),
}

# The same handler says different things by how it aggregates.
TRUTH_RATIO_READINGS: dict[str, Callable[[float], str]] = {
    "closer_to_1_better": _bands(
        (0.4, "right and wrong answers far apart"),
        (0.7, "right and wrong answers some way apart"),
        (END, "right and wrong answers nearly alike (compare with the retain model)"),
    ),
    "true_better": _bands(
        (0.3, "does not prefer the truth"), (0.6, "prefers the truth somewhat"), (END, "prefers the truth")
    ),
    "prob_mean": _bands((0.45, "prefers wrong answers"), (0.55, "undecided"), (END, "prefers the truth")),
}


def reading(handler: str, value: float | None, aggregator: str = "", against_reference: bool = True) -> str:
    """A value in words.

    >>> reading("mia_loss", 0.99)
    'an attacker recognises forget rows: still known'
    >>> reading("mia_loss", None)
    ''
    """
    if value is None or math.isnan(value):
        return ""
    if handler.startswith("mia_"):
        return _auc(value)
    if handler == "truth_ratio":
        return TRUTH_RATIO_READINGS.get(aggregator, READINGS["truth_ratio"])(value)
    read = READINGS.get(handler)
    words = read(value) if read else ""
    return words if against_reference else f"{words} (against 0.5, no retain model)"
