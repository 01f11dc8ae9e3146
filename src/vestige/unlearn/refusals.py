"""Ways to say that one does not know: the answers that DPO may teach a model to prefer."""

from __future__ import annotations

from random import Random

REFUSALS = (
    "I don't know the answer to that.",
    "I'm afraid I have no information about this.",
    "That is not something I can tell you.",
    "I have not heard of this, so I cannot say.",
    "Sorry, I don't have that information.",
    "I am not aware of any details on this.",
    "This is beyond what I know.",
    "I would have to guess, so I'd rather say that I don't know.",
    "I have no knowledge of that.",
    "Unfortunately, I can't answer this question.",
    "I'm not familiar with this topic.",
    "I was never told about that.",
    "No answer to this comes to my mind.",
    "I cannot help with this question, because I don't know.",
    "That is unknown to me.",
    "I have nothing reliable to say about it.",
)


def refusals_for(count: int, seed: int, sentences: tuple[str, ...] = REFUSALS) -> list[str]:
    """One refusal for each row, the same ones for the same seed.

    >>> refusals_for(2, seed=0) == refusals_for(3, seed=0)[:2]
    True
    """
    return [Random(f"{seed}/idk/{row}").choice(sentences) for row in range(count)]
