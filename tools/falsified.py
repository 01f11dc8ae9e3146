"""Falsified answers: 100 seeded runs against a server that lies in 1 % of its answers; how many lies are noticed?

    PYTHONPATH=src:tests python tools/falsified.py [RUNS]      writes the table into docs/sweep.md

The server is tests/serve_tools.py on the golden lab, asked without HTTP. A lie changes one sequence of an answer; the
form stays right. Noticed means: the run is refused, or the manifest has a note.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import LAB, SYSTEM
from serve_tools import ModelServer, TinyModel
from vestige.adapters.served_model import ServedAnswers, ServedModel, Writing
from vestige.adapters.servers import BadAnswer, ServerFacts, Vocabulary
from vestige.adapters.servers import ModelServer as Client
from vestige.collect.backend import Cost, StopRule
from vestige.data.chat import Encoder, Template
from vestige.types import Target

SHARE, ROWS = 0.01, 12
BEGIN, END = "<!-- falsified: written by tools/falsified.py -->", "<!-- /falsified -->"
PAGE = Path(__file__).parent.parent / "docs" / "sweep.md"


class Lying:
    """A wire that leads straight to the server, and lies now and then. Honest answers are made once."""

    def __init__(self, server: ModelServer, other: ModelServer) -> None:
        self.server, self.other = server, other
        self.url, self.requests, self.retries, self.broken = "http://127.0.0.1", 0, 0, 0
        self.kept: dict[str, Any] = {}
        self.random = random.Random(0)
        self.told: list[str] = []  # lies of this run
        self.lying = False

    def get(self, path: str) -> Any:
        return self.server.answer(path, {})

    def post(self, path: str, body: Any) -> Any:
        honest = copy.deepcopy(self.answer(self.server, body))
        if self.lying and "prompt_logprobs" in body:
            for choice in honest["choices"]:
                if self.random.random() < SHARE:
                    name = self.random.choice(list(LIES))
                    LIES[name](choice, self)
                    self.told.append(name)
        return honest

    def answer(self, server: ModelServer, body: Any) -> Any:
        key = f"{id(server)} {json.dumps(body, sort_keys=True)}"
        if key not in self.kept:
            self.kept[key] = server.answer("/v1/completions", body)
        return self.kept[key]


def _entries(choice: Any) -> list[dict[str, Any]]:
    pairs = zip(choice["prompt_token_ids"][1:], choice["prompt_logprobs"][1:], strict=True)
    return [row[str(token)] for token, row in pairs]


def one_token(choice: Any, wire: Lying) -> None:
    """The last tokens are the answer: one of them is made less likely."""
    entry = wire.random.choice(_entries(choice)[-8:])
    entry["logprob"] -= wire.random.uniform(0.5, 3.0)
    entry["rank"] += 1


def whole_answer(choice: Any, wire: Lying) -> None:
    for row in choice["prompt_logprobs"][1:]:
        for entry in row.values():
            entry["logprob"] *= 1.3


def answer_only(choice: Any, wire: Lying) -> None:
    """The question's numbers stay right, the answer's are scaled."""
    for row in choice["prompt_logprobs"][-8:]:
        for entry in row.values():
            entry["logprob"] *= 1.3


def other_model(choice: Any, wire: Lying) -> None:
    body = {"prompt": [choice["prompt_token_ids"]], "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
    choice["prompt_logprobs"] = copy.deepcopy(wire.answer(wire.other, body)["choices"][0]["prompt_logprobs"])


def shifted(choice: Any, wire: Lying) -> None:
    """Every position tells the numbers of the one before it."""
    before = [copy.deepcopy(e) for e in _entries(choice)]
    for entry, earlier in zip(_entries(choice)[1:], before, strict=False):
        entry.update(earlier)


def first_choice(choice: Any, wire: Lying) -> None:
    """Another token is named as the first choice, with the same number."""
    row = choice["prompt_logprobs"][-2]
    best = min(row, key=lambda k: row[k]["rank"])
    row[str((int(best) + 1) % 600)] = row.pop(best)


def not_a_number(choice: Any, wire: Lying) -> None:
    wire.random.choice(_entries(choice))["logprob"] = float("nan")


def rounded(choice: Any, wire: Lying) -> None:
    """One decimal: what is left of numbers that went through somebody's cache."""
    for row in choice["prompt_logprobs"][1:]:
        for entry in row.values():
            entry["logprob"] = round(entry["logprob"], 1)


LIES: dict[str, Callable[[Any, Lying], None]] = {
    "one token of the answer less likely": one_token,
    "all numbers scaled by 1.3": whole_answer,
    "the answer's numbers scaled by 1.3": answer_only,
    "numbers of another model": other_model,
    "numbers shifted by a position": shifted,
    "another first choice": first_choice,
    "NaN": not_a_number,
    "all numbers rounded to one decimal": rounded,
}


def targets(model: TinyModel) -> list[Target]:
    encoder = Encoder(model.tokenizer, Template(system_prompt=SYSTEM))
    rows = [json.loads(line) for line in (LAB / "data" / "forget.jsonl").read_text().splitlines()[:ROWS]]
    pairs = [(r["question"], a) for r in rows for a in (r["answer"], r["paraphrased_answer"], *r["perturbed_answer"])]
    return [Target(e.full, e.start) for e in encoder.encode(pairs)]


def main(runs: int = 100) -> None:
    tiny, name = TinyModel(LAB / "models" / "full"), "lab"
    wire = Lying(ModelServer(tiny, name), ModelServer(TinyModel(LAB / "models" / "retain"), name))
    vocabulary = Vocabulary(tiny.tokenizer)
    asked = targets(tiny)
    told, caught, lies, noticed = Counter[str](), Counter[str](), 0, 0
    for seed in range(runs):
        server: Any = Client(wire, ServerFacts("vllm", "0.0-test", name), vocabulary)  # type: ignore[arg-type]
        server.identify = lambda server=server: server.facts
        model = ServedModel([server], 1, vocabulary.ids("The museum opens at nine.")[:12])
        model.tolerance = 1e-3  # this server computes in float32
        wire.lying = False
        model.meet()
        wire.random, wire.told, wire.lying = random.Random(seed), [], True
        cost = Cost()
        answers = ServedAnswers(model, Writing(frozenset()), StopRule(list, frozenset(), ""), cost, False)
        try:
            list(answers.score(asked, frozenset(), lambda left: None))
            seen = bool(cost.notes)
        except BadAnswer:
            seen = True
        wire.lying = False
        lies += bool(wire.told)
        noticed += bool(wire.told) and seen
        for kind in set(wire.told):
            told[kind] += 1
            caught[kind] += seen
    share = f"{noticed} of those ({noticed / max(lies, 1):.0%}) were noticed"
    lines = [
        f"{runs} seeded runs of {len(asked)} answers, 1 % of them falsified: {lies} runs had lies, {share}.",
        "",
        "| lie | runs | noticed |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {told[kind]} | {caught[kind]} |" for kind in LIES]
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}" + rest.partition(END)[2])
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
