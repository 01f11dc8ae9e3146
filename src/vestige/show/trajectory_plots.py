"""Pictures of denoising: a metric along the steps, and how likely each true token was at each of them.

Both return a matplotlib Figure on the Agg canvas: no window, no global state. `save` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.errors import UserError, how_to_install
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.runs.named_files import written_by
from vestige.show.paper import fit, for_print
from vestige.types import IGNORE, Array, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CurveResult = Mapping[str, Any]
# Okabe and Ito's colours, told apart with every common kind of colour blindness; yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = {"full": "-", "eos": (0, (4, 1.5))}
VIEW_NAMES = {"full": "whole window", "eos": "up to the end token"}
TITLES = {
    "steps": "steps",
    "fixation_start": "fixation, from the start",
    "fixation_end": "fixation, up to the end",
    "fixation_ratio": "fixation, in proportion",
}
# Their step s is pass s (until a token is decided); the others' step says how far along a token's own path one is.
IN_PASSES = ("steps", "fixation_start")
GREY = "#555555"
WIDTH = 60  # characters of a title before it goes on in a new line
MOST_DOTS = 40  # a curve with more steps than this is a line without dots
MOST_TOKENS = 72  # more positions than this and only some are written on the axis


def curves(
    runs: Mapping[str, CurveResult],
    metric: str,
    trajectories: Sequence[str] | None = None,
    views: Sequence[str] | None = None,
    band: tuple[str, str] | None = ("ci_low", "ci_high"),
    title: str | None = None,
) -> Figure:
    """One metric against the step: a panel for each trajectory, a colour for each run, a dash for each view.

    `runs` maps a run's name to its trajectory result (`agg_value` and `step_distribution` by view and trajectory).
    `band` names two statistics of the distribution to shade between, or None for lines alone.
    """
    if not runs:
        raise UserError("No run to draw: give at least one trajectory result.")
    runs = {name: _by_view(run) for name, run in runs.items()}
    views = tuple(views) if views else _first_seen(run["agg_value"] for run in runs.values())
    panels = (
        tuple(trajectories)
        if trajectories
        else _in_order(_first_seen(v for r in runs.values() for v in r["agg_value"].values()))
    )
    _check_metric(runs, metric)
    figure = new_figure(max(4.6, 3.1 * len(panels) + 0.6), 3.6)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, trajectory in zip(axes, panels, strict=True):
        in_tokens = _in_tokens(runs, trajectory, metric, views)
        for colour, (name, result) in zip(_colours(len(runs)), runs.items(), strict=True):
            for view in views:
                path, label = (view, trajectory, metric), _label(name, view, runs, views)
                _curve(axis, result, path, _tokens_decided(result) if in_tokens else None, colour, band, label)
        _dress(axis, TITLES.get(trajectory, trajectory), "tokens decided" if in_tokens else "step")
    _legend(figure, axes, columns=len(runs) if len(views) > 1 and len(runs) > 1 else 4)
    name = metric.replace("_", " ")
    axes[0].set_ylabel(name)
    figure.suptitle(f"{name[:1].upper()}{name[1:]} along the denoising path" if title is None else title, fontsize=11)
    return figure


def _by_view(result: CurveResult) -> CurveResult:
    """A result with a level of views; the flat layout has one view, named in the metadata."""
    if set(result["agg_value"]) <= set(VIEWS):
        return result
    metadata = result.get("trajectory_step_metadata") or {}
    (view,) = metadata.get("views") or ("full",)
    nested = {part: {view: result[part]} for part in ("agg_value", "step_distribution") if result.get(part)}
    return {**result, **nested}


PANELS = ("steps", "fixation_start", "fixation_end", "fixation_ratio")


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Files sort their keys; people expect the plain trajectory first."""
    return tuple(sorted(names, key=lambda n: PANELS.index(n) if n in PANELS else len(PANELS)))


def _first_seen(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in names for name in group))


def _check_metric(runs: Mapping[str, CurveResult], metric: str) -> None:
    known = sorted({m for r in runs.values() for view in r["agg_value"].values() for t in view.values() for m in t})
    if metric not in known:
        raise UserError(f"No run has '{metric}' (it has: {', '.join(known) or 'nothing'}).")


def _numbers(values: Sequence[float | None]) -> Array:
    """Null in a result file is a gap in the line."""
    return np.asarray(values, dtype=float)


def _at(result: CurveResult, part: str, path: Sequence[str]) -> Any:
    found = result.get(part) or {}
    for key in path:
        found = found.get(key) or {}
    return found


def _curve(
    axis: Axes,
    result: CurveResult,
    path: tuple[str, str, str],
    x: Sequence[int] | None,
    colour: str,
    band: tuple[str, str] | None,
    label: str,
) -> None:
    values = _at(result, "agg_value", path)
    if not values:
        return
    y = _numbers(values)
    x = range(len(y)) if x is None else x
    # a dot at every step as long as they can be told apart: a run of one step is a dot, not an invisible line
    dots = "o" if len(y) <= MOST_DOTS else None
    axis.plot(x, y, color=colour, linestyle=DASHES.get(path[0], "-"), marker=dots, markersize=2.8, lw=1.5, label=label)
    spread = spread_of(result, *path)
    if band and spread:
        low, high = (_numbers(spread[name]) for name in band)
        axis.fill_between(x, low, high, color=colour, alpha=0.16 if path[0] == "full" else 0.09, linewidth=0)


def _in_tokens(runs: Mapping[str, CurveResult], trajectory: str, metric: str, views: Sequence[str]) -> bool:
    """Whether a panel's x axis can be tokens decided: its steps are passes, and every run records how many."""
    lengths = {
        (len(_at(r, "agg_value", (view, trajectory, metric))), len(_tokens_decided(r)))
        for r in runs.values()
        for view in views
    }
    return trajectory in IN_PASSES and all(steps in (0, told) and told for steps, told in lengths)


def _tokens_decided(result: CurveResult) -> Sequence[int]:
    return (result.get("trajectory_step_metadata") or {}).get("step_values") or ()


def _label(name: str, view: str, runs: Mapping[str, CurveResult], views: Sequence[str]) -> str:
    told = VIEW_NAMES.get(view, view)
    if len(runs) == 1:
        return told if len(views) > 1 else name
    return f"{name}, {told}" if len(views) > 1 else name


def _colours(count: int) -> Iterator[str]:
    return (COLOURS[i % len(COLOURS)] for i in range(count))


def _dress(axis: Axes, title: str, x_label: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.locator_params(axis="x", integer=True, nbins=6)


def _legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One for all panels, below them (one column per run, if there are several views); one curve needs none."""
    entries = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if len(entries) > 1:
        fits = max(1, int(12 * figure.get_figwidth()) // (max(map(len, entries)) + 8))  # letters that go on a line
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=min(columns, fits, len(entries)),
            frameon=False, fontsize=9, handlelength=2.8,
        )  # fmt: skip


def heat_map(
    trace: Trace, stream: int = 0, tokens: Sequence[str] | None = None, length: int | None = None, title: str = ""
) -> Figure:
    """How likely each true token was in each pass, with a mark where the sampler decided that position.

    A ring: it wrote the true token. A cross: another one. Grey cells have no true token; a dot marks their decision.
    """
    labels = trace.labels[stream, :length]
    shown = np.exp(trace.logprob[stream][:, :length].astype(float)).T  # (positions, passes)
    shown = np.ma.masked_invalid(np.where((labels == IGNORE)[:, None], np.nan, shown))
    positions, passes = shown.shape
    if not positions or not passes:
        raise UserError("The trace has no position or no pass: there is nothing to draw.")
    figure = new_figure(min(10.5, max(6.2, 2.9 + 0.22 * passes)), min(10.5, 1.8 + 0.2 * positions))
    axis = figure.subplots()
    image = axis.imshow(shown, aspect="auto", interpolation="nearest", cmap=_map(), vmin=0, vmax=1)
    _marks(axis, trace, labels)
    axis.set_xlabel("forward pass")
    axis.locator_params(axis="x", integer=True, nbins=10)
    _position_axis(axis, positions, tokens)
    bar = figure.colorbar(image, ax=axis, label="probability of the true token", pad=0.02)
    bar.outline.set_visible(False)
    axis.set_title(fill(title or "How likely the true token was, pass by pass", WIDTH), fontsize=11)
    return figure


def _map() -> Any:
    from matplotlib import colormaps

    return colormaps["cividis"].with_extremes(bad="#e6e6e6")  # made for colour blind eyes


def _marks(axis: Axes, trace: Trace, labels: Array) -> None:
    """White on black, to be seen on both ends of the scale; a legend says which of the marks there are."""
    decided = trace.fixed[: len(labels)] >= 0
    true = trace.final[: len(labels)] == labels
    open_ended = labels == IGNORE
    kinds = (
        ("decided: the true token", "o", 30, decided & true & ~open_ended),
        ("decided: another token", "x", 24, decided & ~true & ~open_ended),
        ("decided: no true token there", ".", 18, decided & open_ended),
    )
    for name, marker, size, where in kinds:
        at = np.flatnonzero(where)
        if not len(at):
            continue
        for colour, width in ((GREY, 1.3),) if marker == "." else (("black", 2.6), ("white", 1.2)):
            _scatter(axis, trace.fixed[at], at, marker, size, colour, width)
        _scatter(axis, [], [], marker, size, GREY, 1.3, label=name)
    if decided.any():
        axis.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, handletextpad=0.2)


def _scatter(axis: Axes, x: Any, y: Any, marker: str, size: float, colour: str, width: float, **also: Any) -> None:
    paint: dict[str, Any] = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"color": colour}
    axis.scatter(x, y, s=size, marker=marker, linewidths=width, **paint, **also)


def _position_axis(axis: Axes, positions: int, tokens: Sequence[str] | None) -> None:
    if tokens is None:
        axis.set_ylabel("position")
        axis.locator_params(axis="y", integer=True, nbins=12)
        return
    at = range(0, positions, -(-positions // MOST_TOKENS))
    names = [_visible(tokens[i]) if i < len(tokens) else "" for i in at]
    axis.set_yticks(list(at), names, fontsize=8 if len(names) <= 40 else 6)
    axis.set_ylabel("true token")


def _visible(token: str) -> str:
    """A dollar sign would start a formula, and white space would not show."""
    shown = token.replace("$", r"\$").replace("\n", "\\n")
    return shown if shown.strip() else shown.replace(" ", "\N{OPEN BOX}")


def save(figure: Figure, path: str | Path, dpi: int = 160) -> Path:
    """Writes the picture; the name's ending says which kind (png, svg, pdf)."""
    out = Path(path)
    kinds = figure.canvas.get_supported_filetypes()
    if out.suffix.lstrip(".").lower() not in kinds:
        raise UserError(f"{out}: pictures can end in {', '.join(sorted(kinds))}.")
    fit(figure)
    with for_print():
        return written_by(out, figure.savefig, named=True, dpi=dpi)


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as New
    except ImportError as missing:
        raise UserError(f"Plots need matplotlib: {how_to_install('plots')}.") from missing
    figure = New(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
