"""Decisions that are taken back: what DiffusionGemma accepted on its way and does not keep.

Each pass decides afresh which positions it accepts, so a position has a first acceptance, the beginning of its final
unbroken run of acceptances (the one trajectories use), and acceptances taken back in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vestige.types import IGNORE, Array, Trace


def first_accepted(accepted: Array) -> Array:
    """F_first: the first pass that accepted each position; -1: none did. `accepted` is (passes, positions).

    >>> first_accepted(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], bool)).tolist()
    [1, 2, -1]
    """
    return np.where(accepted.any(axis=0), accepted.argmax(axis=0), -1)


def revoked(accepted: Array) -> Array:
    """How often an acceptance of each position was taken back by the next pass.

    >>> revoked(np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 1, 1]], bool)).tolist()
    [2, 0, 0]
    """
    return np.asarray((accepted[:-1] & ~accepted[1:]).sum(axis=0))


def written(trace: Trace) -> Array:
    """The token that stood accepted after each pass (passes, positions); -1 where none did."""
    return np.where(trace.accepted, trace.proposal, -1)


def ever_accepted(trace: Trace, labels: Array) -> Array:
    """Where the true token was accepted by some pass and later taken back: not accepted any more, or another token.

    The last pass can take back too: the text is its first choice, whatever was accepted before.
    """
    true = written(trace) == labels[None, :]
    lost = true & ~np.concatenate([true[1:], (trace.final == labels)[None, :]])
    return np.asarray(lost.any(axis=0))


@dataclass(frozen=True)
class Revision:
    """What became of one answer's tokens: counts over its labelled positions, and over the whole window."""

    tokens: int  # labelled positions that were looked at
    ever: int  # whose true token was accepted and later taken back
    hidden: int  # of those, not in the final text
    window: int  # positions looked at, labelled or not
    accepted: int  # of those, accepted by some pass
    taken_back: int  # of those, taken back at least once
    revoked: int  # acceptances taken back, all of them


def revision(trace: Trace, stream: int, length: int | None = None) -> Revision:
    """One answer's, in the first `length` positions of the window."""
    seen: Array = np.array((trace.proposal >= 0).any(axis=0))
    seen[len(seen) if length is None else length :] = False
    labels = trace.labels[stream] if len(trace.labels) else np.full(len(seen), IGNORE)
    scored = seen & (labels != IGNORE)
    ever = ever_accepted(trace, labels) & scored
    times = revoked(trace.accepted)[seen]
    once: Array = np.asarray(trace.accepted.any(axis=0))
    return Revision(
        tokens=int(scored.sum()),
        ever=int(ever.sum()),
        hidden=int((ever & (trace.final != labels)).sum()),
        window=int(seen.sum()),
        accepted=int(once[seen].sum()),
        taken_back=int((times > 0).sum()),
        revoked=int(times.sum()),
    )


def summary(found: Mapping[str, Revision]) -> dict[str, Any]:
    """The two numbers over rows, and what they are made of. A share of nothing is None."""
    rows: Sequence[Revision] = list(found.values())

    def total(name: str) -> int:
        return sum(int(getattr(r, name)) for r in rows)

    asked = [r for r in rows if r.tokens]
    return {
        "revoked": {"count": total("revoked"), "share": _share(total("taken_back"), total("accepted"))},
        "ever_accepted": {
            "rows": _share(sum(r.ever > 0 for r in asked), len(asked)),
            "tokens": _share(total("ever"), total("tokens")),
            "hidden_rows": _share(sum(r.hidden > 0 for r in asked), len(asked)),
            "hidden_tokens": _share(total("hidden"), total("tokens")),
        },
        "by_index": {i: vars(r) for i, r in found.items()},
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
