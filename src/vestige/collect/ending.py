"""When a text is over, and what it reads as: the same for a model in this process and for a served one.

In: a request and the tokens made so far. Out: whether it goes on; in the end a Text. Callers: collect/texts.py and
adapters/served_model.py. No model runs here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from vestige.types import BROKEN, Text
from vestige.wants import Request

Detokenise = Callable[[Sequence[Sequence[int]]], list[str]]


def cut_text(text: str, words: Sequence[str]) -> str:
    """A text up to the first of some words.

    >>> cut_text(" Paris. Question: and?", ("", "Question:"))
    'Paris.'
    """
    for word in words:  # an empty word would split at nothing; a model without an end token has one
        text = text.split(word)[0] if word else text
    return text.strip()


class Ending:
    """How one model's texts end: at an end token, a stop word, the limit asked for, or the model's last position."""

    def __init__(self, detokenise: Detokenise, eos: frozenset[int], end_text: str, positions: float = math.inf) -> None:
        self.detokenise = detokenise
        self.eos = eos
        self.end_text = end_text  # how the end token reads, should decoding show it
        self.positions = positions

    def begin(self, request: Request, known: Sequence[int]) -> list[int]:
        """What is known of a text; a stop word in there ends it, as it would have when decoding."""
        # All prefixes are tried, because decoding would have stopped at the first token that completes a word.
        if request.decoding.stopwords:
            prefixes = (list(known[:n]) for n in range(1, len(known)))
            return next((made for made in prefixes if self.over(request, made)), list(known))
        return list(known)

    def over(self, request: Request, made: Sequence[int]) -> bool:
        if not made:
            return False
        if made[-1] == BROKEN or made[-1] in self.eos or len(made) >= request.decoding.max_new_tokens:
            return True
        if request.prompt.attended + len(made) > self.positions:
            return True
        words = request.decoding.stopwords
        if not words:
            return False
        # A token is at least a byte, so a word that the last token completes began at most so many tokens ago; four
        # more, since a decoder may trim the first and the last character may have come in pieces.
        tail = self.detokenise([made[-(max(len(w.encode()) for w in words) + 4) :]])[0]
        return any(word in tail for word in words)

    def texts(self, rows: Iterable[tuple[Request, Sequence[int], int]]) -> dict[str, Text]:
        """{request key: Text} of (request, tokens, how many of them were proven)."""
        listed = list(rows)
        read = self.detokenise([[t for t in made if t != BROKEN] for _, made, _ in listed])
        return {
            request.key: Text(tuple(made), cut_text(text, (self.end_text, *request.decoding.stopwords)), proven)
            for (request, made, proven), text in zip(listed, read, strict=True)
        }
