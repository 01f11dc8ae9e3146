"""Handlers by name: how a metric config turns into wants and into a score. A registry is a dict.

A handler is asked twice, with a model's work between: what it wants, and what the evidence amounts to. That is why it
never sees a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vestige.metrics.cards import CARDS, Card
from vestige.metrics.dialects import Dialect
from vestige.suites.steps import AnyScore
from vestige.types import Rows, Score, Text, TokenStats, Trace
from vestige.wants import ClassifierWant, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec


class MissingEvidence(KeyError):  # noqa: N818 - named for what it means
    """A score needs evidence this run has not collected."""


@dataclass(frozen=True, eq=False)
class Found(Mapping[str, Any]):
    """A mapping that names what is lacking. What it is given is not copied."""

    _given: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        if key not in self._given:
            raise MissingEvidence(key)
        return self._given[key]

    def __contains__(self, key: object) -> bool:
        return key in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


@dataclass
class Evidence:
    """All that was collected, by content key. Only `collect` makes it; scoring only reads it.

    Along a trajectory answers have a leading axis of steps, and a text is one for each step.
    """

    answers: Mapping[str, TokenStats] = field(default_factory=Found)
    texts: Mapping[str, Text | Sequence[Text]] = field(default_factory=Found)
    gradients: Mapping[str, float] = field(default_factory=Found)
    reference: Mapping[str, Mapping[str, TokenStats]] = field(default_factory=dict)  # by the second model's path
    classified: Mapping[str, float] = field(default_factory=Found)
    denoised: Mapping[str, Trace] = field(default_factory=Found)
    visible: Mapping[str, TokenStats] = field(default_factory=Found)  # diffusion models: every token in sight
    errors: Mapping[str, float] = field(default_factory=dict)  # standard errors of answers scored by a bound
    patched: Mapping[str, Mapping[str, TokenStats]] = field(default_factory=dict)  # by PatchInto.label


@dataclass(frozen=True)
class Words:
    """What reading token ids takes: texts along a trajectory are made when they are scored."""

    decode: Callable[[Sequence[int]], str]
    eos_ids: tuple[int, ...]


@dataclass
class Inputs:
    """What a handler may look at when it scores."""

    spec: MetricSpec
    dialect: Dialect
    data: Mapping[str, Rows]  # by access key
    evidence: Evidence
    parents: Mapping[str, AnyScore] = field(default_factory=dict)  # by access key
    references: Mapping[str, Mapping[str, AnyScore | None]] = field(default_factory=dict)  # file -> access key -> score
    words: Words | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)  # of a trajectory: which metric is missing, and why
    at_step: AtStep | None = None  # of a trajectory: runs a metric that wants a model, on the logits of one step

    @property
    def rows(self) -> Rows:
        """The one data set of a metric that has one."""
        return next(iter(self.data.values()))

    def reference(self, access_key: str) -> AnyScore | None:
        """The score a reference file holds under `access_key`, whichever file that is."""
        for scores in self.references.values():
            if access_key in scores:
                return scores[access_key]
        return None


# (a child that runs a model itself, a trajectory_reading.Moment, its parents, its references) -> its score
AtStep = Callable[["MetricSpec", Any, Mapping[str, Score], Mapping[str, Mapping[str, Score | None]]], Score]
WantsOf = Callable[["MetricSpec", Mapping[str, Rows], Dialect], Wants]


def no_wants(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    """Of metrics that are computed from other metrics alone."""
    return Wants()


@dataclass(frozen=True)
class Handler:
    """A handler as it was registered."""

    name: str
    function: Callable[[Inputs], AnyScore]
    wants: WantsOf = no_wants
    classify: Callable[[Inputs], list[ClassifierWant]] | None = None
    doc: str = ""
    live: Callable[..., Mapping[str, Any]] | None = None  # a metric that runs the model itself (open-unlearning form)
    steps: bool = False  # lets a step axis through; others are called once per step of a trajectory
    reads: tuple[str, ...] = ()  # of a token besides its log-probability: first (choice), spread (over the vocabulary)
    settings: tuple[str, ...] | None = None  # of its metrics; None: a plug-in's, which are not checked

    def score(self, inputs: Inputs) -> Score:
        """The score of one state of a model."""
        return cast("Score", self.function(inputs))


HANDLERS: dict[str, Handler] = {}
TRAJECTORY = "trajectory_metrics"  # the handler that follows others along a denoising path
DECIDED = "extraction_strength_decided"  # extraction strength in the order in which tokens were decided
ALIASES = {"forget_truth_ratio": "truth_ratio"}  # names in circulation in older guides


def canonical(name: str) -> str:
    """The name under which a handler is registered."""
    return name if name in HANDLERS else ALIASES.get(name, name)


Scorer = TypeVar("Scorer", bound=Callable[[Inputs], AnyScore])


def handler(
    name: str,
    wants: WantsOf = no_wants,
    classify: Callable[[Inputs], list[ClassifierWant]] | None = None,
    card: Card | None = None,
    steps: bool = False,
    reads: Sequence[str] = (),
    settings: Sequence[str] | None = None,
) -> Callable[[Scorer], Scorer]:
    """Registers a scoring function, and the card that says what it means. It stays a plain function of its inputs.

    `reads`: what it needs of a token besides its log-probability; a server may not tell it.
    `settings`: the settings that a metric of this handler may have; others are refused, unless this is None.
    `steps`: it gives StepScores for evidence with a step axis, so that a trajectory calls it once for all its steps.
    """

    def register(function: Scorer) -> Scorer:
        doc = (function.__doc__ or "").strip().splitlines()
        words = doc[0] if doc else ""
        known = None if settings is None else tuple(settings)
        HANDLERS[name] = Handler(
            name, function, wants, classify, words, steps=steps, reads=tuple(reads), settings=known
        )
        if card is not None:
            CARDS[name] = card
        return function

    return register


# Functions of all scores of a run that return more of them, or others; a suite names one (`postprocess: NAME`).
Postprocess = Callable[[Mapping[str, Score]], Mapping[str, Any]]
POSTPROCESS: dict[str, Postprocess] = {}
# Classes of plug-ins that evaluate a suite themselves, by the name that is its handler (adapters/evaluators.py).
EVALUATOR_CLASSES: dict[str, type] = {}


def postprocess(function: Postprocess) -> Postprocess:
    """Registers a function of a run's scores under its own name."""
    POSTPROCESS[function.__name__] = function
    return function
