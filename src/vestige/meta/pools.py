"""Pools of models, and models before and after attacks, from a YAML file of runs and numbers."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.guard import is_there, read_yaml
from vestige.meta.numbers import (
    UNSTATED,
    ModelNumbers,
    Number,
    as_number,
    files_behind,
    joined,
    read_file,
    read_run,
    with_similarities,
)
from vestige.metrics.cards import schema_protocol, short
from vestige.schema import check_form

WRITTEN = "numbers in "  # how the source of plain numbers begins
ATTACKS = {"relearn": "relearning", "relearning": "relearning", "quant": "quantization"}
ATTACKS |= {"quantize": "quantization", "quantise": "quantization", "quantization": "quantization"}
_SLOTS = ("run", "values")


def has_slots(entry: Mapping[str, Any]) -> bool:
    return any(k in entry for k in _SLOTS)


class _Entry(TypedDict, total=False):
    """A model with more to say than a path; without `run` and `values` its keys are metrics."""

    model: str | float
    run: str | list[Any]
    values: dict[str, float | None] | None
    utility_rel: float | None


_Slot = str | list[Any] | _Entry


class _File(TypedDict, total=False):
    """What a pool file may hold. `models` has runs (axes), or runs by their state (robustness)."""

    protocol: str | dict[str, str] | None
    metrics: dict[str, dict[str, Any]] | None
    retain: _Slot
    full: str | list[Any] | dict[Any, Any] | None
    positive: list[_Slot]
    negative: list[_Slot]
    models: list[_Slot]


# ---- the YAML file ------------------------------------------------------------------------------------------------


@dataclass
class PoolFile:
    """A YAML file of models, with the settings they share."""

    path: Path
    body: Mapping[str, Any]
    taken: set[str] = field(default_factory=set)
    read: dict[Path, None] = field(default_factory=dict)  # every file a number came from, in order

    def __post_init__(self) -> None:
        self.read[self.path] = None

    @property
    def said(self) -> dict[str, Mapping[str, Any]]:
        """What the file says of metrics: {name: {knows: low, range: any}}."""
        return {short(str(k)): v for k, v in (self.body.get("metrics") or {}).items()}

    def models(self, key: str) -> list[ModelNumbers]:
        """The models of a list; wildcards stand for every run they match."""
        out: list[ModelNumbers] = []
        for entry in self.body[key]:
            if isinstance(entry, str) and glob.has_magic(entry):
                out += [self.model(str(p)) for p in self._matches(entry)]
            else:
                out.append(self.model(entry))
        return out

    def model(self, entry: Any) -> ModelNumbers:
        """One entry: a path, a list of paths, or a mapping with `run` or `values` and whatever else is known."""
        if not isinstance(entry, Mapping):
            return self._named("", self._slot(entry, str(entry)), {})
        name = str(entry.get("model", ""))
        facts = {str(k): v for k, v in entry.items() if k not in ("model", *_SLOTS)} if has_slots(entry) else {}
        return self._named(name, self._slot(entry, name or str(entry)), facts)

    def _named(
        self, name: str, slot: tuple[dict[str, Number], tuple[str, ...]], facts: Mapping[str, Any]
    ) -> ModelNumbers:
        numbers, sources = slot
        if not name and (paths := [s for s in sources if not s.startswith(WRITTEN)]):
            last = Path(paths[0]).name
            name = paths[0] if last in self.taken else last
        if not name:
            raise UserError(f"{self.path}: numbers without a name; write `model: NAME` beside `values:`.")
        if name in self.taken:
            raise UserError(f"{self.path} names {name} twice; give each entry a `model:` of its own.")
        self.taken.add(name)
        return ModelNumbers(name, numbers, sources, facts)

    def slot(self, entry: Any, name: str) -> ModelNumbers:
        """A model in one state (before, after relearning): several states may share the model's name."""
        numbers, sources = self._slot(entry, name)
        return ModelNumbers(name, numbers, sources)

    def _slot(self, entry: Any, name: str) -> tuple[dict[str, Number], tuple[str, ...]]:
        if isinstance(entry, str):
            path = self.find(entry)
            numbers = self._stated(read_run(path))
            self.read.update(dict.fromkeys(files_behind(path)))
            return numbers, (str(path),)
        if isinstance(entry, list):
            parts = [self._slot(e, name) for e in entry]
            return joined((p[0] for p in parts), name), tuple(s for p in parts for s in p[1])
        if isinstance(entry, Mapping) and has_slots(entry):
            return self._slot([entry[k] for k in _SLOTS if k in entry], name)
        if isinstance(entry, Mapping):
            numbers = {short(str(k)): Number(as_number(v, f"{k} of {name} in {self.path}")) for k, v in entry.items()}
            return self._stated(numbers), (f"{WRITTEN}{self.path}",)
        raise UserError(f"{self.path}: cannot read {entry!r} of {name}; give a path, a list of paths or numbers.")

    def _stated(self, numbers: dict[str, Number]) -> dict[str, Number]:
        """The protocol the file states, for numbers that do not say theirs themselves."""
        said = self.body.get("protocol")
        if said is None:
            return numbers
        by_metric = {short(str(k)): str(v) for k, v in said.items()} if isinstance(said, Mapping) else {}
        default = by_metric.get("default", UNSTATED) if isinstance(said, Mapping) else str(said)
        out = dict(numbers)
        for name, n in numbers.items():
            if n.protocol == UNSTATED:
                stated = by_metric.get(name, default)
                out[name] = replace(n, protocol=stated)
        return out

    def find(self, name: str) -> Path:
        """A path beside the file, or from the current directory."""
        beside = self.path.parent / name
        found = beside if is_there(beside) else Path(name)
        if not is_there(found):
            raise UserError(f"{self.path} names '{name[:80]}', which does not exist; give a run or a result file.")
        return found

    def _matches(self, pattern: str) -> list[Path]:
        whole = Path(pattern)
        starts = [Path(whole.anchor)] if whole.is_absolute() else [self.path.parent, Path()]
        for start in starts:
            if found := sorted(start.glob(str(whole.relative_to(whole.anchor)))):
                return found
        raise UserError(f"{self.path}: nothing matches {pattern}; check the path.")


def read_pool_file(path: Path, needed: Sequence[str]) -> PoolFile:
    """The YAML file, with the keys it must have."""
    try:
        body = read_yaml(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; write a YAML list of runs (see docs/meta.md).") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML ({error}); see docs/meta.md for an example.") from None
    if not isinstance(body, Mapping):
        raise UserError(f"{path} must hold a mapping with {', '.join(needed)}.")
    if absent := [k for k in needed if k not in body]:
        raise UserError(f"{path} has no {', '.join(absent)}; it needs {', '.join(needed)}.")
    check_form(body, _File, str(path), "correct it (see docs/meta.md)")
    return PoolFile(path, body)


# ---- what the three questions need --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pools:
    """Models that know (P), models that do not (N)."""

    positive: tuple[ModelNumbers, ...]
    negative: tuple[ModelNumbers, ...]
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)  # models whose entry is an error -> the error
    read: tuple[Path, ...] = ()  # every file a number came from

    @property
    def models(self) -> tuple[ModelNumbers, ...]:
        return (*self.positive, *self.negative)


def read_pools(path: Path) -> Pools:
    """A YAML file with `positive`, `negative`, and for s_mia_* a `retain` model; or a results.json of such pools."""
    if path.suffix == ".json":
        return _pools_from_results(path)
    file = read_pool_file(path, ("positive", "negative"))
    retain = file.slot(file.body["retain"], "retain") if "retain" in file.body else None
    pools = [[with_similarities(m, retain) for m in file.models(key)] for key in ("positive", "negative")]
    places = [{s for m in pool for s in m.sources if not s.startswith(WRITTEN)} for pool in pools]
    if both := places[0] & places[1]:
        raise UserError(f"{path}: {sorted(both)[0]} stands in both pools; a model either knows or does not.")
    return Pools(tuple(pools[0]), tuple(pools[1]), file.said, read=tuple(file.read))


class _Result(TypedDict, total=False):
    pool: str | None
    metrics: dict[str, Any] | None  # values one by one: what is not a number may be an error's text


def _pools_from_results(path: Path) -> Pools:
    """The depth score project's results.json: model -> {pool: P or N, metrics: {name: value}}."""
    sides: dict[str, list[ModelNumbers]] = {"P": [], "N": []}
    left_out: dict[str, str] = {}
    entries = read_file(path)
    check_form(entries, dict[str, _Result], str(path), "copy it again, or write a YAML pool file")
    for name, body in entries.items():
        if failed := failure(body):
            left_out[name] = failed
            continue
        pool, metrics = body.get("pool"), body.get("metrics")
        if pool not in sides or metrics is None:
            raise UserError(f"{path}: {name} has no pool (P or N) with metrics; write a YAML pool file instead.")
        sides[pool].append(ModelNumbers(name, schema_numbers(metrics, f"{name} in {path}"), (f"{WRITTEN}{path}",)))
    return Pools(tuple(sides["P"]), tuple(sides["N"]), left_out=left_out, read=(path,))


def schema_numbers(metrics: Mapping[str, Any], where: str) -> dict[str, Number]:
    """Numbers of the published files, measured as their schema says."""
    return {
        short(str(k)): Number(as_number(v, f"{k} of {where}"), schema_protocol(short(str(k))))
        for k, v in metrics.items()
    }


def failure(body: Any) -> str:
    """What an entry says went wrong with its model (`{"uds": null, "error": ...}`); empty for one with values."""
    places = [body, body.get("metrics")] if isinstance(body, Mapping) else []
    return next((str(p["error"]) for p in places if isinstance(p, Mapping) and p.get("error")), "")


@dataclass(frozen=True)
class AttackedModel:
    """One model before and after attacks."""

    name: str
    states: Mapping[str, ModelNumbers]  # before, relearning, quantization
    utility_rel: float | None = None

    def number(self, state: str, metric: str) -> Number | None:
        return self.states[state].numbers.get(metric) if state in self.states else None

    def value(self, state: str, metric: str) -> float | None:
        found = self.number(state, metric)
        return None if found is None else found.value


@dataclass(frozen=True)
class Attacks:
    """Unlearned models and the retain model, each before and after attacks."""

    retain: AttackedModel
    models: tuple[AttackedModel, ...]
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)  # models whose entry is an error -> the error
    read: tuple[Path, ...] = ()  # every file a number came from


def read_attacks(path: Path) -> Attacks:
    """A YAML file with `retain` and `models`, each with before, relearning, quantization."""
    file = read_pool_file(path, ("retain", "models"))
    retain = _attacked(file, file.body["retain"], "retain", None)
    before = retain.states.get("before")
    entries = file.body["models"]
    if not entries:
        raise UserError(f"{path}: models must be a list of at least one model (see docs/meta.md).")
    models = [_attacked(file, e, "", before) for e in entries]
    names = [m.name for m in models]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UserError(f"{path} names {sorted(twice)[0]} twice; give each entry a `model:` of its own.")
    # The retain model is its own likeness, before any attack; afterwards it is compared with itself before.
    states = {s: with_similarities(m, before) for s, m in retain.states.items()}
    first = AttackedModel(retain.name, states, retain.utility_rel)
    return Attacks(first, tuple(models), file.said, read=tuple(file.read))


def _attacked(file: PoolFile, entry: Any, name: str, retain: ModelNumbers | None) -> AttackedModel:
    if not isinstance(entry, Mapping) or "before" not in entry:
        raise UserError(f"{file.path}: {name or entry} needs `before`, and `relearning` or `quantization` (runs).")
    before = entry["before"]
    name = str(entry.get("model") or name or (Path(before).name if isinstance(before, str) else ""))
    if not name:
        raise UserError(f"{file.path}: an entry of models has no `model:` name.")
    known = {"model", "before", "utility_rel", *ATTACKS}
    if strange := [k for k in entry if k not in known]:
        raise UserError(f"{file.path}: {name} has the unknown key {strange[0]}; known: {', '.join(sorted(known))}.")
    states = {"before": file.slot(before, name)}
    for key, state in ATTACKS.items():
        if entry.get(key) is not None:
            states[state] = file.slot(entry[key], name)
    utility = as_number(entry.get("utility_rel"), f"utility_rel of {name} in {file.path}")
    return AttackedModel(name, {s: with_similarities(m, retain) for s, m in states.items()}, utility)
