"""Finished models as plain numbers, from run directories and result files.

Nothing here runs a model. Every number keeps its protocol (how the rows were put to the model) and the rows it was
measured on; numbers of one metric that differ in these are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.meta.axes import similarity
from vestige.meta.names import ENTITY, short
from vestige.store.files import read_json

UNSTATED = "not stated"


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
            as_number(value, f"{name} in {path}"),
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
    return {short(k): Number(as_number(v, f"{k} in {path}"), protocol, rows) for k, v in values.items()}


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
