"""Finished models as plain numbers: run directories, result files, and YAML files that name pools of them.

Nothing here runs a model. Every number keeps its protocol (how the rows were put to the model) and the rows it was
measured on; numbers of one metric that differ in these are not compared.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vestige.errors import UserError, unknown_name
from vestige.guard import is_there, read_json, read_yaml
from vestige.io import decode_data
from vestige.metrics.cards import ENTITY, KNOWN, Direction, direction_of, schema_protocol, short, unlike_published
from vestige.runs.run import UNSTATED, Number, mixture, number_of

# Metrics of rows that are not to be forgotten: they measure what is left of a model, not what it still knows. They
# are judged only where the pool file says which end of them means "knows".
ELSEWHERE = ("retain_", "ra_", "wf_")
IN_FILE = "numbers in "  # how the source of plain numbers begins
# The words in use for the two attacks: open-unlearning's, the project's keys (quant, relearn), both spellings.
ATTACKS = {
    "relearn": "relearning",
    "relearning": "relearning",
    "quant": "quantization",
    "quantize": "quantization",
    "quantise": "quantization",
    "quantization": "quantization",
}
STATES = ("before", "relearning", "quantization")
# An entry with one of these keys is a model with facts (epoch, method, ...); one without is a mapping of metrics.
_SLOTS = ("run", "values")


@dataclass(frozen=True)
class ModelNumbers:
    """One model's numbers by short metric name, and where they come from."""

    name: str
    numbers: Mapping[str, Number]
    sources: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever else the pool file says: epoch, method, ...

    def value(self, metric: str) -> float | None:
        number = self.numbers.get(metric)
        return None if number is None else number.value


@dataclass(frozen=True)
class Pools:
    """Models that know (P), models that do not (N)."""

    positive: tuple[ModelNumbers, ...]
    negative: tuple[ModelNumbers, ...]
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what the file says: {knows:, range:}
    left_out: Mapping[str, str] = field(default_factory=dict)  # models whose entry is an error -> the error
    read: tuple[Path, ...] = ()  # every file a number came from


@dataclass(frozen=True)
class AttackedModel:
    """One model before and after attacks."""

    name: str
    states: Mapping[str, ModelNumbers]  # by STATES
    utility_rel: float | None = None

    def number(self, state: str, metric: str) -> Number | None:
        return self.states[state].numbers.get(metric) if state in self.states else None

    def value(self, state: str, metric: str) -> float | None:
        number = self.number(state, metric)
        return None if number is None else number.value


@dataclass(frozen=True)
class Attacks:
    """Unlearned models and the retain model, each before and after attacks."""

    retain: AttackedModel
    models: tuple[AttackedModel, ...]
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    read: tuple[Path, ...] = ()


# ---- one run -----------------------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
    """A JSON object, mistakes in one sentence."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a run directory or a result file.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); write it again.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}.")
    return data


def as_number(value: Any, where: str) -> float | None:
    """A number, or None for null, NaN and infinity."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} is {value!r}; a number or null was expected.")
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        raise UserError(f"{where} is too large for a number; write one below 1e308.") from None


def result_files(path: Path) -> list[Path]:
    """The files of a run directory that hold its numbers; a result file is its own."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*_EVAL.json")) or sorted(path.glob("*_SUMMARY.json"))
    if (path / "summary.json").is_file():
        files.append(path / "summary.json")
    if not files:
        raise UserError(f"{path} holds no *_EVAL.json, *_SUMMARY.json or summary.json; give a finished run.")
    return files


def read_run(path: Path) -> dict[str, Number]:
    """The numbers of one run directory or one result file."""
    # A run may have several result files: an evaluation and a depth run in one directory are one model's numbers.
    numbers = []
    for file in result_files(path):
        data = read_file(file)
        if "avg_uds" in data or "avg_udr" in data:
            numbers.append(_depth_numbers(data, file))
        else:
            manifest = file.parent / "manifest.json"
            numbers.append(_result_numbers(data, read_file(manifest) if manifest.is_file() else {}, file))
    return joined(numbers, str(path))


def _result_numbers(data: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> dict[str, Number]:
    """Every number of a result file (*_EVAL.json, *_SUMMARY.json), with the settings that its manifest records."""
    settings = (manifest.get("config") or {}).get("metrics") or {}
    out: dict[str, Number] = {}
    for name, body in data.items():
        value = body.get("agg_value") if isinstance(body, Mapping) else body
        # A plain {metric: number} file is read like a *_SUMMARY.json of ours.
        if isinstance(value, (Mapping, list, str, bool)):
            continue  # a trajectory's curves, a note: not one number
        own = settings.get(name) or {}
        key = short(name)
        number = number_of(manifest, name, as_number(value, f"{name} in {path}"))
        if own.get("handler") == "uds":
            # It asks raw rows whatever the run's template, and patches and scores the entity's own positions.
            data_settings: Mapping[str, Any] = next(iter((own.get("datasets") or {}).values()), {})
            depth = {**own, **(data_settings.get("args") or {}), "em_scope": "entity", "patch_scope": "span"}
            number = replace(number, protocol=_depth_protocol(depth), prompt="")
        elif unlike := unlike_published(key, own):
            # Settings in which the metric is not what its short name means are part of its protocol.
            listed = ", ".join(f"{k} {own.get(k)}" for k in unlike)
            number = replace(number, protocol=f"{number.protocol} [{listed}]")
        handler = str(own.get("handler", ""))
        out[key] = replace(number, handler=handler, definition=_definition(name, settings))
    return out


# What must be equal for two depth scores to be the same kind of number.
_DEPTH_SETTINGS = (
    "em_scope", "patch_scope", "delta_threshold", "last_layer", "tokenization", "attn_implementation",
)  # fmt: skip


def _depth_numbers(data: Mapping[str, Any], path: Path) -> dict[str, Number]:
    """The summary of a depth run: the score (avg_udr was its name) and any representation baselines."""
    protocol = _depth_protocol(data)
    total = data.get("total_examples")
    # A depth summary does not fingerprint its rows; their number is what two of them can be compared by.
    rows = frozenset() if total is None else frozenset({f"{total} examples"})
    values = {"uds": data.get("avg_uds", data.get("avg_udr")), **(data.get("baselines") or {})}
    return {short(k): Number(as_number(v, f"{k} in {path}"), protocol, rows) for k, v in values.items()}


def _depth_protocol(settings: Mapping[str, Any]) -> str:
    """How a depth score was measured: two that differ in one of these settings are not one kind of number."""
    stated = [f"{k.replace('_', ' ')} {settings[k]}" for k in _DEPTH_SETTINGS if settings.get(k) is not None]
    return ", ".join([ENTITY, *stated])


def without_settings(protocol: str) -> str:
    """How rows were put to the model, without what concerns one metric only.

    >>> without_settings("chat, dialect strict [k 0.2]")
    'chat, dialect strict'
    """
    return re.sub(r" \[[^\[\]]*\]$", "", protocol)


def _definition(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What changes a metric's meaning: plain settings, but no paths; how its data are asked and its texts made; all
    that of its parents. Two runs may read the same rows and still put other questions."""
    own = settings.get(name) or {}
    out: dict[str, Any] = {}
    for key, value in own.items():
        # Where files lie and how rows are batched does not change a number.
        if isinstance(value, (str, int, float)) and not key.endswith("path") and key not in ("handler", "batch_size"):
            out[key] = value
    for data, body in (own.get("datasets") or {}).items():
        args = {k: v for k, v in (body.get("args") or {}).items() if k not in ("hf_args", "max_samples")}
        out[f"rows of {data}"] = f"{body.get('handler')} {dict(sorted(args.items()))}"
    if own.get("generation_args"):
        out["generation"] = str(dict(sorted(own["generation_args"].items())))
    for parent in own.get("pre_compute") or {}:
        out |= {f"{parent}: {k}": v for k, v in _definition(parent, settings).items()}
    return out


def schema_numbers(metrics: Mapping[str, Any], where: str) -> dict[str, Number]:
    """Numbers of the published files, measured as their schema says."""
    out = {}
    for key, value in metrics.items():
        name = short(str(key))
        out[name] = Number(as_number(value, f"{key} of {where}"), schema_protocol(name))
    return out


# ---- numbers of several runs -------------------------------------------------------------------------------------


def joined(parts: Iterable[Mapping[str, Number]], where: str) -> dict[str, Number]:
    """The numbers of several files of one model. Two different values of one metric are refused."""
    out: dict[str, Number] = {}
    for part in parts:
        for name, number in part.items():
            # The same number twice is common (a summary next to the results) and harmless.
            if name in out and out[name].value != number.value:
                raise UserError(f"{where} gives {name} twice, with different values; name the file to use.")
            out.setdefault(name, number)
    return out


def similarity(auc: float | None, retain_auc: float | None) -> float | None:
    """s_x: how near an attack's AUC is to the retain model's; 1 is equal, 0 is as far as the AUC itself, or further.

    >>> similarity(0.3, 0.4), similarity(0.9, 0.4), similarity(0.3, 0.0)
    (0.75, 0.0, None)
    """
    if auc is None or retain_auc is None or retain_auc <= 1e-12:
        return None
    return float(np.clip(1 - abs(auc - retain_auc) / retain_auc, 0, 1))


def with_similarities(model: ModelNumbers, retain: ModelNumbers | None) -> ModelNumbers:
    """The model with s_mia_* added where the retain model has the attack too. What it already has stays."""
    if retain is None:
        return model
    numbers = dict(model.numbers)
    for name, number in model.numbers.items():
        base = retain.numbers.get(name)
        # A stated likeness is taken as it is: it may have been computed from more digits than the AUCs here have.
        if name.startswith("mia_") and base is not None and f"s_{name}" not in numbers:
            same_protocol({retain.name: base, model.name: number}, name)
            numbers[f"s_{name}"] = Number(similarity(number.value, base.value), number.protocol, number.rows)
    return replace(model, numbers=numbers)


def same_protocol(numbers: Mapping[str, Number], metric: str) -> str:
    """The one protocol of a metric's numbers (by model); mixed protocols, rows and definitions are refused by name."""
    known = {name: n for name, n in numbers.items() if n.value is not None}
    if mixed := mixture(known, metric):
        raise UserError(
            f"{mixed}; evaluate both in the same way (numbers without a manifest: write `protocol:` in the pool file)."
        )
    # Published numbers name no handler; their schema says what they are.
    defined = [(name, {"handler": n.handler, **n.definition}) for name, n in known.items() if n.handler]
    for name, theirs in defined[1:]:
        first, ours = defined[0]
        for key in {**ours, **theirs}:
            if ours.get(key) != theirs.get(key):
                raise UserError(
                    f"{metric} has {key} = {ours.get(key)} in {first} but {theirs.get(key)} in {name}; "
                    "score both by one definition."
                )
    return next((n.protocol for n in known.values()), UNSTATED)


def choose_metrics(
    models: Sequence[ModelNumbers], asked: Sequence[str] | None, about: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Direction], dict[str, str]]:
    """The metrics to judge with their directions, and those left alone with the reason.

    Metrics that were asked for must exist and have a direction. `about`: what the pool file says of metrics.
    """
    measured = dict.fromkeys(name for m in models for name, n in m.numbers.items() if n.value is not None)

    def direction(name: str) -> Direction:
        # The direction of a metric of one's own is known by its handler, which any one model may name.
        with_handler = [m.numbers[name] for m in models if name in m.numbers and m.numbers[name].handler]
        number = with_handler[0] if with_handler else Number(None)
        return direction_of(name, number.handler, str(number.definition.get("aggregator", "")), about.get(name))

    chosen: dict[str, Direction] = {}
    skipped: dict[str, str] = {}
    if asked is not None:
        for name in map(short, asked):
            if name not in measured:
                raise unknown_name("metric of these runs", name, measured)
            chosen[name] = direction(name)
        return chosen, skipped
    table = list(KNOWN)  # known metrics come in the order of the published table, then the others
    for name in sorted(measured, key=lambda n: (table.index(n) if n in KNOWN else len(table), n)):
        if name.startswith(ELSEWHERE) and name not in about:
            continue
        try:
            chosen[name] = direction(name)
        except UserError as error:
            if name in about:
                raise  # a mistake in what the pool file says of this metric
            skipped[name] = str(error)
    return chosen, skipped


def as_m(numbers: Mapping[str, Number], direction: Direction, metric: str) -> dict[str, float | None]:
    """m of each model, high when it knows; a value that its range does not allow is a mistake in the range."""
    out: dict[str, float | None] = {}
    for name, number in numbers.items():
        # 1e-9: sums of probabilities may pass 1 by rounding.
        if number.value is not None and direction.unit and not -1e-9 <= number.value <= 1 + 1e-9:
            raise UserError(
                f"{metric} of {name} is {number.value:g}, outside 0..1; "
                f"write `metrics: {{{metric}: {{knows: {direction.knows}, range: any}}}}` in the pool file."
            )
        out[name] = None if number.value is None else direction.m(number.value)
    return out


# ---- the YAML file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """The form of a model with more to say than a path; without `run` and `values` its keys are metrics."""

    model: str | float | None = None
    run: str | list[Any] | None = None
    values: dict[str, float | None] | None = None
    utility_rel: float | None = None


_Slot = str | list[Any] | _Entry


@dataclass(frozen=True)
class _Form:
    """What a pool file may hold. `models` has runs (axes), or runs by their state (robustness)."""

    protocol: str | dict[str, str] | None = None
    metrics: dict[str, dict[str, Any]] | None = None
    retain: _Slot = ""
    full: str | list[Any] | dict[Any, Any] | None = None
    positive: list[_Slot] = field(default_factory=list)
    negative: list[_Slot] = field(default_factory=list)
    models: list[_Slot] = field(default_factory=list)


_SlotNumbers = tuple[dict[str, Number], tuple[str, ...]]  # numbers, and where they come from


class PoolFile:
    """A YAML file of models, with the settings they share."""

    def __init__(self, path: Path, needed: Sequence[str]) -> None:
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
        decode_data(body, _Form, str(path), "correct it (see docs/meta.md)")
        self.path, self.body = path, body
        # A table with two rows of one name could not be read; the second is refused.
        self.names: set[str] = set()
        self.files = [path]  # every file a number came from
        # What the file says of metrics: {name: {knows: low, range: any}}.
        self.metrics = {short(str(k)): v for k, v in (body.get("metrics") or {}).items()}

    @property
    def read(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.files))

    def retain_model(self) -> ModelNumbers | None:
        """The model that s_mia_* are measured against, if the file names one."""
        return self.model_state(self.body["retain"], "retain") if "retain" in self.body else None

    def models(self, key: str) -> list[ModelNumbers]:
        """The models of a list; wildcards stand for every run they match."""
        out: list[ModelNumbers] = []
        for entry in self.body[key]:
            if isinstance(entry, str) and glob.has_magic(entry):
                out += [self.model(str(path)) for path in self._matches(entry)]
            else:
                out.append(self.model(entry))
        return out

    def model(self, entry: Any) -> ModelNumbers:
        """One entry: a path, a list of paths, or a mapping with `run` or `values` and whatever else is known."""
        name, facts = "", {}
        if isinstance(entry, Mapping):
            name = str(entry.get("model", ""))
            if has_slots(entry):
                facts = {str(k): v for k, v in entry.items() if k not in ("model", *_SLOTS)}
        numbers, sources = self._read_slot(entry, name or str(entry))
        # A run without a name goes by its folder, or by its whole path where another run has that folder's name.
        paths = [s for s in sources if not s.startswith(IN_FILE)]
        if not name and paths:
            last = Path(paths[0]).name
            name = paths[0] if last in self.names else last
        if not name:
            raise UserError(f"{self.path}: numbers without a name; write `model: NAME` beside `values:`.")
        if name in self.names:
            raise UserError(f"{self.path} names {name} twice; give each entry a `model:` of its own.")
        self.names.add(name)
        return ModelNumbers(name, numbers, sources, facts)

    def model_state(self, entry: Any, name: str) -> ModelNumbers:
        """A model in one state (before, after relearning): several states may share the model's name."""
        numbers, sources = self._read_slot(entry, name)
        return ModelNumbers(name, numbers, sources)

    def _read_slot(self, entry: Any, name: str) -> _SlotNumbers:
        """The numbers at one place of the file: a path, several paths that are one model, or plain numbers."""
        if isinstance(entry, str):
            path = self._find(entry)
            files = result_files(path)
            manifests = [file.parent / "manifest.json" for file in files]
            self.files += [*files, *(m for m in manifests if m.is_file())]
            return self._with_protocol(read_run(path)), (str(path),)
        if isinstance(entry, list):
            parts = [self._read_slot(e, name) for e in entry]
            sources = [source for part in parts for source in part[1]]
            return joined((part[0] for part in parts), name), tuple(sources)
        if isinstance(entry, Mapping) and has_slots(entry):
            return self._read_slot([entry[k] for k in _SLOTS if k in entry], name)
        if isinstance(entry, Mapping):
            numbers = {short(str(k)): Number(as_number(v, f"{k} of {name} in {self.path}")) for k, v in entry.items()}
            return self._with_protocol(numbers), (f"{IN_FILE}{self.path}",)
        raise UserError(f"{self.path}: cannot read {entry!r} of {name}; give a path, a list of paths or numbers.")

    def _with_protocol(self, numbers: dict[str, Number]) -> dict[str, Number]:
        """The protocol the file states, for numbers that do not state theirs themselves."""
        stated = self.body.get("protocol")
        if stated is None:
            return numbers
        by_metric = stated if isinstance(stated, Mapping) else {"default": stated}
        protocols = {short(str(k)): str(v) for k, v in by_metric.items()}
        out = dict(numbers)
        for name, number in numbers.items():
            if number.protocol == UNSTATED:
                out[name] = replace(number, protocol=protocols.get(name, protocols.get("default", UNSTATED)))
        return out

    def _find(self, name: str) -> Path:
        """A path relative to the file, or to the current directory."""
        for path in (self.path.parent / name, Path(name)):
            if is_there(path):
                return path
        raise UserError(f"{self.path} names '{name[:80]}', which does not exist; give a run or a result file.")

    def _matches(self, pattern: str) -> list[Path]:
        """The runs that a pattern stands for, relative to the file, or else to the current directory."""
        whole = Path(pattern)
        starts = [Path(whole.anchor)] if whole.is_absolute() else [self.path.parent, Path()]
        for start in starts:
            if paths := sorted(start.glob(str(whole.relative_to(whole.anchor)))):
                return paths
        raise UserError(f"{self.path}: nothing matches {pattern}; check the path.")


def has_slots(entry: Mapping[str, Any]) -> bool:
    return any(k in entry for k in _SLOTS)


# ---- pools and attacks -------------------------------------------------------------------------------------------


def read_pools(path: Path) -> Pools:
    """A YAML file with `positive`, `negative`, and for s_mia_* a `retain` model; or a results.json of such pools."""
    if path.suffix == ".json":
        return _read_pool_results(path)
    file = PoolFile(path, ("positive", "negative"))
    retain = file.retain_model()
    positive = tuple(with_similarities(m, retain) for m in file.models("positive"))
    negative = tuple(with_similarities(m, retain) for m in file.models("negative"))
    # Two entries may have other names and still be one run.
    places = {s for m in positive for s in m.sources if not s.startswith(IN_FILE)}
    if both := sorted(places & {s for m in negative for s in m.sources}):
        raise UserError(f"{path}: {both[0]} stands in both pools; a model either knows or does not.")
    return Pools(positive, negative, file.metrics, read=file.read)


def _read_pool_results(path: Path) -> Pools:
    """The depth score project's results.json: model -> {pool: P or N, metrics: {name: value}}."""
    sides: dict[str, list[ModelNumbers]] = {"P": [], "N": []}
    left_out: dict[str, str] = {}
    for name, body in read_file(path).items():
        if error := entry_error(body):
            left_out[name] = error
            continue
        pool, metrics = (body.get("pool"), body.get("metrics")) if isinstance(body, Mapping) else (None, None)
        if pool not in ("P", "N") or not isinstance(metrics, Mapping):
            raise UserError(f"{path}: {name} has no pool (P or N) with metrics; write a YAML pool file instead.")
        sides[pool].append(ModelNumbers(name, schema_numbers(metrics, f"{name} in {path}"), (f"{IN_FILE}{path}",)))
    return Pools(tuple(sides["P"]), tuple(sides["N"]), left_out=left_out, read=(path,))


def entry_error(body: Any) -> str:
    """What an entry says went wrong with its model (`{"uds": null, "error": ...}`); empty for one with values."""
    places = [body, body.get("metrics")] if isinstance(body, Mapping) else []
    # The project's scripts write the error where the values would be, at either level.
    for place in places:
        if isinstance(place, Mapping) and place.get("error"):
            return str(place["error"])
    return ""


def read_attacks(path: Path) -> Attacks:
    """A YAML file with `retain` and `models`, each with before, relearning, quantization."""
    file = PoolFile(path, ("retain", "models"))
    retain = _read_attacked(file, file.body["retain"], "retain")
    models = [_read_attacked(file, entry, "") for entry in file.body["models"]]
    if not models:
        raise UserError(f"{path}: models must be a list of at least one model (see docs/meta.md).")
    names = [m.name for m in models]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UserError(f"{path} names {sorted(twice)[0]} twice; give each entry a `model:` of its own.")
    return compared_with_retain(Attacks(retain, tuple(models), file.metrics, read=file.read))


def compared_with_retain(attacks: Attacks) -> Attacks:
    """With s_mia_* in every state: likeness to the retain model before any attack, also of the retain model itself."""
    before = attacks.retain.states.get("before")

    def compared(model: AttackedModel) -> AttackedModel:
        states = {state: with_similarities(numbers, before) for state, numbers in model.states.items()}
        return replace(model, states=states)

    return replace(attacks, retain=compared(attacks.retain), models=tuple(map(compared, attacks.models)))


def _read_attacked(file: PoolFile, entry: Any, name: str) -> AttackedModel:
    """One model of an attacks file: a run, or numbers, for each of its states."""
    if not isinstance(entry, Mapping) or "before" not in entry:
        raise UserError(f"{file.path}: {name or entry} needs `before`, and `relearning` or `quantization` (runs).")
    before = entry["before"]
    name = str(entry.get("model") or name or (Path(before).name if isinstance(before, str) else ""))
    if not name:
        raise UserError(f"{file.path}: an entry of models has no `model:` name.")
    # A misspelt state would otherwise be a model without that attack.
    known = {"model", "before", "utility_rel", *ATTACKS}
    if strange := [k for k in entry if k not in known]:
        raise UserError(f"{file.path}: {name} has the unknown key {strange[0]}; known: {', '.join(sorted(known))}.")
    states = {"before": file.model_state(before, name)}
    for key, state in ATTACKS.items():
        if entry.get(key) is not None:
            states[state] = file.model_state(entry[key], name)
    utility = as_number(entry.get("utility_rel"), f"utility_rel of {name} in {file.path}")
    return AttackedModel(name, states, utility)
