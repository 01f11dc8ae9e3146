"""Pictures of denoising: what is drawn, not how it looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vestige.errors import UserError
from vestige.metrics.trajectory import DEFAULT_TRAJECTORIES, distribution
from vestige.types import IGNORE, Trace

plots = pytest.importorskip("vestige.show.figures")
pytest.importorskip("matplotlib")


def made_up_result(seed: int = 0, steps: int = 9, known: float = 0.6, values: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    agg: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    for view in ("full", "eos"):
        for trajectory in DEFAULT_TRAJECTORIES:
            shift = 0.06 * (view == "eos") + 0.03 * DEFAULT_TRAJECTORIES.index(trajectory)
            curve = known * np.linspace(0.1, 1, steps) ** 1.5 + shift
            told = distribution(np.clip(curve + rng.normal(0, 0.12, (20, steps)), 0, 1))
            by_metric = {"probability": told["mean"].tolist()}
            agg.setdefault(view, {})[trajectory] = by_metric
            spread.setdefault(view, {})[trajectory] = {"probability": {k: v.tolist() for k, v in told.items()}}
    metadata = {"step_values": list(range(0, 8 * steps, 8))} if values else {}
    return {"agg_value": agg, "step_distribution": spread, "trajectory_step_metadata": metadata}


def made_up_trace(steps: int = 16, length: int = 14, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    labels = np.arange(100, 100 + length)
    labels[-3:] = IGNORE
    fixed = rng.integers(0, steps, length)
    fixed[4] = -1
    final = np.where((rng.random(length) < 0.7) & (labels != IGNORE), labels, 7)
    rise = np.arange(steps)[:, None] - fixed[None]
    p = np.clip(np.where(final == labels, 1 / (1 + np.exp(-rise / 1.5)), 0.15), 1e-3, 1)
    plane = np.zeros((steps, length))
    return Trace(
        final=final,
        fixed=fixed,
        committed=np.arange(steps),
        canvas=plane,
        proposal=plane,
        top1=plane,
        mean=plane,
        std=plane,
        labels=labels[None],
        logprob=np.where(labels == IGNORE, np.nan, np.log(p))[None],
    )


def test_a_panel_each_a_line_each_and_bands() -> None:
    runs = {"full": made_up_result(0), "unlearned": made_up_result(1, known=0.2)}
    figure = plots.curves(runs, "probability")
    assert len(figure.axes) == 4
    for axis, trajectory in zip(figure.axes, DEFAULT_TRAJECTORIES, strict=True):
        assert len(axis.lines) == len(axis.collections) == 4  # two runs, two views
        drawn = [line.get_ydata().tolist() for line in axis.lines]
        assert runs["unlearned"]["agg_value"]["eos"][trajectory]["probability"] in drawn
        in_passes = trajectory in ("steps", "fixation_start")
        assert list(axis.lines[0].get_xdata()) == list(range(0, 72, 8) if in_passes else range(9))
        assert axis.get_xlabel() == ("tokens decided" if in_passes else "step")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{r}, {v}" for r in runs for v in ("whole window", "up to the end token")]


def test_one_unit_a_panel() -> None:
    """One run says how many tokens stood at each step and the other does not: both are drawn against the step."""
    figure = plots.curves({"told": made_up_result(), "not": made_up_result(values=False)}, "probability")
    assert {axis.get_xlabel() for axis in figure.axes} == {"step"}
    assert [max(line.get_xdata()) for line in figure.axes[0].lines] == [8] * 4


def test_gaps_stay_gaps() -> None:
    result = made_up_result()
    result["agg_value"]["full"]["steps"]["probability"][3] = None
    line = plots.curves({"one": result}, "probability").axes[0].lines[0]
    assert np.isnan(line.get_ydata()[3]) and not np.isnan(line.get_ydata()[2])


def test_mistakes() -> None:
    with pytest.raises(UserError, match="No run to draw"):
        plots.curves({}, "probability")
    with pytest.raises(UserError, match=r"No run has 'rouge'.*probability"):
        plots.curves({"a": made_up_result()}, "rouge")


def test_heat_map_shows_probabilities_and_decisions() -> None:
    trace = made_up_trace()
    figure = plots.heat_map(trace, tokens=[f"tok{i}" for i in range(14)])
    axis = figure.axes[0]
    shown = axis.images[0].get_array()
    assert shown.shape == (14, 16)
    np.testing.assert_allclose(shown[2], np.exp(trace.logprob[0][:, 2]))
    assert shown.mask[-3:].all() and not shown.mask[:-3].any()
    assert [t.get_text() for t in axis.get_yticklabels()][:2] == ["tok0", "tok1"]
    marked = {tuple(map(int, xy)) for c in axis.collections for xy in np.asarray(c.get_offsets())}
    assert marked == {(int(f), p) for p, f in enumerate(trace.fixed) if f >= 0}
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["decided: the true token", "decided: another token", "decided: no true token there"]
