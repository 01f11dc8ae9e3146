"""What a depth run keeps beside its evidence, and the same files made of it again: no model, no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from vestige.data.spans import Span, Tokens
from vestige.depth.ask import DepthAsk
from vestige.depth.files import record
from vestige.depth.scores import ExampleDepth, cluster_facts, cluster_of, examples_of, model_depth, profile
from vestige.io import damaged
from vestige.runs.evidence import EvidenceFolder
from vestige.schema import misfit
from vestige.store.files import read_packed, write_packed
from vestige.types import Grouping, TokenStats

KEPT = "depth.json.gz"


class KeptContexts(Protocol):
    """The examples of a run (depth.Contexts)."""

    @property
    def spans(self) -> Mapping[str, Span]: ...
    @property
    def tokens(self) -> Mapping[str, Tokens]: ...
    @property
    def words(self) -> Mapping[str, list[str]]: ...
    @property
    def keys(self) -> Mapping[str, str]: ...
    @property
    def clusters(self) -> Grouping | None: ...


@dataclass(frozen=True)
class Banks:
    """Where each model's patched evidence is: identities of banks, and the folder of each unlearned model's files."""

    retain: str
    unlearned: Mapping[str, str]  # checkpoint -> bank
    names: Mapping[str, str]  # checkpoint -> folder


def save_kept(place: Path, ask: DepthAsk, contexts: KeptContexts, banks: Banks) -> None:
    settings = ("delta_threshold", "em_scope", "patch_scope", "resamples", "seed")
    examples = {
        index: {
            "key": key,
            "span": asdict(contexts.spans[index]),
            "tokens": asdict(contexts.tokens[index]),
            "words": contexts.words[index],
        }
        for index, key in contexts.keys.items()
    }
    body = {
        "banks": asdict(banks),
        "examples": examples,
        "layers": None if ask.layers is None else list(ask.layers),
        "settings": {name: getattr(ask, name) for name in settings},
        "order": list(examples),
        **({"clusters": asdict(contexts.clusters)} if contexts.clusters else {}),
    }
    write_packed(place / KEPT, body)


@dataclass(frozen=True)
class DepthAgain:
    """One unlearned model's numbers, made again."""

    folder: str  # "" when the run has one model
    records: list[dict[str, Any]]
    summary: dict[str, Any]  # the keys of summary.json that are made of evidence


def score_again(directory: Path) -> list[DepthAgain]:
    """Every unlearned model of a depth run from its evidence."""
    place = directory / "evidence"
    body = read_packed(place / KEPT)
    if words := misfit(body, _Kept) or _unexplained(body):
        raise damaged(place / KEPT, words)
    return [_one(place, body, path) for path in body["banks"]["unlearned"]]


class _BanksForm(TypedDict):
    retain: str
    unlearned: dict[str, str]
    names: dict[str, str]


class _ExampleForm(TypedDict):
    key: str
    span: Span
    tokens: Tokens
    words: list[str]


class _SettingsForm(TypedDict):
    delta_threshold: float
    em_scope: str
    patch_scope: str
    resamples: int
    seed: int


class _Kept(TypedDict):
    banks: _BanksForm
    examples: dict[str, _ExampleForm]
    layers: list[int] | None
    settings: _SettingsForm
    order: list[str]
    clusters: NotRequired[Grouping]


def _unexplained(body: Mapping[str, Any]) -> str:
    """A name in the file that nothing in it explains."""
    lost = [i for i in body["order"] if i not in body["examples"]]
    lost += [path for path in body["banks"]["unlearned"] if path not in body["banks"]["names"]]
    return f"it does not explain {lost[0]}" if lost else ""


def _one(place: Path, body: Mapping[str, Any], path: str) -> DepthAgain:
    banks, settings = body["banks"], body["settings"]
    keys = {index: body["examples"][index]["key"] for index in body["order"]}
    s1, s2 = (_evidence(place, identity, keys) for identity in (banks["retain"], banks["unlearned"][path]))
    depth = next(iter(s1.values())).logprob.shape[0] - 1
    layers = body["layers"] or tuple(range(depth))
    examples = examples_of(keys, layers, s1, s2, settings["delta_threshold"])
    scopes = {name: settings[name] for name in ("em_scope", "patch_scope")}
    clusters = Grouping(**body["clusters"]) if "clusters" in body else None
    records = [_record(e, body["examples"][e.index], scopes) | cluster_of(e, clusters) for e in examples]
    how = (settings["resamples"], settings["seed"], clusters.of if clusters else None)
    score = model_depth(examples, *how)
    summary = {
        "avg_uds": score["uds"],
        "interval": score["interval"],
        "avg_unclipped": score["unclipped"],
        "n": score["n"],
        **cluster_facts(examples, clusters),
        "evaluable_examples": score["evaluable"],
        "profile": profile(examples, *how),
    }
    return DepthAgain("" if len(banks["unlearned"]) == 1 else banks["names"][path], records, summary)


def _evidence(place: Path, identity: str, keys: Mapping[str, str]) -> Mapping[str, TokenStats]:
    folder: EvidenceFolder[TokenStats] = EvidenceFolder(place, "patched", identity)
    found = folder.load(strict=True)
    if not found or any(key not in found for key in keys.values()):
        raise damaged(folder.path, "examples are missing in it")
    return found


def _record(example: ExampleDepth, kept: Mapping[str, Any], scopes: Mapping[str, str]) -> dict[str, Any]:
    tokens = {k: tuple(v) if isinstance(v, list) else v for k, v in kept["tokens"].items()}
    return record(example, Span(**kept["span"]), Tokens(**tokens), kept["words"], scopes)
