"""Who answers wants: a model in this process, or one that a server runs. What both must offer, the first of them, and
what answering costs, counted where it is spent.

In: Targets and Requests. Out: TokenStats and Texts by key, batch by batch; the `cost` of a manifest, with notes for its
reader. Callers: engine/obtain.py, which is handed the second kind by the engine (adapters/served_model.py), so that nothing
above knows which one answered; every collector is handed one Cost per run, and processes of a team add theirs up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vestige.models.load import LoadedModel
from vestige.types import Target, Text, TokenStats
from vestige.wants import Decoding, Request

if TYPE_CHECKING:
    from vestige.models.room import Room

log = logging.getLogger("vestige.collect")


@dataclass
class Cost:
    """Counts for the manifest and the tests: a claim about speed starts with what was pushed through the model."""

    nodes: int = 0  # distinct prefix-tree nodes asked for (inputs only)
    score_tokens: int = 0  # tokens pushed in scoring, padding and self check included
    score_forwards: int = 0
    prefill_tokens: int = 0  # prompt tokens pushed before decoding, padding included
    decode_row_steps: int = 0  # one row advanced by one token
    decode_forwards: int = 0
    tokens_produced: int = 0
    tokens_proven: int = 0  # of those, known or drafted from teacher forcing: no decoding step
    backwards: int = 0
    denoise_tokens: int = 0  # canvas tokens pushed in denoising, padding and repeated looks included
    denoise_forwards: int = 0
    server_requests: int = 0  # answered by servers
    server_prompt_tokens: int = 0  # of those, as the servers count them
    server_cached_tokens: int = 0  # of those tokens, found in a server's cache
    server_decoded_tokens: int = 0
    server_check_tokens: int = 0  # prompt tokens of what was asked again to be compared
    server_retries: int = 0
    notes: list[str] = field(default_factory=list)

    def say(self, note: str) -> None:
        """Something that readers of the numbers must know: printed at once, and kept in the manifest."""
        log.warning(note)
        self.notes.append(note)

    def add(self, others: Iterable[Cost]) -> None:
        """Takes in what others spent on the same work."""
        for other in others:
            for name, value in asdict(other).items():
                if name == "notes":
                    self.notes += [note for note in value if note not in self.notes]
                else:
                    setattr(self, name, getattr(self, name) + value)

    def as_dict(self) -> dict[str, object]:
        """Every count; those of servers where there was one."""
        served = self.server_requests or self.server_check_tokens
        return {k: v for k, v in asdict(self).items() if served or not k.startswith("server_")}


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


@dataclass
class InProcess:
    """A model that is loaded here."""

    loaded: LoadedModel
    detokenise: Any
    cost: Cost
    batch_tokens: int | None
    rows: int | None

    @property
    def room(self) -> Room:
        from vestige.models.room import room_for_texts

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
