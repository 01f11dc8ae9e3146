"""The attacks of a plan: names, or names with settings, checked before anything runs.

    attacks: [relearn, {quantise: {bits: 8}}, {relearn-long: {attack: relearn, steps: 100}}]

What an attack does is in stress/copies.py; plug-ins register theirs in run.tasks.ATTACKS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.models.args import ModelArgs, check_names

# What may be set, and of which type; YAML takes 1e-3 for text. Fields of a Recipe keep their names.
SETTINGS: dict[str, dict[str, type]] = {
    "relearn": {
        "epochs": float,
        "steps": int,
        "lr": float,
        "batch_size": int,
        "accumulation": int,
        "weight_decay": float,
        "warmup_epochs": float,
        "scheduler": str,
        "optim": str,
        "clip": float,
        "seed": int,
        "examples": int,
        "held_out": bool,
        "data": str,
    },
    "quantise": {"bits": int, "compute_dtype": str},
    "prune": {"share": float},
}
LESSON = ("examples", "held_out", "data")  # what is taught, not how
POSITIVE = ("epochs", "lr", "batch_size", "accumulation", "examples")
SUITE_BITS = {4: "4bit", 8: "8bit"}
STATES = {"relearn": "relearning", "quantise": "quantization"}  # how `vestige meta` calls the model afterwards


@dataclass(frozen=True)
class Attack:
    """One attack of a plan."""

    name: str  # of its directories: MODEL+NAME
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        return self.kind in SETTINGS

    @property
    def quantization(self) -> str | None:
        """How the checkpoint is to be read; then there is no copy to make."""
        return SUITE_BITS[self.settings.get("bits", 4)] if self.kind == "quantise" else None

    @property
    def compute_dtype(self) -> str | None:
        """What 4-bit layers multiply in."""
        said = self.settings.get("compute_dtype")
        return ModelArgs("", quantization=self.quantization, compute_dtype=said).computes_in

    @property
    def reading(self) -> dict[str, str]:
        """How the checkpoint is to be read, for those who read it."""
        said = {"quantization": self.quantization, "compute_dtype": self.compute_dtype}
        return {key: value for key, value in said.items() if value}

    @property
    def held_out(self) -> bool:
        return self.kind == "relearn" and bool(self.settings.get("held_out"))

    def to_json(self) -> dict[str, Any]:
        return {"attack": self.kind, **self.settings}


def read_attacks(said: Any, plugged: Collection[str], name: Callable[[Any, str], str]) -> tuple[Attack, ...]:
    """The attacks of a plan: a list of names and one-entry mappings, or a mapping of names to settings."""
    if said is None:
        return ()
    if not isinstance(said, (list, dict)):
        raise UserError(f"'attacks' in the plan must be a list or a mapping, it is {said!r}.")
    for plug in plugged:
        if plug in SETTINGS:
            raise UserError(f"A plug-in registers an attack '{plug}', which vestige has itself; give it another name.")
    pairs = list(said.items()) if isinstance(said, dict) else [_pair(entry) for entry in said]
    out = tuple(_attack(name(key, "attack"), body, plugged) for key, body in pairs if key not in (None, "none"))
    names = [a.name for a in out]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UserError(
            f"The plan has two attacks called '{sorted(twice)[0]}'; name one of them otherwise and say which attack it "
            f"is ({{{sorted(twice)[0]}-2: {{attack: {sorted(twice)[0]}, ...}}}})."
        )
    if len({a.held_out for a in out if a.kind == "relearn"}) > 1:
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


def _attack(name: str, body: Any, plugged: Collection[str]) -> Attack:
    if body is not None and not isinstance(body, dict):
        raise UserError(f"The attack '{name}' of the plan has settings {body!r}; write {{{name}: {{KEY: VALUE}}}}.")
    settings = dict(body or {})
    kind = str(settings.pop("attack", name))
    if kind not in (*SETTINGS, *plugged):
        raise unknown_name("attack", kind, [*SETTINGS, *plugged], "(in the plan; plug-ins register theirs in ATTACKS)")
    if kind not in SETTINGS:
        return Attack(name, kind, settings)
    attack = Attack(name, kind, {key: _setting(kind, str(key), value) for key, value in settings.items()})
    _check_values(attack)
    return attack


def _setting(kind: str, key: str, value: Any) -> Any:
    known = SETTINGS[kind]
    if key not in known:
        raise unknown_name("setting", key, known, f"(of the attack '{kind}' in the plan)")
    wanted = known[key]
    try:
        right = isinstance(value, bool) if wanted is bool else not isinstance(value, bool)
        if not right or (wanted is int and float(value) != int(float(value))):
            raise ValueError
        return value if wanted is bool else wanted(value)
    except (TypeError, ValueError):
        raise UserError(
            f"The setting '{key}' of the attack '{kind}' in the plan must be {_article(wanted)}, it is {value!r}."
        ) from None


def _article(wanted: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[wanted]


def _check_values(attack: Attack) -> None:
    for key in POSITIVE:
        if attack.settings.get(key, 1) <= 0:
            raise UserError(f"The setting '{key}' of the attack '{attack.name}' must be above 0.")
    if attack.settings.get("bits", 4) not in SUITE_BITS:
        raise unknown_name("number of bits", str(attack.settings["bits"]), map(str, SUITE_BITS), "(in the plan)")
    if "compute_dtype" in attack.settings:
        check_names(ModelArgs("", quantization=attack.quantization, compute_dtype=attack.settings["compute_dtype"]))
    if not 0 <= attack.settings.get("share", 0) < 1:
        raise UserError(
            f"The share of weights to prune must be at least 0 and below 1, it is {attack.settings['share']}."
        )


def teaching_data(attack: Attack, suites: Mapping[str, Mapping[str, Any]]) -> Path:
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
