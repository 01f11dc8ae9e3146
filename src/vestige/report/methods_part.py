"""The table of models from a method_results.json: rows, parts and axes of meta.methods as models of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vestige.meta.axes import AXES, EXTRA, PARTS, REFERENCES, SCHEMA_PROTOCOLS, MethodRow, Methods
from vestige.metrics.cards import schema_protocol
from vestige.types import short_id

SHOWN_FLOORED = ("privacy", "overall")  # floored axes worth a column: those that one clipped part erases
COLUMNS = (
    "overall", "overall_floored", "mem", "privacy", "privacy_mia", "uds", "utility_rel", "utility", "model_utility",
    "fluency", "one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth", "s_loss", "s_zlib", "s_mink",
    "s_minkpp", "logit_lens", "overall_no_uds", "privacy_floored",
)  # fmt: skip
FACTS = ("method", "epoch", "is_reference", *EXTRA)


def models(methods: Methods, source: str, raw: Mapping[str, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Every row as a model of the report, its axes computed again from its parts; `raw`: further values by model."""
    made = [_model(row, methods, source) for row in methods.rows]
    return [{**m, "values": {**m["values"], **(raw or {}).get(m["name"], {})}} for m in made]


def _model(row: MethodRow, methods: Methods, source: str) -> dict[str, Any]:
    own = {k: v for k, v in row.facts.items() if k not in FACTS and isinstance(v, (str, int, float)) and v is not None}
    return {
        "id": short_id("m", row.name),
        "name": row.name,
        "role": role_of(row),
        "method": row.facts.get("method"),
        "epoch": row.facts.get("epoch"),
        "settings": own,
        "provenance": {},
        "values": _values(row, methods, source),
    }


def role_of(row: MethodRow) -> str:
    names = [str(row.facts.get("method") or "").lower(), row.name.lower()]
    if row.facts.get("is_reference") or any(n in REFERENCES for n in names):
        return next((r for r in REFERENCES for n in names if n == r or n.startswith(r)), "other")
    return "unlearned"


def _values(row: MethodRow, methods: Methods, source: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for part in PARTS:
        protocol = methods.protocols.get(part) or SCHEMA_PROTOCOLS[part]
        out[part] = value(row.parts.get(part), source, "not in the file", protocol=protocol)
    for axis in AXES:
        out[axis] = value(row.published.values()[axis], source, row.published.reasons.get(axis, ""))
    for axis in SHOWN_FLOORED:
        raised = ", ".join(row.floored.floored)
        note = f"raised to the floor: {raised}" if raised else ""
        reason = row.floored.reasons.get(axis, "")
        out[f"{axis}_floored"] = value(row.floored.values()[axis], source, reason, note=note)
    for name in EXTRA:
        if name in row.facts:
            out[name] = value(row.facts[name], source, "not in the file", protocol=schema_protocol(name))
    return out


def value(v: float | None, source: str, reason: str = "", **more: Any) -> dict[str, Any]:
    """One value of a model: empty things are left away, a reason only stands beside what is missing."""
    out: dict[str, Any] = {"v": v, "source": source, **{k: x for k, x in more.items() if x not in (None, "")}}
    if v is None:
        out["reason"] = reason or "no value"
    return out


def columns(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns of COLUMNS that some model has a value for, in that order; what nobody has is not a column."""
    have = {k for m in found for k, x in m["values"].items() if x["v"] is not None}
    return [c for c in COLUMNS if c in have]
