"""Which turns of a step are looked at: first turns, trajectories drawn evenly, or turns drawn evenly.

Two sets of rules. Ours draws from its own seeded generator, never loses a draw and takes everything there is when asked
for that much. RAGEN's (`legacy_*`) are reproduced draw for draw from NumPy's old generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

IndexPair = tuple[int, int]  # (trajectory, which of its turns with reasoning)


def generator(seed: int, step: int, label: str) -> np.random.Generator:
    """A stream for each seed, step and label: adding a label or skipping a step changes no other draw."""
    return np.random.Generator(np.random.PCG64([seed, step, zlib.crc32(label.encode())]))


def first_turns(lengths: Sequence[int], count: int | None, rng: np.random.Generator) -> list[int]:
    """Trajectories whose first turn has reasoning, in order; some of them if there are more than `count`."""
    valid = [i for i, n in enumerate(lengths) if n > 0]
    if count is None or count >= len(valid):
        return valid
    return sorted(int(i) for i in rng.choice(valid, count, replace=False))


def trajectory_turns(counts: Sequence[int], count: int | None, rng: np.random.Generator) -> list[IndexPair]:
    """A trajectory drawn evenly among those with reasoning, then one of its turns; all turns if so many are asked."""
    if count is None or count >= sum(counts):
        return _all(counts)
    alive = [m for m, n in enumerate(counts) if n > 0]
    drawn = [alive[int(i)] for i in rng.integers(len(alive), size=count)]
    return [(m, int(rng.integers(counts[m]))) for m in drawn]


def even_turns(counts: Sequence[int], count: int | None, rng: np.random.Generator) -> list[IndexPair]:
    """Turns drawn evenly without replacement: long trajectories contribute more."""
    pairs = _all(counts)
    if count is None or count >= len(pairs):
        return pairs
    return [pairs[i] for i in sorted(int(i) for i in rng.choice(len(pairs), count, replace=False))]


def _all(counts: Sequence[int]) -> list[IndexPair]:
    return [(m, t) for m, n in enumerate(counts) for t in range(n)]


def legacy_first_turns(lengths: Sequence[int], count: int | None, rng: np.random.RandomState) -> list[int]:
    """In the order drawn."""
    valid = [i for i, n in enumerate(lengths) if n > 0]
    if count is None or count >= len(valid):
        return valid
    return [int(i) for i in rng.choice(valid, count, replace=False)]


def legacy_trajectory_turns(counts: Sequence[int], count: int | None, rng: np.random.RandomState) -> list[IndexPair]:
    """With replacement even when all are asked for; a draw that hits a trajectory without reasoning is lost."""
    total = sum(counts)
    pairs = []
    for _ in range(total if count is None else min(count, total)):
        m = int(rng.randint(len(counts)))
        if counts[m] > 0:
            pairs.append((m, int(rng.randint(counts[m]))))
    return pairs


def legacy_even_turns(counts: Sequence[int], count: int | None, rng: np.random.RandomState) -> list[IndexPair]:
    pairs = _all(counts)
    if count is None or count >= len(pairs):
        return pairs
    return [pairs[int(i)] for i in rng.choice(len(pairs), count, replace=False)]
