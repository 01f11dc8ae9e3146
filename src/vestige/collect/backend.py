"""Who answers wants: a model in this process, or one that a server runs. What both must offer, the first of them, and
what answering costs, counted where it is spent.

In: Targets and Requests. Out: TokenStats and Texts by key, batch by batch; the `cost` of a manifest, with notes for its
reader. Callers: runs/collect.py, which gets the second kind from the engine (adapters/served_model.py), so nothing
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
    from vestige.models.batch_budget import BatchBudget


import math

from vestige.types import BROKEN, Prompt
from vestige.wants import DenoiseWant, Denoising

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


class Backend(Protocol):
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
class LocalBackend:
    """A model that is loaded here."""

    loaded: LoadedModel
    detokenise: Any
    cost: Cost
    batch_tokens: int | None
    rows: int | None

    @property
    def room(self) -> BatchBudget:
        from vestige.models.batch_budget import text_batch_budget

        return text_batch_budget(self.loaded.model, self.rows)

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
        from vestige.collect.texts import end_tokens

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


# ---- When a text is over, and what it reads as: the same for a model in this process and for a served one -----------
# In: a request and the tokens made so far. Out: whether it goes on; in the end a Text. Callers: collect/texts.py and
# adapters/served_model.py. No model runs here.

Detokenise = Callable[[Sequence[Sequence[int]]], list[str]]


def cut_text(text: str, words: Sequence[str]) -> str:
    """A text up to the first of some words.

    >>> cut_text(" Paris. Question: and?", ("", "Question:"))
    'Paris.'
    """
    for word in words:  # an empty word would split at nothing; a model without an end token has one
        text = text.split(word)[0] if word else text
    return text.strip()


class StopRule:
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


# ---- Texts out of a sampler's windows: how one is asked for, and where it ends. No model runs here ------------------
# In: a Request, or the ids of a finished window. Out: the DenoiseWant that makes it, or its ids up to the end.
# Callers: collect/diffusion.py, costs/estimate.py, adapters/lm_eval_diffusion.py.

MOST_STEPS = 128  # of texts: one token a pass up to this many, then several


def text_want(request: Request, defaults: Mapping[str, Any]) -> DenoiseWant:
    """How a text is asked of a sampler: one token a pass, up to a limit.

    `defaults` are the model's own settings, which those of the request (its generation_args) replace.
    """
    decoding = request.decoding
    said: dict[str, Any] = {
        "max_new_tokens": decoding.max_new_tokens,
        "steps": min(decoding.max_new_tokens, MOST_STEPS),
        "temperature": 0.0 if decoding.greedy else decoding.temperature,
        "seed": 0 if decoding.greedy else decoding.seed,
        **defaults,
    }
    sampler = dict(decoding.sampler)
    if "steps" in sampler:  # they are shared by all blocks
        said.pop("steps_per_block", None)
    return DenoiseWant(Prompt(request.prompt.ids), (), Denoising(**{**said, **sampler}))


def cut_after_end(ids: list[int], eos: Sequence[int]) -> list[int]:
    """Up to the first end token, that one included.

    >>> cut_after_end([5, 2, 2], eos=[2])
    [5, 2]
    """
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in eos), ids)
