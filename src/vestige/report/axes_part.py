"""Axes of models that were evaluated here: the same formulas as for published tables, from the runs' own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.meta.axes import AXES, SOURCES, WITHOUT_FLUENCY, MethodRow, from_models
from vestige.meta.pools import ModelNumbers
from vestige.metrics.cards import short
from vestige.report.methods_part import SHOWN_FLOORED, value
from vestige.store.comparable import Number

if TYPE_CHECKING:
    from vestige.report.assemble import PageWork
    from vestige.report.roster import Entry

OF_UTILITY = ("utility", "utility_rel", "overall", "overall_no_uds")


def add_axes(work: PageWork) -> None:
    """Adds the axes that some model can have; what a single model lacks is missing there, with the reason."""
    for kin in _families(work):
        full = next((e for e in kin if e.role == "full"), None)
        retain = next((e for e in kin if e.role == "retain"), None)
        try:
            rows = from_models(
                [_model(e) for e in kin], {"": _model(full)} if full else {}, _model(retain) if retain else None
            ).rows
        except UserError as error:
            work.found.problem(f"no axes: {error}")
            continue
        there = {
            a for row in rows for a, v in row.published.values().items() if v is not None and a not in kin[0].values
        }
        for e, row in zip(kin, rows, strict=True):
            _add(e, row, there)


def _families(work: PageWork) -> list[list[Entry]]:
    """Models that were put the same questions; axes of published rows are computed elsewhere."""
    out: dict[str, list[Entry]] = {}
    for e in work.roster.entries:
        if e.id in work.evals and "overall" not in e.values:
            out.setdefault(min(e.families, default=""), []).append(e)
    return list(out.values())


def _model(e: Entry) -> ModelNumbers:
    numbers: dict[str, Number] = {}
    for key, v in e.values.items():
        numbers.setdefault(short(key), Number(v["v"], v.get("protocol") or ""))
    return ModelNumbers(e.name, numbers)


def _add(e: Entry, row: MethodRow, there: set[str]) -> None:
    source = _source(e)
    for axis in AXES:
        if axis in there and axis not in e.values:
            reason = row.published.reasons.get(axis, "")
            other = axis in OF_UTILITY and not row.published.fluent
            note = WITHOUT_FLUENCY if other else ""
            e.values[axis] = value(row.published.values()[axis], source, reason, note=note)
        if axis in there and axis in SHOWN_FLOORED:
            raised = ", ".join(row.floored.floored)
            note = f"raised to the floor: {raised}" if raised else ""
            e.values[f"{axis}_floored"] = value(row.floored.values()[axis], source, note=note)


def _source(e: Entry) -> str:
    """The run that most parts of the axes come from."""
    parts: list[Mapping[str, Any]] = [v for k, v in e.values.items() if short(k) in SOURCES.values()]
    found = [str(v["source"]) for v in parts or list(e.values.values())]
    return max(dict.fromkeys(found), key=found.count) if found else e.sources[0]
