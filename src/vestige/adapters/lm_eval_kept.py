"""What the harness's model answered, kept task by task: a killed run asks only what is left.

    harness --requests of all tasks--> KeptAnswers --one task at a time--> the model, or the evidence of the run

The harness puts the requests of all tasks into one call per kind of request. Here they are split by task, always, so
that batches are the same whether or not a task was answered before. Filters, metrics, averages and standard errors are
the harness's own and are computed each time; only answers are kept. They are known by what they depend on: the model,
its tokenizer, versions, batch size, and every request word by word (limit, few-shot examples, templates and the task's
own prompts are all in there). Kept with them is what else the task left behind: the state of the random generators,
warnings, and what a diffusion model has to say of its estimates. So the files of a resumed run are those of a run that
was never interrupted.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vestige.types import content_key

VERSION = 1
KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")
ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # numbers that JSON has no words for


# Key of a task's requests, and a function that asks them -> the answers, from evidence where they are known.
LoadOrAsk = Callable[[str, Callable[[], dict[str, Any]]], Mapping[str, Any]]


@dataclass
class KeptAnswers:
    """Stands before a harness's model and asks it only what is not kept."""

    lm: Any  # a model as the harness sees it
    load_or_ask: LoadOrAsk
    watch: Any  # counts forward passes and those with broken logits (lm_eval.LogitWatch)
    warned: Any  # collects warnings (lm_eval._Warnings)
    reused: list[str] = field(default_factory=list)  # tasks that were not asked again
    asked: list[str] = field(default_factory=list)

    def install(self) -> None:
        """In the place of the model's own methods, which the harness looks up by name."""
        for kind in KINDS:
            setattr(self.lm, kind, self._answering(kind, getattr(self.lm, kind)))

    def _answering(self, kind: str, ask: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def answer(requests: Sequence[Any], *args: Any, **more: Any) -> list[Any]:
            by_task: dict[str, list[int]] = {}
            for place, request in enumerate(requests):
                by_task.setdefault(str(request.task_name), []).append(place)
            out: list[Any] = [None] * len(requests)
            for task, places in by_task.items():
                mine = [requests[i] for i in places]
                for i, one in zip(places, self._task(kind, task, mine, lambda r: ask(r, *args, **more)), strict=True):
                    out[i] = one
            return out

        return answer

    def _task(self, kind: str, task: str, requests: list[Any], ask: Callable[[list[Any]], list[Any]]) -> list[Any]:
        asked = False

        def answers() -> dict[str, Any]:
            nonlocal asked
            asked = True
            return self._ask(requests, ask)

        body = self.load_or_ask(_key(kind, task, requests), answers)
        tasks = self.asked if asked else self.reused
        if task not in tasks:
            tasks.append(task)
        self._take_up(body)
        return [_answer(one) for one in body["answers"]]

    def _ask(self, requests: list[Any], ask: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
        """One task's answers, and all that asking left behind. What others left behind is as before."""
        lines, self.warned.lines = self.warned.lines, []
        forwards, broken = self.watch.forwards, self.watch.broken
        told = self._aside()
        answers = ask(requests)
        body = {
            "answers": [_plain(one) for one in answers],
            "random": random_state(),
            "forwards": self.watch.forwards - forwards,
            "broken": self.watch.broken - broken,
            "warnings": list(self.warned.lines),
            "told": self.lm.told() if told is not None else {},
        }
        self.warned.lines = lines
        self.watch.forwards, self.watch.broken = forwards, broken
        if told is not None:
            self.lm.forget_told()
            self.lm.take_told(told)
        return body

    def _aside(self) -> dict[str, Any] | None:
        """What a diffusion model had to say until now, so that what it says next is one task's."""
        if not hasattr(self.lm, "told"):
            return None
        told: dict[str, Any] = self.lm.told()
        self.lm.forget_told()
        return told

    def _take_up(self, body: Mapping[str, Any]) -> None:
        """As if the task had been asked just now."""
        self.watch.forwards += body["forwards"]
        self.watch.broken += body["broken"]
        for line in body["warnings"]:
            self.warned.add(line)
        if body["told"]:
            self.lm.take_told(body["told"])
        restore_random(body["random"])


def _key(kind: str, task: str, requests: Sequence[Any]) -> str:
    words = [json.dumps([*request.args], sort_keys=True, default=repr).encode() for request in requests]
    # Texts may be drawn, and then go on from where the generators are; nothing else draws.
    drawn = json.dumps(random_state(), sort_keys=True).encode() if kind == "generate_until" else b""
    return content_key(str(VERSION).encode(), kind.encode(), task.encode(), drawn, *words)


def _plain(answer: Any) -> Any:
    """An answer in JSON's types: a text, a log-likelihood, or a pair of one and whether it is greedy."""
    if isinstance(answer, (tuple, list)):
        return [_plain(one) for one in answer]
    if isinstance(answer, (str, bool, int)) or answer is None:
        return answer
    number = float(answer)
    return number if math.isfinite(number) else {"number": str(number)}


def _answer(kept: Any) -> Any:
    if isinstance(kept, Mapping):
        return ODD[kept["number"]]
    return tuple(map(_answer, kept)) if isinstance(kept, list) else kept


# ---- random generators --------------------------------------------------------------------------------------------


def random_state() -> dict[str, Any]:
    """Of Python, NumPy and torch on every device, in plain data.

    >>> before = random_state()
    >>> drawn = random.random(), np.random.rand()
    >>> restore_random(before)
    >>> (random.random(), np.random.rand()) == drawn
    True
    """
    import torch

    version, words, spare = random.getstate()
    kind, keys, at, has_spare, cached = np.random.get_state(legacy=True)
    cuda = [_hex(s) for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    mps = _hex(torch.mps.get_rng_state()) if torch.backends.mps.is_available() else ""
    return {
        "python": [version, list(words), spare],
        "numpy": [str(kind), [int(k) for k in keys], int(at), int(has_spare), float(cached)],
        "torch": [_hex(torch.get_rng_state()), cuda, mps],
    }


def restore_random(state: Mapping[str, Any]) -> None:
    import torch

    version, words, spare = state["python"]
    random.setstate((version, tuple(words), spare))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    cpu, cuda, mps = state["torch"]
    torch.set_rng_state(_bytes(cpu))
    if cuda and torch.cuda.is_available() and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all([_bytes(one) for one in cuda])
    if mps and torch.backends.mps.is_available():
        torch.mps.set_rng_state(_bytes(mps))


def _hex(state: Any) -> str:
    return bytes(state.tolist()).hex()


def _bytes(text: str) -> Any:
    import torch

    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
