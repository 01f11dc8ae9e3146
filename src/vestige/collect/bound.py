"""Teacher-forced likelihood of diffusion models.

A mask predictor has no left-to-right likelihood. What it has is a lower bound on log p(answer | prompt): hide k of
the n answer tokens, k uniform in 1..n, and take (n / k) times the log-probability of the hidden ones. Here the bound
is estimated with draws that depend on the target and the seed only: two models, or two batch sizes, are asked about
the very same hidden tokens, so that their difference is not noise of the draws.

In: Targets and a diffusion model. Out: TokenStats, and the standard error of each bound. Callers:
collect/diffusion.py, adapters/lm_eval_diffusion.py, and runs/plan.py for its cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vestige.collect.backend import Cost
from vestige.collect.forward import causal_stats
from vestige.collect.reduce import reduce_logits
from vestige.collect.safety import Halving, check_fit, check_tokens
from vestige.collect.together import verify_padding
from vestige.collect.tree import Limits
from vestige.errors import UserError
from vestige.models.attention import send
from vestige.models.diffusion import CanvasPredictor, MaskPredictor
from vestige.models.families import NO_LIKELIHOOD
from vestige.types import ARRAY_FIELDS, Array, Target, TokenStats, content_key

DRAWS = 32


@dataclass(frozen=True)
class Bound:
    """An estimate of the bound: `stats.logprob` are the tokens' shares of it (their sum is the estimate).

    `top1`, `mean` and `std` are what the model says when the whole answer is hidden.
    """

    stats: TokenStats
    standard_error: float  # of the mean log-probability of a token; NaN with one draw
    draws: int

    @property
    def value(self) -> float:
        """The estimated lower bound on log p(answer | prompt)."""
        return float(np.sum(self.stats.logprob, dtype=np.float64))


@dataclass(frozen=True)
class BoundRow:
    """One row of a forward: a target with some answer positions hidden, and those that are scored."""

    target: Target
    hidden: Array  # positions in the answer
    scored: Array  # positions in the answer


def draw_masks(target: Target, draws: int, seed: int = 0) -> list[Array]:
    """Which answer tokens each draw hides: counts stratified over 1..n, positions at random, the same for any model."""
    n = len(target.labels)
    rng = np.random.default_rng(int(content_key(target.key.encode(), str(seed).encode()), 16))
    # One uniform number in each of `draws` equal strata: every size of gap gets its share of the draws.
    level = (np.arange(draws) + rng.random(draws)) / draws
    counts = np.minimum((level * n).astype(int), n - 1) + 1
    return [np.sort(rng.permutation(n)[:k]) for k in counts]


def standard_error(estimates: Array) -> float:
    """Of the mean of stratified draws, from differences of neighbouring strata; NaN with fewer than two.

    Neighbours differ by chance and a little by stratum, so this errs to the safe side.
    """
    k = len(estimates)
    if k < 2:
        return float("nan")
    return float(np.sqrt(np.sum(np.diff(estimates) ** 2) / (2 * (k - 1) * k)))


def rows_needed(target: Target, draws: int = DRAWS) -> int:
    """How many rows a bound takes at most: draws that hide the same tokens share one.

    >>> rows_needed(Target((1, 2), 1)), rows_needed(Target((1, 2, 3), 1)), rows_needed(Target(tuple(range(9)), 1))
    (1, 3, 33)
    """
    return min(draws + 1, 2 ** min(len(target.labels), 30) - 1)


class BoundCollector:
    """Scores answers with a mask predictor: the Monte-Carlo bound, or one look at the visible text."""

    def __init__(self, predictor: MaskPredictor, limits: Limits, cost: Cost) -> None:
        if isinstance(predictor, CanvasPredictor):
            raise UserError(f"This model gives answers no likelihood: {NO_LIKELIHOOD}.")
        self.predictor = predictor
        self.limits = limits
        self.cost = cost

    def bound(
        self, targets: Sequence[Target], draws: int = DRAWS, seed: int = 0, done: frozenset[str] = frozenset()
    ) -> Iterator[dict[str, Bound]]:
        """Yields {target key: bound}, a group of targets at a time."""
        if draws < 1:
            raise UserError(f"The likelihood bound needs at least 1 draw, got draws={draws}.")
        for group in self._groups(targets, lambda t: rows_needed(t, draws), done):
            masks = [draw_masks(t, draws, seed) for t in group]
            rows: list[BoundRow] = []
            place: dict[tuple[int, bytes], int] = {}  # draws that hide the same tokens share a row
            for i, target in enumerate(group):
                for hidden in (np.arange(len(target.labels)), *masks[i]):
                    if (i, hidden.tobytes()) not in place:
                        place[i, hidden.tobytes()] = len(rows)
                        rows.append(BoundRow(target, hidden, hidden))
            stats = self._run(rows)
            out = {}
            for i, target in enumerate(group):
                drawn = [stats[place[i, mask.tobytes()]] for mask in masks[i]]
                whole = stats[place[i, np.arange(len(target.labels)).tobytes()]]
                out[target.key] = make_bound(masks[i], drawn, whole)
            yield out

    def visible(self, targets: Sequence[Target], done: frozenset[str] = frozenset()) -> Iterator[dict[str, TokenStats]]:
        """Yields {target key: stats} from one forward on the whole visible text, each token scored at its own place.

        The model sees the token it is asked about: this measures agreement, not prediction. It is the score that
        confidence-ordered probability was defined with.
        """
        for group in self._groups(targets, lambda t: 1, done):
            nothing = np.zeros(0, np.int64)
            stats = self._run([BoundRow(t, nothing, np.arange(len(t.labels))) for t in group])
            yield {t.key: causal_stats(own) for t, own in zip(group, stats, strict=True)}

    def _groups(
        self, targets: Sequence[Target], rows: Callable[[Target], int], done: frozenset[str]
    ) -> Iterator[list[Target]]:
        """Distinct targets, longest first, in groups that fill about one batch: results come as they are made."""
        left = {t.key: t for t in targets if t.key not in done}
        ordered = sorted(left.values(), key=lambda t: (-len(t.ids), t.key))
        if ordered:
            check_fit(self.predictor.model, len(ordered[0].ids), "A prompt with its answer")
            check_tokens(self.predictor.model, (t.ids for t in ordered))
            verify_padding(self.predictor, [t.ids for t in ordered], self.limits.tokens, self.cost)
        at = 0
        while at < len(ordered):
            # Shorter ones that follow may need more rows than the first, so each is counted.
            room = self.limits.tokens // len(ordered[at].ids)
            used = np.cumsum([rows(t) for t in ordered[at : at + max(room, 1)]])
            end = at + max(1, int(np.searchsorted(used, room, side="right")))
            yield ordered[at:end]
            at = end

    def _run(self, rows: Sequence[BoundRow]) -> list[dict[str, Array]]:
        """The statistics of each row, in their order; forwards take the longest first."""
        limits = self.limits
        left = sorted(range(len(rows)), key=lambda i: -len(rows[i].target.ids))
        out: list[dict[str, Array]] = [{} for _ in rows]
        for attempt in Halving():
            if attempt.again:
                limits = limits.halved()
                self.cost.notes.append(f"out of memory: batch budget halved to {limits.tokens} tokens")
            with attempt:
                while left:
                    size = 1
                    if not self.predictor.alone:
                        width = len(rows[left[0]].target.ids)
                        scored = np.cumsum([len(rows[i].scored) for i in left])
                        positions = limits.logit_cells // self.predictor.vocab
                        fitting = int(np.searchsorted(scored, positions, side="right"))
                        size = max(1, min(len(left), limits.tokens // width, fitting))
                    attempt.size = size
                    for i, stats in zip(left, self._forward([rows[i] for i in left[:size]]), strict=False):
                        out[i] = stats
                    left = left[size:]
        return out

    @torch.inference_mode()
    def _forward(self, rows: Sequence[BoundRow]) -> list[dict[str, Array]]:
        width = len(rows[0].target.ids)
        ids = np.full((len(rows), width), self.predictor.pad_id, np.int64)
        keep = np.zeros((len(rows), width), bool)
        where, labels = [], []
        for r, row in enumerate(rows):
            target = row.target
            n = len(target.ids)
            ids[r, :n] = target.ids
            ids[r, target.start + row.hidden] = self.predictor.mask_id
            keep[r, :n] = True
            # The tokens asked about are hidden or shown by the draw alone.
            keep[r, [h for h in target.hidden if h < target.start]] = False
            where.append(r * width + target.start + row.scored)
            labels.append(np.asarray(target.labels)[row.scored])
        device = self.predictor.device
        flat = send(np.concatenate(where), device)
        logits = self.predictor.logits(send(ids, device), send(keep, device), flat)
        every = torch.arange(len(flat), device=logits.device)
        reduced = reduce_logits(logits, every, send(np.concatenate(labels), logits.device))
        self.cost.score_tokens += ids.size
        self.cost.score_forwards += 1
        cuts = np.cumsum([len(w) for w in where])[:-1]
        pieces = {name: np.split(reduced[name], cuts) for name in ARRAY_FIELDS}
        return [{name: pieces[name][r] for name in ARRAY_FIELDS} for r in range(len(rows))]


def make_bound(masks: Sequence[Array], drawn: Sequence[dict[str, Array]], hidden: dict[str, Array]) -> Bound:
    """The tokens' shares, averaged over the draws, and how far the estimate may be off."""
    n = len(hidden["label"])
    shares = np.zeros((len(masks), n))
    for j, (mask, one) in enumerate(zip(masks, drawn, strict=True)):
        shares[j, mask] = one["logprob"].astype(np.float64) * n / len(mask)
    stats = causal_stats({**hidden, "logprob": shares.mean(axis=0).astype(np.float32)})
    return Bound(stats, standard_error(shares.sum(axis=1)) / n, len(masks))
