"""Patched evidence by content: what is on disk is read, the rest is collected with one model in memory at a time.

    each source --states at the patched positions--> (kept small) --into the target, all sources together--> TokenStats

A bank is named by both models' weights, precision and attention, the layers and what goes into the last one; an entry
by its tokens and positions. Thresholds are not part of it: other definitions read the same evidence.

In: PatchWants, a target and its sources as handles. Out: TokenStats by source and want. Callers: depth/run.py, and
engine/obtain.py where a suite has a depth score.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collect.backend import Cost
from vestige.engine.handles import ModelHandle
from vestige.engine.team import Team
from vestige.errors import UserError
from vestige.models.fingerprint import COLLECTED
from vestige.show.progress import Bar
from vestige.store.evidence import Bank, remarks, remember
from vestige.store.trust import Settling
from vestige.types import ARRAY_FIELDS, TokenStats, content_key
from vestige.wants import PatchWant

log = logging.getLogger("vestige.engine")

STATES_BYTES = 2 << 30  # states of sources held at a time; more sources take turns with the target
TOLERANT = "equality with other runs is to tolerance"


@dataclass(frozen=True)
class PatchSettings:
    """How to patch. `layers` None: all."""

    layers: tuple[int, ...] | None = None
    last_layer: str = "residual"
    batch_size: int = 8
    progress: bool = True


@dataclass(frozen=True)
class PatchSource:
    """A model whose states are patched into the target, and the folder where the outcome is kept."""

    name: str
    handle: ModelHandle
    directory: Path


@dataclass
class _Todo:
    source: PatchSource
    bank: Bank[TokenStats]
    wants: list[PatchWant]
    done: frozenset[str]  # what an interrupted run has of them
    states: dict[str, Any] = field(default_factory=dict)


def bank_identity(target: ModelHandle, source: ModelHandle, settings: PatchSettings) -> str:
    """What the numbers depend on besides the examples."""
    rest = repr((settings.layers, settings.last_layer))
    return content_key(target.identity.encode(), source.identity.encode(), rest.encode())[:16]


def patched_bank(
    directory: Path, target: ModelHandle, source: ModelHandle, settings: PatchSettings
) -> Bank[TokenStats]:
    """Where one source's states in one target are kept."""
    made: dict[str, Any] = {"version": COLLECTED["patched"]}
    if target.made and source.made:
        made["how"] = {"into": dict(target.made), "from": dict(source.made)}
    return Bank(directory, "patched", bank_identity(target, source, settings), made)


def _needed(item: _Todo, todo: Sequence[_Todo]) -> frozenset[str]:
    """The wants to run: those that any source of the same group lacks, so that batches are what they were."""
    keys = frozenset(w.key for w in item.wants)
    group = [t for t in todo if frozenset(w.key for w in t.wants) == keys]
    return keys - frozenset.intersection(*(t.done for t in group))


class Patching:
    """Collects the patched evidence of one target."""

    def __init__(self, target: ModelHandle, settings: PatchSettings, cost: Cost, team: Team) -> None:
        self.target = target
        self.team = team
        self.settings = settings
        self.cost = cost
        self.checked = False
        self.made: dict[str, Any] = {}  # bank -> how the models were held when its evidence was made

    def evidence(
        self, sources: Sequence[PatchSource], wants: Sequence[PatchWant]
    ) -> dict[str, Mapping[str, TokenStats]]:
        """For each source the statistics of every want: row 0 the target as it is, then one row per layer."""
        unique = {w.key: w for w in wants}
        banks: dict[str, Bank[TokenStats]] = {}
        todo: dict[str, _Todo] = {}
        names: dict[str, str] = {}  # source -> identity
        for source in sources:
            names[source.name] = identity = bank_identity(self.target, source.handle, self.settings)
            if self._is_target(source.handle) or identity in banks:
                continue
            bank = banks[identity] = self.team.fold(self._bank(source))
            if self.team.leads and bank.is_damaged:  # alone it is not batched as it was beside the others
                again = f"{source.name}: evidence was damaged and collected again; {TOLERANT}"
                remember(source.directory, bank.stem, [again])
            if self.team.leads:
                self._settle(bank, source, unique)
            self.team.meet()
            have = bank.load()
            if missing := {k: w for k, w in unique.items() if k not in have}:
                todo[identity] = self._begin(source, self.team.share(missing))
        self.team.meet()  # before anybody finishes: all must have seen the same gaps
        self._collect(list(todo.values()))
        for item in todo.values():
            item.bank.finish()
        for item in todo.values():
            self.team.fold(self._bank(item.source))
        found = {identity: bank.load() for identity, bank in banks.items()}
        for bank in banks.values():
            self.cost.notes += [n for n in remarks(bank.path.parent, bank.stem) if n not in self.cost.notes]
        out: dict[str, Mapping[str, TokenStats]] = {}
        for source in sources:
            if self._is_target(source.handle):
                out[source.name] = self._unchanged(next(iter(found.values()), None), unique, source)
                if self.team.leads:
                    self._bank(source).merge(out[source.name])
            else:
                have = found[names[source.name]]
                self._recall(banks[names[source.name]], source.handle)
                out[source.name] = {k: have[k] for k in unique}
        return out

    def _bank(self, source: PatchSource) -> Bank[TokenStats]:
        return patched_bank(source.directory, self.target, source.handle, self.settings)

    def _recall(self, bank: Bank[TokenStats], source: ModelHandle) -> None:
        """How the models were held when evidence that is read was made."""
        how = self.made[bank.stem] = bank.head.get("how", {})
        self.target.made = self.target.made or how.get("into", {})
        source.made = source.made or how.get("from", {})

    def _settle(self, bank: Bank[TokenStats], source: PatchSource, wants: Mapping[str, PatchWant]) -> None:
        """Evidence that no name vouches for is patched again for a few examples, and dropped where it differs."""

        def again(place: Path, chosen: Mapping[str, PatchWant]) -> None:
            here = PatchSource(source.name, source.handle, place)
            Patching(self.target, self.settings, self.cost, Team()).evidence([here], list(chosen.values()))

        live = self.target.is_live or source.handle.is_live
        said = Settling(bank, wants, again, live, lambda: self.target.precision).run()
        self.cost.notes += [note for note in said if note not in self.cost.notes]

    def _begin(self, source: PatchSource, mine: Mapping[str, PatchWant]) -> _Todo:
        bank = self._bank(source).beside(self.team.place(source.directory))
        done = bank.begin(list(mine), {})
        return _Todo(source, bank, list(mine.values()), frozenset(done))

    def _is_target(self, handle: ModelHandle) -> bool:
        """The target patched with its own states is the target: nothing to compute, and no rounding. (Not so when the
        last layer's state is taken after the norm.)"""
        return handle.identity == self.target.identity and self.settings.last_layer == "residual"

    def _unchanged(
        self, other: Mapping[str, TokenStats] | None, wants: Mapping[str, PatchWant], source: PatchSource
    ) -> dict[str, TokenStats]:
        if other is None:
            raise UserError(f"'{source.name}' is the full model itself; give another source to compare with.")
        out = {}
        for key in wants:
            s = other[key]
            rows = {name: np.broadcast_to(getattr(s, name)[:1], s.logprob.shape) for name in ARRAY_FIELDS}
            out[key] = TokenStats(**rows, order=s.order, steps=s.steps)
        return out

    def _collect(self, todo: Sequence[_Todo]) -> None:
        pending: list[_Todo] = []
        held = 0
        for i, item in enumerate(todo):
            needed = _needed(item, todo)
            if not needed:
                continue
            self._read_states(item, needed)
            pending.append(item)
            size = sum(t.numel() * t.element_size() for t in item.states.values())
            held += size
            if held + size > STATES_BYTES and i + 1 < len(todo):
                self._patch(pending)
                self.target.free()
                pending, held = [], 0
        self._patch(pending)

    def _read_states(self, item: _Todo, needed: frozenset[str]) -> None:
        from vestige.collect.patch import collect_states, make_plan

        loaded = item.source.handle.get(self.cost.notes)
        plan = make_plan(loaded.model, self.settings.layers, self.settings.last_layer)
        with Bar(f"reading {item.source.name}", len(item.wants), "row", self.settings.progress) as bar:
            for part in collect_states(loaded.model, item.wants, plan, self.settings.batch_size, needed):
                item.states.update(part)
                self.cost.score_tokens += sum(w.width for w in item.wants if w.key in part)
                self.cost.score_forwards += 1
                bar.add(len(part))
        item.source.handle.free()

    def _patch(self, pending: Sequence[_Todo]) -> None:
        """All sources that lack the same examples climb together: normally all of them."""
        if not pending:
            return
        from vestige.collect.layered_patching import Patcher
        from vestige.collect.patch import check_identity, make_plan

        loaded = self.target.get(self.cost.notes)
        plan = make_plan(loaded.model, self.settings.layers, self.settings.last_layer)
        self._check_shapes(pending, len(plan.layers), loaded)
        if not self.checked:
            shortest = min(pending[0].wants, key=lambda w: w.width)
            check_identity(loaded.model, shortest, self.target.name)
            self.checked = True
        groups: dict[frozenset[str], list[_Todo]] = {}
        for item in pending:
            groups.setdefault(frozenset(w.key for w in item.wants), []).append(item)
        for group in groups.values():
            patcher = Patcher(loaded.model, plan, self.cost, self.settings.batch_size)
            label = f"patching into {self.target.name}"
            with Bar(label, len(group[0].wants), "row", self.settings.progress) as bar:
                done = frozenset.intersection(*(item.done for item in group))
                for part in patcher.run(group[0].wants, [item.states for item in group], done):
                    self.target.check()
                    for j, item in enumerate(group):
                        item.source.handle.check()
                        item.bank.made = self._bank(item.source).made  # both models were loaded by now
                        if self.team.leads:
                            remember(item.source.directory, item.bank.stem, self.cost.notes)
                        item.bank.add_part({key: stats[j] for key, stats in part.items()})
                    bar.add(len(part))
        for item in pending:
            item.states.clear()

    def _check_shapes(self, pending: Sequence[_Todo], layers: int, loaded: Any) -> None:
        config = loaded.model.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        for item in pending:
            state = next(iter(item.states.values()))
            if state.shape[0] != layers or state.shape[2] != text.hidden_size:
                raise UserError(
                    f"'{item.source.name}' has {state.shape[0]} layers of width {state.shape[2]}, '{self.target.name}' "
                    f"has {layers} of width {text.hidden_size}; only models of one shape can be patched together."
                )
