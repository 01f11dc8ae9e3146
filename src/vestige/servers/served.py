"""A served model as collect sees models: targets in, TokenStats out; requests in, Texts out.

In: the servers of one model, wants. Out: evidence, batch by batch, each answer checked before it is handed on. Caller:
engine/served.py hands it to engine/obtain.py. Nothing distinct is sent twice: a sequence that another one begins with
is read off the longer one, and a greedy text starts behind what scoring has proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from vestige.collect.backend import Cost, Known, StopRule
from vestige.errors import UserError
from vestige.servers import checks
from vestige.servers.kinds import (
    Abilities,
    SequenceAnswer,
    SequenceAsk,
    Server,
    ServerFacts,
    TextAnswer,
    TextAsk,
    Usage,
)
from vestige.servers.pool import Pool
from vestige.types import Array, Target, Text, TokenStats, content_key
from vestige.wants import Decoding, Request

T = TypeVar("T")
BATCH_SEQUENCES, BATCH_TOKENS = 16, 4096  # of one request
WHOLE_ENTRIES = 1 << 18  # log-probabilities in one answer, where the whole vocabulary is asked for
TEXTS_KEPT, SECONDS_KEPT = 16, 5.0  # texts are handed on after so many, or so long
REPEATED = 4  # sequences that are asked again, alone and in another order
NEAR_TIE = 1e-4  # nats between first and second choice: another batch may choose the other


@dataclass(frozen=True)
class Writing:
    """How this model's texts begin and end, which its server need not know: from its own generation config."""

    eos: frozenset[int]
    penalty: float = 1.0
    turns: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by prompt key, for chat

    def penalty_of(self, decoding: Decoding) -> float:
        return self.penalty if decoding.repetition_penalty is None else decoding.repetition_penalty


@dataclass
class GroupAsk:
    """One request: sequences that share beginnings, and the targets that each of them answers."""

    asks: list[SequenceAsk]
    targets: list[list[Target]]

    @property
    def keys(self) -> list[str]:
        return [t.key for targets in self.targets for t in targets]


class ServedModel:
    """The servers of one model. `canary` is a short sequence whose numbers all of them must agree on."""

    def __init__(self, servers: Sequence[Server], slots: int, canary: Sequence[int]) -> None:
        self.servers = list(servers)
        self.slots = slots
        self.canary = SequenceAsk(tuple(canary), 1)
        self.tolerance = checks.TOLERANCE  # nats between two answers about the same tokens
        self.known: Array | None = None  # the canary's log-probabilities
        self.seconds = 0.0  # that one server took for one request of the canary's length, as it was met
        self.repeats: dict[str, Any] = {}  # what came of asking twice, for the manifest
        self.near_ties: list[str] = []  # texts (by key) that came near to being others

    @property
    def facts(self) -> ServerFacts:
        return self.servers[0].facts

    @property
    def abilities(self) -> Abilities:
        return self.servers[0].abilities

    def meet(self) -> None:
        """All servers are of one kind and serve one model; each says what it can."""
        for server in self.servers:
            begun, asked = time.perf_counter(), server.wire.count.requests
            server.abilities = server.probe(self.canary.ids)
            answered = max(server.wire.count.requests - asked, 1)
            self.seconds = max(self.seconds, (time.perf_counter() - begun) / answered)
            if server.facts.identity != self.facts.identity or server.abilities != self.abilities:
                raise UserError(
                    f"{self.servers[0].url} and {server.url} do not serve the same model in the same way: "
                    f"{self.facts.as_dict()} and {server.facts.as_dict()}; give servers of one model, alike in version."
                )
            self._same_numbers(server)

    def welcome(self, server: Server) -> None:
        """A server that was away: it must be who it was, by what it says and by its numbers."""
        now = server.identify()
        if now != server.facts:
            raise server.refuse(f"it serves another model now ({now.as_dict()}, before: {server.facts.as_dict()})")
        self._same_numbers(server)

    def _same_numbers(self, server: Server) -> None:
        if not self.abilities.scores:
            return
        answers, usage = server.score([self.canary], False)
        checks.check_sequences(server, [self.canary], answers, usage)
        numbers = answers[0].logprob
        if self.known is None:
            self.known = numbers
        gap = float(np.abs(numbers - self.known).max())
        if gap > self.tolerance:
            raise server.refuse(f"its numbers for the same tokens are {gap:.3g} apart: it serves another model now")


class ServedAnswers:
    """Answers wants through servers."""

    def __init__(self, model: ServedModel, writing: Writing, ending: StopRule, cost: Cost, everything: bool) -> None:
        self.model = model
        self.writing = writing
        self.ending = ending
        self.cost = cost
        self.everything = everything and model.abilities.everything
        self.checking = False  # entries made again to be compared: counted apart

    def _pool(self, texts: bool = False) -> Pool[Any, Any]:
        slots = self.model.slots
        if texts and self.model.facts.kind == "vllm":
            # vLLM writes many texts in one batch, and each is a request: as many sequences under way as when scoring.
            # Others write a few at a time; a text that waits for its turn longer than the timeout is asked for again.
            slots *= BATCH_SEQUENCES
        elif self.everything:
            slots = 1  # whole vocabularies keep a server's front end busy
        return Pool(self.model.servers, slots, self.model.welcome, self._note)

    def _note(self, words: str) -> None:
        if words not in self.cost.notes:
            self.cost.say(words)

    @property
    def eos(self) -> frozenset[int]:
        return self.writing.eos

    def penalty_of(self, decoding: Decoding) -> float:
        return self.writing.penalty_of(decoding)

    def settings(self, kind: str) -> dict[str, Any]:
        return {"served": True, "sequences": BATCH_SEQUENCES, "tokens": BATCH_TOKENS, "everything": self.everything}

    # ---- scoring ----------------------------------------------------------------------------------------------

    def score(
        self, targets: Sequence[Target], done: frozenset[str], planned: Callable[[int], None]
    ) -> Iterator[dict[str, TokenStats]]:
        """Yields {target key: stats}, request by request. What is `done` is not asked again."""
        groups = batches(sequences(targets), self._batch_tokens)
        jobs = [g for g in groups if not all(k in done for k in g.keys)]
        planned(sum(len(a.ids) for g in jobs for a in g.asks))
        kept: dict[tuple[int, ...], Array] = {}
        for group, answers in self._pool().run(jobs, self._ask_group):
            kept |= {a.ids: s.logprob for a, s in zip(group.asks, answers, strict=True)}
            self.cost.score_tokens += sum(len(a.ids) for a in group.asks)
            self.cost.score_forwards += 1
            yield {
                t.key: stats_of(t, answer)
                for wanted, answer in zip(group.targets, answers, strict=True)
                for t in wanted
            }
        if kept and not self.checking:
            self._repeat(kept)

    @property
    def _batch_tokens(self) -> int:
        """Tokens of one request; few where each of them comes with the whole vocabulary, which a server writes out."""
        return max(1, WHOLE_ENTRIES // self.model.servers[0].vocab) if self.everything else BATCH_TOKENS

    def _ask_group(self, server: Server, group: GroupAsk) -> list[SequenceAnswer]:
        answers, usage = self._from(server, lambda: server.score(group.asks, self.everything))
        checks.check_sequences(server, group.asks, answers, usage)
        checks.Overlaps(self.model.tolerance).check(server, group.asks, answers)
        self._count(usage, sum(len(a.ids) for a in group.asks))
        return answers

    def _from(self, server: Server, ask: Callable[[], T]) -> T:
        """One answer. If a connection broke meanwhile, another process may have given it: who is it now?"""
        before = server.wire.reopened
        answer = ask()
        if server.wire.reopened != before:
            self.model.welcome(server)
        return answer

    def _count(self, usage: Usage, sent: int) -> None:
        if self.checking:
            self.cost.server_check_tokens += usage.prompt or sent
            return
        self.cost.server_prompt_tokens += usage.prompt or sent
        self.cost.server_cached_tokens += usage.cached
        self.cost.server_decoded_tokens += usage.completion
        self.cost.server_requests += 1
        self.cost.server_retries = sum(s.wire.count.retries for s in self.model.servers)

    def _repeat(self, kept: Mapping[tuple[int, ...], Array]) -> None:
        """A few sequences once more: alone, last one first. Numbers that depend on their company show here."""
        names = sorted(kept, key=lambda ids: content_key(repr(ids).encode()))
        chosen = [max(kept, key=lambda ids: (len(ids), ids)), *names][:REPEATED]
        gap = self.repeats_gap([SequenceAsk(ids, 1) for ids in reversed(dict.fromkeys(chosen))], kept)
        before = self.model.repeats
        self.model.repeats = {
            "sequences": len(set(chosen)) + before.get("sequences", 0),
            "largest_difference": max(gap, before.get("largest_difference", 0.0)),
            "tolerance": self.model.tolerance,
        }
        if gap > self.model.tolerance:
            self._note(
                f"{len(set(chosen))} sequences asked again, alone and in another order, had log-probabilities up to "
                f"{gap:.3g} apart (tolerance {self.model.tolerance:g}): the server's numbers depend on the batch"
            )

    def repeats_gap(self, asks: Sequence[SequenceAsk], kept: Mapping[tuple[int, ...], Array]) -> float:
        largest = 0.0
        self.checking = True
        try:
            for group, answers in self._pool().run([GroupAsk([a], [[]]) for a in asks], self._ask_group):
                again, first = answers[0].logprob, kept[group.asks[0].ids]
                n = min(len(again), len(first))
                largest = max(largest, float(np.abs(again[-n:] - first[-n:]).max(initial=0.0)))
        finally:
            self.checking = False
        return largest

    # ---- writing ----------------------------------------------------------------------------------------------

    def write(
        self, requests: Sequence[Request], known: Known, done: frozenset[str], drafts: Known
    ) -> Iterator[dict[str, Text]]:
        """Yields {request key: Text}, some at a time. Servers take no drafts: they write what they choose."""
        made = {r.key: self.ending.begin(r, known.get(r.key, ())) for r in requests if r.key not in done}
        wanted = {r.key: r for r in requests if r.key in made}
        proven = {k: len(ids) for k, ids in made.items()}
        over = [k for k, ids in made.items() if self.ending.over(wanted[k], ids)]
        if over:  # teacher forcing has shown them to the end
            yield self._texts({k: (wanted[k], made[k]) for k in over}, proven)
        left = sorted((wanted[k] for k in made if k not in set(over)), key=lambda r: (r.prompt.ids, r.key))
        ready: dict[str, tuple[Request, list[int]]] = {}
        since = time.monotonic()
        pool = self._pool(texts=True)
        for request, ids in pool.run(left, lambda server, r: self._write_one(server, r, made[r.key])):
            ready[request.key] = (request, ids)
            if len(ready) >= TEXTS_KEPT or time.monotonic() - since > SECONDS_KEPT:
                yield self._texts(ready, proven)
                ready, since = {}, time.monotonic()
        if ready:
            yield self._texts(ready, proven)
        if self.model.near_ties and not self.checking:
            self._note(
                f"{len(self.model.near_ties)} text(s) came within {NEAR_TIE:g} nats of another token: in another batch "
                "or on another machine they may read otherwise"
            )

    def _write_one(self, server: Server, request: Request, begun: Sequence[int]) -> list[int]:
        """Until the text is over by our own rule: a server may stop where our decoder reads no stop word."""
        made = list(begun)
        while not self.ending.over(request, made):
            ask = self._ask_of(request, made)
            answer, usage = self._from(server, partial(server.write, ask))
            checks.check_text(server, ask, answer, usage)
            self._count(usage, len(ask.ids))
            if answer.margin < NEAR_TIE and request.decoding.greedy and request.key not in self.model.near_ties:
                self.model.near_ties.append(request.key)
            made = self._grown(request, made, answer)
            if self.model.abilities.chat or answer.text is not None:
                break  # text, not tokens: it cannot be continued token by token
        return made

    def _grown(self, request: Request, made: Sequence[int], answer: TextAnswer) -> list[int]:
        """The tokens up to where the text is over: a server may write past a stop word that it does not know."""
        out = list(made)
        for token in answer.ids:
            out.append(token)
            if self.ending.over(request, out):
                break
        return out

    def _ask_of(self, request: Request, made: Sequence[int]) -> TextAsk:
        decoding = request.decoding
        ids = (*request.prompt.ids, *made)
        room = min(decoding.max_new_tokens - len(made), self.ending.positions - len(ids) + 1)
        seed = int(content_key(request.prompt.key.encode(), str(decoding.seed).encode())[:15], 16)
        return TextAsk(
            ids,
            max(1, int(room)),
            decoding,
            self.writing.penalty_of(decoding),
            seed + len(made),
            tuple(sorted(self.writing.eos)),
            turns=self.writing.turns.get(request.prompt.key, ()),
        )

    def _texts(self, rows: Mapping[str, tuple[Request, Sequence[int]]], proven: Mapping[str, int]) -> dict[str, Text]:
        out = self.ending.texts([(request, ids, proven[key]) for key, (request, ids) in rows.items()])
        for text in out.values():
            self.cost.tokens_produced += len(text.ids)
            self.cost.tokens_proven += text.proven
        return out


def sequences(targets: Sequence[Target]) -> list[tuple[SequenceAsk, list[Target]]]:
    """Distinct sequences, and the targets that each answers: one that begins another is read off the longer one."""
    out: list[tuple[SequenceAsk, list[Target]]] = []
    for target in sorted(targets, key=lambda t: t.ids, reverse=True):  # a longer sequence comes before what begins it
        last = out[-1] if out else None
        if last is not None and last[0].ids[: len(target.ids)] == target.ids:
            out[-1] = (SequenceAsk(last[0].ids, min(last[0].start, target.start)), [*last[1], target])
        else:
            out.append((SequenceAsk(target.ids, target.start), [target]))
    return out[::-1]


def batches(asked: Sequence[tuple[SequenceAsk, list[Target]]], most: int = BATCH_TOKENS) -> list[GroupAsk]:
    """Requests of a few sequences. Those with one prompt stay together, and neighbours begin alike."""
    groups: dict[tuple[int, ...], list[tuple[SequenceAsk, list[Target]]]] = {}
    for ask, targets in asked:
        groups.setdefault(ask.ids[: ask.start], []).append((ask, targets))
    out: list[GroupAsk] = []
    for prompt in sorted(groups):
        group = groups[prompt]
        tokens = sum(len(a.ids) for a, _ in group)
        full = out and (
            len(out[-1].asks) + len(group) > BATCH_SEQUENCES or sum(len(a.ids) for a in out[-1].asks) + tokens > most
        )
        if not out or full:
            out.append(GroupAsk([], []))
        out[-1].asks += [a for a, _ in group]
        out[-1].targets += [t for _, t in group]
    return out


def stats_of(target: Target, answer: SequenceAnswer) -> TokenStats:
    """One target's statistics out of its sequence's. What the server does not tell is NaN (BROKEN for tokens)."""
    cut = slice(target.start - answer.first, len(target.ids) - answer.first)
    n = len(target.labels)
    unknown = np.full(n, np.nan, np.float32)
    return TokenStats(
        label=np.asarray(target.labels, np.int32),
        top1=answer.top1[cut].astype(np.int32),
        logprob=np.minimum(answer.logprob[cut], 0.0).astype(np.float32),
        mean=unknown if answer.mean is None else answer.mean[cut].astype(np.float32),
        std=unknown if answer.std is None else answer.std[cut].astype(np.float32),
        order=np.arange(n),
        steps=n,
    )
