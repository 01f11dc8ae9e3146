"""Teacher forcing: every distinct (prompt, answer) once -> TokenStats.

plan -> deduplicate -> share prefixes -> pack -> one forward per batch -> reduce. Before the packed way is trusted it
is compared with the plain way on a few of the very targets asked for; on a mismatch the plain way is used, with a note.

In: Targets, a model, Limits. Out: TokenStats by target key, batch by batch. Callers: runs/collect.py;
runs/plan.py for the plan alone; adapters/lm_eval_diffusion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from vestige.collect.backend import Cost
from vestige.collect.forward import score_packed, score_plain
from vestige.collect.safety import Halving, apart, batch_noise, check_fit, check_tokens, free_memory
from vestige.collect.tree import Limits, Packing, pack
from vestige.errors import named, out_of_memory, reraise_ours
from vestige.numeric import distances
from vestige.packed_ids import common_prefix
from vestige.types import Target, TokenStats

LONGEST_PACKED = 8192  # tokens; a tree mask costs the square of a row


def vocabulary(model: Any) -> int:
    head = model.get_output_embeddings()
    size = getattr(head, "out_features", None) or getattr(model.config, "vocab_size", None)
    return int(size or 50_000)


def default_limits(on_gpu: bool, tokens: int | None = None) -> Limits:
    """Budgets that suit the machine: logits of a batch stay below 1 GB (GPU) or 256 MB (CPU) in float32.

    On a CPU a batch is one long row: its attention skips what is masked (collect/forward.py), and what lies between
    the layers still fits a cache.
    """
    return Limits(
        tokens=tokens or (16384 if on_gpu else 1024),
        logit_cells=(1 << 28) if on_gpu else (1 << 26),
        row_tokens=1024,
    )


Planned = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """One forward: its cost in tokens, the targets it answers, and how to run it."""

    tokens: int
    targets: tuple[int, ...]
    run: Callable[[], Mapping[int, TokenStats]]


def distinct(targets: Sequence[Target]) -> list[Target]:
    """Each content once, in a fixed order: the longest first, ties by key, so that a plan is reproducible."""
    unique = {t.key: t for t in targets}
    return sorted(unique.values(), key=lambda t: (-len(t.ids), t.key))


def plan(targets: Sequence[Target], limits: Limits, vocab: int) -> Packing:
    """The packing of some targets, whatever the order they were asked in."""
    return pack(in_order(targets), limits, vocab)


def in_order(targets: Sequence[Target]) -> list[Target]:
    return sorted(targets, key=lambda t: (t.sorting, t.start, t.hidden))


@dataclass
class AnswerCollector:
    """Runs the jobs of one model. `run` yields each job's result as it is made, so that a caller can keep it."""

    model: Any
    vocab: int
    limits: Limits
    cost: Cost
    plain: bool = False  # one padded row per answer

    def run(
        self, targets: Sequence[Target], done: frozenset[str] = frozenset(), planned: Planned = lambda tokens: None
    ) -> Iterator[dict[str, TokenStats]]:
        """Yields {target key: stats} batch by batch; jobs whose targets are all in `done` are not run again.

        The packing covers all `targets`, done or not: a resumed run repeats the very forwards of the first.
        `planned` is told how many tokens are left to push.
        """
        ordered = in_order(targets)
        unique = distinct(ordered)
        if all(target.key in done for target in unique):
            return
        longest = len(unique[0].ids)
        check_fit(self.model, longest - 1, "A prompt with its answer")
        check_tokens(self.model, (target.ids for target in unique))
        if not self.plain and longest > LONGEST_PACKED:
            self.plain = True  # nothing much is shared at that length, and the mask would be larger than the model
            self.cost.notes.append(f"answers of over {LONGEST_PACKED} tokens: one padded row per answer, slower")
        if not self.plain:
            self.verify(unique)  # every time: later targets may be longer than those checked before
        limits, left, finished = self.limits, ordered, set(done)
        for attempt in Halving():
            if attempt.again:
                left = [t for t in left if t.key not in finished]
                limits = limits.halved()
                words = f"batch budget halved to {limits.tokens} tokens; equality with other runs is to tolerance"
                self.cost.say(f"out of memory: {words}")
            with attempt:
                attempt.size = limits.tokens
                jobs = list(self.jobs(left, limits))
                if done:
                    jobs = [job for job in jobs if any(left[t].key not in done for t in job.targets)]
                planned(sum(job.tokens for job in jobs))
                for job in jobs:
                    result = {left[t].key: s for t, s in job.run().items()}
                    self.cost.score_tokens += job.tokens
                    self.cost.score_forwards += 1
                    finished.update(result)
                    yield result

    def jobs(self, targets: Sequence[Target], limits: Limits) -> Iterator[Job]:
        if not self.plain:
            packing = pack(targets, limits, self.vocab)
            for batch in packing.batches:
                members = tuple(chain.from_iterable(batch.targets))
                yield Job(batch.tokens, members, partial(score_packed, self.model, packing.tree, batch))
            return
        for members, tokens in plain_batches(targets, limits, self.vocab):
            yield Job(tokens, members, partial(self._score_padded, targets, members))

    def _score_padded(self, targets: Sequence[Target], members: Sequence[int]) -> dict[int, TokenStats]:
        result = score_plain(self.model, [targets[m] for m in members])
        return {members[i]: s for i, s in result.items()}

    def verify(self, targets: Sequence[Target]) -> None:
        """Compares the packed and the plain way on the longest target and a few others; falls back on a mismatch."""
        sample = _checked_targets(targets)
        if not sample:
            return
        alone = []
        for target in sample:
            alone.append(score_plain(self.model, [target])[0].logprob)
            self.cost.score_tokens += len(target.ids) - 1
        problem = ""
        try:
            packing = pack(sample, Limits(10**9, 10**12, 10**9), self.vocab)
            packed = score_packed(self.model, packing.tree, packing.batches[0])
            self.cost.score_tokens += packing.tokens
            noise = batch_noise(self.model, sample, alone)
            gaps = [distances(packed[i].logprob, plain) for i, plain in enumerate(alone)]
            if not np.isnan(np.concatenate(alone)).any():  # NaN models: nothing to compare
                problem = apart(self.model, gaps, noise)
        except Exception as error:  # whatever a foreign architecture does with a tree mask, the plain way is there
            reraise_ours(error)
            if out_of_memory(error):
                free_memory()
            problem = named(error)
        if problem:
            self.plain = True
            self.cost.say(
                f"packed scoring does not fit this model ({problem}); using one padded row per answer, slower"
            )


def _checked_targets(targets: Sequence[Target]) -> list[Target]:
    """The longest (a sliding window shows only beyond its width), the two that share most, the shortest.

    A model that ignores position ids or lets neighbours see each other goes wrong where answers share a prefix.
    """
    if not targets:
        return []
    ordered = sorted(targets, key=lambda t: t.sorting)
    siblings: tuple[Target, ...] = ()
    most = -1
    for a, b in pairwise(ordered):
        inputs = a.ids[:-1], b.ids[:-1]
        shared = common_prefix(*inputs)
        if shared == min(map(len, inputs)):
            shared = 0  # one only continues the other: no fork to go wrong at
        if shared > most:
            siblings, most = (a, b), shared
    return list({t.key: t for t in (targets[0], *siblings, targets[-1])}.values())


def plain_batches(targets: Sequence[Target], limits: Limits, vocab: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Targets in padded batches, longest first: (members, padded tokens)."""
    order = sorted(range(len(targets)), key=lambda i: (-len(targets[i].ids), targets[i].key))
    batch: list[int] = []
    cells = 0
    for i in order:
        width = len(targets[batch[0]].ids) - 1 if batch else 0
        new = len(targets[i].labels) * vocab
        if batch and (width * (len(batch) + 1) > limits.tokens or cells + new > limits.logit_cells):
            yield tuple(batch), width * len(batch)
            batch, cells = [], 0
        batch.append(i)
        cells += new
    if batch:
        yield tuple(batch), (len(targets[batch[0]].ids) - 1) * len(batch)
