"""Who answers wants: a model in this process, or one that a server runs. What both must offer, and the first of them.

In: Targets and Requests. Out: TokenStats and Texts by key, batch by batch. Caller: engine/obtain.py, which is handed
the second kind by the engine (servers/served.py). Nothing above knows which one answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from vestige.collect.cost import Cost
from vestige.models.load import LoadedModel
from vestige.models.room import Room, room_for_texts
from vestige.types import Target, Text, TokenStats
from vestige.wants import Decoding, Request

Known = Mapping[str, Sequence[int]]  # tokens of texts, by request key


class Answerer(Protocol):
    """Scores answers and writes texts. What is in `done` was answered before and is left out."""

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end its texts."""

    def penalty_of(self, decoding: Decoding) -> float:
        """The repetition penalty in force."""

    def settings(self, kind: str) -> dict[str, Any]:
        """An interrupted run resumes only if this is equal; `kind`: answers or texts."""

    def score(
        self, targets: Sequence[Target], done: frozenset[str], planned: Callable[[int], None]
    ) -> Iterable[dict[str, TokenStats]]:
        """Statistics by target key. `planned` is told how many tokens are ahead."""

    def write(
        self, requests: Sequence[Request], known: Known, done: frozenset[str], drafts: Known
    ) -> Iterable[dict[str, Text]]:
        """Texts by request key. `known`: the tokens that each is known to begin with; `drafts`: that it may."""


class InProcess:
    """A model that is loaded here."""

    def __init__(
        self, loaded: LoadedModel, detokenise: Any, cost: Cost, batch_tokens: int | None, rows: int | None
    ) -> None:
        self.loaded = loaded
        self.detokenise = detokenise
        self.cost = cost
        self.batch_tokens = batch_tokens
        self.rows = rows

    @property
    def room(self) -> Room:
        return room_for_texts(self.loaded.model, self.rows)

    @property
    def limits(self) -> Any:
        from vestige.collect.answers import default_limits, vocabulary

        on_gpu = str(self.loaded.device).split(":")[0] == "cuda"
        return default_limits(vocabulary(self.loaded.model), on_gpu, self.batch_tokens)

    def settings(self, kind: str) -> dict[str, Any]:
        if kind == "texts":
            rows, cells = self.room
            return {"max_rows": rows, "cells": cells}
        limits = self.limits
        return {"tokens": limits.tokens, "cells": limits.logit_cells, "row": limits.row_tokens}

    def score(
        self, targets: Sequence[Target], done: frozenset[str], planned: Callable[[int], None]
    ) -> Iterable[dict[str, TokenStats]]:
        from vestige.collect.answers import AnswerCollector, vocabulary

        model = self.loaded.model
        return AnswerCollector(model, vocabulary(model), self.limits, self.cost).run(targets, done, planned)

    @property
    def eos(self) -> frozenset[int]:
        from vestige.collect.text_row import end_tokens

        return end_tokens(self.loaded.model, self.loaded.tokenizer)

    def penalty_of(self, decoding: Decoding) -> float:
        from vestige.collect.texts import penalty_of

        return penalty_of(self.loaded.model, decoding)

    def write(
        self, requests: Sequence[Request], known: Known, done: frozenset[str], drafts: Known
    ) -> Iterable[dict[str, Text]]:
        from vestige.collect.texts import TextCollector

        end_text = end_words(self.loaded.tokenizer, self.eos)
        writer = TextCollector(self.loaded.model, self.detokenise, self.eos, end_text, self.cost, *self.room)
        return writer.run(requests, known, done, drafts)


def end_words(tokenizer: Any, eos: frozenset[int]) -> str:
    """How the end token reads; a model may have an end token where its tokenizer names none."""
    end = tokenizer.eos_token_id
    return str(tokenizer.decode([end])) if eos and end is not None else ""
