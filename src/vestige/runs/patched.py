"""The patched evidence of a target model, collected with one model in memory at a time.

    each source --states at the patched positions--> (kept small) --into the target, all sources together--> TokenStats

    collect_patched(target, sources, wants, settings, cost, team) -> by source: TokenStats of every want, row 0 the
                                                                     target as it is, then one row per layer
    patched_folder(directory, target, source, settings)              where one source's evidence is

A folder is named by both models' weights, precision and attention, the layers and what goes into the last one; an entry
by its tokens and positions. Thresholds are not part of it: other definitions read the same evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collect.backend import Cost
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.models.fingerprint import COLLECTED
from vestige.runs.collect import Job, Work, load_or_collect
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.team import Team
from vestige.show.progress import Bar
from vestige.types import ARRAY_FIELDS, TokenStats, content_key
from vestige.wants import PatchWant

STATES_BYTES = 2 << 30  # states of sources held at a time; more sources take turns with the target


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


def patched_folder(
    directory: Path, target: ModelHandle, source: ModelHandle, settings: PatchSettings
) -> EvidenceFolder[TokenStats]:
    """Where one source's states in one target are kept."""
    rest = repr((settings.layers, settings.last_layer, COLLECTED["patched"]))
    identity = content_key(target.identity.encode(), source.identity.encode(), rest.encode())[:16]
    return EvidenceFolder(directory, "patched", identity)


def collect_patched(
    target: ModelHandle,
    sources: Sequence[PatchSource],
    wants: Sequence[PatchWant],
    settings: PatchSettings,
    cost: Cost,
    team: Team,
) -> dict[str, Mapping[str, TokenStats]]:
    """For each source the statistics of every want: row 0 the target as it is, then one row per layer."""
    unique = {want.key: want for want in wants}
    # A model may be there twice, also under one name: the retain model, whose unlearned model is itself. The first
    # source of an identity is collected, in its own place.
    changing: dict[str, PatchSource] = {}
    folders: dict[str, EvidenceFolder[TokenStats]] = {}
    for source in sources:
        if not _is_target(target, source.handle, settings):
            folder = patched_folder(source.directory, target, source.handle, settings)
            changing.setdefault(folder.identity, source)
            folders.setdefault(folder.identity, folder)
    team.meet()  # nobody writes meanwhile: all see the same gaps, and so the same groups
    for members, keys in _groups(list(folders.values()), unique, settings.batch_size):
        together = [changing[identity] for identity in members]
        patching = _Patching(target, together, settings, cost)
        packing = _packing(members, settings.batch_size)
        job = Job(patching.run, lambda packing=packing: packing, patching.how)  # type: ignore[misc]
        models = [target, *(source.handle for source in together)]
        places = [folders[identity] for identity in members]
        load_or_collect([unique[key] for key in sorted(keys)], places, job, models, team, cost)
    out: dict[str, Mapping[str, TokenStats]] = {}
    for source in sources:
        if not _is_target(target, source.handle, settings):
            found = folders[patched_folder(source.directory, target, source.handle, settings).identity].load()
            cost.notes += [note for note in found.notes if note not in cost.notes]
            target.made = target.made or found.how.get("into", {})
            source.handle.made = source.handle.made or found.how.get("from", {})
            out[source.name] = found
    for source in sources:
        if source.name not in out:
            out[source.name] = _unchanged(next(iter(out.values()), None), unique, source)
            folder = patched_folder(source.directory, target, source.handle, settings)
            known = folder.load()
            if team.leads:
                new = {key: stats for key, stats in out[source.name].items() if key not in known}
                folder.write(new)
    return out


def _is_target(target: ModelHandle, source: ModelHandle, settings: PatchSettings) -> bool:
    """The target patched with its own states is the target: nothing to compute, and no rounding. (Not so when the
    last layer's state is taken after the norm.)"""
    return source.identity == target.identity and settings.last_layer == "residual"


def _unchanged(
    other: Mapping[str, TokenStats] | None, wants: Mapping[str, PatchWant], source: PatchSource
) -> dict[str, TokenStats]:
    if other is None:
        raise UserError(f"'{source.name}' is the full model itself; give another source to compare with.")
    out = {}
    for key in wants:
        s = other[key]
        rows = {name: np.broadcast_to(getattr(s, name)[:1], s.logprob.shape) for name in ARRAY_FIELDS}
        out[key] = TokenStats(**rows, order=s.order, steps=s.steps)
    return out


def _packing(members: Sequence[str], batch_size: int) -> dict[str, Any]:
    """What decides the batches: sources that are patched in together share them."""
    return {"sources": list(members), "batch_size": batch_size}


def _groups(
    folders: Sequence[EvidenceFolder[TokenStats]], wants: Mapping[str, PatchWant], batch_size: int
) -> list[tuple[tuple[str, ...], frozenset[str]]]:
    """(identities of sources, keys) to patch together: interrupted groups as they were, then sources that lack the
    same examples. Normally that is one group of all."""
    lacking: dict[str, set[str]] = {}
    for folder in folders:
        found = folder.load()
        lacking[folder.identity] = {key for key in wants if key not in found}
    groups: list[tuple[tuple[str, ...], frozenset[str]]] = []
    for folder in folders:
        for plan in folder.plans():
            members = tuple(plan.settings.get("sources", ()))
            keys = frozenset(plan.keys)
            known = lacking.keys() >= set(members) and keys <= wants.keys()
            if known and plan.settings == _packing(members, batch_size) and any(keys & lacking[m] for m in members):
                groups.append((members, keys))
                for member in members:
                    lacking[member] -= keys
    rest: dict[frozenset[str], list[str]] = {}
    for identity, keys_left in lacking.items():
        if keys_left:
            rest.setdefault(frozenset(keys_left), []).append(identity)
    return [*groups, *((tuple(members), keys) for keys, members in rest.items())]


@dataclass
class _Patching:
    """The job of a group of sources that lack the same examples."""

    target: ModelHandle
    sources: Sequence[PatchSource]
    settings: PatchSettings
    cost: Cost

    def how(self, number: int) -> dict[str, Any]:
        return {"into": dict(self.target.made), "from": dict(self.sources[number].handle.made)}

    def run(self, work: Work) -> Iterator[list[dict[str, TokenStats]]]:
        """Reads states source by source, and patches them in together as far as they fit into memory."""
        pending: dict[int, dict[str, Any]] = {}  # source's number -> its states
        held = 0
        self.target.free()
        for number, source in enumerate(self.sources):
            states = self._read_states(source, work)
            pending[number] = states
            size = sum(t.numel() * t.element_size() for t in states.values())
            held += size
            if held + size > STATES_BYTES and number + 1 < len(self.sources):
                yield from self._patch(pending, work)
                self.target.free()
                pending, held = {}, 0
        yield from self._patch(pending, work)

    def _read_states(self, source: PatchSource, work: Work) -> dict[str, Any]:
        from vestige.collect.patch import collect_states, make_plan

        loaded = source.handle.get(self.cost.notes)
        plan = make_plan(loaded.model, self.settings.layers, self.settings.last_layer)
        needed = frozenset(want.key for want in work.wants) - work.done
        states: dict[str, Any] = {}
        with Bar(f"reading {source.name}", len(work.wants), "row", self.settings.progress) as bar:
            for part in collect_states(loaded.model, work.wants, plan, self.settings.batch_size, needed):
                states.update(part)
                self.cost.score_tokens += sum(want.width for want in work.wants if want.key in part)
                self.cost.score_forwards += 1
                bar.add(len(part))
        source.handle.free()
        return states

    def _patch(self, pending: Mapping[int, dict[str, Any]], work: Work) -> Iterator[list[dict[str, TokenStats]]]:
        from vestige.collect.layered_patching import Patcher
        from vestige.collect.patch import check_identity, make_plan

        loaded = self.target.get(self.cost.notes)
        plan = make_plan(loaded.model, self.settings.layers, self.settings.last_layer)
        self._check_shapes(pending, len(plan.layers), loaded)
        check_identity(loaded.model, min(work.wants, key=lambda want: want.width), self.target.name)
        patcher = Patcher(loaded.model, plan, self.cost, self.settings.batch_size)
        with Bar(f"patching into {self.target.name}", len(work.wants), "row", self.settings.progress) as bar:
            for part in patcher.run(work.wants, list(pending.values()), work.done):
                batch: list[dict[str, TokenStats]] = [{} for _ in self.sources]
                for place, number in enumerate(pending):
                    batch[number] = {key: stats[place] for key, stats in part.items()}
                yield batch
                bar.add(len(part))

    def _check_shapes(self, pending: Mapping[int, dict[str, Any]], layers: int, loaded: Any) -> None:
        config = loaded.model.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        for number, states in pending.items():
            shape = next(iter(states.values())).shape
            if shape[0] != layers or shape[2] != text.hidden_size:
                raise UserError(
                    f"'{self.sources[number].name}' has {shape[0]} layers of width {shape[2]}, '{self.target.name}' "
                    f"has {layers} of width {text.hidden_size}; only models of one shape can be patched together."
                )
