"""A served model as the engine holds models: its name and identity at once, its answers through servers.

In: `--server` and what goes with it, and a tokenizer. Out: a ModelHandle that is never loaded. Callers:
engine/evaluate.py, costs, audit. What a server cannot give is decided here, before anything is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vestige.adapters.lm_eval import ServedSubject
from vestige.adapters.served_model import ServedAnswers, ServedModel, Writing
from vestige.adapters.server_checks import SAME_SERVER
from vestige.adapters.servers import Abilities, ServerArgs, ServerDown, Vocabulary, find_servers
from vestige.collect.backend import Cost, StopRule, end_words
from vestige.data.chat import Encoder, Template
from vestige.engine.config import AnyConfig
from vestige.engine.handles import ModelHandle, handle_of
from vestige.engine.prepare import model_args
from vestige.errors import UserError
from vestige.models.checks import check_penalty
from vestige.models.load import LoadedModel, ModelArgs, load_tokenizer
from vestige.models.locate import read_json
from vestige.runs.manifest import versions
from vestige.suites.registry import Handler
from vestige.types import Rows, content_key
from vestige.wants import Wants

log = logging.getLogger("vestige.engine")

# Every server is asked about these tokens at the start and when it comes back: its numbers must stay the same.
CANARY = "The museum opens at nine in the morning, and nobody is allowed to take photographs there."
NO_MODEL = "it needs the model itself, and a server gives only log-probabilities and texts; run it without --server"
NO_HIDING = (
    "this dialect hides end tokens from attention, which no server can do; use --dialect strict (or a tokenizer whose "
    "padding token is not its end token)"
)
NO_SPREAD = (
    "it needs the log-probabilities of the whole vocabulary, which this server does not give (vLLM does when it is "
    "started with --max-logprobs -1)"
)
NO_SCORES = "this server gives no log-probabilities of prompts"
NO_FIRST = "this server does not tell first choices"


class ServedHandle(ModelHandle):
    """A model that servers run. Nothing is loaded here; `model` talks to them."""

    def __init__(self, args: ModelArgs, server: ServerArgs, tokenizer: Any) -> None:
        super().__init__(args)
        self.served = self
        self.server = server
        self.tokenizer = tokenizer
        self.model = connect(server, args.path, tokenizer)
        self.spread = False  # whether mean and deviation over the vocabulary are asked for, too
        self.turns: dict[str, tuple[tuple[str, str], ...]] = {}
        self.made = {"dtype": "unknown", "device": "server", "attention": "unknown"}
        self.made |= {"quantization": None, "server": self.model.facts.as_dict()}
        self.made |= {"versions": {k: v for k, v in versions().items() if k in ("vestige", "tokenizers")}}
        if self.model.known is not None:
            self.made |= {"canary": [round(float(x), 6) for x in self.model.known]}

    def reuse_problem(self, how: Mapping[str, Any]) -> str:
        """Why evidence made as `how` says may be of other weights; empty: it is this model's.

        A name does not tell whether a server was started again with another checkpoint, so a few tokens are compared.
        """
        before, now = how.get("canary"), self.made.get("canary")
        if before is None or now is None:
            return "this server gives no log-probabilities by which its weights could be recognised"
        if not same_canary(before, now):
            return "the server's log-probabilities of the same tokens are others now"
        return ""

    @property
    def identity(self) -> str:
        return content_key(self.model.facts.identity.encode(), b"spread" if self.spread else b"")[:16]

    @property
    def fingerprint(self) -> str:
        return f"served-{self.model.facts.identity}"

    @property
    def is_diffusion(self) -> bool:
        return False

    @property
    def canvases(self) -> None:
        return None

    @property
    def context_length(self) -> int | None:
        return self.model.facts.longest

    def check(self) -> None:
        """Names and numbers are checked with every answer."""

    def ready(self, notes: list[str]) -> None:
        """Nothing is loaded."""

    def get(self, notes: list[str] | None = None) -> LoadedModel:
        raise UserError(f"'{self.name}' is served: {NO_MODEL}.")

    def free(self) -> None:
        """Nothing is held."""

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "evidence": self.identity,
            "load_seconds": 0.0,
            **{k: v for k, v in self.made.items() if k != "versions"},
            "servers": [s.url for s in self.model.servers],
            "repeated": self.model.repeats,
        }

    def answerer(self, encoder: Encoder, cost: Cost) -> ServedAnswers:
        eos, penalty = generation_facts(self.args, self.tokenizer)
        longest = self.model.facts.longest
        positions = float("inf") if longest is None else float(longest - 1)
        ending = StopRule(encoder.decode, eos, end_words(self.tokenizer, eos), positions)
        return ServedAnswers(self.model, Writing(eos, penalty, self.turns), ending, cost, self.spread)

    def subject(self) -> ServedSubject:
        """For a harness, which makes its own prompts."""
        cost, can = Cost(), self.model.abilities
        answerer = self.answerer(Encoder(self.tokenizer, Template(apply_chat_template=False)), cost)
        lacks = "" if can.scores else NO_SCORES
        return ServedSubject(self.name, self.tokenizer, answerer, cost, self.context_length, lacks, can.first)

    def know_questions(self, data: Iterable[Rows], encoder: Encoder) -> None:
        """For a server that only chats: which question each prompt asks. It writes the prompt around it itself."""
        if not self.model.abilities.chat:
            return
        system = encoder.template.system_prompt
        before = (("system", system),) if system else ()
        for rows in data:
            for row, facts in zip(rows.examples, rows.facts, strict=False):
                question = str(facts.get("question") or "")
                for example in row if question else ():
                    if encoder.encode([(question, "")])[0].prompt == example.prompt.ids:  # no examples before it
                        self.turns[example.prompt.key] = (*before, ("user", question))

    def lacking(self, handler: Handler, wants: Wants) -> str:
        """Why this server cannot give a metric; empty: it can."""
        if why := lacking(self.model.abilities, handler, wants):
            return why
        self.spread = self.spread or ("spread" in handler.reads and bool(wants.answers))
        return ""


def lacking(can: Abilities, handler: Handler, wants: Wants) -> str:
    """What a metric needs and a server does not give."""
    if wants.gradients or wants.patched or wants.denoised or handler.live is not None:
        return NO_MODEL
    hidden = any(h < len(t.ids) - 1 for t in wants.answers for h in t.hidden)
    hidden = hidden or any(r.prompt.hidden for r in wants.texts)
    if hidden and not (can.chat and not wants.answers):
        return NO_HIDING
    if wants.answers and not can.scores:
        return NO_SCORES
    if wants.answers and "first" in handler.reads and not can.first:
        return NO_FIRST
    return NO_SPREAD if "spread" in handler.reads and wants.answers and not can.everything else ""


def handle_for(config: AnyConfig, loaded: LoadedModel | None = None) -> ModelHandle:
    """The model of a configuration, wherever it runs, before anything is asked of it."""
    args = None if loaded else model_args(config)
    tokenizer = load_tokenizer(args)[0] if args and config.server else None
    return handle_of(args, loaded, config.server, tokenizer)


def serves_as_before(config: AnyConfig, facts: Mapping[str, Any]) -> bool:
    """Whether a finished run's servers would answer as they did: who they say they are, and their numbers.

    Servers that are away cannot be asked: then the model's name stands for it, as a hub id's does. The numbers must be
    very near: where they are not, the run is made again, and its evidence is compared entry by entry.
    """
    try:
        handle = handle_for(config)
    except ServerDown:
        return True
    now = handle.facts()
    before, after = facts.get("canary"), now.get("canary")
    if now["fingerprint"] != facts.get("fingerprint") or before is None or after is None:
        return bool(now["fingerprint"] == facts.get("fingerprint") and before == after)  # it gives texts alone
    return same_canary(before, after)


def same_canary(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether two measurements of the same few tokens are of the same weights."""
    return len(before) == len(now) and bool(np.allclose(before, now, rtol=0, atol=SAME_SERVER))


def connect(server: ServerArgs, wanted: str, tokenizer: Any) -> ServedModel:
    """The servers, asked who they are and what they can; their tokenizer must be ours."""
    vocabulary = Vocabulary(tokenizer)
    canary = vocabulary.ids(CANARY)[:24]
    found = find_servers(server, wanted, vocabulary)
    model = ServedModel(found, server.slots, canary, server.down)
    model.meet()
    for one in found:
        theirs = one.tokenise(CANARY)
        if theirs is not None and theirs[-len(canary) :] != canary and theirs[: len(canary)] != canary:
            raise UserError(
                f"The server at {one.url} cuts text into other tokens than the tokenizer of '{wanted}'; name the "
                "served model's own with --tokenizer."
            )
    if model.facts.model != wanted and model.facts.root != wanted:
        log.warning("The server's model is '%s'; tokenizer and template are those of '%s'.", model.facts.model, wanted)
    return model


def generation_facts(args: ModelArgs | None, tokenizer: Any) -> tuple[frozenset[int], float]:
    """End tokens and repetition penalty as the checkpoint's files say, where they are here; else the tokenizer's."""
    said: dict[str, Any] = {}
    for name in ("generation_config.json", "config.json"):
        for place in _places(args, tokenizer):
            if not said and (place / name).is_file():
                found = read_json(place / name)
                said = found if "eos_token_id" in found else {}
    check_penalty(said.get("repetition_penalty"), "The model's generation config")
    ids = said.get("eos_token_id")
    ids = tokenizer.eos_token_id if ids is None else ids
    eos = frozenset() if ids is None else frozenset(ids if isinstance(ids, (list, tuple)) else [ids])
    return eos, float(said.get("repetition_penalty") or 1.0)


def _places(args: ModelArgs | None, tokenizer: Any) -> list[Path]:
    named: Sequence[Any] = (args.path, args.tokenizer) if args else ()
    paths = [Path(str(p)).expanduser() for p in (*named, getattr(tokenizer, "name_or_path", "")) if p]
    return [p for p in paths if p.is_dir()]


def server_args(settings: Mapping[str, Any]) -> ServerArgs:
    """The `server` block of a configuration."""
    found = ServerArgs.from_settings(settings)
    if found is None:
        raise UserError("No server given; add --server URL.")
    return found
