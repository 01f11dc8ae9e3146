"""Collapse over training steps in one picture: information, retrieval, entropies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError, how_to_install
from vestige.runs.named_files import written_by
from vestige.show.paper import fit, for_print

Points = Sequence[tuple[int, Mapping[str, float | None]]]  # (step, one label's numbers), in order
NAMES = {
    "collapse_first_turn_sample": "first turns",
    "collapse_trajectory_sample": "trajectories",
    "collapse_turn_sample": "turns",
}


def series(points: Points, name: str) -> tuple[list[int], list[float]]:
    """The steps at which a number exists, and the numbers."""
    found = [(step, metrics[name]) for step, metrics in points if metrics.get(name) is not None]
    return [s for s, _ in found], [float(v) for _, v in found if v is not None]


def collapse_plot(labels: Mapping[str, Points], path: Path) -> Path:
    """Three panels: does it depend on the prompt (information, retrieval), and does it vary (entropies)?"""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"The plot needs matplotlib; install it with: {how_to_install('plots')}.") from None
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    for n, (label, points) in enumerate(labels.items()):
        _draw(panels, points, NAMES.get(label, label), f"C{n}")
    for panel, title, words in zip(
        panels,
        ("Information about the prompt", "Own prompt found", "Entropy per token"),
        ("nats a reasoning", "share of rows", "nats"),
        strict=True,
    ):
        panel.set(title=title, ylabel=words, xlabel="step")
        panel.grid(alpha=0.3)
    panels[1].set_ylim(-0.02, 1.02)
    panels[2].legend(fontsize="small")
    fit(figure)
    with for_print():
        written_by(path, figure.savefig, dpi=110)
    return path


def _draw(panels: Any, points: Points, name: str, colour: str) -> None:
    info, found, entropy = panels
    key = "mi_seq_distinct_columns" if series(points, "mi_seq_distinct_columns")[0] else "mi_seq_estimate"
    info.plot(*series(points, key), "o-", color=colour, label=name)
    for panel, value in ((info, "mi_seq_distinct_columns"), (found, "retrieval_accuracy")):
        steps, low = series(points, f"{value}_ci_low")
        if steps:
            panel.fill_between(steps, low, series(points, f"{value}_ci_high")[1], color=colour, alpha=0.15)
    found.plot(*series(points, "retrieval_accuracy"), "o-", color=colour, label=name)
    found.plot(*series(points, "retrieval_chance_level"), ":", color=colour)
    entropy.plot(*series(points, "conditional_entropy_est"), "o-", color=colour, label=f"given the prompt, {name}")
    entropy.plot(*series(points, "reasoning_entropy_est"), "s--", color=colour, label=f"over all prompts, {name}")
