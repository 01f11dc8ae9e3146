"""Who answers wants: what a model in this process and one that a server runs both offer, the first of them, and what
answering costs, counted where it is spent.

    Backend       the interface: scores Targets, writes texts for Requests
    LocalBackend  a model that is loaded here; adapters/served_model.py has the other
    StopRule      when a text is over and what it reads as, the same for both
    text_want     how a text is asked of a diffusion model's sampler
    Cost          counts and notes of one run: every collector gets it, and processes of a team add theirs up

In: Targets and Requests. Out: TokenStats and Texts by key, batch by batch. No model is imported here: the command line
reads this file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vestige.models.batch_budget import BatchBudget, text_batch_budget
from vestige.models.checks import check_penalty
from vestige.models.load import LoadedModel
from vestige.types import BROKEN, Prompt, Target, Text, TokenStats
from vestige.wants import Decoding, DenoiseWant, Denoising, Request

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
        return {name: value for name, value in asdict(self).items() if served or not name.startswith("server_")}


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
    def text_budget(self) -> BatchBudget:
        return text_batch_budget(self.loaded.model, self.rows)

    @property
    def limits(self) -> Any:
        from vestige.collect.answers import default_limits

        on_gpu = str(self.loaded.device).split(":")[0] == "cuda"
        return default_limits(on_gpu, self.batch_tokens)

    def settings(self, kind: str) -> dict[str, Any]:
        if kind == "texts":
            rows, cells = self.text_budget
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
        return end_tokens(self.loaded.model, self.loaded.tokenizer)

    def penalty_of(self, decoding: Decoding) -> float:
        return penalty_of(self.loaded.model, decoding)

    def write(
        self, requests: Sequence[Request], known: Known, done: frozenset[str], drafts: Known
    ) -> Iterable[dict[str, Text]]:
        from vestige.collect.texts import TextCollector

        end_text = end_words(self.loaded.tokenizer, self.eos)
        writer = TextCollector(self.loaded.model, self.detokenise, self.eos, end_text, self.cost, *self.text_budget)
        return writer.run(requests, known, done, drafts)


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text: the generation config's, else the tokenizer's.

    Chat models name several there (end of turn, end of text), of which their tokenizer knows one.
    """
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset(ids) if isinstance(ids, (list, tuple)) else frozenset([ids])


def end_words(tokenizer: Any, eos: frozenset[int]) -> str:
    """How the end token reads; a model may have an end token where its tokenizer names none."""
    end = tokenizer.eos_token_id
    return str(tokenizer.decode([end])) if eos and end is not None else ""


def penalty_of(model: Any, decoding: Decoding) -> float:
    """The repetition penalty in force: asked for, or the checkpoint's own default (Qwen2.5 ships one)."""
    if decoding.repetition_penalty is not None:
        return decoding.repetition_penalty
    config = getattr(model, "generation_config", None)
    own = getattr(config, "repetition_penalty", None)
    check_penalty(own, "The model's generation config")
    return float(1.0 if own is None else own)


# ---- When a text is over, and what it reads as: the same for a model in this process and for a served one -----------

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
        if request.decoding.stopwords:
            # All prefixes are tried, because decoding would have stopped at the first token that completes a word.
            for count in range(1, len(known)):
                if self.over(request, known[:count]):
                    return list(known[:count])
        return list(known)

    def over(self, request: Request, tokens: Sequence[int]) -> bool:
        if not tokens:
            return False
        if tokens[-1] == BROKEN or tokens[-1] in self.eos or len(tokens) >= request.decoding.max_new_tokens:
            return True
        if request.prompt.attended + len(tokens) > self.positions:
            return True
        words = request.decoding.stopwords
        if not words:
            return False
        # A token is at least a byte, so a word that the last token completes began at most so many tokens ago; four
        # more, since a decoder may trim the first and the last character may have come in pieces.
        longest = max(len(word.encode()) for word in words)
        tail = self.detokenise([tokens[-(longest + 4) :]])[0]
        return any(word in tail for word in words)

    def texts(self, rows: Iterable[tuple[Request, Sequence[int], int]]) -> dict[str, Text]:
        """{request key: Text} of (request, tokens, how many of them were proven)."""
        listed = list(rows)
        whole = self.detokenise([[t for t in tokens if t != BROKEN] for _, tokens, _ in listed])
        out = {}
        for (request, tokens, proven), text in zip(listed, whole, strict=True):
            words = (self.end_text, *request.decoding.stopwords)
            out[request.key] = Text(tuple(tokens), cut_text(text, words), proven)
        return out


# ---- Texts out of a sampler's windows: how one is asked for, and where it ends --------------------------------------

MOST_STEPS = 128  # of texts: one token a pass up to this many, then several


def text_want(request: Request, defaults: Mapping[str, Any]) -> DenoiseWant:
    """How a text is asked of a sampler: one token a pass, up to a limit.

    `defaults` are the model's own settings, which those of the request (its generation_args) replace.
    """
    decoding = request.decoding
    settings: dict[str, Any] = {
        "max_new_tokens": decoding.max_new_tokens,
        "steps": min(decoding.max_new_tokens, MOST_STEPS),
        "temperature": 0.0 if decoding.greedy else decoding.temperature,
        "seed": 0 if decoding.greedy else decoding.seed,
        **defaults,
    }
    sampler = dict(decoding.sampler)
    if "steps" in sampler:  # they are shared by all blocks
        settings.pop("steps_per_block", None)
    settings |= sampler
    return DenoiseWant(Prompt(request.prompt.ids), (), Denoising(**settings))


def cut_after_end(ids: list[int], eos: Sequence[int]) -> list[int]:
    """Up to the first end token, that one included.

    >>> cut_after_end([5, 2, 2], eos=[2])
    [5, 2]
    """
    for i, token in enumerate(ids):
        if token in eos:
            return ids[: i + 1]
    return ids
