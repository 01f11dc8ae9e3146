"""One client for model servers: vLLM, and whatever else speaks OpenAI's completions.

    ServerArgs, find_servers    what a user gives (`--server`), and the clients of one model made of it
    ModelServer                 one server: identify, probe, score, write, tokenise
    Wire                        JSON over HTTP to one address, with retries; ServerDown and ServerRefused
    SequenceAsk -> SequenceAnswer, TextAsk -> TextAnswer, Usage    what is sent and what comes back

Answers are plain records that are not yet believed: server_checks.py compares them with what was asked.

vLLM (tried with 0.32 on a CPU) takes token ids, and its `prompt_logprobs` gives for every prompt token the
log-probability, the rank and the first choices. While it computes them it does not read its prefix cache, so sequences
are sent whole.

Any other server is asked in OpenAI's form. In `/v1/completions`, `echo` with `logprobs` gives the prompt's tokens as
text with their log-probabilities and the first choices as text. Where such a server takes no token ids, prompts are
sent as text and its tokens are compared with ours one by one. A server that has only `/v1/chat/completions` is sent
questions, writes the prompt around them itself, and gives texts without any number.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np

from vestige import secrets
from vestige.errors import UserError, named
from vestige.types import BROKEN, Array, content_key
from vestige.wants import Decoding

TRIES = 4  # of one request, when connections break or answers are cut short
BUSY_TRIES = 8  # when the server itself says that it is busy (429, 503)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds before another try, doubled each time
BUSY = (429, 503)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
REPLACEMENT = "\ufffd"  # what decoding half a character gives


class ServerDown(UserError):  # noqa: N818 - a state of the server, not a mistake
    """A server that does not answer, after several tries."""


class ServerRefused(UserError):  # noqa: N818
    """A server that answers, and does not do what was asked (status 4xx)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BadAnswer(UserError):  # noqa: N818
    """An answer that cannot be true, or does not belong to what was asked. Nothing of it is used."""


# ---- HTTP ------------------------------------------------------------------------------------------------------------


class Wire:
    """JSON over HTTP to one server's address, from any number of threads.

    A fault that passes (a reset connection, half an answer, 429, 5xx) is tried again here; one that lasts is
    ServerDown, and the pool gives the work to another server. The key goes into one header and nowhere else: it is
    registered as a secret, redirects are not followed, and an address with a password or a query in it is refused.
    """

    def __init__(self, url: str, key_env: str | None = None, timeout: float = 600.0) -> None:
        self.url = checked_url(url)
        self.requests = 0
        self.retries = 0
        self.broken = 0  # connections that broke: afterwards another process may answer (see ServedAnswers)
        self._lock = threading.Lock()
        headers = {"Content-Type": "application/json"}
        if key_env:
            headers["Authorization"] = f"Bearer {_read_key(key_env)}"
        self._client = httpx.Client(
            headers=headers,
            timeout=timeout,
            limits=httpx.Limits(max_connections=None),  # as many as there are threads: over a hundred for texts
            verify=ssl.create_default_context(),
            trust_env=False,  # no proxies: model servers are near
        )

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._request("POST", path, json.dumps(body))

    def _request(self, method: str, path: str, body: str | None) -> Any:
        pause = FIRST_PAUSE
        broken = busy = 0
        while True:
            with self._lock:
                self.requests += 1
            try:
                response = self._client.request(method, self.url + path, content=body)
                status = response.status_code
                if status == 200:
                    return response.json()
            # Whatever a connection, half an answer or a proxy's page of HTML raises: it may pass.
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                broken += 1
                problem = named(error)
                with self._lock:
                    self.broken += 1
            else:
                if status in BUSY:
                    busy += 1
                    problem = f"status {status} (busy)"
                    retry_after = response.headers.get("Retry-After", "")
                    if retry_after.replace(".", "", 1).isdigit():
                        pause = max(pause, float(retry_after))
                elif status >= 500:
                    broken += 1
                    problem = f"status {status}: {_quote(response.text)}"
                else:
                    raise self._refusal(status, path, response.text)
            if broken >= TRIES or busy >= BUSY_TRIES:
                raise ServerDown(
                    f"The server at {self.url} does not answer {path}: {problem}; start it, or correct --server."
                )
            with self._lock:
                self.retries += 1
            time.sleep(min(pause, LONGEST_PAUSE))
            pause *= 2

    def _refusal(self, status: int, path: str, text: str) -> ServerRefused:
        advice = ""
        if status in (401, 403):
            advice = "; name the environment variable that holds its key with --server-key-env"
        elif status in (301, 302, 307, 308):
            advice = "; it answers with a redirect, which is not followed: give the address it leads to"
        words = f"The server at {self.url} refused {path} (status {status}: {_quote(text)}){advice}."
        return ServerRefused(words, status)


def checked_url(url: str) -> str:
    """An address as it may be written into manifests; one that carries a secret is refused.

    >>> checked_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'
    """
    parts = urlsplit(url.strip())
    try:
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        is_port = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_port:
        raise UserError(f"--server takes addresses such as http://127.0.0.1:8000, not '{url}'.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            "--server takes a plain address, without a password or a query in it; keys come from an environment "
            "variable (--server-key-env NAME)."
        )
    path = re.sub(r"/v1/?$", "", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _read_key(name: str) -> str:
    key = os.environ.get(name, "").strip()
    if not key:
        raise UserError(f"--server-key-env names {name}, but no such environment variable is set.")
    if not key.isascii() or not key.isprintable():
        raise UserError(f"The environment variable {name} does not hold a key: it has characters a header cannot hold.")
    secrets.note(key)
    return key


def _quote(text: str) -> str:
    """The body of an error on one line."""
    return " ".join(text.split())[:300] or "no reason given"


# ---- what is sent and what comes back --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself, as far as a manifest may know it."""

    kind: str  # vllm or openai
    version: str
    model: str  # the served name
    root: str = ""  # where the server read the model from, if it tells
    longest: int | None = None  # tokens that it reads and writes together

    @property
    def identity(self) -> str:
        """Names the evidence of this server. The address is not part of it: ten servers may serve one model."""
        parts = (self.kind, self.version, self.model, self.root)
        return content_key(b"served", *(p.encode() for p in parts))[:16]

    def as_dict(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ("", None)}


@dataclass(frozen=True)
class Abilities:
    """What a server can tell. Found out once at the start, by trying."""

    ids: bool = False  # takes token ids in place of text
    scores: bool = False  # log-probabilities of the prompt's own tokens
    first: bool = False  # the first choice at each of its positions
    everything: bool = False  # log-probabilities of the whole vocabulary
    chosen: bool = False  # log-probabilities of the tokens it writes
    stops: bool = False
    seeds: bool = False
    chat: bool = False  # only whole conversations: it writes the prompt itself
    counts: bool = False  # says how many prompt tokens it had in its cache

    def lines(self) -> list[tuple[str, str]]:
        """(ability, yes or no), as `vestige plan` prints them."""
        yes = {True: "yes", False: "no"}
        lines = [
            ("token ids as prompts", yes[self.ids]),
            ("log-probabilities of prompts", yes[self.scores]),
            ("first choices", yes[self.first]),
            ("whole vocabulary", "yes (min-k++ is exact)" if self.everything else "no (min-k++ is missing)"),
            ("log-probabilities of its texts", yes[self.chosen]),
            ("stop words", yes[self.stops]),
            ("seeds", yes[self.seeds]),
            ("counts cached tokens", yes[self.counts]),
        ]
        if self.chat:
            lines.append(("only chat", "yes (the server writes the prompt around a question)"))
        return lines


@dataclass(frozen=True)
class SequenceAsk:
    """Token ids whose log-probabilities are wanted from `start` on."""

    ids: tuple[int, ...]
    start: int


@dataclass
class SequenceAnswer:
    """What a server says of one sequence: arrays over its positions 1 to the end (nothing precedes position 0)."""

    ids: Array  # the tokens it says it scored
    logprob: Array
    top1: Array  # its first choices; BROKEN (-1) where it tells none
    top_logprob: Array
    rank: Array | None = None
    total: Array | None = None  # of the probabilities that it tells at each position
    mean: Array | None = None  # of log p under p, over the whole vocabulary
    std: Array | None = None


@dataclass(frozen=True)
class TextAsk:
    """A prompt to continue by at most `limit` tokens."""

    ids: tuple[int, ...]
    limit: int
    decoding: Decoding
    penalty: float
    seed: int
    eos: tuple[int, ...]
    turns: tuple[tuple[str, str], ...] = ()  # (role, content), for servers that only chat


@dataclass(frozen=True)
class TextAnswer:
    """What a server wrote."""

    ids: tuple[int, ...]
    finish: str  # stop: an end token or a stop word; length: the limit
    margin: float = float("inf")  # the smallest distance between its first and second choice, in nats
    text: str | None = None  # where the server gives text and no tokens


# ---- OpenAI's completions, with vLLM's additions, as far as they are read --------------------------------------------


@dataclass(frozen=True)
class TokenLogprob:
    """What vLLM says of one token at one position; rank 1 is the most likely."""

    logprob: float
    rank: int


@dataclass(frozen=True)
class ChoiceLogprobs:
    """Of each token (with `echo` the prompt's first): its text, its log-probability, and the first choices by text."""

    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


@dataclass(frozen=True)
class ChatMessage:
    content: str


@dataclass(frozen=True)
class Choice:
    """The answer to one prompt."""

    index: int
    finish_reason: str | None = None
    text: str = ""
    logprobs: ChoiceLogprobs | None = None
    message: ChatMessage | None = None  # of a chat
    token_ids: list[int] | None = None  # vLLM's, like the next two
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, TokenLogprob] | None] | None = None  # of the token itself and the first choices


@dataclass(frozen=True)
class CachedTokens:
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens as the server counts them; 0 where it does not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


@dataclass(frozen=True)
class Completion:
    """The answer to one request, which may hold several prompts."""

    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Vocabulary:
    """Our tokenizer, as far as a client needs it: servers that take or give text are read through it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        self._ids_of_pieces: dict[str, int] = {}

    def text(self, ids: Sequence[int]) -> str:
        """Every token written out, special ones too, so that the server's tokenizer can find them again."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def ids(self, text: str) -> list[int]:
        return [int(i) for i in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def id_of(self, piece: str) -> int:
        """The token with this text; BROKEN where there is none, or several that look alike."""
        if not self._ids_of_pieces:
            for i in range(self.size):
                text = self.text([i])
                self._ids_of_pieces[text] = BROKEN if text in self._ids_of_pieces else i
        return self._ids_of_pieces.get(piece, BROKEN)


# ---- one server ------------------------------------------------------------------------------------------------------


class ModelServer:
    """One server of one model: its address, who it says it is, what it can."""

    def __init__(self, wire: Wire, facts: ServerFacts, vocabulary: Vocabulary) -> None:
        self.wire = wire
        self.facts = facts
        self.vocabulary = vocabulary
        self.abilities = Abilities()
        # Token ids are below this. Embeddings are often padded to more than the tokenizer knows.
        self.vocab = vocabulary.size + 1024

    @property
    def url(self) -> str:
        return self.wire.url

    @property
    def is_vllm(self) -> bool:
        return self.facts.kind == "vllm"

    def refuse(self, problem: str) -> BadAnswer:
        """The error for an answer that cannot be used."""
        return BadAnswer(f"The server at {self.url} gave an answer that is refused: {problem}.")

    def identify(self) -> ServerFacts:
        """Who the server says it is now; asked again when a connection broke."""
        name = self.facts.model
        cards = {card["id"]: card for card in _model_cards(self.wire)}
        if name not in cards:
            raise self.refuse(f"it does not serve the model {name!r} (any more); it serves: {', '.join(cards)}")
        card = cards[name]
        version = str(self.wire.get("/version").get("version", "")) if self.is_vllm else ""
        lengths = (card.get(key) for key in ("max_model_len", "n_ctx", "context_length"))
        longest = next((n for n in lengths if isinstance(n, int)), None)
        return ServerFacts(self.facts.kind, version, name, str(card.get("root") or ""), longest)

    def probe(self, ids: Sequence[int]) -> Abilities:
        """What the server can, tried on a few tokens."""
        body: dict[str, Any] = {"prompt": [list(ids)], "max_tokens": 1, "temperature": 0.0}
        try:
            takes_ids = self._can(lambda: self._complete(body))
            if not takes_ids:
                body = {**body, "prompt": self.vocabulary.text(ids)}
                self._complete(body)
        except (ServerRefused, ServerDown):
            if self.is_vllm:
                raise
            return Abilities(stops=True, chat=True)
        self.abilities = Abilities(ids=takes_ids)  # scoring sends what the server takes
        sequence = [SequenceAsk(tuple(ids), 1)]
        scores = self._can(lambda: self.score(sequence, False))
        tells_first, counts = False, False
        if scores:
            [answer], usage = self.score(sequence, False)
            tells_first = bool(np.isfinite(answer.top_logprob).all())
            counts = usage.prompt_tokens_details is not None
        return Abilities(
            ids=takes_ids,
            scores=scores,
            first=tells_first,
            everything=scores and self.is_vllm and self._can(lambda: self.score(sequence, True)),
            chosen=self._can(lambda: self._complete({**body, "logprobs": 2})),
            stops=self._can(lambda: self._complete({**body, "stop": ["\n"]})),
            seeds=self._can(lambda: self._complete({**body, "seed": 1})),
            counts=counts,
        )

    def tokenise(self, text: str) -> list[int] | None:
        """The ids that the server's own tokenizer makes of a text; None where it does not tell."""
        if not self.is_vllm:
            return None
        body = {"model": self.facts.model, "prompt": text, "add_special_tokens": False}
        try:
            tokens = self.wire.post("/tokenize", body).get("tokens")
        except (ServerRefused, ServerDown):  # older versions, or switched off
            return None
        return tokens if isinstance(tokens, list) else None

    def _can(self, request: Callable[[], Any]) -> bool:
        """Whether the server takes a request. One that it refuses (status 4xx) is something it cannot do."""
        try:
            request()
        except ServerRefused as error:
            if error.status in (401, 403, 404):
                raise
            return False
        except BadAnswer:
            return False
        return True

    def _prompt(self, ids: Sequence[int]) -> Any:
        """A prompt in the form that the server takes. Text is cut into tokens again there, and may be cut otherwise."""
        return [list(ids)] if self.abilities.ids else self.vocabulary.text(ids)

    def _complete(self, body: Mapping[str, Any], path: str = COMPLETIONS, count: int = 1) -> Completion:
        """The choices for `count` prompts, in the order of the prompts; checked for the model's name."""
        # With its tokens vLLM's answers can be compared with what was sent, and texts be read by our own tokenizer.
        extras = {"return_token_ids": True} if self.is_vllm else {}
        answer = self.wire.post(path, {"model": self.facts.model, **extras, **body})
        try:
            completion = msgspec.convert(answer, Completion, str_keys=True)
        except msgspec.ValidationError as error:
            raise self.refuse(f"it does not have the form of a completion ({error})") from None
        if completion.model != self.facts.model:
            raise self.refuse(f"it comes from the model {completion.model!r}, asked was {self.facts.model!r}")
        if len(completion.choices) != count:
            raise self.refuse(f"{len(completion.choices)} answers to {count} prompts")
        completion.choices.sort(key=lambda choice: choice.index)
        if [choice.index for choice in completion.choices] != list(range(count)):
            raise self.refuse("its answers do not say which prompts they belong to")
        return completion

    # ---- scoring ---------------------------------------------------------------------------------------------------

    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        """Log-probabilities of some sequences; `everything`: with mean and deviation over the vocabulary."""
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
        if self.is_vllm:
            body["prompt"] = [list(ask.ids) for ask in asks]
            body["prompt_logprobs"] = -1 if everything else 1
            answer = self._complete(body, count=len(asks))
            answers = [self._read_prompt_logprobs(choice, everything) for choice in answer.choices]
            return answers, answer.usage or Usage()
        answers = []
        prompt_tokens = completion_tokens = 0
        for ask in asks:
            body["prompt"] = self._prompt(ask.ids)
            answer = self._complete({**body, "echo": True, "logprobs": 1})
            answers.append(self._read_echo(ask, answer.choices[0].logprobs))
            usage = answer.usage or Usage()
            prompt_tokens += usage.prompt_tokens
            completion_tokens += usage.completion_tokens
        return answers, Usage(prompt_tokens, completion_tokens)

    def _read_prompt_logprobs(self, choice: Choice, everything: bool) -> SequenceAnswer:
        """vLLM's form. Position 0 has no entry: nothing precedes it."""
        ids, rows = choice.prompt_token_ids or [], choice.prompt_logprobs or []
        if not ids or len(rows) != len(ids):
            raise self.refuse(f"{len(rows)} positions for {len(ids)} tokens")
        logprob, rank, top1, top_logprob, total, mean, std = [], [], [], [], [], [], []
        for token, row in zip(ids[1:], rows[1:], strict=True):
            if row is None or token not in row:
                raise self.refuse(f"a position lacks the log-probability of its token {token}")
            logprob.append(row[token].logprob)
            rank.append(row[token].rank)
            best, best_entry = min(row.items(), key=lambda item: (item[1].rank, -item[1].logprob))
            tells_best = best_entry.rank == 1 or len(row) > 1
            top1.append(best if tells_best else BROKEN)
            top_logprob.append(best_entry.logprob)
            told = np.array([entry.logprob for entry in row.values()])
            total.append(np.exp(told).sum())
            if everything:
                # vLLM gives all of them only where it was started with --max-logprobs -1 (or the vocabulary).
                if len(row) < self.vocabulary.size:
                    raise self.refuse("not the whole vocabulary")
                position_mean, position_std = spread(told)
                mean.append(position_mean)
                std.append(position_std)
        return SequenceAnswer(
            ids=np.array(ids[1:]),
            logprob=np.array(logprob),
            top1=np.array(top1),
            top_logprob=np.array(top_logprob),
            rank=np.array(rank),
            total=np.array(total),
            mean=np.array(mean) if everything else None,
            std=np.array(std) if everything else None,
        )

    def _read_echo(self, ask: SequenceAsk, told: ChoiceLogprobs | None) -> SequenceAnswer:
        """OpenAI's form: the prompt's tokens first, then what the server wrote."""
        n = len(ask.ids)
        told = told or ChoiceLogprobs()
        tokens = (told.tokens or [])[:n]
        values = (told.token_logprobs or [])[1:n]
        rows = (told.top_logprobs or [])[1:n]
        if len(tokens) < n or len(values) < n - 1 or len(rows) < n - 1:
            raise self.refuse(f"{len(tokens)} tokens of a sequence of {n} (truncated, or read by another tokenizer)")
        if None in values:
            raise self.refuse("a position lacks the log-probability of its token")
        for token, own in zip(tokens, ask.ids, strict=True):
            expected = self.vocabulary.text([own])
            if not token or REPLACEMENT in expected or REPLACEMENT in token:
                continue  # half a character, or a special token that is not written out
            if token.strip() != expected.strip():
                raise self.refuse(f"its tokenizer read {token!r} where {expected!r} was sent")
        top1, top_logprob = [], []
        for row, token, own in zip(rows, tokens[1:], ask.ids[1:], strict=True):
            choices = {piece: value for piece, value in (row or {}).items() if value is not None}
            if not choices:
                top1.append(BROKEN)
                top_logprob.append(float("nan"))
                continue
            best = max(choices, key=lambda piece: choices[piece])
            top1.append(own if best == token else self.vocabulary.id_of(best))
            top_logprob.append(choices[best])
        return SequenceAnswer(
            ids=np.array(ask.ids[1:]),
            logprob=np.array(values, np.float64),
            top1=np.array(top1),
            top_logprob=np.array(top_logprob),
        )

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        """One text."""
        decoding = ask.decoding
        body: dict[str, Any] = {"max_tokens": ask.limit, "temperature": 0.0}
        if not decoding.greedy:
            seed = ask.seed if self.is_vllm else ask.seed % (1 << 31)
            body |= {"temperature": decoding.temperature, "top_p": decoding.top_p, "seed": seed}
        if decoding.stopwords and (self.abilities.stops or not self.is_vllm):
            body["stop"] = list(decoding.stopwords)
        if self.abilities.chat:
            if not ask.turns:
                raise UserError(
                    f"{self.url} only chats, and a prompt here is not just a question (it has examples, or an opening "
                    "of the answer); leave such metrics out."
                )
            body["messages"] = [{"role": role, "content": content} for role, content in ask.turns]
            completion = self._complete(body, CHAT)
            message = completion.choices[0].message
            if message is None:
                raise self.refuse("it has no message")
            return self._text_answer(ask, completion, message.content)
        body["prompt"] = self._prompt(ask.ids)
        if decoding.greedy and self.abilities.chosen:
            body["logprobs"] = 2
        if not self.is_vllm:
            completion = self._complete(body)
            return self._text_answer(ask, completion, completion.choices[0].text)
        body |= {
            "stop_token_ids": list(ask.eos),
            "repetition_penalty": ask.penalty,
            "skip_special_tokens": False,
            "min_p": 0.0,
            "top_k": 0 if decoding.greedy else decoding.top_k,
            "top_p": 1.0 if decoding.greedy else decoding.top_p,
        }
        if "stop" in body:
            body["include_stop_str_in_output"] = True
        completion = self._complete({name: value for name, value in body.items() if value is not None})
        [choice] = completion.choices
        if tuple(choice.prompt_token_ids or ()) != ask.ids:
            raise self.refuse("it continued other tokens than were sent")
        ids = tuple(choice.token_ids or ())
        return TextAnswer(ids, str(choice.finish_reason), smallest_margin(choice)), completion.usage or Usage()

    def _text_answer(self, ask: TextAsk, completion: Completion, text: str) -> tuple[TextAnswer, Usage]:
        """A text in our tokens: the server tells none, so they are what our tokenizer makes of it."""
        [choice] = completion.choices
        stopped = choice.finish_reason == "stop"
        ids = self.vocabulary.ids(text)[: ask.limit]
        if stopped and ask.eos and len(ids) < ask.limit:
            ids.append(ask.eos[0])
        finish = "stop" if stopped or len(ids) < ask.limit else "length"
        usage = completion.usage or Usage()
        return TextAnswer(tuple(ids), finish, smallest_margin(choice), text), Usage(usage.prompt_tokens)


def smallest_margin(choice: Choice) -> float:
    """How near a greedy text came to being another one: the least distance of first and second choice."""
    smallest = float("inf")
    rows = choice.logprobs.top_logprobs if choice.logprobs else None
    for row in rows or []:
        values = sorted(v for v in (row or {}).values() if v is not None)
        if len(values) > 1:
            smallest = min(smallest, values[-1] - values[-2])
    return smallest


def spread(logprobs: Array) -> tuple[float, float]:
    """Mean and deviation of log p under p, from all log-probabilities of one position."""
    finite = np.asarray(logprobs, np.float64)
    finite = finite[np.isfinite(finite)]
    p = np.exp(finite)
    mean = float((p * finite).sum())
    return mean, float(np.sqrt(max((p * finite**2).sum() - mean**2, 0.0)))


# ---- which servers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerArgs:
    """What a user says about servers: `--server` and the settings that go with it."""

    urls: tuple[str, ...]
    key_env: str | None = None
    timeout: float = 600.0  # seconds for one answer
    down: float = 120.0  # seconds with no server answering before a run gives up
    slots: int = 8  # requests under way at a time, per server
    by_name: bool = False  # several models: each is asked at those of the servers that list it

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ServerArgs | None:
        """From a configuration's `server` block; None where no address is given."""
        urls = settings.get("url")
        if not urls:
            return None
        if isinstance(urls, str):
            urls = urls.split(",")
        stripped = [url.strip() for url in urls if str(url).strip()]
        known = {"url", "key_env", "timeout", "down", "slots", "by_name"}
        if unknown := sorted(set(settings) - known):
            raise UserError(f"Unknown settings of server: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        for name in ("timeout", "down", "slots"):
            value = settings.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise UserError(f"server.{name} must be a number above 0, it is {value!r}.")
        return cls(
            urls=tuple(dict.fromkeys(stripped)),
            key_env=settings.get("key_env"),
            timeout=float(settings.get("timeout") or cls.timeout),
            down=float(settings.get("down") or cls.down),
            slots=int(settings.get("slots") or cls.slots),
            by_name=bool(settings.get("by_name")),
        )


def find_servers(args: ServerArgs, model: str, vocabulary: Vocabulary) -> list[ModelServer]:
    """The servers of one model: all that were given, or with `by_name` those that list it."""
    wires = [Wire(url, args.key_env, args.timeout) for url in args.urls]
    cards = {wire.url: _model_cards(wire) for wire in wires}
    if args.by_name:
        serving = [w for w in wires if any(model in (c.get("id"), c.get("root")) for c in cards[w.url])]
        if not serving:
            names = ((url, ", ".join(str(c["id"]) for c in listed)) for url, listed in cards.items())
            served = ", ".join(f"{url} serves {listed}" for url, listed in names)
            raise UserError(
                f"None of the servers serves '{model}' ({served}); with several models each is found by the name or "
                "the directory that its server lists."
            )
        wires = serving
    servers = []
    for wire in wires:
        card = _choose_card(wire, cards[wire.url], model)
        kind = "vllm" if str(card.get("owned_by") or "").lower() == "vllm" else "openai"
        server = ModelServer(wire, ServerFacts(kind, "", str(card["id"])), vocabulary)
        server.facts = server.identify()
        servers.append(server)
    return servers


def _model_cards(wire: Wire) -> list[Mapping[str, Any]]:
    try:
        body = wire.get("/v1/models")
    except ServerRefused as error:
        if error.status != 404:
            raise
        body = {}
    listed = body.get("data") if isinstance(body, Mapping) else None
    cards = [c for c in listed if isinstance(c, Mapping) and c.get("id")] if isinstance(listed, list) else []
    if not cards:
        raise UserError(f"{wire.url} does not list its models (/v1/models); is it a model server?")
    return cards


def _choose_card(wire: Wire, cards: Sequence[Mapping[str, Any]], model: str) -> Mapping[str, Any]:
    """The served model that --model names, by its served name or by where it was read from; else the only one."""
    for key in ("id", "root"):
        named = [card for card in cards if str(card.get(key) or "") == model]
        if len(named) == 1:
            return named[0]
    if len(cards) == 1:
        return cards[0]
    names = ", ".join(str(card["id"]) for card in cards)
    raise UserError(
        f"{wire.url} serves {names}, and not '{model}'; name one of them with --model (and its tokenizer "
        "with --tokenizer)."
    )
