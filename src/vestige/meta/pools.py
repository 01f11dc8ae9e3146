"""Finished models as plain numbers: run directories, result files, or numbers written into a YAML file.

Nothing here runs a model. Every number keeps its protocol (how the rows were put to the model) and the rows it was
measured on; numbers of one metric that differ in these are not compared.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.meta.axes import similarity
from vestige.meta.names import ENTITY, schema_protocol, short
from vestige.store.files import read_json

UNSTATED = "not stated"
WRITTEN = "numbers in "  # how the source of plain numbers begins
ATTACKS = {"relearn": "relearning", "relearning": "relearning", "quant": "quantization"}
ATTACKS |= {"quantize": "quantization", "quantise": "quantization", "quantization": "quantization"}


@dataclass(frozen=True)
class Number:
    """One metric of one model."""

    value: float | None
    protocol: str = UNSTATED
    rows: frozenset[str] = frozenset()  # fingerprints of the data sets, where they are known
    handler: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)  # the metric's settings: k, aggregator, ...


@dataclass(frozen=True)
class Model:
    """One model's numbers by short metric name, and where they come from."""

    name: str
    numbers: Mapping[str, Number]
    sources: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever else the pool file says: epoch, method, ...

    def value(self, metric: str) -> float | None:
        found = self.numbers.get(metric)
        return None if found is None else found.value


# ---- one model ---------------------------------------------------------------------------------------------------


def read_run(path: Path) -> dict[str, Number]:
    """The numbers of one run directory or one result file."""
    if path.is_dir():
        files = [*sorted(path.glob("*_EVAL.json"))] or sorted(path.glob("*_SUMMARY.json"))
        files += [f for f in (path / "summary.json",) if f.is_file()]
        if not files:
            raise UserError(f"{path} holds no *_EVAL.json, *_SUMMARY.json or summary.json; give a finished run.")
        return joined((read_run(f) for f in files), str(path))
    data = read_file(path)
    if "avg_uds" in data or "avg_udr" in data:
        return _from_depth(data, path)
    manifest = path.parent / "manifest.json"
    return _from_results(data, read_file(manifest) if manifest.is_file() else {}, path)


def _from_results(data: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> dict[str, Number]:
    settings = (manifest.get("config") or {}).get("metrics") or {}
    out: dict[str, Number] = {}
    for name, body in data.items():
        value = body.get("agg_value") if isinstance(body, Mapping) else body
        if isinstance(value, (Mapping, list, str, bool)):
            continue  # a trajectory's curves, a note: not one number
        own = settings.get(name) or {}
        out[short(name)] = Number(
            _number(value, f"{name} in {path}"),
            protocol_of(manifest),
            _rows(manifest, name),
            str(own.get("handler", "")),
            _definition(own),
        )
    return out


# What must be equal for two depth scores to be the same kind of number.
_DEPTH_SETTINGS = (
    "em_scope", "patch_scope", "delta_threshold", "last_layer", "tokenization", "attn_implementation",
)  # fmt: skip


def _from_depth(data: Mapping[str, Any], path: Path) -> dict[str, Number]:
    """The summary of a depth run: the score and, where there are any, the representation baselines."""
    said = [f"{k.replace('_', ' ')} {data[k]}" for k in _DEPTH_SETTINGS if data.get(k) is not None]
    protocol = ", ".join([ENTITY, *said])
    total = data.get("total_examples")
    rows = frozenset() if total is None else frozenset({f"{total} examples"})
    values = {"uds": data.get("avg_uds", data.get("avg_udr")), **(data.get("baselines") or {})}
    return {short(k): Number(_number(v, f"{k} in {path}"), protocol, rows) for k, v in values.items()}


def protocol_of(manifest: Mapping[str, Any]) -> str:
    """How a run put its rows to the model: chat or raw, the fixed parts of the prompt, the dialect of definitions.

    >>> protocol_of({"template": {"apply_chat_template": True}, "dialect": {"name": "strict"}})
    'chat, dialect strict'
    >>> protocol_of({})
    'not stated'
    """
    if "template" not in manifest:
        return UNSTATED
    template = manifest["template"]
    parts = ["chat" if template.get("apply_chat_template") else "raw"]
    fixed = ("system_prompt", "system_prompt_with_special_tokens", "date_string")
    parts += [f"{k.replace('_', ' ')} '{template[k]}'" for k in fixed if template.get(k)]
    dialect = (manifest.get("dialect") or {}).get("name")
    return ", ".join([*parts, *([f"dialect {dialect}"] if dialect else [])])


def _definition(own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change a metric's meaning: plain values, but no paths."""
    return {
        k: v
        for k, v in own.items()
        if isinstance(v, (str, int, float)) and not k.endswith("path") and k not in ("handler", "batch_size")
    }


def _rows(manifest: Mapping[str, Any], metric: str) -> frozenset[str]:
    data, keys = manifest.get("data") or {}, (manifest.get("data_of") or {}).get(metric) or {}
    return frozenset(data[k]["fingerprint"] for k in keys.values() if k in data)


def _number(value: Any, where: str) -> float | None:
    """A number, or None for null, NaN and infinity."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} is {value!r}; a number or null was expected.")
    return float(value) if math.isfinite(value) else None


def joined(parts: Iterable[Mapping[str, Number]], where: str) -> dict[str, Number]:
    """The numbers of several files of one model. Two different values of one metric are refused."""
    out: dict[str, Number] = {}
    for part in parts:
        for name, number in part.items():
            if name in out and out[name].value != number.value:
                raise UserError(f"{where} gives {name} twice, with different values; name the file to use.")
            out.setdefault(name, number)
    return out


def read_file(path: Path) -> dict[str, Any]:
    """A JSON object, mistakes in one sentence."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a run directory or a result file.") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}.")
    return data


def with_similarities(model: Model, retain: Model | None) -> Model:
    """The model with s_mia_* added where the retain model has the attack too. What it already has stays."""
    if retain is None:
        return model
    more: dict[str, Number] = {}
    for name, number in model.numbers.items():
        base = retain.numbers.get(name)
        if name.startswith("mia_") and base is not None and f"s_{name}" not in model.numbers:
            same_protocol({retain.name: base, model.name: number}, name)
            more[f"s_{name}"] = Number(similarity(number.value, base.value), number.protocol, number.rows)
    return Model(model.name, {**model.numbers, **more}, model.sources, model.facts)


def same_protocol(numbers: Mapping[str, Number], metric: str) -> str:
    """The one protocol of a metric's numbers (by model); mixed protocols and mixed rows are refused by name."""
    have = {name: n for name, n in numbers.items() if n.value is not None}
    protocols: dict[str, str] = {}
    rows: dict[frozenset[str], str] = {}
    for name, n in have.items():
        protocols.setdefault(n.protocol, name)
        if n.rows:
            rows.setdefault(n.rows, name)
    if len(protocols) > 1:
        (a, first), (b, second) = list(protocols.items())[:2]
        raise UserError(
            f"{metric} mixes protocols: {first} is '{a}', {second} is '{b}'; evaluate both in the same way "
            "(numbers without a manifest: write `protocol:` in the pool file)."
        )
    if len(rows) > 1:
        first, second = list(rows.values())[:2]
        raise UserError(
            f"{metric} of {first} and of {second} was measured on different rows; evaluate both on the same."
        )
    _same_definition(have, metric)
    return next(iter(protocols), UNSTATED)


def _same_definition(numbers: Mapping[str, Number], metric: str) -> None:
    seen: dict[str, str] = {}
    for name, n in numbers.items():
        if n.handler:
            seen.setdefault(f"{n.handler} {dict(sorted(n.definition.items()))}", name)
    if len(seen) > 1:
        (a, first), (b, second) = list(seen.items())[:2]
        raise UserError(f"{metric} is {a} in {first} but {b} in {second}; score both by one definition.")


_SLOTS = ("run", "values")


def _has_slots(entry: Mapping[str, Any]) -> bool:
    return any(k in entry for k in _SLOTS)


# ---- the YAML file -----------------------------------------------------------------------------------------------


@dataclass
class PoolFile:
    """A YAML file of models, with the settings they share."""

    path: Path
    body: Mapping[str, Any]
    taken: set[str] = field(default_factory=set)

    @property
    def said(self) -> dict[str, Mapping[str, Any]]:
        """What the file says of metrics: {name: {knows: low, range: any}}."""
        found = self.body.get("metrics") or {}
        if not isinstance(found, Mapping) or not all(isinstance(v, Mapping) for v in found.values()):
            raise UserError(f"{self.path}: metrics must map names to settings, as in {{my_metric: {{knows: low}}}}.")
        return {short(str(k)): v for k, v in found.items()}

    def models(self, key: str) -> list[Model]:
        """The models of a list; wildcards stand for every run they match."""
        entries = self.body.get(key)
        if not isinstance(entries, list):
            raise UserError(f"{self.path}: {key} must be a list of runs (see docs/meta.md).")
        out: list[Model] = []
        for entry in entries:
            if isinstance(entry, str) and glob.has_magic(entry):
                out += [self.model(str(p)) for p in self._matches(entry)]
            else:
                out.append(self.model(entry))
        return out

    def model(self, entry: Any) -> Model:
        """One entry: a path, a list of paths, or a mapping with `run` or `values` and whatever else is known."""
        if not isinstance(entry, Mapping):
            return self._named("", self._slot(entry, str(entry)), {})
        name = str(entry.get("model", ""))
        facts = {k: v for k, v in entry.items() if k not in ("model", *_SLOTS)} if _has_slots(entry) else {}
        return self._named(name, self._slot(entry, name or str(entry)), facts)

    def _named(self, name: str, slot: tuple[dict[str, Number], tuple[str, ...]], facts: Mapping[str, Any]) -> Model:
        numbers, sources = slot
        if not name and (paths := [s for s in sources if not s.startswith(WRITTEN)]):
            last = Path(paths[0]).name
            name = paths[0] if last in self.taken else last
        if not name:
            raise UserError(f"{self.path}: numbers without a name; write `model: NAME` beside `values:`.")
        if name in self.taken:
            raise UserError(f"{self.path} names {name} twice; give each entry a `model:` of its own.")
        self.taken.add(name)
        return Model(name, numbers, sources, facts)

    def slot(self, entry: Any, name: str) -> Model:
        """A model in one state (before, after relearning): several states may share the model's name."""
        numbers, sources = self._slot(entry, name)
        return Model(name, numbers, sources)

    def _slot(self, entry: Any, name: str) -> tuple[dict[str, Number], tuple[str, ...]]:
        if isinstance(entry, str):
            path = self.find(entry)
            return self._stated(read_run(path)), (str(path),)
        if isinstance(entry, list):
            parts = [self._slot(e, name) for e in entry]
            return joined((p[0] for p in parts), name), tuple(s for p in parts for s in p[1])
        if isinstance(entry, Mapping) and _has_slots(entry):
            return self._slot([entry[k] for k in _SLOTS if k in entry], name)
        if isinstance(entry, Mapping):
            numbers = {short(str(k)): Number(_number(v, f"{k} of {name} in {self.path}")) for k, v in entry.items()}
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
        return beside if beside.exists() else Path(name)

    def _matches(self, pattern: str) -> list[Path]:
        whole = Path(pattern)
        starts = [Path(whole.anchor)] if whole.is_absolute() else [self.path.parent, Path()]
        for start in starts:
            if found := sorted(start.glob(str(whole.relative_to(whole.anchor)))):
                return found
        raise UserError(f"{self.path}: nothing matches {pattern}.")


def read_pool_file(path: Path, needed: Sequence[str]) -> PoolFile:
    """The YAML file, with the keys it must have."""
    import yaml

    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; write a YAML list of runs (see docs/meta.md).") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(body, Mapping):
        raise UserError(f"{path} must hold a mapping with {', '.join(needed)}.")
    if absent := [k for k in needed if k not in body]:
        raise UserError(f"{path} has no {', '.join(absent)}; it needs {', '.join(needed)}.")
    return PoolFile(path, body)


# ---- what the three questions need ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pools:
    """Models that know (P), models that do not (N)."""

    positive: tuple[Model, ...]
    negative: tuple[Model, ...]
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def models(self) -> tuple[Model, ...]:
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
    return Pools(tuple(pools[0]), tuple(pools[1]), file.said)


def _pools_from_results(path: Path) -> Pools:
    """The depth score project's results.json: model -> {pool: P or N, metrics: {name: value}}."""
    sides: dict[str, list[Model]] = {"P": [], "N": []}
    for name, body in read_file(path).items():
        pool, metrics = (body.get("pool"), body.get("metrics")) if isinstance(body, Mapping) else (None, None)
        if pool not in sides or not isinstance(metrics, Mapping):
            raise UserError(f"{path}: {name} has no pool (P or N) with metrics; write a YAML pool file instead.")
        numbers = {
            short(str(k)): Number(_number(v, f"{k} of {name} in {path}"), schema_protocol(short(str(k))))
            for k, v in metrics.items()
        }
        sides[pool].append(Model(name, numbers, (f"{WRITTEN}{path}",)))
    return Pools(tuple(sides["P"]), tuple(sides["N"]))


@dataclass(frozen=True)
class Attacked:
    """One model before and after attacks."""

    name: str
    states: Mapping[str, Model]  # before, relearning, quantization
    utility_rel: float | None = None

    def number(self, state: str, metric: str) -> Number | None:
        return self.states[state].numbers.get(metric) if state in self.states else None

    def value(self, state: str, metric: str) -> float | None:
        found = self.number(state, metric)
        return None if found is None else found.value


@dataclass(frozen=True)
class Attacks:
    """Unlearned models and the retain model, each before and after attacks."""

    retain: Attacked
    models: tuple[Attacked, ...]
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_attacks(path: Path) -> Attacks:
    """A YAML file with `retain` and `models`, each with before, relearning, quantization."""
    file = read_pool_file(path, ("retain", "models"))
    retain = _attacked(file, file.body["retain"], "retain", None)
    before = retain.states.get("before")
    entries = file.body["models"]
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: models must be a list of at least one model (see docs/meta.md).")
    models = [_attacked(file, e, "", before) for e in entries]
    names = [m.name for m in models]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UserError(f"{path} names {sorted(twice)[0]} twice; give each entry a `model:` of its own.")
    # The retain model is its own likeness, before any attack; afterwards it is compared with itself before.
    states = {s: with_similarities(m, before) for s, m in retain.states.items()}
    return Attacks(Attacked(retain.name, states, retain.utility_rel), tuple(models), file.said)


def _attacked(file: PoolFile, entry: Any, name: str, retain: Model | None) -> Attacked:
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
    utility = _number(entry.get("utility_rel"), f"utility_rel of {name} in {file.path}")
    return Attacked(name, {s: with_similarities(m, retain) for s, m in states.items()}, utility)
