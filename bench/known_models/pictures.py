"""Pictures of meta-evaluation: the two pools, models before and after attacks, and what comes back.

All values are m: high means that the metric says "knows".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.errors import UserError
from vestige.show.figures import COLOURS, GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KNOWS, KNOWS_NOT = COLOURS[1], COLOURS[0]
BINS = 16
COLUMNS = 5
PlotPoint = tuple[float | None, float | None]


def pool_histograms(panels: Mapping[str, tuple[Sequence[float], Sequence[float], float | None]]) -> Figure:
    """One panel per metric: how many models of P and of N have which m, and the threshold between them."""
    if not panels:
        raise UserError("No pools to draw: no metric has a threshold.")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(2.1 * columns, 1.55 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (metric, (p, n, cut)) in zip(grid, panels.items(), strict=False):
        edges = np.histogram_bin_edges([*p, *n], bins=BINS)
        axes.hist(p, bins=edges, color=KNOWS, alpha=0.75, label="knows (P)")
        axes.hist(n, bins=edges, color=KNOWS_NOT, alpha=0.6, label="does not (N)")
        if cut is not None:
            axes.axvline(cut, color="black", linewidth=1, linestyle="--", label="threshold")
        axes.set_title(metric, fontsize=8)
        _plain(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def before_and_after(points: Mapping[tuple[str, str], Mapping[str, PlotPoint]], control: str) -> Figure:
    """A row for each attack, a column for each metric: m after against m before, and the line of no change.

    `points` maps (attack, metric) to each model's m before and after. The control has its own mark.
    """
    attacks, metrics = (list(dict.fromkeys(key[i] for key in points)) for i in (0, 1))
    figure = new_figure(2.3 * len(metrics), 2.2 * len(attacks) + 0.3)
    grid = figure.subplots(len(attacks), len(metrics), squeeze=False)
    for (attack, metric), models in points.items():
        axes = grid[attacks.index(attack)][metrics.index(metric)]
        found = {name: (b, a) for name, (b, a) in models.items() if b is not None and a is not None}
        others = [point for name, point in found.items() if name != control]
        if others:
            axes.scatter(*zip(*others, strict=True), s=16, color=KNOWS_NOT, label="unlearned")
        if control in found:
            axes.scatter(*found[control], s=46, marker="*", color="black", zorder=3, label=f"{control} (control)")
        ends = [
            min([0.0, *(x for p in found.values() for x in p)]),
            max([1.0, *(x for p in found.values() for x in p)]),
        ]
        axes.plot(ends, ends, color=GREY, linewidth=0.8, linestyle=":", label="y = x")
        axes.set_title(f"{metric}, {attack}", fontsize=8)
        axes.set_xlabel("before", fontsize=7)
        axes.set_ylabel("after", fontsize=7)
        _plain(axes)
    handles = grid[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def recovery_curves(lines: Mapping[str, Sequence[tuple[float, float]]], name: str, control: str) -> Figure:
    """A metric against the steps of relearning, one line per model; the control black and dashed."""
    if not any(len(line) > 1 for line in lines.values()):
        raise UserError(f"No curve of {name} to draw: it was measured at no number of steps.")
    figure = new_figure(5.6, 3.4)
    axes = figure.add_subplot()
    colours = iter(COLOURS[:-1] * (1 + len(lines)))  # the last is the control's
    for who, line in lines.items():
        look: dict[str, Any] = {"color": "black", "linestyle": "--"} if who == control else {"color": next(colours)}
        label = f"{who} (control)" if who == control else who
        axes.plot(*zip(*line, strict=True), marker="o", markersize=3.5, label=label, **look)
    axes.set_xlabel("relearning steps", fontsize=8)
    axes.set_ylabel(name, fontsize=8)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.tick_params(colors=GREY, labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
