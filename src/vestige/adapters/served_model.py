"""A served model as `collect` sees models: targets in, TokenStats out; requests in, Texts out.

    ServedModel      the servers of one model, and how they were met
    ServedAnswers    scores and writes through them; each answer is checked before it is yielded
    Pool             several servers share the work: one that dies loses nothing, one that comes back is used again
    sequences        the distinct sequences to send: one that another begins with is read off the longer one

Nothing distinct is sent twice, and a greedy text starts after the tokens that scoring has proved. Callers:
engine/served.py, which hands it to runs/collect.py, and runs/plan.py.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vestige.adapters.server_checks import TOLERANCE, check_overlaps, check_sequences, check_text
from vestige.adapters.servers import (
    Abilities,
    ModelServer,
    SequenceAnswer,
    SequenceAsk,
    ServerDown,
    ServerFacts,
    TextAsk,
    Usage,
)
from vestige.collect.backend import Cost, Known, StopRule
from vestige.errors import UserError
from vestige.types import Array, Target, Text, TokenStats, content_key
from vestige.wants import Decoding, Request

BATCH_SEQUENCES, BATCH_TOKENS = 16, 4096  # of one request
WHOLE_ENTRIES = 1 << 18  # log-probabilities in one answer, where the whole vocabulary is asked for
TEXTS_KEPT, SECONDS_KEPT = 16, 5.0  # texts are yielded after so many, or so long
REPEATED = 4  # sequences that are asked again, alone and in another order
NEAR_TIE = 1e-4  # nats between first and second choice: another batch may choose the other
LOOK_AGAIN = 2.0  # seconds between two looks at a server that is down


# ---- several servers -------------------------------------------------------------------------------------------------


class Pool:
    """Gives jobs to servers, each with a few threads, and yields (job, answer) as they come.

    A job that its server could not answer goes back into the queue. The threads of a dead server look now and then
    whether it is back; `welcome` asks who it is before it is used again, and may refuse it. What has been answered is
    never asked again.
    """

    def __init__(
        self,
        servers: Sequence[ModelServer],
        slots: int,
        give_up: float,
        welcome: Callable[[ModelServer], None],
        note: Callable[[str], None],
    ) -> None:
        self.servers = list(servers)
        self.slots = slots
        self.give_up = give_up  # seconds with no server answering
        self.welcome = welcome
        self.note = note
        self._jobs: deque[Any] = deque()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._looking = {server.url: threading.Lock() for server in self.servers}  # one thread of a server at a time
        self._down: dict[str, str] = {}  # url -> why
        self._down_since = 0.0  # when the last server went down

    def run(self, jobs: Sequence[Any], ask: Callable[[ModelServer, Any], Any]) -> Iterator[tuple[Any, Any]]:
        """Answers in the order in which they come. Any error but ServerDown ends the run."""
        if not jobs:
            return
        self._jobs.extend(jobs)
        self._welcome_all()
        for _ in range(min(self.slots, len(jobs))):
            for server in self.servers:  # in turns, so that each gets its share of few jobs
                threading.Thread(target=self._work, args=(server, ask), daemon=True, name=server.url).start()
        left = len(jobs)
        try:
            while left:
                try:
                    answer = self._answers.get(timeout=min(LOOK_AGAIN, self.give_up))
                except queue.Empty:
                    self._check_hope()
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                left -= 1
                yield answer
            self._welcome_all()  # a server that was restarted unnoticed would be another one now
        finally:
            self._stop.set()

    def _welcome_all(self) -> None:
        """Each server that is not known to be down says who it is; one that does not answer is down."""
        for server in self.servers:
            try:
                if server.url not in self._down:
                    self.welcome(server)
            except ServerDown as error:
                self._mark_down(server, str(error))

    def _mark_down(self, server: ModelServer, why: str) -> None:
        with self._lock:
            if server.url not in self._down:
                self._down[server.url] = why
                self._down_since = time.monotonic()
                self.note(f"the server at {server.url} went down; its work went to the others")

    def _check_hope(self) -> None:
        """With no server left a run waits a while for one to come back, and then ends."""
        with self._lock:
            if len(self._down) < len(self.servers) or time.monotonic() - self._down_since <= self.give_up:
                return
            why = next(iter(self._down.values()))
        urls = ", ".join(server.url for server in self.servers)
        todo = "Start one and rerun the same command to resume."
        raise UserError(f"No server answers any more ({urls}): {why} {todo}")

    def _work(self, server: ModelServer, ask: Callable[[ModelServer, Any], Any]) -> None:
        """One thread of one server."""
        try:
            while not self._stop.is_set():
                if server.url in self._down and not self._is_back(server):
                    self._stop.wait(LOOK_AGAIN)
                    continue
                try:
                    job = self._jobs.popleft()
                except IndexError:  # another server may still give a job back
                    self._stop.wait(LOOK_AGAIN)
                    continue
                try:
                    self._answers.put((job, ask(server, job)))
                except ServerDown as error:
                    self._jobs.appendleft(job)  # to the front: jobs with the same beginning may be in a cache
                    self._mark_down(server, str(error))
        except BaseException as error:  # nothing above a thread would see it, so run() raises it
            self._answers.put(error)

    def _is_back(self, server: ModelServer) -> bool:
        """Whether a server that was down answers. One of its threads looks at a time: there may be a hundred."""
        looking = self._looking[server.url]
        if not looking.acquire(blocking=False):
            return False
        try:
            self.welcome(server)
        except ServerDown:
            return False
        finally:
            looking.release()
        with self._lock:
            if self._down.pop(server.url, None) is not None:
                self.note(f"the server at {server.url} came back and was used again")
        return True


# ---- one model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writing:
    """How this model's texts begin and end, which its server need not know: from its own generation config."""

    eos: frozenset[int]
    penalty: float = 1.0
    turns: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by prompt key, for chat


class ServedModel:
    """The servers of one model. `canary` is a short sequence whose numbers all of them must agree on."""

    def __init__(
        self, servers: Sequence[ModelServer], slots: int, canary: Sequence[int], give_up: float = 120.0
    ) -> None:
        self.servers = list(servers)
        self.slots = slots
        self.canary = SequenceAsk(tuple(canary), 1)
        self.give_up = give_up  # seconds with no server answering
        self.tolerance = TOLERANCE  # nats between two answers about the same tokens
        self.known: Array | None = None  # the canary's log-probabilities
        self.seconds = 0.0  # that the slowest server took for one short request
        self.repeats: dict[str, Any] = {}  # what came of asking twice, for the manifest
        self.near_ties: list[str] = []  # texts (by key) that came near to being others

    @property
    def facts(self) -> ServerFacts:
        return self.servers[0].facts

    @property
    def abilities(self) -> Abilities:
        return self.servers[0].abilities

    def meet(self) -> None:
        """All servers are of one kind and serve one model; each is probed for what it can."""
        for server in self.servers:
            start, earlier = time.perf_counter(), server.wire.requests
            server.abilities = server.probe(self.canary.ids)
            requests = max(server.wire.requests - earlier, 1)
            self.seconds = max(self.seconds, (time.perf_counter() - start) / requests)
            if server.facts.identity != self.facts.identity or server.abilities != self.abilities:
                raise UserError(
                    f"{self.servers[0].url} and {server.url} do not serve the same model in the same way: "
                    f"{self.facts.as_dict()} and {server.facts.as_dict()}; give servers of one model, alike in version."
                )
            self._check_canary(server)

    def welcome(self, server: ModelServer) -> None:
        """A server that was away must be who it was, by what it says and by its numbers."""
        facts = server.identify()
        if facts != server.facts:
            raise server.refuse(f"it serves another model now ({facts.as_dict()}, before: {server.facts.as_dict()})")
        self._check_canary(server)

    def _check_canary(self, server: ModelServer) -> None:
        if not self.abilities.scores:
            return
        answers, usage = server.score([self.canary], False)
        check_sequences(server, [self.canary], answers, usage)
        numbers = answers[0].logprob
        if self.known is None:
            self.known = numbers
        gap = float(np.abs(numbers - self.known).max())
        if gap > self.tolerance:
            raise server.refuse(f"its numbers for the same tokens are {gap:.3g} apart: it serves another model now")


@dataclass
class SequenceGroup:
    """The sequences of one request, and the targets that each of them answers."""

    asks: list[SequenceAsk]
    targets: list[list[Target]]

    @property
    def tokens(self) -> int:
        return sum(len(ask.ids) for ask in self.asks)


class ServedAnswers:
    """Answers wants through servers."""

    def __init__(self, model: ServedModel, writing: Writing, ending: StopRule, cost: Cost, everything: bool) -> None:
        self.model = model
        self.writing = writing
        self.ending = ending
        self.cost = cost
        self.everything = everything and model.abilities.everything
        self.checking = False  # entries made again to be compared: counted apart

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end this model's texts."""
        return self.writing.eos

    def penalty_of(self, decoding: Decoding) -> float:
        """The repetition penalty in force: a metric's own, else the model's."""
        return self.writing.penalty if decoding.repetition_penalty is None else decoding.repetition_penalty

    def settings(self, kind: str) -> dict[str, Any]:
        """What an interrupted run must have had, too, to be resumed: how requests were packed decides the last bits."""
        return {"served": True, "sequences": BATCH_SEQUENCES, "tokens": BATCH_TOKENS, "everything": self.everything}

    def _note(self, words: str) -> None:
        """Something that readers of the numbers must know; each sentence once."""
        if words not in self.cost.notes:
            self.cost.say(words)

    def _pool(self, slots: int) -> Pool:
        return Pool(self.model.servers, slots, self.model.give_up, self.model.welcome, self._note)

    def _ask(self, server: ModelServer, request: Callable[[], Any]) -> Any:
        """One answer. If a connection broke meanwhile, another process may have given it: who is it now?"""
        broken = server.wire.broken
        answer = request()
        if server.wire.broken != broken:
            self.model.welcome(server)
        return answer

    def _count(self, usage: Usage, sent: int) -> None:
        """Adds the cost of one answer. A server that does not count tokens is taken to have read what was sent."""
        if self.checking:
            self.cost.server_check_tokens += usage.prompt_tokens or sent
            return
        self.cost.server_prompt_tokens += usage.prompt_tokens or sent
        self.cost.server_cached_tokens += usage.cached_tokens
        self.cost.server_decoded_tokens += usage.completion_tokens
        self.cost.server_requests += 1
        self.cost.server_retries = sum(server.wire.retries for server in self.model.servers)

    # ---- scoring ---------------------------------------------------------------------------------------------------

    def score(
        self, targets: Sequence[Target], done: frozenset[str], planned: Callable[[int], None]
    ) -> Iterator[dict[str, TokenStats]]:
        """Yields {target key: stats}, request by request. What is in `done` is not asked again."""
        most_tokens = BATCH_TOKENS
        if self.everything:  # each token comes with the whole vocabulary, which a server has to write out
            most_tokens = max(1, WHOLE_ENTRIES // self.model.servers[0].vocab)
        groups = []
        for group in batches(sequences(targets), most_tokens):
            if any(target.key not in done for answered in group.targets for target in answered):
                groups.append(group)
        planned(sum(group.tokens for group in groups))
        logprobs: dict[tuple[int, ...], Array] = {}  # of each sequence, to compare with when some are asked again
        for group, answers in self._ask_groups(groups):
            self.cost.score_tokens += group.tokens
            self.cost.score_forwards += 1
            stats = {}
            for ask, answered, answer in zip(group.asks, group.targets, answers, strict=True):
                logprobs[ask.ids] = answer.logprob
                for target in answered:
                    stats[target.key] = stats_of(target, answer)
            yield stats
        if logprobs and not self.checking:
            self._ask_again(logprobs)

    def _ask_groups(self, groups: Sequence[SequenceGroup]) -> Iterator[tuple[SequenceGroup, list[SequenceAnswer]]]:
        # Whole vocabularies keep a server's front end busy: one request at a time.
        return self._pool(1 if self.everything else self.model.slots).run(groups, self._ask_group)

    def _ask_group(self, server: ModelServer, group: SequenceGroup) -> list[SequenceAnswer]:
        """One request, checked. A bad answer ends the run: nothing is stored that could be wrong."""
        answers, usage = self._ask(server, lambda: server.score(group.asks, self.everything))
        check_sequences(server, group.asks, answers, usage)
        check_overlaps(server, group.asks, answers, self.model.tolerance)
        self._count(usage, group.tokens)
        return answers

    def _ask_again(self, logprobs: Mapping[tuple[int, ...], Array]) -> None:
        """A few sequences once more: alone, last one first. Numbers that depend on the rest of a batch show here."""
        longest = max(logprobs, key=lambda ids: (len(ids), ids))
        others = sorted(logprobs, key=lambda ids: content_key(repr(ids).encode()))
        chosen = list(dict.fromkeys([longest, *others][:REPEATED]))
        groups = [SequenceGroup([SequenceAsk(ids, 1)], [[]]) for ids in reversed(chosen)]
        gap = 0.0
        self.checking = True
        try:
            for group, [answer] in self._ask_groups(groups):
                differences = np.abs(answer.logprob - logprobs[group.asks[0].ids])
                gap = max(gap, float(differences.max(initial=0.0)))
        finally:
            self.checking = False
        before = self.model.repeats
        self.model.repeats = {
            "sequences": len(chosen) + before.get("sequences", 0),
            "largest_difference": max(gap, before.get("largest_difference", 0.0)),
            "tolerance": self.model.tolerance,
        }
        if gap > self.model.tolerance:
            self._note(
                f"{len(chosen)} sequences asked again, alone and in another order, had log-probabilities up to "
                f"{gap:.3g} apart (tolerance {self.model.tolerance:g}): the server's numbers depend on the batch"
            )

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write(
        self, requests: Sequence[Request], known: Known, done: frozenset[str], drafts: Known
    ) -> Iterator[dict[str, Text]]:
        """Yields {request key: Text}, some at a time. Servers take no drafts: they write what they choose."""
        # Tokens that scoring has proved are not written again: a server continues after them.
        begun = {r.key: self.ending.begin(r, known.get(r.key, ())) for r in requests if r.key not in done}
        wanted = {r.key: r for r in requests if r.key in begun}
        finished = {key: ids for key, ids in begun.items() if self.ending.over(wanted[key], ids)}
        if finished:  # teacher forcing has shown them to the end
            yield self._texts((wanted[key], ids, len(ids)) for key, ids in finished.items())
        jobs = [request for key, request in wanted.items() if key not in finished]
        # Prompts that begin alike follow each other, so that a server finds them in its prefix cache.
        jobs.sort(key=lambda request: (request.prompt.ids, request.key))
        slots = self.model.slots
        if self.model.facts.kind == "vllm":
            # vLLM writes many texts in one batch, and each is a request: as many sequences under way as when scoring.
            # Others write a few at a time; a text that waits for its turn longer than the timeout is asked for again.
            slots *= BATCH_SEQUENCES
        ready = []
        since = time.monotonic()
        written = self._pool(slots).run(jobs, lambda server, r: self._write_one(server, r, begun[r.key]))
        for request, ids in written:
            ready.append((request, ids, len(begun[request.key])))
            if len(ready) >= TEXTS_KEPT or time.monotonic() - since > SECONDS_KEPT:
                yield self._texts(ready)
                ready, since = [], time.monotonic()
        if ready:
            yield self._texts(ready)
        if self.model.near_ties and not self.checking:
            self._note(
                f"{len(self.model.near_ties)} text(s) came within {NEAR_TIE:g} nats of another token: in another batch "
                "or on another machine they may read otherwise"
            )

    def _write_one(self, server: ModelServer, request: Request, begun: Sequence[int]) -> list[int]:
        """Until the text is over by our own rule: a server may stop where our decoder reads no stop word."""
        decoding = request.decoding
        # A seed of its own for each prompt, and for each place where a text is continued: the same text comes back
        # whatever else is asked, and in which order.
        seed = int(content_key(request.prompt.key.encode(), str(decoding.seed).encode())[:15], 16)
        ids = list(begun)
        while not self.ending.over(request, ids):
            prompt = (*request.prompt.ids, *ids)
            limit = min(decoding.max_new_tokens - len(ids), self.ending.positions - len(prompt) + 1)
            ask = TextAsk(
                ids=prompt,
                limit=max(1, int(limit)),
                decoding=decoding,
                penalty=self.penalty_of(decoding),
                seed=seed + len(ids),
                eos=tuple(sorted(self.eos)),
                turns=self.writing.turns.get(request.prompt.key, ()),
            )
            answer, usage = self._ask(server, partial(server.write, ask))
            check_text(server, ask, answer, usage)
            self._count(usage, len(prompt))
            if answer.margin < NEAR_TIE and decoding.greedy and request.key not in self.model.near_ties:
                self.model.near_ties.append(request.key)
            for token in answer.ids:  # a server may write past a stop word that it does not know
                ids.append(token)
                if self.ending.over(request, ids):
                    break
            if answer.text is not None:
                break  # text, not tokens: it cannot be continued token by token
        return ids

    def _texts(self, rows: Iterable[tuple[Request, Sequence[int], int]]) -> dict[str, Text]:
        """{request key: Text} of (request, tokens, how many of them were proven)."""
        texts = self.ending.texts(rows)
        for text in texts.values():
            self.cost.tokens_produced += len(text.ids)
            self.cost.tokens_proven += text.proven
        return texts


def sequences(targets: Sequence[Target]) -> list[tuple[SequenceAsk, list[Target]]]:
    """Distinct sequences, and the targets that each answers: one that begins another is read off the longer one."""
    # In reverse order each sequence comes right after those that begin with it.
    found: list[tuple[SequenceAsk, list[Target]]] = []
    for target in sorted(targets, key=lambda t: t.ids, reverse=True):
        if found and found[-1][0].ids[: len(target.ids)] == target.ids:
            ask, answered = found[-1]
            found[-1] = (SequenceAsk(ask.ids, min(ask.start, target.start)), [*answered, target])
        else:
            found.append((SequenceAsk(target.ids, target.start), [target]))
    return found[::-1]


def batches(asked: Sequence[tuple[SequenceAsk, list[Target]]], most_tokens: int = BATCH_TOKENS) -> list[SequenceGroup]:
    """Requests of a few sequences. Those with one prompt stay together, and neighbours begin alike."""
    by_prompt: dict[tuple[int, ...], SequenceGroup] = {}
    for ask, targets in asked:
        prompt = by_prompt.setdefault(ask.ids[: ask.start], SequenceGroup([], []))
        prompt.asks.append(ask)
        prompt.targets.append(targets)
    groups: list[SequenceGroup] = []
    for _, more in sorted(by_prompt.items()):
        last = groups[-1] if groups else None
        if (
            last is not None
            and len(last.asks) + len(more.asks) <= BATCH_SEQUENCES
            and last.tokens + more.tokens <= most_tokens
        ):
            last.asks += more.asks
            last.targets += more.targets
        else:
            groups.append(more)
    return groups


def stats_of(target: Target, answer: SequenceAnswer) -> TokenStats:
    """One target's statistics out of its sequence's. What the server does not tell is NaN (BROKEN for tokens)."""
    positions = slice(target.start - 1, len(target.ids) - 1)  # answers begin at position 1
    n = len(target.labels)
    unknown = np.full(n, np.nan, np.float32)
    return TokenStats(
        label=np.asarray(target.labels, np.int32),
        top1=answer.top1[positions].astype(np.int32),
        logprob=np.minimum(answer.logprob[positions], 0.0).astype(np.float32),
        mean=unknown if answer.mean is None else answer.mean[positions].astype(np.float32),
        std=unknown if answer.std is None else answer.std[positions].astype(np.float32),
        order=np.arange(n),
        steps=n,
    )
