"""SGLang: `/generate` with `input_ids`, `return_logprob` and `logprob_start_len`, which keeps its prefix cache.

Written after its documentation and sources (managers/io_struct.py, http_server.py); it needs a GPU, so that it was
not run here. The first token at `logprob_start_len` has no log-probability, so that one earlier is asked for.
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
    part,
)
from vestige.servers.wire import ServerRefused
from vestige.types import BROKEN

PATH = "/generate"


@dataclass
class SglangServer(Server):
    """One SGLang server."""

    def identify(self) -> ServerFacts:
        model = self.wire.get("/get_model_info")
        try:
            info = self.wire.get("/get_server_info")
        except ServerRefused:
            info = {}
        root = str(model.get("model_path") or "")
        longest = info.get("max_total_num_tokens") if isinstance(info.get("max_total_num_tokens"), int) else None
        longest = info.get("context_length") if isinstance(info.get("context_length"), int) else longest
        # Of the server's arguments only these are looked at: its API key is among the others.
        dtype = str(info.get("dtype") or "")
        fingerprint = str(model.get("weight_version") or "")
        version = str(info.get("version") or "")
        named = "" if dtype == "auto" else dtype
        return ServerFacts("sglang", version, self.facts.model, root, named, fingerprint, longest)

    def probe(self, ids: Sequence[int]) -> Abilities:
        asked = {"input_ids": [list(ids)], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        takes = self.can(lambda: self._send(asked, 1))
        logs = {"return_logprob": True, "logprob_start_len": max(len(ids) - 3, 0), "top_logprobs_num": 2}
        scores = takes and self.can(lambda: self._send({**asked, **logs}, 1))
        told = self._send({**asked, **logs}, 1)[0]["meta_info"] if scores else {}
        return Abilities(
            ids=takes,
            scores=scores,
            first=scores and bool(told.get("input_top_logprobs")),
            start=scores,
            chosen=scores and bool(told.get("output_top_logprobs")),
            stops=True,
            seeds=takes and self.can(lambda: self._send(_seeded(asked, 1), 1)),
            counts="cached_tokens" in told,
        )

    def _send(self, body: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
        answer = self.wire.post(PATH, body)
        rows = answer if isinstance(answer, list) else [answer]
        if len(rows) != count:
            raise self.refuse(f"{len(rows)} answers to {count} prompts")
        for row in rows:
            part(row, "meta_info", Mapping, self)
        return rows

    def score(self, asks: Sequence[SequenceAsk], everything: bool) -> tuple[list[SequenceAnswer], Usage]:
        body = {
            "input_ids": [list(a.ids) for a in asks],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": [a.start - 1 for a in asks],
            "top_logprobs_num": 1,
        }
        rows = self._send(body, len(asks))
        told = [row["meta_info"] for row in rows]
        return [self._scored(a, m) for a, m in zip(asks, told, strict=True)], self._usage(told)

    def _usage(self, told: Sequence[Mapping[str, Any]]) -> Usage:
        names = ("prompt_tokens", "cached_tokens", "completion_tokens")
        counts = [sum(m[n] for m in told if isinstance(m.get(n), int)) for n in names]
        return Usage(*counts)

    def _scored(self, ask: SequenceAsk, told: Mapping[str, Any]) -> SequenceAnswer:
        """[[log-probability, id, text], ...] of the tokens, and a list of such for the first choices."""
        rows = part(told, "input_token_logprobs", list, self)[1:]
        tops = (told.get("input_top_logprobs") or [])[1:]
        if not all(isinstance(r, (list, tuple)) and len(r) >= 2 and _number(r[0]) for r in rows):
            raise self.refuse("a position lacks the log-probability of its token")
        best = [t[0] if t and _number(t[0][0]) else (float("nan"), BROKEN) for t in tops]
        best = best or [(float("nan"), BROKEN)] * len(rows)
        return SequenceAnswer(
            first=ask.start,
            ids=np.asarray([r[1] for r in rows], np.int64),
            logprob=np.asarray([r[0] for r in rows], np.float64),
            top1=np.asarray([b[1] for b in best], np.int64),
            top_logprob=np.asarray([b[0] for b in best], np.float64),
        )

    def write(self, ask: TextAsk) -> tuple[TextAnswer, Usage]:
        decoding = ask.decoding
        params: dict[str, Any] = {
            "max_new_tokens": ask.limit,
            "stop_token_ids": list(ask.eos),
            "repetition_penalty": ask.penalty,
            "skip_special_tokens": False,
            "temperature": 0.0 if decoding.greedy else decoding.temperature,
        }
        if not decoding.greedy:
            params |= {"top_p": decoding.top_p, "top_k": decoding.top_k or -1, "sampling_seed": ask.seed % (1 << 31)}
        if decoding.stopwords:
            params |= {"stop": list(decoding.stopwords), "no_stop_trim": True}
        body = {"input_ids": [list(ask.ids)], "sampling_params": params}
        logs = {"return_logprob": True, "logprob_start_len": len(ask.ids), "top_logprobs_num": 2}
        [row] = self._send({**body, **(logs if decoding.greedy and self.abilities.chosen else {})}, 1)
        told = row["meta_info"]
        ids = row.get("output_ids")
        if not isinstance(ids, list):
            ids = [r[1] for r in part(told, "output_token_logprobs", list, self)]
        finish = (told.get("finish_reason") or {}).get("type", "") if isinstance(told, Mapping) else ""
        return TextAnswer(tuple(ids), str(finish), _margin(told)), self._usage([told])


def _seeded(asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {**asked, "sampling_params": {**asked["sampling_params"], "sampling_seed": seed, "temperature": 1.0}}


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _margin(told: Mapping[str, Any]) -> float:
    rows = told.get("output_top_logprobs") or []
    gaps = [r[0][0] - r[1][0] for r in rows if r and len(r) > 1 and _number(r[0][0]) and _number(r[1][0])]
    return min(gaps, default=float("inf"))
