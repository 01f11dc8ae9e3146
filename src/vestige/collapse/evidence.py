"""Cross matrices from evidence: what a run directory has of a step is read, the rest is scored and kept as it comes.

Comes in: the prompts and the reasonings of a sample. Goes out: log-probabilities of every pair. `collapse/run.py` gives
it to the detector as its scorer. A bank is named by the model and by the rollouts of one step, an entry by the tokens
of the pair and the temperature; a batch is one prompt with all reasonings. Settings of the metrics are in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collapse.detector import CollapseSettings, model_scorer
from vestige.collapse.reasoning import Trajectory
from vestige.collect.backend import Cost
from vestige.collect.cross import CrossLogProbs, CrossScorer, TokenIds
from vestige.engine.handles import ModelHandle
from vestige.errors import reraise_ours
from vestige.models.fingerprint import COLLECTED
from vestige.show.progress import Bar
from vestige.store.evidence import Bank, remarks, remember
from vestige.store.trust import Settling
from vestige.types import Array, Target, content_key
from vestige.wants import CrossWant

Wants = dict[str, CrossWant]


def step_key(trajectories: Sequence[Trajectory]) -> str:
    """A name for the rollouts of a step: samples of them share one bank, other steps have others of bounded size."""
    pairs = {Target((*turn.x, *turn.z), len(turn.x)).key for t in trajectories for turn in t.valid}
    return content_key(*(key.encode() for key in sorted(pairs)))


@dataclass
class Crossing:
    """The scorer of one step: evidence first, then the model."""

    model: ModelHandle
    directory: Path  # of the evidence
    step: str  # step_key
    settings: CollapseSettings
    temperature: float = 1.0
    row_tokens: int | None = None
    label: str = ""  # of the bar
    progress: bool = False
    cost: Cost = field(default_factory=Cost)

    def __call__(self, prompts: Sequence[TokenIds], reasonings: Sequence[TokenIds]) -> CrossLogProbs:
        """The matrix of `reasonings` x `prompts`."""
        names = {(x, z): self._want(x, z) for x in dict.fromkeys(prompts) for z in dict.fromkeys(reasonings)}
        wants = {want.key: want for want in names.values()}
        bank = self._bank(self.directory)
        said = Settling(bank, wants, self._collect, self.model.is_live, lambda: self.model.precision).run()
        have = bank.load()
        missing = {key: want for key, want in wants.items() if key not in have}
        if missing:
            self._collect(self.directory, missing)
            have = bank.load()
        self.model.made = self.model.made or bank.head.get("how", {})
        self.cost.notes += [n for n in (*remarks(self.directory, bank.stem), *said) if n not in self.cost.notes]
        found = {pair: have[want.key] for pair, want in names.items()}
        return CrossLogProbs(tuple(np.stack([found[x, z] for x in prompts]) for z in reasonings))

    def _want(self, x: TokenIds, z: TokenIds) -> CrossWant:
        return CrossWant(Target((*x, *z), len(x)), self.temperature)

    def _bank(self, place: Path) -> Bank[Array]:
        made: dict[str, Any] = {"version": COLLECTED["cross"]}
        if self.model.made:
            made["how"] = dict(self.model.made)
        return Bank(place, "cross", content_key(self.model.identity.encode(), self.step.encode())[:16], made)

    def _collect(self, place: Path, missing: Mapping[str, CrossWant]) -> None:
        """Every rectangle of missing pairs, kept column by column. An interrupted run goes on where it was."""
        loaded = self.model.get()
        bank = self._bank(place)
        scorer = model_scorer(
            loaded.model, self.settings, temperature=self.temperature, row_tokens=self.row_tokens, cost=self.cost
        )
        before = bank.interrupted()
        scorer.plain = before is not None and bool(before[1].get("plain"))
        while True:
            how = {"rows": self.settings.micro_batch_size, "tokens": self.row_tokens, "plain": scorer.plain}
            done = frozenset(bank.begin(list(missing), how))
            try:
                with Bar(self.label, 1, "prompt", self.progress) as bar:
                    scorer.progress = _watch(bar)
                    self._score(bank, scorer, missing, done)
                bank.finish()
                return
            except Exception as error:  # of a model that the shared way does not fit; anything else is raised again
                reraise_ours(error)
                scorer.fall_back(error)
                bank.discard_parts()  # none of its columns counts

    def _score(
        self, bank: Bank[Array], scorer: CrossScorer, missing: Mapping[str, CrossWant], done: frozenset[str]
    ) -> None:
        for xs, zs in rectangles(missing):
            scorer.check(xs, zs)
            keys = [[self._want(x, z).key for z in zs] for x in xs]
            whole = frozenset(j for j, column in enumerate(keys) if done.issuperset(column))
            for j, column in scorer.columns(xs, zs, whole):
                self.model.check()
                remember(bank.path.parent, bank.stem, self.cost.notes)
                bank.add_part(dict(zip(keys[j], column, strict=True)))


def rectangles(missing: Mapping[str, CrossWant]) -> Iterator[tuple[list[TokenIds], list[TokenIds]]]:
    """Missing pairs as prompts x reasonings: the prompts that lack the same reasonings are scored together."""
    by_prompt: dict[TokenIds, set[TokenIds]] = {}
    for want in missing.values():
        ids, start = want.target.ids, want.target.start
        by_prompt.setdefault(tuple(ids[:start]), set()).add(tuple(ids[start:]))
    groups: dict[frozenset[TokenIds], list[TokenIds]] = {}
    for x in sorted(by_prompt):
        groups.setdefault(frozenset(by_prompt[x]), []).append(x)
    for zs, xs in groups.items():
        yield xs, sorted(zs)


def _watch(bar: Bar) -> Any:
    """A bar that starts again with each matrix."""

    def progress(done: int, total: int) -> None:
        if done == 1:
            bar.expect(0, total)
        bar.add(1)

    return progress
