"""vLLM: `/v1/completions` with token ids, `prompt_logprobs` and `return_token_ids`. Tried with 0.32 (CPU).

`prompt_logprobs` gives for every prompt token its log-probability and rank, and the first choices. While it computes
them vLLM does not read its prefix cache, so sequences are pushed whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    spread,
    usage_of,
)
from vestige.servers.wire import ServerDown, ServerRefused
from vestige.types import BROKEN

PATH = "/v1/completions"


@dataclass
class VllmServer(Server):
    """One vLLM server."""

    def identify(self) -> ServerFacts:
        card = model_card(self, self.facts.model)
        version = self.wire.get("/version").get("version", "")
        longest = card.get("max_model_len")
        root = str(card.get("root") or "")
        return ServerFacts("vllm", str(version), self.facts.model, root, longest=longest)

    def probe(self, ids: Sequence[int]) -> Abilities:
        asked = {"prompt": [list(ids)], "max_tokens": 1, "temperature": 0.0}
        takes = self.can(lambda: self._send(asked))
        scores = takes and self.can(lambda: self._send({**asked, "prompt_logprobs": 1}))
        told = self._send({**asked, "prompt_logprobs": 1}) if scores else {}
        first = scores and bool(told["choices"][0].get("prompt_logprobs"))
        counts = bool((told.get("usage") or {}).get("prompt_tokens_details"))
        return Abilities(
            ids=takes,
            scores=scores,
            first=first,
            everything=scores and self.can(lambda: self._everything(asked)),
            chosen=takes and self.can(lambda: self._send({**asked, "logprobs": 2})),
            stops=takes and self.can(lambda: self._send({**asked, "stop": ["\n"]})),
            seeds=takes and self.can(lambda: self._send({**asked, "seed": 1})),
            counts=counts,
        )

    def _everything(self, asked: Mapping[str, Any]) -> None:
        """vLLM gives all log-probabilities only where it was started with --max-logprobs -1 (or the vocabulary)."""
        body = self._send({**asked, "prompt_logprobs": -1})
        rows = body["choices"][0].get("prompt_logprobs") or [None, {}]
        if len(rows[-1]) < self.vocabulary.size:
            raise self.refuse("not the whole vocabulary")

    def _send(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self.wire.post(PATH, {"model": self.facts.model, "return_token_ids": True, **body})
        check_model(answer, self)
        part(answer, "choices", list, self)
        return answer

    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        body = {
            "prompt": [list(a.ids) for a in asks],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": -1 if everything else 1,
        }
        answer = self._send(body)
        choices = in_order(answer["choices"], len(asks), self)
        return [self._scored(choice, everything) for choice in choices], usage_of(answer, self)

    def _scored(self, choice: Mapping[str, Any], everything: bool) -> SequenceAnswer:
        ids = part(choice, "prompt_token_ids", list, self)
        rows = part(choice, "prompt_logprobs", list, self)
        if len(rows) != len(ids):
            raise self.refuse(f"{len(rows)} positions for {len(ids)} tokens")
        out: dict[str, list[Any]] = {k: [] for k in ("logprob", "rank", "top1", "top", "sums", "mean", "std")}
        for token, row in zip(ids[1:], rows[1:], strict=True):
            self._position(token, row, out)
            if everything:
                mean, std = spread(np.asarray([e["logprob"] for e in row.values()]))
                out["mean"].append(mean)
                out["std"].append(std)
        arrays = {k: np.asarray(v, np.float64) for k, v in out.items()}
        return SequenceAnswer(
            first=1,
            ids=np.asarray(ids[1:]),
            logprob=arrays["logprob"],
            top1=arrays["top1"].astype(np.int64),
            top_logprob=arrays["top"],
            rank=arrays["rank"],
            mean=arrays["mean"] if everything else None,
            std=arrays["std"] if everything else None,
            sums=arrays["sums"],
        )

    def _position(self, token: Any, row: Any, out: dict[str, list[Any]]) -> None:
        """One position: {id: {logprob, rank}} of the token itself and of the first choices."""
        entry = row.get(str(token)) if isinstance(row, Mapping) else None
        entries = [e for e in (row or {}).values() if isinstance(e, Mapping)] if isinstance(row, Mapping) else []
        numbers = [e.get(name) for e in entries for name in ("logprob", "rank")]
        if entry is None or not all(isinstance(n, (int, float)) for n in numbers):
            raise self.refuse(f"a position lacks the log-probability of its token {token}")
        best = min(row, key=lambda k: (row[k]["rank"], -row[k]["logprob"]))
        out["logprob"].append(entry["logprob"])
        out["rank"].append(entry["rank"])
        out["top1"].append(int(best) if row[best]["rank"] == 1 or len(row) > 1 else BROKEN)
        out["top"].append(row[best]["logprob"])
        out["sums"].append(float(np.exp([e["logprob"] for e in entries]).sum()))

    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        decoding = ask.decoding
        body: dict[str, Any] = {
            "prompt": [list(ask.ids)],
            "max_tokens": ask.limit,
            "stop_token_ids": list(ask.eos),
            "repetition_penalty": ask.penalty,
            "skip_special_tokens": False,
            "min_p": 0.0,
        }
        if decoding.greedy:
            body |= {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "logprobs": 2 if self.abilities.chosen else None}
        else:
            body |= {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": decoding.top_k}
            body |= {"seed": ask.seed}
        if decoding.stopwords and self.abilities.stops:
            body |= {"stop": list(decoding.stopwords), "include_stop_str_in_output": True}
        answer = self._send({k: v for k, v in body.items() if v is not None})
        [choice] = in_order(answer["choices"], 1, self)
        if tuple(part(choice, "prompt_token_ids", list, self)) != ask.ids:
            raise self.refuse("it continued other tokens than were sent")
        ids = part(choice, "token_ids", list, self)
        finish = str(choice.get("finish_reason"))
        return TextAnswer(tuple(ids), finish, smallest_margin(choice, self)), usage_of(answer, self)

    def tokenised(self, text: str) -> list[int] | None:
        body = {"model": self.facts.model, "prompt": text, "add_special_tokens": False}
        try:
            found = self.wire.post("/tokenize", body).get("tokens")
        except (ServerRefused, ServerDown):  # older versions, or switched off
            return None
        return found if isinstance(found, list) else None


def model_card(server: Server, name: str) -> Mapping[str, Any]:
    """The entry of a served model in `/v1/models`."""
    listed = part(server.wire.get("/v1/models"), "data", list, server)
    for card in listed:
        if isinstance(card, Mapping) and card.get("id") == name:
            return card
    names = ", ".join(str(c.get("id")) for c in listed if isinstance(c, Mapping)) or "none"
    raise server.refuse(f"it does not serve the model {name!r} (any more); it serves: {names}")


def in_order(choices: Sequence[Any], count: int, server: Server) -> list[Mapping[str, Any]]:
    """One choice per prompt, by its index."""
    if len(choices) != count:
        raise server.refuse(f"{len(choices)} answers to {count} prompts")
    by_index = {c.get("index"): c for c in choices if isinstance(c, Mapping)}
    if set(by_index) != set(range(count)):
        raise server.refuse("its answers do not say which prompts they belong to")
    return [by_index[i] for i in range(count)]


def smallest_margin(choice: Mapping[str, Any], server: Server) -> float:
    """How near a greedy text came to being another one: the least distance of first and second choice."""
    told = (choice.get("logprobs") or {}).get("top_logprobs") or []
    smallest = float("inf")
    for row in told:
        values = sorted((v for v in (row or {}).values() if isinstance(v, (int, float))), reverse=True)
        if len(values) > 1:
            smallest = min(smallest, float(values[0] - values[1]))
    return smallest
