"""The attacks of a plan: names, or names with settings, checked before anything runs.

    attacks: [relearn, {quantise: {bits: 8}}, {relearn-long: {attack: relearn, steps: 100}}]

What an attack is, and which settings it has, is in its record (stress/attacks.py), a plug-in's included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.stress.attacks import WORDS, WeightsAttack, weights_attacks


@dataclass(frozen=True)
class PlannedAttack:
    """One attack of a plan."""

    name: str  # of its directories: MODEL+NAME
    kind: str  # of the registry
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> WeightsAttack:
        return weights_attacks()[self.kind]

    @property
    def reading(self) -> dict[str, str]:
        """How the checkpoint is to be read; then no copy is made."""
        return self.record.reading(self.settings)

    @property
    def quantization(self) -> str | None:
        return self.reading.get("quantization")

    @property
    def held_out(self) -> bool:
        return self.record.teaches and bool(self.settings.get("held_out"))

    def to_json(self) -> dict[str, Any]:
        return {"attack": self.kind, **self.settings}


def read_attacks(said: Any, name: Callable[[Any, str], str]) -> tuple[PlannedAttack, ...]:
    """The attacks of a plan: a list of names and one-entry mappings, or a mapping of names to settings."""
    if said is None:
        return ()
    if not isinstance(said, (list, dict)):
        raise UserError(f"'attacks' in the plan must be a list or a mapping, it is {said!r}.")
    pairs = list(said.items()) if isinstance(said, dict) else [_pair(entry) for entry in said]
    out = tuple(_attack(name(key, "attack"), body) for key, body in pairs if key not in (None, "none"))
    names = [a.name for a in out]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UserError(
            f"The plan has two attacks called '{sorted(twice)[0]}'; name one of them otherwise and say which attack it "
            f"is ({{{sorted(twice)[0]}-2: {{attack: {sorted(twice)[0]}, ...}}}})."
        )
    if len({a.held_out for a in out if a.record.teaches}) > 1:
        raise UserError(
            "Relearning with held_out: true leaves only half of the rows to measure; set it for all or none."
        )
    return out


def _pair(entry: Any) -> tuple[Any, Any]:
    if not isinstance(entry, dict):
        return entry, None
    if len(entry) != 1:
        raise UserError(f"An attack of the plan is {entry!r}; write a name, or one name with settings.")
    return next(iter(entry.items()))


def _attack(name: str, body: Any) -> PlannedAttack:
    if body is not None and not isinstance(body, dict):
        raise UserError(f"The attack '{name}' of the plan has settings {body!r}; write {{{name}: {{KEY: VALUE}}}}.")
    settings = dict(body or {})
    kind, known = str(settings.pop("attack", name)), weights_attacks()
    if kind not in known:
        raise unknown_name("attack", kind, known, "(in the plan: attacks on weights, ours and those of plug-ins)")
    if known[kind].all_settings is None:  # a plug-in's plain function takes what it takes
        return PlannedAttack(name, kind, settings)
    attack = PlannedAttack(name, kind, {key: _setting(known[kind], str(key), v) for key, v in settings.items()})
    _check_values(attack)
    return attack


def _setting(record: WeightsAttack, key: str, value: Any) -> Any:
    known = record.all_settings or {}
    if key not in known:
        raise unknown_name("setting", key, known, f"(of the attack '{record.name}' in the plan)")
    wanted = known[key].type
    if wanted is object:
        return value
    try:
        right = isinstance(value, bool) if wanted is bool else not isinstance(value, bool)
        if not right or (wanted is int and float(value) != int(float(value))):
            raise ValueError
        return value if wanted is bool else wanted(value)
    except (TypeError, ValueError):
        raise UserError(
            f"The setting '{key}' of the attack '{record.name}' in the plan must be {WORDS[wanted]}, it is {value!r}."
        ) from None


def _check_values(attack: PlannedAttack) -> None:
    record = attack.record
    for key, setting in (record.all_settings or {}).items():
        if setting.positive and attack.settings.get(key, 1) <= 0:
            raise UserError(f"The setting '{key}' of the attack '{attack.name}' must be above 0.")
    if record.check:
        record.check(attack.settings)


def teaching_data(attack: PlannedAttack, suites: Mapping[str, Mapping[str, Any]]) -> Path:
    """The folder whose forget rows are taught: the attack's own, or that of the first suite which has one."""
    said = attack.settings.get("data") or next((s["data"] for s in suites.values() if s.get("data")), None)
    if said is None:
        raise UserError(
            f"The attack '{attack.name}' teaches the forget rows of a folder, and no suite of the plan has one; "
            "add data: DIR to the suite or to the attack."
        )
    folder = Path(str(said)).expanduser()
    if not folder.is_dir():
        raise UserError(f"The attack '{attack.name}' teaches the rows of {folder}, which is not a folder.")
    return folder
