"""What `vestige verify` finds when the numbers of a run are computed again: results compared value by value.

Comes in: what evidence gives and what a file says. Goes out: Findings. Called by the kinds of runs (kind.py of a room).

Every kind of run through one interface: what the verbs that read runs ask of a directory, whatever made it.

    directory --kind_of--> name --kind--> Kind, the functions of the room that makes such runs
    score: Kind.score    verify: Kind.check    report: Kind.gather    compare, sweep: Kind.values    pack: Kind.outside

The registry names each room's record by a string, and imports it when it is asked for: the engine does not know the
rooms, and `vestige score` does not load what only a report needs. A new kind is one line here and a kind.py in its
room.

Whether numbers of several runs may be combined: one check for every verb that does so.

Two numbers of one metric are comparable when the rows were put to both models in the same way (chat template, system
prompt, date), by the same definitions, on the same rows and at the same precision. What a run does not record is not
compared: results of other tools state none of this.

    manifest, metric --number_of--> Number --mixture--> one sentence, or nothing
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import damaged, misfit
from vestige.runs.files import read_ours
from vestige.runs.manifest import EVALUATIONS, MANIFEST, Manifest, kind_in
from vestige.types import MIXTURE, RunAccount, short_id

TOLERANCE = 1e-9  # relative: another machine may add up in another order


@dataclass(frozen=True)
class Finding:
    """One comparison: how many values, and what is wrong, if anything is."""

    compared: int = 0
    words: str = ""
    note: bool = False  # something that could not be looked at
    check: bool = False  # what was looked at, where files alone do not say


def compared(file: Path, expected: Any, got: Any, repair: str) -> Finding:
    """Two results, value by value; the first difference is named."""
    count, first = _differences(expected, got, "")
    if first is None:
        return Finding(count)
    where, made, stands = first
    return Finding(count, f"{file}: {where} is {_short(stands)}, its evidence gives {_short(made)}; {repair}")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


Difference = tuple[str, Any, Any]


def _differences(expected: Any, got: Any, where: str) -> tuple[int, Difference | None]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        pairs = [(str(k), expected.get(k, "(absent)"), got.get(k, "(absent)")) for k in {**expected, **got}]
    elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)) and len(expected) == len(got):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    else:
        return 1, None if _same(expected, got) else (where or "it", expected, got)
    count, first = 0, None
    for key, a, b in pairs:
        n, difference = _differences(a, b, f"{where}/{key}" if where else key)
        count, first = count + n, first or difference
    return count, first


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool) | isinstance(b, bool):
        return a == b or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


# ==== kinds =========================================================================================================

Reader = Callable[[Path, type], Any]  # JSON of a type; None where it cannot be read, which the reader notes


@dataclass(frozen=True)
class Rescoring:
    """What `vestige score` was told besides the run: other definitions, and what to compare with."""

    dialect: str | None = None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    retain_logs: str | None = None
    cluster: str | None = None  # the column that groups related rows
    accept_mixture: bool = False  # of the run and its retain logs

    def refuse(self, kind: str) -> None:
        """For kinds that have one definition: asking for another is a mistake, and must not pass in silence."""
        given = {"dialect": self.dialect, "--retain-logs": self.retain_logs, "--cluster": self.cluster}
        said = [name for name, value in given.items() if value is not None]
        said += [f"{metric}.{key}" for metric, body in self.changes.items() for key in body]
        if said:
            raise UserError(f"A {kind} run is scored again by its own definition only; leave {said[0]} out.")


@dataclass(frozen=True)
class RunSource:
    """What a report takes from a run: its kind there, the files, their content, and what must be told about them."""

    kind: str
    path: Path  # the directory, or the file for meta and methods
    files: tuple[Path, ...]
    data: Mapping[str, Any]
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def id(self) -> str:
        """Short and the same in every report: links into a page and the page's own parts name sources by it."""
        return short_id("s", self.kind, str(self.path.resolve()))


def _nothing(path: Path, read: Reader) -> Iterator[RunSource]:
    return iter(())


def _no_values(path: Path) -> dict[str, Any]:
    return {}


def _nothing_outside(path: Path) -> list[str]:
    return []


@dataclass(frozen=True)
class Kind:
    """How one kind of run is read. None, or nothing: runs of this kind have no such thing."""

    name: str
    check: Callable[[Path, Manifest | None], Iterator[Finding]] | None = None  # its numbers, computed again
    sources: Callable[[Path, Manifest | None], Iterator[Finding]] | None = None  # only the files it was made of
    score: Callable[[Path, Rescoring], str] | None = None  # writes them again; returns what a terminal shows
    gather: Callable[[Path, Reader], Iterable[RunSource]] = _nothing
    values: Callable[[Path], Mapping[str, Any]] = _no_values  # its main numbers by name
    account: Callable[[Path], RunAccount] | None = None  # all it has to say, for other people's software
    outside: Callable[[Path], list[str]] = _nothing_outside  # files elsewhere that it was compared with
    by_row: bool = False  # whether two such runs can be compared row by row
    not_packed: str = ""  # why an archive does not take such runs


@dataclass(frozen=True)
class KnownKind:
    """A kind before its room is imported."""

    name: str
    record: str  # module and name of its Kind
    marks: tuple[str, ...] = ()  # files by which a run is known that has no kind in its manifest
    shown: tuple[str, ...] = ()  # files by which a report finds what it can show of it, where these are others

    def shows(self, file: Path) -> bool:
        return any(file.match(mark) for mark in self.shown or self.marks)

    def seen_in(self, directory: Path) -> bool:
        return any(True for mark in self.shown or self.marks for _ in directory.glob(mark))


# Folders with a manifest that are not runs: what is in them are runs, or files of another verb.
FOLDERS = ("sweep", "attack", "s1", "lab", "audit", "report", "publish", "site")
META_FILES = ("method_results.json", "meta_eval.json")
KINDS = {
    known.name: known
    for known in (
        KnownKind("eval", "vestige.runs.evaluation.EVAL", (MANIFEST,), ("*_EVAL.json",)),
        KnownKind(
            "trajectory", "vestige.runs.evaluation.TRAJECTORY"
        ),  # a report tells them from eval by what they hold
        KnownKind("harness", "vestige.runs.evaluation.HARNESS"),
        KnownKind("depth", "vestige.depth.kind.KIND", ("summary.json",)),
        KnownKind("stress", "vestige.stress.kind.KIND", ("stress.json",)),
        KnownKind("collapse", "vestige.collapse.kind.KIND", ("metrics.json",)),
        KnownKind("train", "vestige.unlearn.looks.TRAIN", ("training.json",)),
        KnownKind("watch", "vestige.unlearn.looks.WATCH", ("watch.json",)),
        # Not a run but a folder of runs: only a report takes something from its table.
        KnownKind("sweep", "vestige.sweep.run.KIND", shown=("sweep.json",)),
        KnownKind("meta", "vestige.meta.checks.KIND", META_FILES),
    )
}


def kind(name: str) -> Kind:
    module, _, record = KINDS[name].record.rpartition(".")
    found = getattr(importlib.import_module(module), record)
    assert isinstance(found, Kind)
    return found


def kind_of(directory: Path) -> str | None:
    """Which kind of run a directory holds; None: none of ours.

    Its manifest says it. Results of other tools have no such manifest and are known by their files.
    """
    said = kind_in(directory)
    if said in FOLDERS:
        return None
    if said is not None and said not in KINDS:
        raise UserError(f"{directory} holds a run of a kind that this version does not know ({said}).")
    return said or next((k.name for k in KINDS.values() if any((directory / m).is_file() for m in k.marks)), None)


def of(directory: Path) -> Kind:
    """How the run in a directory is read."""
    name = kind_of(directory)
    if name is None:
        raise UserError(f"{directory} is not a run directory: it has no {MANIFEST}. Give the directory of a run.")
    return kind(name)


def score_run(directory: Path, how: Rescoring) -> str:
    """`vestige score`: the result files of a run from its evidence; returns what a terminal shows."""
    found = of(directory)
    if found.score is None:
        raise UserError(
            f"{directory} is a {found.name} run, which keeps no evidence of its own to score again; run the command "
            f"that made it again. (Kinds without evidence: {', '.join(_without_evidence())}.)"
        )
    return found.score(directory, how)


def _without_evidence() -> list[str]:
    return sorted(name for name in KINDS if name != "sweep" and kind(name).score is None)


# ---- manifests of evaluations -------------------------------------------------------------------------------------

# What scoring an evaluation again takes from its manifest; a run of a harness states less.
FACTS = {
    "dialect": dict[str, Any],
    "model": dict[str, Any],
    "data": dict[str, dict[str, Any]],
    "data_of": dict[str, dict[str, str]],
    "unavailable": dict[str, str],
    "hidden_tokens": int,
    "versions": dict[str, str | None],
}
CONFIG = {"suite": str, "metrics": dict[str, dict[str, Any]], "settings": dict[str, Any], "top": list[str]}


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a finished evaluation; one of another kind of run, or of another form, is refused."""
    path = directory / MANIFEST
    if not path.is_file():
        raise UserError(f"{directory} is not a run directory: it has no manifest.json. Give the directory of a run.")
    found = read_ours(path)
    if isinstance(found, dict) and found.get("state") == "unfinished" and "config" not in found:
        raise UserError(f"{directory} is not finished; rerun the command that made it to resume.")
    kind = kind_in(directory)
    if kind not in (None, *EVALUATIONS):
        raise UserError(f"{directory} is a {kind} run, not an evaluation; give the directory of an evaluation.")
    if words := manifest_problem(found):
        raise damaged(path, words)
    return dict(found)


def manifest_problem(found: Any) -> str:
    """What is wrong with a manifest: a field of another form, or a name that it should explain and does not."""
    harness = isinstance(found, Mapping) and "harness" in found
    needed: dict[str, Any] = {} if harness else FACTS
    if words := misfit(found, dict[str, Any]) or _lacking(found, {"config": dict[str, Any], **needed}, "$"):
        return words
    config = found["config"]
    if words := _lacking(config, {"suite": str} if harness else CONFIG, "$.config"):
        return words
    if harness:
        return ""
    for part, key in (("dialect", "name"), ("dialect", "mask"), ("model", "name"), ("model", "fingerprint")):
        if words := _lacking(found[part], {key: str}, f"$.{part}"):
            return words
    metrics = config["metrics"]
    for name, body in metrics.items():
        if words := _lacking(body, {"handler": str}, f"$.config.metrics.{name}"):
            return words
    parents = {p for body in metrics.values() for p in body.get("pre_compute") or {}}
    unknown = next((m for m in (*found["config"]["top"], *parents) if m not in metrics), None)
    if unknown is not None:
        return f"it has no metric {unknown}"
    keys = keys_read(found)
    lost = next((key for key in sorted(keys) if key not in found["data"]), None)
    if lost is not None:
        return f"it has no data {lost}"
    known = {**found["data_of"], **found["unavailable"]}
    without = next((m for m, body in metrics.items() if body.get("datasets") and not known.get(m)), None)
    return "" if without is None else f"it does not say which rows {without} read"


def _lacking(body: Mapping[str, Any], types: Mapping[str, Any], where: str) -> str:
    """The first key that is not there or holds a value of another type."""
    for key, expected in types.items():
        if key not in body:
            return f"object missing required field `{key}` at `{where}`"
        if words := misfit(body[key], expected, f"{where}.{key}"):
            return words
    return ""


def keys_read(manifest: Mapping[str, Any]) -> set[str]:
    """The data that were read; metrics without a value may name some that were not there (a run without holdout)."""
    by_metric = {m: by for m, by in manifest["data_of"].items() if m not in manifest["unavailable"]}
    return {key for by_access in by_metric.values() for key in by_access.values()}


def data_fingerprints(manifest: Mapping[str, Any], metric: str) -> frozenset[str]:
    """The rows that a metric and its parents read; none where the manifest does not say."""
    data, keys = manifest.get("data") or {}, (manifest.get("data_of") or {}).get(metric) or {}
    own = ((manifest.get("config") or {}).get("metrics") or {}).get(metric) or {}
    mine = frozenset(data[key]["fingerprint"] for key in keys.values() if key in data)
    parents = own.get("pre_compute") or {}
    return mine.union(*(data_fingerprints(manifest, parent) for parent in parents))


# ==== comparable ====================================================================================================

UNSTATED = "not stated"


@dataclass(frozen=True)
class Number:
    """One metric of one model, and how it was measured."""

    value: float | None
    protocol: str = UNSTATED
    rows: frozenset[str] = frozenset()  # fingerprints of the data sets, where they are known
    handler: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)  # the metric's settings, its data's and its parents'
    prompt: str = ""  # what the template wrote around a stand-in question, where it is known
    vocabulary: str = ""  # of the tokenizer: models of other families have templates of their own
    precision: str = ""  # of the weights; empty where it is not known, or quantised


def number_of(manifest: Mapping[str, Any], metric: str, value: float | None = None) -> Number:
    """A metric's number as the manifest of its run describes it."""
    return Number(
        value,
        protocol_of(manifest),
        data_fingerprints(manifest, metric),
        prompt=str(manifest.get("prompt") or ""),
        vocabulary=str((manifest.get("tokenizer") or {}).get("vocabulary") or ""),
        precision=precision_of(manifest),
    )


def protocol_of(manifest: Mapping[str, Any]) -> str:
    """How a run put its rows to the model: chat or raw, the fixed parts of the prompt, the dialect of definitions.

    A setting that the chat template does not print (most print no date) is left out.

    >>> protocol_of({"template": {"apply_chat_template": True}, "dialect": {"name": "strict"}})
    'chat, dialect strict'
    >>> protocol_of({})
    'not stated'
    """
    if "template" not in manifest:
        return UNSTATED
    template = manifest["template"]
    parts = ["chat" if template.get("apply_chat_template") else "raw"]
    # Not the date: it matters where the template prints it, and then the prompts themselves differ.
    fixed = ("system_prompt", "system_prompt_with_special_tokens")
    tags = () if template.get("apply_chat_template") else ("user_start_tag", "asst_start_tag")
    prompt = manifest.get("prompt")
    for key in (*fixed, *tags):
        text = str(template.get(key) or "")
        if text and (prompt is None or text.strip() in prompt):
            parts.append(f"{key.replace('_', ' ')} {text!r}")
    dialect = (manifest.get("dialect") or {}).get("name")
    return ", ".join([*parts, *([f"dialect {dialect}"] if dialect else [])])


def precision_of(manifest: Mapping[str, Any]) -> str:
    """The precision of a run's weights.

    A quantised model is the same model under an attack, and is compared with itself and its references on purpose.
    """
    model = manifest.get("model") or {}
    return "" if model.get("quantization") else str(model.get("dtype") or "")


def mixture(numbers: Mapping[str, Number], metric: str) -> str:
    """Why the numbers of a metric (by model) are not comparable, naming the first two sides; empty if they are."""
    first = next(iter(numbers.values()), Number(None))
    prompts = {name: n.prompt for name, n in numbers.items() if n.vocabulary == first.vocabulary}
    aspects = (
        ("mixes protocols: {} is '{}', {} is '{}'", {name: n.protocol for name, n in numbers.items()}),
        ("mixes prompts: {} was asked {!r}, {} {!r}", prompts),
        ("mixes precisions: {} has weights in {}, {} in {}", {name: n.precision for name, n in numbers.items()}),
    )
    for words, stated in aspects:
        if sides := _two_sides(stated):
            return f"{metric} {words.format(*sides)}"
    if sides := _two_sides({name: n.rows for name, n in numbers.items()}):
        return f"{metric} of {sides[0]} and of {sides[2]} was measured on different rows"
    return ""


def _two_sides(stated: Mapping[str, Any]) -> tuple[str, Any, str, Any] | None:
    """The first model that states something, and the first that states something else."""
    known = [(name, value) for name, value in stated.items() if value]
    for name, value in known:
        if value != known[0][1]:
            return *known[0], name, value
    return None


def refuse_mixture(found: str, accept: bool) -> str:
    """The note of an accepted mixture; empty where there is none. A mixture that is not accepted is refused."""
    if not found:
        return ""
    if not accept:
        raise UserError(f"{found}; evaluate both in the same way, or accept the mixture with --accept-mixture.")
    return f"{MIXTURE}{found}"


def mixtures(measured: Iterable[tuple[str, Mapping[str, Number]]], accept: bool) -> list[str]:
    """The notes of every accepted mixture, each once with the metrics that it concerns.

    `measured`: a metric, and its numbers by model.
    """
    metrics_by_reason: dict[str, list[str]] = {}
    for metric, numbers in measured:
        if found := mixture(numbers, metric):
            refuse_mixture(found, accept)
            metrics_by_reason.setdefault(found.removeprefix(metric), []).append(metric)
    return [f"{MIXTURE}{', '.join(metrics)}{reason}" for reason, metrics in metrics_by_reason.items()]
