"""Finished models as plain numbers, from run directories and result files.

Nothing here runs a model. Every number keeps its protocol (how the rows were put to the model) and the rows it was
measured on; numbers of one metric that differ in these are not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta.axes import similarity
from vestige.metrics.cards import ENTITY, short, unlike_published
from vestige.store.comparable import UNSTATED, Number, mixture, number_of


@dataclass(frozen=True)
class ModelNumbers:
    """One model's numbers by short metric name, and where they come from."""

    name: str
    numbers: Mapping[str, Number]
    sources: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever else the pool file says: epoch, method, ...

    def value(self, metric: str) -> float | None:
        found = self.numbers.get(metric)
        return None if found is None else found.value


# ---- one model ----------------------------------------------------------------------------------------------------


def result_files(path: Path) -> list[Path]:
    """The files of a run directory that hold its numbers; a result file is its own."""
    if not path.is_dir():
        return [path]
    files = [*sorted(path.glob("*_EVAL.json"))] or sorted(path.glob("*_SUMMARY.json"))
    return files + [f for f in (path / "summary.json",) if f.is_file()]


def files_behind(path: Path) -> list[Path]:
    """Every file that `read_run` looks at: the results, and the manifests that say how they were measured."""
    results = result_files(path)
    manifests = dict.fromkeys(f.parent / "manifest.json" for f in results)
    return [*results, *(m for m in manifests if m.is_file())]


def read_run(path: Path) -> dict[str, Number]:
    """The numbers of one run directory or one result file."""
    if path.is_dir():
        files = result_files(path)
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
        number = number_of(manifest, name, as_number(value, f"{name} in {path}"))
        if own.get("handler") == "uds":  # asks raw rows, whatever the run's template
            number = replace(number, protocol=_entity_protocol(own), prompt="")
        else:
            number = replace(number, protocol=_with_settings(short(name), own, number.protocol))
        out[short(name)] = replace(number, handler=str(own.get("handler", "")), definition=_definition(name, settings))
    return out


# What must be equal for two depth scores to be the same kind of number.
_DEPTH_SETTINGS = (
    "em_scope", "patch_scope", "delta_threshold", "last_layer", "tokenization", "attn_implementation",
)  # fmt: skip


def _from_depth(data: Mapping[str, Any], path: Path) -> dict[str, Number]:
    """The summary of a depth run: the score and, where there are any, the representation baselines."""
    protocol = _entity(data)
    total = data.get("total_examples")
    rows = frozenset() if total is None else frozenset({f"{total} examples"})
    values = {"uds": data.get("avg_uds", data.get("avg_udr")), **(data.get("baselines") or {})}
    return {short(k): Number(as_number(v, f"{k} in {path}"), protocol, rows) for k, v in values.items()}


def _entity(settings: Mapping[str, Any]) -> str:
    said = [f"{k.replace('_', ' ')} {settings[k]}" for k in _DEPTH_SETTINGS if settings.get(k) is not None]
    return ", ".join([ENTITY, *said])


def _entity_protocol(own: Mapping[str, Any]) -> str:
    """Of a depth score computed as a metric of a suite, which patches and scores the entity's own positions."""
    data: Mapping[str, Any] = next(iter((own.get("datasets") or {}).values()), {})
    return _entity({**own, **(data.get("args") or {}), "em_scope": "entity", "patch_scope": "span"})


def _with_settings(key: str, own: Mapping[str, Any], protocol: str) -> str:
    """The protocol, with those settings of the metric that are not what its short name means."""
    other = ", ".join(f"{k} {own.get(k)}" for k in unlike_published(key, own))
    return f"{protocol} [{other}]" if other else protocol


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
    out: dict[str, Any] = {
        k: v
        for k, v in own.items()
        if isinstance(v, (str, int, float)) and not k.endswith("path") and k not in ("handler", "batch_size")
    }
    for data, body in (own.get("datasets") or {}).items():
        args = {k: v for k, v in (body.get("args") or {}).items() if k not in ("hf_args", "max_samples")}
        out[f"rows of {data}"] = f"{body.get('handler')} {dict(sorted(args.items()))}"
    if own.get("generation_args"):
        out["generation"] = str(dict(sorted(own["generation_args"].items())))
    for parent in own.get("pre_compute") or {}:
        out |= {f"{parent}: {k}": v for k, v in _definition(parent, settings).items()}
    return out


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
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); write it again.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}.")
    return data


def with_similarities(model: ModelNumbers, retain: ModelNumbers | None) -> ModelNumbers:
    """The model with s_mia_* added where the retain model has the attack too. What it already has stays."""
    if retain is None:
        return model
    more: dict[str, Number] = {}
    for name, number in model.numbers.items():
        base = retain.numbers.get(name)
        if name.startswith("mia_") and base is not None and f"s_{name}" not in model.numbers:
            same_protocol({retain.name: base, model.name: number}, name)
            more[f"s_{name}"] = Number(similarity(number.value, base.value), number.protocol, number.rows)
    return ModelNumbers(model.name, {**model.numbers, **more}, model.sources, model.facts)


def same_protocol(numbers: Mapping[str, Number], metric: str) -> str:
    """The one protocol of a metric's numbers (by model); mixed protocols and mixed rows are refused by name."""
    have = {name: n for name, n in numbers.items() if n.value is not None}
    if found := mixture(have, metric):
        raise UserError(
            f"{found}; evaluate both in the same way (numbers without a manifest: write `protocol:` in the pool file)."
        )
    _same_definition(have, metric)
    return next((n.protocol for n in have.values()), UNSTATED)


def _same_definition(numbers: Mapping[str, Number], metric: str) -> None:
    stated = {name: {"handler": n.handler, **n.definition} for name, n in numbers.items() if n.handler}
    first = next(iter(stated), "")
    for second, theirs in stated.items():
        mine = stated[first]
        for key in (k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)):
            raise UserError(
                f"{metric} has {key} = {mine.get(key)} in {first} but {theirs.get(key)} in {second}; "
                "score both by one definition."
            )
