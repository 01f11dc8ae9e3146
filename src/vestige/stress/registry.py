"""An attack is one record: its name, what it does, what its budget counts, its settings, and the function.

    ATTACKS   name -> record; `stress`, `sweep`, the help text, the files of a run and plug-ins all read it

Nothing heavy is imported here or where records are made: the driver of a sweep and --help need no torch.

There are three kinds, by what is attacked. A weights attack makes a copy of a checkpoint (or says how the same files
are to be read), so a sweep can evaluate it on every suite. A prompt attack changes the question. An answers attack
asks more than once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, unknown_name

if TYPE_CHECKING:
    from vestige.engine.config import RunConfig
    from vestige.models.args import ModelArgs
    from vestige.stress.copies import AttackLesson


@dataclass(frozen=True)
class Setting:
    """What a plan may set of an attack, and of which type; YAML reads 1e-3 as text."""

    type: type  # object: anything
    positive: bool = False


@dataclass(frozen=True)
class Attacked:
    """An attacked checkpoint: where it is, how it must be loaded, and what a reader should know."""

    path: str
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # every one in effect, defaults and substitutes included
    compute_dtype: str | None = None  # what 4-bit layers multiply in


@dataclass(frozen=True)
class AttackTarget:
    """What a weights attack works on."""

    args: ModelArgs  # the checkpoint, and how it is loaded
    place: Path  # where a copy goes
    run: RunConfig  # the evaluation: its template, tokenizer and limit
    lesson: AttackLesson | None = None  # the rows that a teaching attack teaches

    @property
    def checkpoint(self) -> Path:
        """The files of the checkpoint: a directory, or a .gguf file."""
        from vestige.models.locate import locate

        place = locate(self.args)
        return place.gguf or place.directory


@dataclass(frozen=True)
class Attack:
    """The facts that every attack has."""

    name: str
    does: str  # in one line
    unit: str = ""  # what a budget counts; "": budgets mean nothing to it
    budgets: tuple[float, ...] = (1,)  # tried when none is given
    least: float = 0  # no budget is below it
    zero: str = ""  # what a budget of 0 stands for
    teaches: bool = False  # shows the model answers: without a control, what comes back proves nothing
    fewer_is_stronger: bool = False
    state: str = ""  # what `vestige meta` calls a model after it
    package: tuple[str, str] | None = None  # it works with this library, which comes with that extra
    imports: tuple[str, ...] = ()  # modules that take long to import

    def facts(self) -> dict[str, Any]:
        """What files of a run say of the attack, for those who read them without this registry (the report)."""
        return {
            "does": self.does,
            "unit": self.unit,
            "zero": self.zero,
            "teaches": self.teaches,
            "reverse": self.fewer_is_stronger,
        }

    def import_modules(self) -> None:
        """Imports in this process what each child that attacks would import anew."""
        for name in self.imports:
            with suppress(ImportError):  # the attack itself says what is missing
                import_module(name)

    def size(self, budget: float | None) -> str:
        """A budget in words."""
        from vestige.show.tables import amount

        if budget is None or not self.unit:
            return ""
        return self.zero if not budget and self.zero else amount(budget, self.unit)


@dataclass(frozen=True)
class WeightsAttack(Attack):
    """Makes an attacked checkpoint: make(target, **settings)."""

    make: Callable[..., Attacked] = field(kw_only=True)
    settings: Mapping[str, Setting] | None = None  # None: anything goes, the function decides
    check: Callable[[Mapping[str, Any]], None] | None = None  # refuses values that cannot work
    budget: str = ""  # the setting that a budget is
    flags: Callable[[Any, float], Mapping[str, Any]] | None = None  # settings that `vestige stress` has flags for
    # How the same files are to be read (settings -> flags of an evaluation); then no copy is made.
    reads: Callable[[Mapping[str, Any]], dict[str, str]] | None = None

    def settings_for(self, ask: Any, budget: float) -> dict[str, Any]:
        """The settings of one budget of a `vestige stress`."""
        if not self.budget:
            said: dict[str, Any] = {}
        else:
            known = (self.settings or {}).get(self.budget)
            said = {self.budget: budget if known is None or known.type is object else known.type(budget)}
        return {**(self.flags(ask, budget) if self.flags else {}), **said}

    def reading(self, settings: Mapping[str, Any]) -> dict[str, str]:
        return self.reads(settings) if self.reads else {}

    @property
    def all_settings(self) -> Mapping[str, Setting] | None:
        """With those of the lesson, where the attack teaches."""
        return None if self.settings is None else {**self.settings, **(LESSON if self.teaches else {})}


@dataclass(frozen=True)
class PromptAttack(Attack):
    """Asks differently: change(the configuration of a data set, budget, the user's folder) -> configuration."""

    change: Callable[[Mapping[str, Any], float, Path], dict[str, Any]] = field(kw_only=True)


@dataclass(frozen=True)
class AnswersAttack(Attack):
    """Asks more than once: measure(stress.run.Subject, budgets) -> rows of the results."""

    measure: Callable[[Any, Sequence[float]], Sequence[Any]] = field(kw_only=True)


# What a teaching attack teaches, as against how; every weights attack that teaches has these settings.
LESSON = {"examples": Setting(int, positive=True), "held_out": Setting(bool), "data": Setting(str)}
# A plug-in may also enter a plain function of (checkpoint, where to write the copy, **settings).
ATTACKS: dict[str, Any] = {}
OURS: dict[str, Attack] = {}  # those that vestige has itself; filled when all of them are entered


def register(record: Attack) -> Attack:
    """Enters a record under its name."""
    ATTACKS[record.name] = record
    return record


def attack(name: str, does: str = "", *, budget: str = "", **facts: Any) -> Callable[[Callable[..., Path]], Any]:
    """A weights attack from a plain function of (checkpoint, where to write the copy, **settings).

    Its settings are the function's other arguments, of the types of their defaults. `budget` names the one that the
    budgets of `vestige stress NAME=BUDGET,...` are; the other facts are fields of a record.
    """

    def enter(function: Callable[..., Path]) -> Callable[..., Path]:
        words = does or (inspect.getdoc(function) or "").split("\n")[0]
        known = _settings(function)
        if budget and known is not None and budget not in known:
            raise UserError(f"The budget '{budget}' of the attack '{name}' is not an argument of its function.")
        make = partial(_copied, name, function)
        register(WeightsAttack(name, words, make=make, settings=known, budget=budget, **facts))
        return function

    return enter


def _settings(function: Callable[..., Any]) -> dict[str, Setting] | None:
    """The arguments behind the first two, with types; None where any may be given."""
    arguments = list(inspect.signature(function).parameters.values())[2:]
    if any(a.kind is a.VAR_KEYWORD for a in arguments):
        return None
    return {a.name: Setting(type(a.default) if type(a.default) in WORDS else object) for a in arguments}


# How the type of a setting is called in messages.
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _copied(name: str, function: Callable[..., Path], target: AttackTarget, **settings: Any) -> Attacked:
    copy = function(target.checkpoint, target.place, **settings)
    if not isinstance(copy, Path) or copy.resolve() != target.place.resolve():
        raise UserError(f"The attack '{name}' wrote to {copy}; it must write to {target.place}.")
    return Attacked(str(copy), settings=settings)


def records() -> dict[str, Attack]:
    """Every attack there is, ours first. A plug-in's may not take a name of ours."""
    for name, ours in OURS.items():
        if ATTACKS.get(name, ours) is not ours:
            raise UserError(f"A plug-in registers an attack '{name}', which vestige has itself; give it another name.")
    return {name: _record(name, entry) for name, entry in {**OURS, **ATTACKS}.items()}


def _record(name: str, entry: Any) -> Attack:
    if isinstance(entry, Attack):
        return entry
    words = (inspect.getdoc(entry) or "").split("\n")[0]
    return WeightsAttack(name, words, make=partial(_copied, name, entry))


def attack_named(name: str, hint: str = "") -> Attack:
    known = records()
    if name not in known:
        raise unknown_name("attack", name, known, hint)
    return known[name]


def weights_attacks() -> dict[str, WeightsAttack]:
    """Those that a sweep can make copies with."""
    return {name: record for name, record in records().items() if isinstance(record, WeightsAttack)}
