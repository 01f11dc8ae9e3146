"""llama.cpp's own server: `/completion` with token ids writes texts. It gives no log-probabilities of prompts.

Written after its documentation (tools/server/README.md), and tried as the package xllamacpp ships it. Its OpenAI form
has no `echo` either, so that everything but text metrics is missing; llama-cpp-python's server (openai.py) scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vestige.servers.kinds import (
    Abilities,
    SequenceAnswer,
    SequenceAsk,
    Server,
    ServerFacts,
    TextAnswer,
    TextAsk,
    Usage,
    part,
)

PATH = "/completion"
FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass
class LlamaCppServer(Server):
    """One llama-server."""

    def identify(self) -> ServerFacts:
        props = self.wire.get("/props")
        settings = props.get("default_generation_settings") or {}
        longest = settings.get("n_ctx") if isinstance(settings.get("n_ctx"), int) else None
        version, root = str(props.get("build_info") or ""), str(props.get("model_path") or "")
        return ServerFacts("llama.cpp", version, self.facts.model, root, longest=longest)

    def probe(self, ids: Sequence[int]) -> Abilities:
        asked = {"prompt": list(ids), "n_predict": 1, "temperature": 0.0, "return_tokens": True}
        takes = self.can(lambda: part(self.wire.post(PATH, asked), "tokens", list, self))
        return Abilities(ids=takes, chosen=takes, stops=takes, seeds=takes, counts=takes)

    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        raise self.refuse("llama.cpp's server gives no log-probabilities of prompts")

    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        decoding = ask.decoding
        body: dict[str, Any] = {
            "prompt": list(ask.ids),
            "n_predict": ask.limit,
            "return_tokens": True,
            "cache_prompt": True,
            "temperature": 0.0 if decoding.greedy else decoding.temperature,
            "top_k": 1 if decoding.greedy else decoding.top_k,
            "top_p": 1.0 if decoding.greedy else decoding.top_p,
            "min_p": 0.0,
            "repeat_penalty": ask.penalty,
            "repeat_last_n": len(ask.ids) + ask.limit,  # all of it; newer versions refuse -1, which meant that
            "seed": ask.seed % (1 << 31),
            "n_probs": 2,
            "stop": list(decoding.stopwords),
        }
        answer = self.wire.post(PATH, body)
        if answer.get("truncated"):
            raise self.refuse("it cut the prompt (truncated); start it with a larger --ctx-size")
        ids = part(answer, "tokens", list, self)
        finish = FINISH.get(str(answer.get("stop_type")), str(answer.get("stop_type")))
        evaluated, cached = answer.get("tokens_evaluated", 0), (answer.get("timings") or {}).get("cache_n", 0)
        if isinstance(evaluated, int) and evaluated != len(ask.ids):
            raise self.refuse(f"it counted {evaluated} tokens where {len(ask.ids)} were sent")
        if finish == "stop" and ask.eos and (not ids or ids[-1] not in ask.eos) and not decoding.stopwords:
            ids = [*ids, ask.eos[0]]  # it leaves the end token out
        return TextAnswer(tuple(ids), finish, _margin(answer)), Usage(len(ask.ids), int(cached or 0), len(ids))

    def tokenised(self, text: str) -> list[int] | None:
        found = self.wire.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        tokens = found.get("tokens") if isinstance(found, Mapping) else None
        return tokens if isinstance(tokens, list) else None


def _margin(answer: Mapping[str, Any]) -> float:
    rows = [r.get("top_logprobs") or [] for r in answer.get("completion_probabilities") or [] if isinstance(r, Mapping)]
    gaps = [r[0]["logprob"] - r[1]["logprob"] for r in rows if len(r) > 1]
    return min(gaps, default=float("inf"))
