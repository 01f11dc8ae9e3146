"""What a verdict may look at: measures, attacks over their budgets, damage, secrets. Plain numbers, no files.

In: nothing. Out: records. Made by the room judging from finished runs; read by compare/evidence.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vestige.compare.contrast import Contrast


@dataclass(frozen=True)
class Measure:
    """One metric of the audited model beside the references'. High means "knows" (of utility: able)."""

    metric: str
    test: str  # says | likely | membership | layers | utility | repetition | said_likelihood
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    retain: float | None = None
    full: float | None = None
    contrast: Contrast | None = None  # against the retain model; of damage against the full one
    secrets: bool = False  # rows that say their secret
    why: str = ""  # why a contrast is missing


@dataclass(frozen=True)
class AttackPoint:
    """One budget of an attack: the attacked model, and the control attacked alike (else the retain model as it is)."""

    budget: float | None
    value: float
    control: float | None
    contrast: Contrast | None = None


@dataclass(frozen=True)
class AttackCurve:
    """One attack on one metric, over all of its budgets."""

    attack: str
    metric: str
    teaches: bool  # it shows the model answers: without a control, what comes back proves nothing
    points: Sequence[AttackPoint]
    controlled: bool  # a retain model was attacked as well
    before: float | None = None
    unit: str = ""
    seeds: int = 1
    secrets: bool = False
    zero: str = ""  # what a budget of 0 stands for ("1 epoch")


@dataclass(frozen=True)
class SecretCounts:
    """How many rows have a secret, and of how many of them a text says it."""

    rows: int
    with_secret: int
    said: int
    lo: float | None = None  # of said / with_secret
    hi: float | None = None
    retain: int | None = None
    full: int | None = None


@dataclass(frozen=True)
class AuditFacts:
    """All of it, for one model."""

    measures: Sequence[Measure] = ()
    attacks: Sequence[AttackCurve] = ()
    utility: Measure | None = None
    fluency: Sequence[Measure] = ()
    secrets: SecretCounts | None = None
    has_retain: bool = False
    has_full: bool = False
    retain_runs: int = 1
    retain_spread: float = 0.0  # of several retain runs: the standard deviation between them, as a share of the way
    clustered: bool = False  # clusters of rows (authors, documents) are the unit, not rows
    commands: Mapping[str, str] = field(default_factory=dict)  # test -> the command that would make it
    notes: Sequence[str] = ()  # further limits, as sentences
