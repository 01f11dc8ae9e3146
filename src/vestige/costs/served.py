"""`vestige plan --server`: what a server can do, whether its numbers are right, how fast it is, what it would be sent.

In: a configuration with servers. Out: words and counts. A plan asks the servers who they are and what they can, and
sends them eight sentences to score and to continue.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collect.backend import Cost
from vestige.costs.estimate import CostPlan, make_plan
from vestige.data.chat import Encoder, Template
from vestige.engine.config import AnyConfig, RunConfig
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import Prepared, make_encoder_context, model_args, prepare
from vestige.engine.served import ServedHandle, server_args
from vestige.errors import UserError
from vestige.models.load import ModelArgs, load_tokenizer
from vestige.packed_ids import count_nodes
from vestige.runs.collect import folder_of
from vestige.servers.served import sequences
from vestige.types import Prompt, Target, TokenStats
from vestige.wants import Decoding, Request

SENTENCES = (
    "The harbour was quiet that evening, and only two boats had come in.",
    "She wrote three novels about the sea before she turned thirty.",
    "Water boils at a lower temperature on high mountains.",
    "The committee met again on Tuesday and decided nothing.",
    "In the north the winters are long, and people read a great deal.",
    "He was born in a small town whose name nobody could spell.",
    "Bread, cheese and apples were all that they took along.",
    "The museum keeps letters that were written four hundred years ago.",
)
WRITTEN = 32  # tokens of each text
LARGEST_COMPARED = 2 << 30  # bytes of weights that a plan loads to compare a server with its checkpoint


@dataclass(frozen=True, repr=False)
class ServedPlan:
    """What servers would be sent. It prints as `vestige plan` does."""

    prepared: Prepared
    facts: dict[str, object]
    abilities: list[tuple[str, str]]
    checks: list[tuple[str, str]]
    asked: int
    cached: int
    sequences: int
    tokens: int  # of the distinct sequences, each once
    nodes: int  # of their prefix tree: what a server that shares prefixes computes
    prompts: int
    prompts_cached: int
    new_tokens: int
    unavailable: dict[str, str]
    time_range: tuple[float, float]  # seconds: as many requests at a time as there are slots, or one by one

    @property
    def seconds(self) -> float:
        """Between the ends by factors, not by differences: nobody here knows how well a server batches."""
        least, most = self.time_range
        return sqrt(least * most)

    def __repr__(self) -> str:
        told = ", ".join(f"{k} {v}" for k, v in self.facts.items())
        rows = [
            ("server", told),
            *self.abilities,
            *self.checks,
            ("answers to score", f"{self.asked:,} asked, {self.cached:,} cached"),
            ("to be sent", f"{self.sequences:,} distinct sequences, {self.tokens:,} tokens ({self.nodes:,} prefixes)"),
            ("texts to generate", f"{self.prompts:,} prompts, {self.prompts_cached:,} cached, "
                                  f"at most {self.new_tokens:,} new tokens"),
        ]  # fmt: skip
        width = max(len(k) for k, _ in rows)
        lines = [f"{k.ljust(width)}  {v}" for k, v in rows]
        causes: dict[str, list[str]] = {}
        for name, why in self.unavailable.items():
            causes.setdefault(why, []).append(name)
        lines += ["", "missing:"] if causes else []
        return "\n".join([*lines, *(f"  {', '.join(names)}: {why}" for why, names in causes.items())])


def plan_of(config: AnyConfig) -> CostPlan | ServedPlan:
    """The plan of a run, wherever its model runs."""
    if isinstance(config, RunConfig) and config.server:
        return plan_served(config)
    return make_plan(config)


def plan_served(config: RunConfig) -> ServedPlan:
    """Asks the servers what they can, reads the data, and counts."""
    args = model_args(config)
    tokenizer, _ = load_tokenizer(args)
    handle = ServedHandle(args, server_args(config.server), tokenizer)
    checks = check_numbers(handle, args, tokenizer)
    context = make_encoder_context(config, tokenizer, [])
    context.longest = handle.context_length
    prepared = prepare(config, context, lacking=handle.lacking)
    wants, directory = prepared.wants, config.output_dir / "evidence"
    have, texts = (
        {} if config.overwrite else folder_of(directory, k, handle, tokenizer).load() for k in ("answers", "texts")
    )
    unique = {t.key: t for t in wants.answers}
    missing = [t for k, t in unique.items() if k not in have]
    requests = {r.key: r for r in wants.texts}
    new = [r for k, r in requests.items() if k not in texts]
    distinct = sequences(missing)
    tokens, written = sum(len(ask.ids) for ask, _ in distinct), sum(r.decoding.max_new_tokens for r in new)
    return ServedPlan(
        prepared=prepared,
        facts=handle.model.facts.as_dict(),
        abilities=handle.model.abilities.lines(),
        checks=checks,
        asked=len(wants.answers),
        cached=len(unique) - len(missing),
        sequences=len(distinct),
        tokens=tokens,
        nodes=count_nodes(missing) if missing else 0,
        prompts=len(requests),
        prompts_cached=len(requests) - len(new),
        new_tokens=written,
        unavailable=prepared.unavailable,
        time_range=_range(handle, tokens, written),
    )


def _range(handle: ServedHandle, tokens: int, written: int) -> tuple[float, float]:
    """By how long the servers took for the short requests with which they were met: a token written is one more."""
    model = handle.model
    most = model.seconds * (tokens / len(model.canary.ids) + written)
    return most / (model.slots * len(model.servers)), most


def check_numbers(handle: ServedHandle, args: ModelArgs, tokenizer: Any) -> list[tuple[str, str]]:
    """How fast the server scores and writes, and whether its numbers are those of the checkpoint in this process."""
    encoder = Encoder(tokenizer, Template(apply_chat_template=False))
    ids = [tuple(encoder.tokenize([s], special=True)[0]) for s in SENTENCES]
    targets = [Target(one, 1) for one in ids if len(one) > 1]
    served = handle.answerer(encoder, Cost())
    rows = []
    if handle.model.abilities.scores:
        start = time.perf_counter()
        found = {k: v for part in served.score(targets, frozenset(), lambda _: None) for k, v in part.items()}
        took = time.perf_counter() - start
        rows.append(("scoring", f"{sum(len(t.ids) for t in targets) / took:,.0f} tokens a second"))
        rows.append(("in process", _agreement(args, encoder, targets, found)))
        rows.append(("repeated", f"largest difference {handle.model.repeats.get('largest_difference', 0.0):.2g} nats"))
    if not handle.model.abilities.chat:  # a server that only chats takes questions, not beginnings
        requests = [Request(Prompt(one), Decoding(max_new_tokens=WRITTEN)) for one in ids]
        start = time.perf_counter()
        texts = [t for part in served.write(requests, {}, frozenset(), {}) for t in part.values()]
        took = time.perf_counter() - start
        rows.append(("writing", f"{sum(len(t.ids) for t in texts) / took:,.0f} tokens a second, {len(texts)} texts"))
    return rows + [("note", note) for note in served.cost.notes]


def _agreement(args: ModelArgs, encoder: Encoder, targets: list[Target], found: dict[str, TokenStats]) -> str:
    from vestige.collect.backend import LocalBackend

    place = Path(args.path).expanduser()
    if not place.exists():
        return "not compared: the checkpoint is not on this machine"
    files = place.glob("*.safetensors") if place.is_dir() else [place]
    size = sum(file.stat().st_size for file in files)
    if size > LARGEST_COMPARED:
        return f"not compared: the checkpoint has {size / 2**30:.0f} GiB, compared are at most 2"
    try:
        loaded = ModelHandle(ModelArgs(args.path, tokenizer=args.tokenizer, device="cpu", dtype="float32")).get()
    except UserError as error:
        return f"not compared: {error}"
    here = LocalBackend(loaded, encoder.decode, Cost(), None, 8)
    gaps, same, count = [], 0, 0
    for part in here.score(targets, frozenset(), lambda _: None):
        for key, stats in part.items():
            gaps.append(float(np.abs(stats.logprob - found[key].logprob).max()))
            same += int((stats.top1 == found[key].top1).sum())
            count += stats.tokens
    return f"log-probabilities at most {max(gaps):.2g} apart, {same} of {count} first choices the same"
