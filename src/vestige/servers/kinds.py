"""What every kind of model server has in common: what it is asked, what it answers, and how a kind is recognised.

In: sequences of token ids to score, prompts to continue. Out: plain records, read from the server's own form and not
yet believed: checks.py compares them with what was asked. Caller: served.py, through the pool.
A new kind is a subclass of `Server` with an entry in find.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vestige.errors import UserError
from vestige.servers.wire import ServerRefused, Wire
from vestige.types import Array, content_key
from vestige.wants import Decoding


class BadAnswer(UserError):  # noqa: N818 - named for what was found
    """An answer that cannot be true, or is not the answer to what was asked. Nothing of it is kept."""


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself, as far as a manifest may know it."""

    kind: str  # vllm or openai
    version: str
    model: str  # the served name
    root: str = ""  # where the server read it from, if it tells
    longest: int | None = None  # tokens that it reads and writes together

    @property
    def identity(self) -> str:
        """A name for whose evidence it is. The address is not part of it: ten servers may serve one model."""
        parts = (self.kind, self.version, self.model, self.root)
        return content_key(b"served", *(p.encode() for p in parts))[:16]

    def as_dict(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ("", None)}


@dataclass(frozen=True)
class Abilities:
    """What a server can tell. Asked once at the start, by trying."""

    ids: bool = False  # takes token ids in place of text
    scores: bool = False  # log-probabilities of the prompt's own tokens
    first: bool = False  # the first choice at each of its positions
    everything: bool = False  # log-probabilities of the whole vocabulary
    chosen: bool = False  # log-probabilities of the tokens it writes
    stops: bool = False
    seeds: bool = False
    chat: bool = False  # only whole conversations: it makes the prompt itself
    counts: bool = False  # says how many prompt tokens it had in its cache

    def lines(self) -> list[tuple[str, str]]:
        """For people: what it is, and whether."""
        yes = {True: "yes", False: "no"}
        return [
            ("token ids as prompts", yes[self.ids]),
            ("log-probabilities of prompts", yes[self.scores]),
            ("first choices", yes[self.first]),
            ("whole vocabulary", "yes (min-k++ is exact)" if self.everything else "no (min-k++ is missing)"),
            ("log-probabilities of its texts", yes[self.chosen]),
            ("stop words", yes[self.stops]),
            ("seeds", yes[self.seeds]),
            ("counts cached tokens", yes[self.counts]),
            *([("only chat", "yes (the server writes the prompt around a question)")] if self.chat else []),
        ]


@dataclass(frozen=True)
class SequenceAsk:
    """Token ids whose log-probabilities are wanted from `start` on."""

    ids: tuple[int, ...]
    start: int


@dataclass
class SequenceAnswer:
    """What a server says of one sequence: arrays over positions `first` .. the end."""

    first: int
    ids: Array  # the tokens it says it scored
    logprob: Array
    top1: Array  # its first choices; BROKEN (-1) where it tells none
    top_logprob: Array
    rank: Array | None = None
    mean: Array | None = None  # over the whole vocabulary
    std: Array | None = None
    sums: Array | None = None  # what the probabilities it told add up to, at each position


@dataclass(frozen=True)
class TextAsk:
    """A prompt to continue by at most `limit` tokens."""

    ids: tuple[int, ...]
    limit: int
    decoding: Decoding
    penalty: float
    seed: int
    eos: tuple[int, ...]
    text: str = ""  # the prompt as text, for servers that take no ids
    turns: tuple[tuple[str, str], ...] = ()  # (role, content), for servers that only chat


@dataclass
class TextAnswer:
    """What a server wrote."""

    ids: tuple[int, ...]
    finish: str  # stop: an end token or a stop word; length: the limit
    margin: float = float("inf")  # the smallest distance between its first and second choice, in nats
    text: str | None = None


@dataclass
class Usage:
    """Tokens, as the server counts them; what it does not say is counted by what was sent."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, other: Usage) -> None:
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion


class Vocabulary:
    """Our tokenizer, as far as a client needs it: servers that take or give text are read through it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size = len(tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """Every token written out, special ones too, so that the server's tokenizer can find them again."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def ids(self, text: str) -> list[int]:
        return [int(i) for i in self._tokenizer(text, add_special_tokens=False)["input_ids"]]


@dataclass
class Server(ABC):
    """One server: its address, who it is, what it can."""

    wire: Wire
    facts: ServerFacts
    vocabulary: Vocabulary
    abilities: Abilities = field(default_factory=Abilities)

    @property
    def vocab(self) -> int:
        """Token ids are below this. Embeddings are often padded to more than the tokenizer knows."""
        return self.vocabulary.size + 1024

    @property
    def url(self) -> str:
        return self.wire.url

    @abstractmethod
    def identify(self) -> ServerFacts:
        """Who it says it is now: asked again when a connection broke."""

    @abstractmethod
    def probe(self, ids: Sequence[int]) -> Abilities:
        """What it can, tried on a few tokens."""

    @abstractmethod
    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        """Log-probabilities of some sequences; `everything`: with mean and deviation over the vocabulary."""

    @abstractmethod
    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        """One text."""

    def tokenised(self, text: str) -> list[int] | None:
        """The ids its own tokenizer makes of a text; None where it does not tell."""
        return None

    def refuse(self, why: str) -> BadAnswer:
        return BadAnswer(f"The server at {self.url} gave an answer that is refused: {why}.")

    def can(self, ask: Any) -> bool:
        """Whether the server takes a request: one that it refuses (status 4xx) is something it cannot do."""
        try:
            ask()
        except ServerRefused as error:
            if error.status in (401, 403, 404):
                raise
            return False
        except BadAnswer:
            return False
        return True


def part(body: Any, name: str, form: type | tuple[type, ...], server: Server) -> Any:
    """A field of an answer, if it is there and of its form."""
    if not isinstance(body, Mapping) or name not in body or not isinstance(body[name], form):
        raise server.refuse(f"it has no '{name}' of the form that was expected")
    return body[name]


def usage_of(body: Mapping[str, Any], server: Server) -> Usage:
    """OpenAI's `usage`. Counts that are not there are 0."""
    said = body.get("usage") or {}
    if not isinstance(said, Mapping):
        raise server.refuse("its 'usage' is not an object")
    details = said.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", 0) if isinstance(details, Mapping) else 0
    numbers = [said.get("prompt_tokens", 0), cached or 0, said.get("completion_tokens", 0)]
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise server.refuse("its 'usage' does not hold counts")
    return Usage(*numbers)


def check_model(body: Mapping[str, Any], server: Server) -> None:
    """The model's name is in every answer."""
    if body.get("model") != server.facts.model:
        raise server.refuse(f"it comes from the model {body.get('model')!r}, asked was {server.facts.model!r}")


def spread(logprobs: Array) -> tuple[float, float]:
    """Mean and deviation of log p under p, from all log-probabilities of one position."""
    lp = np.asarray(logprobs, np.float64)
    finite = lp[np.isfinite(lp)]
    p = np.exp(finite)
    mean = float((p * finite).sum())
    return mean, float(np.sqrt(max((p * finite**2).sum() - mean**2, 0.0)))
