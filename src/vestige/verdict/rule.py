"""Every threshold of the verdict, in one place, each with its reason. Nothing else in vestige has one.

The margin of layers was fixed on the tuning seed of the bench (docs/verdict.md); the others were chosen before the
bench, held on that seed, and kept. The bench's table was made on other seeds, and nothing was changed after it.
Callers: verdict/points.py, verdict/judge.py; the bench tries other values with `replace(RULE, margin=...)`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerdictRule:
    """Shares are of the way from the retain model (0) to the full model (1)."""

    margin: float = 0.2  # nearer than this to the retain model, on either side, counts as equal to it
    layers: float = 0.35  # the same of the depth score: it cuts off below 0, so models that never knew are above it
    most: float = 0.5  # more than half of what there was is still there: not forgotten, whatever else was found
    tail: float = 0.05  # of each one-sided test: equivalence is two of them
    power: float = 0.8  # with which probability something must be found to count as detectable
    kept: float = 0.8  # share of the full model's utility above which abilities are kept, and below which damaged
    repetition: float = 0.15  # share of repeated words beyond the reference's own: texts that run in circles
    likelihood: float = 0.5  # share of the reference's likelihood that texts may lose, read by the full model
    scale: float = 0.05  # full and retain model nearer than this: the measure tells nothing
    recites: float = 0.8  # says so much of the answers that no retain model is needed to see it
    fewest: int = 5  # clusters: with fewer, equality is never concluded


RULE = VerdictRule()

# The words, from the best to the worst that can be reported of forgetting; the last two are about something else.
TITLES = {
    "forgotten": "Forgotten",
    "looks_forgotten": "Looks forgotten, not tested deeply",
    "partly": "Partly",
    "not_forgotten": "Not forgotten",
    "damaged": "Damaged",
    "cannot_tell": "Cannot tell",
}
# What must have been tested, and found equal to the retain model, before anything is called forgotten.
TESTS = {
    "says": "what it says",
    "likely": "what it finds likely",
    "membership": "whether an attacker recognises the rows",
    "layers": "its layers",
    "teach": "attacks that teach",
    "disturb": "attacks that teach nothing",
}
DEEP = ("layers", "teach", "disturb")
