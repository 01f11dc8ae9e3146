"""What a depth run keeps with its evidence, and the same files made of it again: no model, no tokenizer.

save_kept(place, ask, contexts, folders)   after a run: its examples, settings and where evidence is
score_again(directory)                     the numbers of each unlearned model, for `score` and `verify`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from vestige.data.spans import Span, Tokens
from vestige.depth.ask import DepthAsk
from vestige.depth.files import record
from vestige.depth.scores import cluster_facts, cluster_of, examples_of, model_depth, profile
from vestige.io import damaged
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.files import read_packed, write_packed
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
class EvidenceNames:
    """Where each model's patched evidence is, and the folder of each unlearned model's result files."""

    retain: str  # identity of its evidence
    unlearned: dict[str, str]  # checkpoint -> identity
    names: dict[str, str]  # checkpoint -> folder of results


@dataclass(frozen=True)
class KeptExample:
    key: str
    span: Span
    tokens: Tokens
    words: list[str]


@dataclass(frozen=True)
class KeptSettings:
    delta_threshold: float
    em_scope: str
    patch_scope: str
    resamples: int
    seed: int


@dataclass(frozen=True)
class Kept:
    """The content of depth.json.gz."""

    evidence: EvidenceNames
    examples: dict[str, KeptExample]
    layers: list[int] | None
    settings: KeptSettings
    order: list[str]
    clusters: Grouping | None = None


def save_kept(place: Path, ask: DepthAsk, contexts: KeptContexts, names: EvidenceNames) -> None:
    examples = {}
    for index, key in contexts.keys.items():
        examples[index] = KeptExample(key, contexts.spans[index], contexts.tokens[index], contexts.words[index])
    settings = KeptSettings(ask.delta_threshold, ask.em_scope, ask.patch_scope, ask.resamples, ask.seed)
    layers = None if ask.layers is None else list(ask.layers)
    write_packed(place / KEPT, asdict(Kept(names, examples, layers, settings, list(examples), contexts.clusters)))


@dataclass(frozen=True)
class DepthAgain:
    """One unlearned model's numbers, made again."""

    folder: str  # "" when the run has one model
    records: list[dict[str, Any]]
    summary: dict[str, Any]  # the keys of summary.json that are made of evidence


def score_again(directory: Path) -> list[DepthAgain]:
    """Every unlearned model of a depth run from its evidence."""
    place = directory / "evidence"
    try:
        kept = msgspec.convert(read_packed(place / KEPT), Kept)
    except msgspec.ValidationError as error:
        raise damaged(place / KEPT, str(error)) from None
    unexplained = [index for index in kept.order if index not in kept.examples]
    unexplained += [path for path in kept.evidence.unlearned if path not in kept.evidence.names]
    if unexplained:
        raise damaged(place / KEPT, f"it does not explain {unexplained[0]}")
    return [_one(place, kept, path) for path in kept.evidence.unlearned]


def _one(place: Path, kept: Kept, path: str) -> DepthAgain:
    names, settings, clusters = kept.evidence, kept.settings, kept.clusters
    keys = {index: kept.examples[index].key for index in kept.order}
    s1 = _evidence(place, names.retain, keys)
    s2 = _evidence(place, names.unlearned[path], keys)
    depth = next(iter(s1.values())).logprob.shape[0] - 1
    layers = kept.layers or tuple(range(depth))
    examples = examples_of(keys, layers, s1, s2, settings.delta_threshold)
    scopes = {"em_scope": settings.em_scope, "patch_scope": settings.patch_scope}
    records = []
    for example in examples:
        known = kept.examples[example.index]
        body = record(example, known.span, known.tokens, known.words, scopes)
        records.append(body | cluster_of(example, clusters))
    how = (settings.resamples, settings.seed, clusters.of if clusters else None)
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
    return DepthAgain("" if len(names.unlearned) == 1 else names.names[path], records, summary)


def _evidence(place: Path, identity: str, keys: Mapping[str, str]) -> Mapping[str, TokenStats]:
    folder: EvidenceFolder[TokenStats] = EvidenceFolder(place, "patched", identity)
    found = folder.load(strict=True)
    if not found or any(key not in found for key in keys.values()):
        raise damaged(folder.path, "examples are missing in it")
    return found
