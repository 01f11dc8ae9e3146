"""Cross matrices: what a run directory has of a step is read, the rest is scored and written as it comes.

`Crossing` is the detector's scorer where there is a run directory. A folder is named by the model and by the rollouts
of one step, an entry by the tokens of the pair and the temperature; a batch is one prompt with all reasonings. Settings
of the metrics are in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from vestige.runs.collect import Job, Work, load_or_collect
from vestige.runs.evidence import EvidenceFolder, StoredEvidence
from vestige.runs.team import Team
from vestige.show.progress import Bar
from vestige.types import Array, Target, content_key
from vestige.wants import CrossWant


def step_key(trajectories: Sequence[Trajectory]) -> str:
    """A name for the rollouts of a step: samples of them share one folder, other steps have others of bounded size."""
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
        wants = {(x, z): self._want(x, z) for x in dict.fromkeys(prompts) for z in dict.fromkeys(reasonings)}
        parts = (self.model.identity, self.step, str(COLLECTED["cross"]))
        identity = content_key(*(part.encode() for part in parts))[:16]
        folder: EvidenceFolder[Array] = EvidenceFolder(self.directory, "cross", identity)
        found = self._load_or_collect(folder, list(wants.values()))
        self.model.made = self.model.made or found.how
        rows = {pair: found[want.key] for pair, want in wants.items()}
        return CrossLogProbs(tuple(np.stack([rows[x, z] for x in prompts]) for z in reasonings))

    def _want(self, x: TokenIds, z: TokenIds) -> CrossWant:
        return CrossWant(Target((*x, *z), len(x)), self.temperature)

    def _load_or_collect(self, folder: EvidenceFolder[Array], wants: Sequence[CrossWant]) -> StoredEvidence[Array]:
        scorer: CrossScorer | None = None
        planned: frozenset[str] = frozenset()

        def settings() -> dict[str, Any]:
            nonlocal scorer
            if scorer is None:
                how = {"temperature": self.temperature, "row_tokens": self.row_tokens, "cost": self.cost}
                scorer = model_scorer(self.model.get().model, self.settings, **how)
                # A model that the shared way did not fit in an interrupted run is scored the plain way at once.
                scorer.plain = any(plan.settings.get("plain") for plan in folder.plans())
            return {"rows": self.settings.micro_batch_size, "tokens": self.row_tokens, "plain": scorer.plain}

        def run(work: Work) -> Iterator[list[dict[str, Array]]]:
            nonlocal planned
            assert scorer is not None
            planned = frozenset(want.key for want in work.wants)
            with Bar(self.label, 1, "prompt", self.progress) as bar:
                scorer.progress = _restarting(bar)
                for column in self._columns(scorer, work):
                    yield [column]

        job = Job(run, settings, lambda _: self.model.made)
        while True:
            try:
                return load_or_collect(wants, [folder], job, [self.model], Team(), self.cost)[0]
            except Exception as error:  # of a model that the shared way does not fit; anything else is raised again
                reraise_ours(error)
                if scorer is None:
                    raise
                scorer.fall_back(error)
                folder.remove(planned)  # none of these columns counts

    def _columns(self, scorer: CrossScorer, work: Work) -> Iterator[dict[str, Array]]:
        """Prompt by prompt the log-probabilities of its reasonings."""
        for xs, zs in rectangles(work.wants):
            scorer.check(xs, zs)
            keys = [[self._want(x, z).key for z in zs] for x in xs]
            done = frozenset(j for j, column in enumerate(keys) if work.done.issuperset(column))
            for j, column in scorer.columns(xs, zs, done):
                yield dict(zip(keys[j], column, strict=True))


def rectangles(wants: Iterable[CrossWant]) -> Iterator[tuple[list[TokenIds], list[TokenIds]]]:
    """Pairs as prompts x reasonings: the prompts that have the same reasonings are scored together."""
    by_prompt: dict[TokenIds, set[TokenIds]] = {}
    for want in wants:
        ids, start = want.target.ids, want.target.start
        by_prompt.setdefault(tuple(ids[:start]), set()).add(tuple(ids[start:]))
    groups: dict[frozenset[TokenIds], list[TokenIds]] = {}
    for x in sorted(by_prompt):
        groups.setdefault(frozenset(by_prompt[x]), []).append(x)
    for zs, xs in groups.items():
        yield xs, sorted(zs)


def _restarting(bar: Bar) -> Callable[[int, int], None]:
    """A bar that starts again with each matrix."""

    def progress(done: int, total: int) -> None:
        if done == 1:
            bar.expect(0, total)
        bar.add(1)

    return progress
