"""R of a stress run: how much of what relearning brings back would a model gain that never knew the rows?

R is 1 when the unlearned model gains no more than the control under the same attack, and near 0 when what it gains was
in it all along. The formulas are those of meta-evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vestige.errors import UserError
from vestige.meta.robustness import RULES
from vestige.metrics.cards import direction_of
from vestige.numeric import number
from vestige.show.tables import table
from vestige.stress.registry import OURS, records

STATE = "relearning"  # what the models are after the attacks that R is about


def relearning_r(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each budget and metric that was measured before and after, on the model and on the control.

    >>> seen = {("model", "none"): 0.1, ("model", "relearn"): 0.5, ("retain", "none"): 0.1, ("retain", "relearn"): 0.2}
    >>> budgets = {"none": None, "relearn": 5}
    >>> rows = [{"model": m, "attack": a, "budget": budgets[a], "values": {"em": x}} for (m, a), x in seen.items()]
    >>> [{k: round(v, 2) if isinstance(v, float) else v for k, v in entry.items()} for entry in relearning_r(rows)]
    [{'budget': 5, 'metric': 'em', 'gained': 0.4, 'control': 0.1, 'one-sided': 0.25, 'symmetric': 0.4}]
    """
    found = {(row["model"], row["attack"], row["budget"]): row["values"] for row in rows}
    out = []
    relearning = {name for name, record in records().items() if record.state == STATE}
    for attack, budget in dict.fromkeys((row["attack"], row["budget"]) for row in rows if row["attack"] in relearning):
        states = [found.get((who, *key)) for who in ("model", "retain") for key in (("none", None), (attack, budget))]
        for metric in states[0] or {}:
            values = [None if state is None else _m(metric, state.get(metric)) for state in states]
            if any(value is None for value in values):
                continue
            before, after, other_before, other_after = values
            gained, control = after - before, other_after - other_before  # type: ignore[operator]
            by_rule = {name: RULES[name].relearning(gained, control) for name in sorted(RULES)}
            out.append({"budget": budget, "metric": metric, "gained": gained, "control": control, **by_rule})
    return out


def _m(metric: str, value: float | None) -> float | None:
    """The value turned so that high means "knows"; None for metrics that have no such end."""
    try:
        return None if value is None else direction_of(metric).m(value)
    except UserError:
        return None


def show_r(entries: Sequence[Mapping[str, Any]]) -> str:
    """The entries as a table."""
    attack = next(record for record in OURS.values() if record.state == STATE)
    cells = [
        [e["metric"], attack.size(e["budget"])]
        + [number(e[k]) for k in ("gained", "control", "one-sided", "symmetric")]
        for e in entries
    ]
    return table(cells, ["relearning", "budget", "gained", "control", "R", "symmetric R"], right=(2, 3, 4, 5))
