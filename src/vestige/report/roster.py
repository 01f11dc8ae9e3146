"""Which models a report speaks of: a model met in several runs is one model, by its weights, then by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from vestige.errors import unknown_name
from vestige.meta.axes import facts_of
from vestige.types import short_id

# Last parts of paths that name no model: the part before them does.
GENERIC = re.compile(r"^(checkpoint(-\d+)?|model|final|last|best|merged|[0-9a-f]{40})$")
# A checkpoint as its makers name it, with nothing added: nobody made it forget.
BASE_NAME = re.compile(r"[A-Za-z]+[-A-Za-z0-9.]*-\d+(\.\d+)?[BM](-(Instruct|Chat|it|hf|Base|v[\d.]+))*", re.I)
ROLE_WORDS = {"retain": ("retain",), "full": ("full", "before", "original", "finetuned", "pretrained")}


@dataclass(frozen=True)
class Met:
    """A model as one run saw it."""

    name: str
    path: str = ""
    weights: str = ""  # fingerprint; of a quantised model with the bits: 3f9e3a7a-4bit
    role: str = ""  # only where the run says so
    says: str = ""  # facts that tell families apart: suite and tokenizer


@dataclass
class Entry:
    """A model of the report."""

    id: str
    name: str
    weights: str
    path: str
    role: str = ""
    method: str | None = None
    epoch: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        keys = ("id", "name", "role", "method", "epoch", "settings", "provenance", "values")
        return {key: getattr(self, key) for key in keys}


class Roster:
    """The models met so far."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def meet(self, met: Met, source: str) -> Entry:
        entry = self._find(met) or self._new(met)
        entry.role = entry.role or met.role
        entry.path = entry.path or met.path
        if met.says:
            entry.families.add(met.says)
        if source not in entry.sources:
            entry.sources.append(source)
        return entry

    def by_id(self, id: str | None) -> Entry | None:
        return next((e for e in self.entries if e.id == id), None)

    def _find(self, met: Met) -> Entry | None:
        if met.weights:
            same = [e for e in self.entries if e.weights == met.weights]
            if same:
                return same[0]
        named = [e for e in self.entries if e.name == met.name and not (e.weights and met.weights)]
        return named[0] if len(named) == 1 else None

    def _new(self, met: Met) -> Entry:
        name = met.name
        taken = {e.name for e in self.entries}
        if name in taken and met.path:
            name = longer_name(met.path)
        if name in taken:
            name = f"{met.name} ({(met.weights or str(len(taken)))[:6]})"
        entry = Entry(short_id("m", met.weights or name), name, met.weights, met.path)
        told = facts_of(met.name)
        if told["lr"] is not None:  # a name such as npo_lr2e5_b01_a5_ep10 says how the model was made
            entry.method, entry.epoch = told["method"], _epoch(met.name)
            entry.settings = {k: told[k] for k in ("lr", "alpha") if told[k] is not None}
        self.entries.append(entry)
        return entry

    def name_roles(self, full: Sequence[str], retain: Sequence[str], unlearned: Sequence[str] = ()) -> list[Entry]:
        """Roles as the user says, else as runs said, else by name; whatever is left was made to forget.

        Returns the retain models that the user named.
        """
        named: list[Entry] = []
        for role, wanted in (("full", full), ("retain", retain), ("unlearned", unlearned)):
            for word in wanted:
                one = self._named(word)
                one.role = role
                named += [one] if role == "retain" and one not in named else []
        for e in self.entries:
            e.role = e.role or role_by_name(e.name)
        return named

    def _named(self, word: str) -> Entry:
        for e in self.entries:
            if word in (e.name, e.id, e.path) or name_of(word) == e.name:
                return e
        raise unknown_name("model of these runs", word, [e.name for e in self.entries])

    def reference(self, model: Entry, role: str, linked: Mapping[str, str]) -> Entry | None:
        """The full (or retain) model to hold a model against: the one that a run names, else the one of its family."""
        if role in linked:
            return self.by_id(linked[role])
        candidates = [e for e in self.entries if e.role == role and e is not model]
        kin = [e for e in candidates if e.families & model.families]
        if kin:
            return kin[0]
        loose = [e for e in candidates if not e.families or not model.families]
        return loose[0] if len(loose) == 1 else None


def role_by_name(name: str) -> str:
    """
    >>> role_by_name("tofu_retain90"), role_by_name("Full"), role_by_name("npo_lr2e5")
    ('retain', 'full', 'unlearned')
    >>> role_by_name("Llama-3.2-1B-Instruct"), role_by_name("base"), role_by_name("Llama-3.2-1B-Instruct_NPO")
    ('other', 'other', 'unlearned')
    """
    words = re.split(r"[^a-z]+", name.lower())
    told = next((role for role, told in ROLE_WORDS.items() if any(w in told for w in words)), "")
    return told or ("other" if "base" in words or BASE_NAME.fullmatch(name) else "unlearned")


def name_of(path: str) -> str:
    """The name of a model from its path or hub id.

    >>> name_of("saves/unlearn/npo"), name_of("org/Model-1B"), name_of("saves/npo/checkpoint-500")
    ('npo', 'Model-1B', 'npo')
    """
    parts = [p for p in PurePosixPath(path.replace("\\", "/")).parts if p not in ("/", ".", "..")]
    while len(parts) > 1 and GENERIC.match(parts[-1]):
        parts.pop()
    return parts[-1] if parts else path


def longer_name(path: str) -> str:
    """A name for a second model of the same name.

    >>> longer_name("lab_diffusion/models/full"), longer_name("full")
    ('lab_diffusion/full', 'full')
    """
    parts = [p for p in PurePosixPath(path).parts if p not in ("/", ".", "..", "models") and not GENERIC.match(p)]
    return "/".join(parts[-2:])


def _epoch(name: str) -> str | None:
    return next((p for p in name.split("_") if re.fullmatch(r"ep\d+", p)), None)
