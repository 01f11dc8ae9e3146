"""Any server that speaks OpenAI's API: `/v1/completions` in its old form, or only `/v1/chat/completions`.

In the old form `echo` with `logprobs` gives the prompt's tokens as text with their log-probabilities, and the first
choices as text. Where such a server takes no token ids, prompts are sent as text and its tokens are compared with ours,
one by one. A server that only chats gets questions, writes the prompt around
them itself, and gives texts: no number of it is known, but what it says is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vestige.errors import UserError
from vestige.servers.kinds import (
    Abilities,
    SequenceAnswer,
    SequenceAsk,
    Server,
    ServerFacts,
    TextAnswer,
    TextAsk,
    Usage,
    check_model,
    part,
    usage_of,
)
from vestige.servers.vllm import in_order, model_card, smallest_margin
from vestige.servers.wire import ServerDown, ServerRefused
from vestige.types import BROKEN

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
FILLER = "\ufffd"  # what becomes of half a character


@dataclass
class OpenAIServer(Server):
    """One server of unknown make."""

    pieces: dict[str, int] = field(default_factory=dict)  # token text -> id

    def identify(self) -> ServerFacts:
        card = model_card(self, self.facts.model)
        told = (card.get(k) for k in ("max_model_len", "n_ctx", "context_length"))
        longest = next((n for n in told if isinstance(n, int)), None)
        return ServerFacts("openai", "", self.facts.model, str(card.get("root") or ""), longest=longest)

    def probe(self, ids: Sequence[int]) -> Abilities:
        try:
            takes = self.can(lambda: self._send({"prompt": [list(ids)], "max_tokens": 1}))
            text = {"prompt": self.vocabulary.text(ids), "max_tokens": 1, "temperature": 0.0}
            self._send(text)
        except (ServerRefused, ServerDown):
            return Abilities(stops=True, chat=True)
        ask = [SequenceAsk(tuple(ids), 1)]
        self.abilities = Abilities(ids=takes)
        scores = self.can(lambda: self.score(ask, False))
        first = scores and bool(np.isfinite(self.score(ask, False)[0][0].top_logprob).all())
        return Abilities(
            ids=takes,
            scores=scores,
            first=first,
            chosen=self.can(lambda: self._send({**text, "logprobs": 2})),
            stops=self.can(lambda: self._send({**text, "stop": ["\n"]})),
            seeds=self.can(lambda: self._send({**text, "seed": 1})),
        )

    def _send(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self.wire.post(PATH, {"model": self.facts.model, **body})
        check_model(answer, self)
        part(answer, "choices", list, self)
        return answer

    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        out, usage = [], Usage()
        for ask in asks:
            prompt: Any = list(ask.ids) if self.abilities.ids else self.vocabulary.text(ask.ids)
            answer = self._send({"prompt": prompt, "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": 1})
            [choice] = in_order(answer["choices"], 1, self)
            out.append(self._scored(ask, part(choice, "logprobs", Mapping, self)))
            usage.add(usage_of(answer, self))
        return out, usage

    def _scored(self, ask: SequenceAsk, told: Mapping[str, Any]) -> SequenceAnswer:
        """{tokens, token_logprobs, top_logprobs}: the prompt's tokens first, then what it wrote."""
        n = len(ask.ids)
        tokens = part(told, "tokens", list, self)
        values, tops = (part(told, k, list, self)[1:n] for k in ("token_logprobs", "top_logprobs"))
        if len(tokens) < n or len(values) != n - 1 or len(tops) != n - 1:
            raise self.refuse(f"{len(tokens)} tokens of a sequence of {n} (truncated, or read by another tokenizer)")
        if not all(isinstance(v, (int, float)) for v in values):
            raise self.refuse("a position lacks the log-probability of its token")
        self._check_pieces(ask, tokens)
        best = [self._best(row, token, own) for row, token, own in zip(tops, tokens[1:n], ask.ids[1:], strict=True)]
        return SequenceAnswer(
            first=1,
            ids=np.asarray(ask.ids[1:]),
            logprob=np.asarray(values, np.float64),
            top1=np.asarray([b[0] for b in best], np.int64),
            top_logprob=np.asarray([b[1] for b in best], np.float64),
        )

    def _check_pieces(self, ask: SequenceAsk, tokens: Sequence[Any]) -> None:
        """The server's tokens are ours: the same number, and the same text where a token has one of its own."""
        for token, own in zip(tokens, ask.ids, strict=False):
            ours = self.vocabulary.text([own])
            if FILLER in ours or not isinstance(token, str) or FILLER in token or token == "":
                continue  # half a character, or a special token that is not written out
            if token.strip() != ours.strip():
                raise self.refuse(f"its tokenizer read {token!r} where {ours!r} was sent")

    def _best(self, row: Any, token: str, own: int) -> tuple[int, float]:
        """The first choice of one position, by its text; BROKEN where the text is not one token's."""
        known = {k: v for k, v in row.items() if isinstance(v, (int, float))} if isinstance(row, Mapping) else {}
        if not known:
            return BROKEN, float("nan")
        word = max(known, key=lambda k: known[k])
        if word == token:
            return own, float(known[word])
        return self._id_of(word), float(known[word])

    def _id_of(self, piece: str) -> int:
        if not self.pieces:
            seen: dict[str, int] = {}
            for i in range(self.vocabulary.size):
                text = self.vocabulary.text([i])
                seen[text] = BROKEN if text in seen else i  # two tokens that look alike cannot be told apart
            self.pieces = seen
        return self.pieces.get(piece, BROKEN)

    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        if self.abilities.chat:
            return self._chat(ask)
        prompt: Any = list(ask.ids) if self.abilities.ids else self.vocabulary.text(ask.ids)
        body = {"prompt": prompt, "max_tokens": ask.limit, **self._decoding(ask)}
        if ask.decoding.greedy and self.abilities.chosen:
            body["logprobs"] = 2
        answer = self._send(body)
        [choice] = in_order(answer["choices"], 1, self)
        text = part(choice, "text", str, self)
        return self._text(ask, text, choice), Usage(usage_of(answer, self).prompt)

    def _decoding(self, ask: TextAsk) -> dict[str, Any]:
        d = ask.decoding
        out: dict[str, Any] = {"temperature": 0.0 if d.greedy else d.temperature}
        out |= {} if d.greedy else {"top_p": d.top_p, "seed": ask.seed % (1 << 31)}
        return out | ({"stop": list(d.stopwords)} if d.stopwords else {})

    def _chat(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        if not ask.turns:
            raise UserError(
                f"{self.url} only chats, and a prompt here is not just a question (it has examples, or an opening of "
                "the answer); leave such metrics out."
            )
        turns = [{"role": role, "content": content} for role, content in ask.turns]
        answer = self.wire.post(
            CHAT, {"model": self.facts.model, "messages": turns, "max_tokens": ask.limit, **self._decoding(ask)}
        )
        check_model(answer, self)
        [choice] = in_order(part(answer, "choices", list, self), 1, self)
        text = part(part(choice, "message", Mapping, self), "content", str, self)
        return self._text(ask, text, choice), Usage(usage_of(answer, self).prompt)

    def _text(self, ask: TextAsk, text: str, choice: Mapping[str, Any]) -> TextAnswer:
        """A text in our tokens: the server tells none, so that these are what our tokenizer makes of it."""
        finish = str(choice.get("finish_reason"))
        ids = self.vocabulary.ids(text)[: ask.limit]
        if finish == "stop" and ask.eos and len(ids) < ask.limit:
            ids = [*ids, ask.eos[0]]
        finish = "stop" if finish == "stop" or len(ids) < ask.limit else "length"
        return TextAnswer(tuple(ids), finish, smallest_margin(choice, self), text)
