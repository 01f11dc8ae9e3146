"""S1 from a file of the depth score's own project: read where it holds what is needed, refused with the reason if not.

    runs/s1_cache/s1_cache_HASH.json     {"config": {...}, "entries": [{"idx", "full_score", "s1_scores", ...}, ...]}
    runs/meta_eval/s1_cache_sdpa.json    {"IDX": {"idx", "full_score", "s1_scores", ...}, ...}

Such a file has one mean per example and layer. It names neither weights nor attention, and the second form nothing at
all. So some examples are made again with the models at hand before the rest is believed, and the score of the full
model is compared for every example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vestige.collect.backend import Cost
from vestige.depth.ask import DepthAsk
from vestige.depth.scores import MEAN_ONLY, ROUNDING
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.metrics.depth import layer_scores
from vestige.models.locate import locate
from vestige.runs.directory import temporary
from vestige.runs.patched import PatchSettings, PatchSource, collect_patched
from vestige.runs.team import Team
from vestige.schema import check_form
from vestige.types import TokenStats, content_key
from vestige.wants import PatchWant

MADE_AGAIN = 4  # examples
EXACT = 1e-3  # how far two float32 runs may be apart; another checkpoint or attention on another row is off by far more
# What that project's code can be told, and what a file must say for its numbers to be those of this run.
SAME = ("em_scope", "patch_scope")
FIXED = {"reference": "gt", "reference_scope": "continuation", "entity_source": "gt", "metric": "logprob"}


class _Entry(TypedDict, total=False):
    full_score: float
    s1_scores: list[float]


class _Keyed(TypedDict):
    config: dict[str, Any]
    entries: list[dict[str, Any]]


@dataclass(frozen=True)
class CacheEntry:
    full: float
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Given:
    """The content of such a file, by the index of the example."""

    path: Path
    digest: str
    entries: Mapping[str, CacheEntry]
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Which layers its scores are of; None where it does not say."""
        said = self.config.get("layers")
        return tuple(said) if isinstance(said, list) and all(isinstance(x, int) for x in said) else None


def find_given(said: str | None) -> Path | None:
    """The file that --s1-cache names, if it names one of that project's and not a folder of ours."""
    if said is None:
        return None
    place = Path(said).expanduser()
    if place.is_dir():
        theirs = sorted(place.glob("s1_cache_*.json"))
        if theirs:
            raise UserError(
                f"{place} holds S1 caches of the depth score's own project; name one of them (--s1-cache {theirs[0]}), "
                "or a folder for ours."
            )
        return None
    if place.suffix != ".json":
        return None
    if not place.is_file():
        raise UserError(f"--s1-cache {said} does not exist; give a file, or a folder in which S1 is to be kept.")
    return place


def read_given(path: Path) -> Given:
    """The file in either form."""
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The S1 cache {path} is not valid JSON ({error}); give another, or leave it out.") from None
    known = 'give a file with "config" and "entries", or with one entry per example'
    if isinstance(data, dict) and "entries" in data:
        check_form(data, _Keyed, f"The S1 cache {path}", known)
        bodies, config = {str(e.get("idx")): e for e in data["entries"]}, data["config"]
    else:
        check_form(data, dict[str, dict[str, Any]], f"The S1 cache {path}", known)
        bodies, config = data, {}
    return Given(path, content_key(path.read_bytes())[:16], {i: _entry(i, e, path) for i, e in bodies.items()}, config)


def _entry(index: str, body: Mapping[str, Any], path: Path) -> CacheEntry:
    check_form(body, _Entry, f"Example {index} of the S1 cache {path}", "give another file, or leave it out")
    if body.get("full_score") is None or not body.get("s1_scores"):
        raise UserError(
            f"Example {index} of the S1 cache {path} lacks full_score or s1_scores, from which drops are made; give "
            "another file, or leave it out."
        )
    return CacheEntry(float(body["full_score"]), tuple(float(x) for x in body["s1_scores"]))


def check_settings(given: Given, ask: DepthAsk, full: ModelHandle, indices: Sequence[str]) -> tuple[int, ...]:
    """The layers of this run, when the file can serve it at all; otherwise says why it cannot."""
    for key, mine in {**{k: getattr(ask, k) for k in SAME}, **FIXED}.items():
        if key in given.config and given.config[key] != mine:
            raise _refused(given, f"it was made with {key} {given.config[key]}, this run has {mine}")
    if ask.tokenization != "separate":
        raise _refused(given, f"its prompts and answers were tokenised apart, this run has {ask.tokenization}")
    mine, theirs = full.held()["dtype"], given.config.get("dtype")
    if theirs is not None and theirs != mine:
        raise _refused(given, f"it was made in {theirs}, this run is in {mine}", f"add --dtype {theirs}")
    if lost := [i for i in indices if i not in given.entries]:
        raise _refused(given, f"{len(lost)} of {len(indices)} examples of this run are not in it (first: {lost[0]})")
    return _layers(given, ask, full, indices)


def _layers(given: Given, ask: DepthAsk, full: ModelHandle, indices: Sequence[str]) -> tuple[int, ...]:
    assert full.args is not None
    place = locate(full.args)
    depth = (place.base or place).config.get("num_hidden_layers")
    counts = {len(given.entries[i].scores) for i in indices}
    theirs = given.layers or tuple(range(depth or max(counts)))
    if counts != {len(theirs)}:
        unlike = next(iter(counts - {len(theirs)}))
        said = "it names" if given.layers else "the full model has"
        raise _refused(given, f"it has {unlike} scores per example, and {said} {len(theirs)} layers")
    wanted = ask.layers or tuple(range(depth or len(theirs)))
    if lost := [layer for layer in wanted if layer not in theirs]:
        raise _refused(given, f"it has no layer {lost[0]}")
    last = (depth or max(theirs) + 1) - 1
    if last in wanted and ask.last_layer != "peer":
        raise _refused(
            given,
            f"its last layer ({last}) was patched with the state after the final norm, as that project's code does",
            f"add --last-layer peer, or leave that layer out (--layers 0-{last - 1})",
        )
    return wanted


def _refused(given: Given, why: str, remedy: str = "") -> UserError:
    return UserError(
        f"The S1 cache {given.path} cannot serve this run: {why}; {remedy or 'make it fit'}, or leave --s1-cache out."
    )


def as_stats(given: Given, layers: Sequence[int], indices: Mapping[str, str]) -> dict[str, TokenStats]:
    """Its means in the place of evidence, by key: one token that is none (`MEAN_ONLY`), so that no reader takes the
    mean of an entity for the log-probability of a token."""
    out = {}
    for index, key in indices.items():
        entry = given.entries[index]
        order = given.layers or tuple(range(len(entry.scores)))
        scores = np.array([[entry.full], *([entry.scores[order.index(layer)]] for layer in layers)], np.float32)
        none, unknown = np.full(scores.shape, MEAN_ONLY, np.int32), np.full(scores.shape, np.nan, np.float32)
        out[key] = TokenStats(none, none - 1, scores, unknown, unknown, np.arange(1), 1)
    return out


def tolerance(precision: str) -> float:
    """Both runs are off by as much as the precision allows."""
    return 2 * ROUNDING[precision] if precision in ROUNDING else EXACT


@dataclass
class Believed:
    """S1 from a file, for the examples of one run."""

    given: Given
    models: tuple[ModelHandle, ModelHandle]  # full, retain
    wants: Mapping[str, PatchWant]  # by the index of the example
    settings: PatchSettings
    layers: tuple[int, ...]
    s1: Mapping[str, TokenStats]
    note: str = ""

    def check_some(self, cost: Cost) -> dict[str, Any]:
        """Makes S1 of some examples again and refuses what differs; what was found, for the summary."""
        full, retain = self.models
        by_key = {want.key: index for index, want in self.wants.items()}
        chosen = _some({want.key: want for want in self.wants.values()})
        with temporary() as scratch:
            source = PatchSource(retain.name, retain, scratch)
            fresh = collect_patched(full, [source], chosen, self.settings, cost, Team())[retain.name]
            gaps = [self._gap(by_key[w.key], self.s1[w.key], fresh[w.key], full.precision) for w in chosen]
        widest = max(gaps)
        self.note = (
            f"S1 is from {self.given.path}: {len(chosen)} of {len(self.s1)} examples were made again and agree to "
            f"{widest:.1g}; it has means over the entity only, so S1 of single tokens is not there"
        )
        said = {"file": str(self.given.path), "reused": True, "digest": self.given.digest}
        said |= {"config": dict(self.given.config)}
        return {**said, "made_again": len(chosen), "largest_difference": widest}

    def _gap(self, index: str, theirs: TokenStats, ours: TokenStats, precision: str) -> float:
        gaps = np.abs(layer_scores(ours) - layer_scores(theirs))
        self._same_full(index, theirs, ours, precision)
        worst = int(np.argmax(gaps[1:]))
        if not gaps[1:][worst] <= tolerance(precision):
            raise _refused(
                self.given,
                f"its S1 of example {index} at layer {self.layers[worst]} is {gaps[1:][worst]:.2g} from what the "
                "models here give, so it was made with another retain model, attention or precision",
                "give the models and settings it was made with",
            )
        return float(gaps.max())

    def check_full(self, s2: Mapping[str, TokenStats], keys: Mapping[str, str], precision: str) -> None:
        """The full model's own score of every example, as the file has it and as it is here."""
        for index, key in keys.items():
            self._same_full(index, self.s1[key], s2[key], precision)

    def _same_full(self, index: str, theirs: TokenStats, ours: TokenStats, precision: str) -> None:
        said, here = (float(layer_scores(stats)[0]) for stats in (theirs, ours))
        if not abs(said - here) <= tolerance(precision):
            raise _refused(
                self.given,
                f"its full_score of example {index} is {said:.4f}, the full model here gives {here:.4f}, so it was "
                "made with another full model, other rows or another precision",
                "give the model and rows it was made with",
            )


def _some(wants: Mapping[str, PatchWant]) -> list[PatchWant]:
    """The longest example, and some others; keys are digests, so that their order is as good as chance."""
    longest = max(wants, key=lambda key: (len(wants[key].target.ids), key))
    others = [key for key in sorted(wants) if key != longest]
    return [wants[key] for key in [longest, *others][:MADE_AGAIN]]


def believe(
    given: Given,
    ask: DepthAsk,
    models: tuple[ModelHandle, ModelHandle],
    wants: Mapping[str, PatchWant],
    settings: PatchSettings,
) -> Believed:
    """The file as S1 of a run that it can serve by its settings; its numbers are still to be checked."""
    layers = check_settings(given, ask, models[0], list(wants))
    s1 = as_stats(given, layers, {index: want.key for index, want in wants.items()})
    return Believed(given, models, wants, settings, layers, s1)
