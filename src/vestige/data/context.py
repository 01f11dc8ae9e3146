"""What a data-set handler works with besides its rows: the encoder, which tokens are hidden, how long a row may be.

In: settings of a run. Out: Targets and Prompts; content that several data sets share is one object. Callers:
data/datasets.py and its plug-ins, engine/prepare.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vestige.data.chat import Encoder
from vestige.data.clusters import AUTO
from vestige.errors import UserError
from vestige.types import Prompt, Target


@dataclass
class Context:
    """What a data-set handler works with besides its rows."""

    encoder: Encoder
    hide_token: int | None  # open-unlearning's mask hides every occurrence of this id (its pad token)
    source: str = ""
    text_only: bool = False  # the model could see pictures, but is given none here
    longest: int | None = None  # how many tokens the model was made to read, where that is known
    cluster: str = AUTO  # the column that says which rows hang together
    notes: list[str] = field(default_factory=list)  # what the user should know of the rows that were read

    # What data sets of one run have in common is kept once: they ask the same questions and read the same files.
    texts: dict[str, str] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)  # by key

    def target(self, full: Sequence[int], start: int) -> Target | None:
        if start >= len(full):
            return None
        made = Target(tuple(full), start, self._hidden(full))
        found: Target = self.records.setdefault(made.key, made)
        return found

    def prompt(self, ids: Sequence[int]) -> Prompt:
        made = Prompt(tuple(ids), self._hidden(ids))
        found: Prompt = self.records.setdefault(made.key, made)
        return found

    def text(self, text: str) -> str:
        """The same text, as it was first seen: an answer, its decoded tokens and a column of another split are one."""
        return self.texts.setdefault(text, text)

    def forget(self) -> None:
        """All data sets are made: what they share they hold themselves."""
        self.texts.clear()
        self.records.clear()

    def check_text(self, characters: int, row: int | str) -> None:
        """Refuses a text that cannot fit before it is tokenised, which alone would take long: a token stands for only
        so many characters."""
        if self.longest is not None and cannot_fit(characters, self.longest, self.encoder.tokenizer):
            raise UserError(
                f"{self.source} row {row} (counting from 0) has {characters:,} characters, more than fit into the "
                f"{self.longest:,} tokens that this model reads; shorten or drop that row."
            )

    def _hidden(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self.hide_token is None:
            return ()
        return tuple(i for i, token in enumerate(ids) if token == self.hide_token)


def cannot_fit(characters: int, longest: int, tokenizer: Any) -> bool:
    """Whether so many characters are more than so many tokens, whatever they are."""
    if characters <= 4 * longest:
        return False
    vocabulary: Mapping[str, int] = getattr(tokenizer, "get_vocab", dict)()
    return characters > longest * max(map(len, vocabulary), default=characters)
