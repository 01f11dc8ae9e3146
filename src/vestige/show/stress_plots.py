"""Pictures of attacks: how much comes back against how much the attacker spends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.show.trajectory_plots import COLOURS, GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"model": "unlearned", "retain": "never trained (control)"}


def recovery_points(
    rows: Sequence[Mapping[str, Any]], attack: str, metric: str
) -> dict[str, list[tuple[float, float]]]:
    """For each model the metric before (at budget 0) and at each budget, in order of budget; gaps are left out.

    >>> rows = [{"model": "model", "attack": "none", "budget": None, "values": {"p": 0.1}},
    ...         {"model": "model", "attack": "relearn", "budget": 5, "values": {"p": 0.6}}]
    >>> recovery_points(rows, "relearn", "p")
    {'model': [(0.0, 0.1), (5.0, 0.6)]}
    """
    out: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        value = row["values"].get(metric)
        if row["attack"] in ("none", attack) and value is not None:
            out.setdefault(str(row["model"]), []).append((float(row["budget"] or 0), float(value)))
    return {who: sorted(points) for who, points in out.items()}


def recovery_curve(rows: Sequence[Mapping[str, Any]], attack: str, metric: str, unit: str = "budget") -> Figure:
    """One attack's metric against its budget: the model, and the control beside it."""
    points = recovery_points(rows, attack, metric)
    if not any(len(line) > 1 for line in points.values()):
        raise UserError(f"No curve of {metric} under {attack} to draw: it was measured at no budget.")
    figure = new_figure(4.8, 3.2)
    axes = figure.add_subplot()
    for colour, (who, line) in zip(COLOURS, points.items(), strict=False):
        axes.plot(*zip(*line, strict=True), marker="o", markersize=4, color=colour, label=NAMES.get(who, who))
        axes.axhline(line[0][1], color=colour, linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"{attack}: {unit}")
    axes.set_ylabel(metric)
    axes.legend(frameon=False, fontsize=8)
    axes.tick_params(colors=GREY, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
