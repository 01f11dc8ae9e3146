"""Figures in files: denoising, layers, collapse, attacks. Drawn with matplotlib on the Agg canvas: no window, no global
state.

Every function returns a Figure, which `save` writes. Imported without matplotlib; only drawing needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.errors import UserError, how_to_install
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.runs.named_files import written_by
from vestige.types import IGNORE, Array, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every common kind of colour blindness; yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#555555"
KINDS = ("png", "svg", "pdf")
PRINTED = 7.0  # points, at most, in a paper: below its text, above what is hard to read

# ---- making and saving -----------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as New
    except ImportError as missing:
        raise UserError(f"Plots need matplotlib: {how_to_install('plots')}.") from missing
    figure = New(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 160, width: float | None = None, named: bool = True) -> Path:
    """Writes the figure; the name's ending says which kind of file.

    `width` in inches, for a column of a paper: the height keeps its proportion, letters keep their size in points.
    `named`: the user named the file; it is none of a run's own.
    """
    import matplotlib

    out = Path(path)
    kind = out.suffix.lstrip(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise UserError(f"{out}: pictures can end in {', '.join(KINDS)}.")
    # Publishers refuse Type 3 fonts, and have no fonts for an SVG. Ids without chance: equal results are equal files.
    settings: Any = {"pdf.fonttype": 42, "svg.fonttype": "path" if width else "none", "svg.hashsalt": "vestige"}
    if width is not None:
        wide, high = figure.get_size_inches()
        figure.set_size_inches(width, max(high * width / wide, 0.6 * width))
        for text in figure.findobj(lambda one: hasattr(one, "set_fontsize")):
            text.set_fontsize(min(text.get_fontsize(), PRINTED))  # type: ignore[attr-defined]
    metadata = {"Date": None} if kind == "svg" else None
    with matplotlib.rc_context(settings):
        return written_by(out, figure.savefig, named=named, dpi=dpi, metadata=metadata)


def style_axes(axes: Axes, grid: str = "both") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def plain_text(words: str) -> str:
    """A dollar sign would start a formula, and a line break would not show."""
    return words.replace("$", r"\$").replace("\n", "\\n")


# ---- curves over denoising steps -------------------------------------------------------------------------------------

CurveResult = Mapping[str, Any]
DASHES = {"full": "-", "eos": (0, (4, 1.5))}
VIEW_NAMES = {"full": "whole window", "eos": "up to the end token"}
TITLES = {
    "steps": "steps",
    "fixation_start": "fixation, from the start",
    "fixation_end": "fixation, up to the end",
    "fixation_ratio": "fixation, in proportion",
}  # in the order in which people expect them: files sort their keys
# Their step s is pass s (until a token is decided); the others' step says how far along a token's own path one is.
IN_PASSES = ("steps", "fixation_start")
MOST_DOTS = 40  # a curve with more steps than this is a line without dots


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
    known = sorted({m for r in runs.values() for kinds in r["agg_value"].values() for k in kinds.values() for m in k})
    if metric not in known:
        raise UserError(f"No run has '{metric}' (it has: {', '.join(known) or 'nothing'}).")
    all_views = dict.fromkeys(view for run in runs.values() for view in run["agg_value"])
    panels = {kind for run in runs.values() for kinds in run["agg_value"].values() for kind in kinds}
    views = list(views or all_views)
    trajectories = trajectories or [*(k for k in TITLES if k in panels), *sorted(panels - set(TITLES))]
    figure = new_figure(max(4.6, 3.1 * len(trajectories) + 0.6), 3.6)
    axes = figure.subplots(1, len(trajectories), sharey=True, squeeze=False)[0]
    for axis, trajectory in zip(axes, trajectories, strict=True):
        in_tokens = _counts_tokens(runs, trajectory, metric, views)
        for n, (name, run) in enumerate(runs.items()):
            for view in views:
                values = _values(run, view, trajectory, metric)
                if not values:
                    continue
                label = VIEW_NAMES.get(view, view)
                if len(views) == 1:
                    label = name
                elif len(runs) > 1:
                    label = f"{name}, {label}"
                y = np.asarray(values, dtype=float)  # null in a result file is a gap in the line
                x = _tokens_decided(run) if in_tokens else range(len(y))
                colour = COLOURS[n % len(COLOURS)]
                # A dot at every step as long as they can be told apart: a run of one step must be seen.
                dots = "o" if len(y) <= MOST_DOTS else None
                style: Any = {"linestyle": DASHES.get(view, "-"), "marker": dots, "markersize": 2.8, "lw": 1.5}
                axis.plot(x, y, color=colour, label=label, **style)
                spread = spread_of(run, view, trajectory, metric)
                if band and spread:
                    low, high = (np.asarray(spread[end], dtype=float) for end in band)
                    axis.fill_between(x, low, high, color=colour, alpha=0.16 if view == "full" else 0.09, linewidth=0)
        axis.set_title(TITLES.get(trajectory, trajectory), fontsize=10)
        axis.set_xlabel("tokens decided" if in_tokens else "step")
        style_axes(axis, "y")
        axis.locator_params(axis="x", integer=True, nbins=6)
    _legend_below(figure, axes, columns=len(runs) if len(views) > 1 and len(runs) > 1 else 4)
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


def _values(result: CurveResult, view: str, trajectory: str, metric: str) -> Sequence[float | None]:
    found: Sequence[float | None] = result["agg_value"].get(view, {}).get(trajectory, {}).get(metric) or ()
    return found


def _tokens_decided(result: CurveResult) -> Sequence[int]:
    return (result.get("trajectory_step_metadata") or {}).get("step_values") or ()


def _counts_tokens(runs: Mapping[str, CurveResult], trajectory: str, metric: str, views: Sequence[str]) -> bool:
    """Whether a panel's x axis can be tokens decided: its steps are passes, and every run records how many."""
    if trajectory not in IN_PASSES:
        return False
    for run in runs.values():
        decided = len(_tokens_decided(run))
        for view in views:
            if not decided or len(_values(run, view, trajectory, metric)) not in (0, decided):
                return False
    return True


def _legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One for all panels (one column per run, if there are several views); one curve needs none."""
    entries = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if len(entries) < 2:
        return
    fits = max(1, int(12 * figure.get_figwidth()) // (max(map(len, entries)) + 8))  # letters that go on a line
    look: Any = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "handlelength": 2.8}
    figure.legend(list(entries.values()), list(entries), ncols=min(columns, fits, len(entries)), **look)


# ---- one answer while it is denoised ---------------------------------------------------------------------------------

TITLE_WIDTH = 60  # characters of a title before a line break
MOST_TOKENS = 72  # more positions than this and only some are written on the axis


def heat_map(
    trace: Trace, stream: int = 0, tokens: Sequence[str] | None = None, length: int | None = None, title: str = ""
) -> Figure:
    """How likely each true token was in each pass, with a mark where the sampler decided that position.

    A ring: it wrote the true token. A cross: another one. Grey cells have no true token; a dot marks their decision.
    """
    from matplotlib import colormaps

    labels = trace.labels[stream, :length]
    shown = np.exp(trace.logprob[stream][:, :length].astype(float)).T  # (positions, passes)
    shown = np.ma.masked_invalid(np.where((labels == IGNORE)[:, None], np.nan, shown))
    positions, passes = shown.shape
    if not positions or not passes:
        raise UserError("The trace has no position or no pass: there is nothing to draw.")
    figure = new_figure(min(10.5, max(6.2, 2.9 + 0.22 * passes)), min(10.5, 1.8 + 0.2 * positions))
    axis = figure.subplots()
    colours = colormaps["cividis"].with_extremes(bad="#e6e6e6")  # made for colour blind eyes
    image = axis.imshow(shown, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=1)
    _mark_decisions(axis, trace, labels)
    axis.set_xlabel("forward pass")
    axis.locator_params(axis="x", integer=True, nbins=10)
    if tokens is None:
        axis.set_ylabel("position")
        axis.locator_params(axis="y", integer=True, nbins=12)
    else:
        every = range(0, positions, -(-positions // MOST_TOKENS))
        names = []
        for i in every:
            name = plain_text(tokens[i]) if i < len(tokens) else ""
            names.append(name if name.strip() else name.replace(" ", "\N{OPEN BOX}"))  # white space would not show
        axis.set_yticks(list(every), names, fontsize=8 if len(names) <= 40 else 6)
        axis.set_ylabel("true token")
    bar = figure.colorbar(image, ax=axis, label="probability of the true token", pad=0.02)
    bar.outline.set_visible(False)
    axis.set_title(fill(title or "How likely the true token was, pass by pass", TITLE_WIDTH), fontsize=11)
    return figure


def _mark_decisions(axis: Axes, trace: Trace, labels: Array) -> None:
    """White on black, to be seen on both ends of the scale; a legend says which of the marks there are."""
    decided = trace.fixed[: len(labels)] >= 0
    true = trace.final[: len(labels)] == labels
    no_label = labels == IGNORE
    kinds = (
        ("decided: the true token", "o", 30, decided & true & ~no_label),
        ("decided: another token", "x", 24, decided & ~true & ~no_label),
        ("decided: no true token there", ".", 18, decided & no_label),
    )
    for name, marker, size, where in kinds:
        at = np.flatnonzero(where)
        if not len(at):
            continue
        paints = ((GREY, 1.3),) if marker == "." else (("black", 2.6), ("white", 1.2))
        for colour, width in paints:
            _scatter_marks(axis, trace.fixed[at], at, marker, size, colour, width)
        _scatter_marks(axis, [], [], marker, size, GREY, 1.3, name)  # only for the legend
    if decided.any():
        look: Any = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": 9}
        axis.figure.legend(handletextpad=0.2, **look)


def _scatter_marks(
    axis: Axes, x: Any, y: Any, marker: str, size: float, colour: str, width: float, label: str | None = None
) -> None:
    paint: Any = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"color": colour}
    axis.scatter(x, y, s=size, marker=marker, linewidths=width, label=label, **paint)


# ---- layers ----------------------------------------------------------------------------------------------------------

STAGES = {"s1": ("retain → full (S1)", "#2b6cb0"), "s2": ("unlearned → full (S2)", "#dd6b20")}
MOST_ROWS = 60  # examples in one heat map; more would be thinner than a line


def layer_profile(summary: Mapping[str, Any]) -> Figure:
    """The mean drop of both stages at each layer, with 95 % bands: where the knowledge sits, and what is left of it."""
    profile = summary["profile"]
    layers = [row["layer"] for row in profile]
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    for stage, (label, colour) in STAGES.items():
        axes.plot(layers, [row[f"{stage}_drop"] for row in profile], "o-", color=colour, label=label, ms=3)
        bands = [row[f"{stage}_interval"] for row in profile]
        if all(bands):
            low, high = zip(*bands, strict=True)
            axes.fill_between(layers, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.axhline(summary["delta_threshold"], color="grey", lw=0.8, ls="--", label="threshold")
    axes.axhline(0, color="grey", lw=0.5)
    axes.set_xlabel("layer whose states are taken from the other model")
    axes.set_ylabel("drop of log-probability\n(nats per token)")
    score = summary["avg_uds"]
    name = plain_text(Path(str(summary["unlearn_model"])).name)
    axes.set_title(f"{name}: UDS {'-' if score is None else f'{score:.3f}'} ({summary['n']} examples)")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def layer_examples(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Figure:
    """Examples x layers: what the retain model lacks (left), what the unlearned one lacks (right), on one scale."""
    ordered = sorted(records, key=lambda r: (r["uds"] is None, r["uds"] or 0.0))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(MOST_ROWS, len(ordered))).astype(int))
    shown = [ordered[i] for i in places]
    height = 1.2 + 0.14 * len(shown)
    figure = new_figure(7.2, height)
    both = figure.subplots(1, 2, sharey=True)
    planes = [np.array([r[f"{stage}_deltas"] for r in shown]) for stage in STAGES]
    image = _draw_planes(both, planes)
    ticks, names = _layer_ticks(summary)
    for axes in both:
        axes.set_xlabel("layer")
        axes.set_xticks(ticks, names)
    labels = []
    for record in shown:
        score = "-" if record["uds"] is None else f"{record['uds']:.2f}"
        labels.append(f"{plain_text(str(record['entity'])[:28])}  {score}")
    both[0].set_yticks(range(len(shown)), labels, fontsize=6)
    figure.colorbar(image, ax=list(both), label="drop (nats per token)", shrink=min(1.0, 3 / height + 0.3))
    return figure


def layer_tokens(summary: Mapping[str, Any], record: Mapping[str, Any]) -> Figure:
    """One example, token by token: how far each entity token falls at each layer, in both stages."""
    values = record["token_logprobs"]
    planes = [np.array(values["full"]) - np.array(values[stage]) for stage in STAGES]
    words = [plain_text(word) for word in record["tokens"]]
    figure = new_figure(max(4.5, 1.6 + 0.75 * len(words)), 1.6 + 0.2 * len(planes[0]))
    both = figure.subplots(1, 2, sharey=True)
    image = _draw_planes(both, planes, origin="lower")
    for axes in both:
        axes.set_xticks(range(len(words)), words, rotation=60, ha="right")
    both[0].set_yticks(*_layer_ticks(summary))
    both[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(both), label="drop (nats)")
    question = str(record["question"])
    figure.suptitle(plain_text(question if len(question) < 70 else question[:67] + "..."))
    return figure


def _draw_planes(both: Sequence[Axes], planes: Sequence[Array], **how: Any) -> Any:
    """Both stages on the scale of the first."""
    top = max(float(np.abs(planes[0]).max()), 1e-6)
    for axes, plane, (title, _) in zip(both, planes, STAGES.values(), strict=True):
        scale: Any = {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
        image = axes.imshow(plane, aspect="auto", interpolation="nearest", **scale, **how)
        axes.set_title(title)
    return image


def _layer_ticks(summary: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    layers = summary["layers"]
    places = list(range(0, len(layers), max(1, len(layers) // 12)))
    return places, [str(layers[place]) for place in places]


def draw_depth(directory: Path, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The three figures of a depth run; the tokens are those of the example with the middle score."""
    out = [
        save(layer_profile(summary), directory / "layer_profile.svg", named=False),
        save(layer_examples(summary, records), directory / "heat_map.svg", named=False),
    ]
    scored = [r for r in records if r["uds"] is not None and r["token_logprobs"]["s1"] is not None]
    scored.sort(key=lambda r: r["uds"])
    if scored:
        middle = scored[len(scored) // 2]
        out.append(save(layer_tokens(summary, middle), directory / "tokens.svg", named=False))
    return out


# ---- collapse over training steps ------------------------------------------------------------------------------------

CollapsePoints = Sequence[tuple[int, Mapping[str, float | None]]]  # (step, one label's numbers), in order
COLLAPSE_NAMES = {
    "collapse_first_turn_sample": "first turns",
    "collapse_trajectory_sample": "trajectories",
    "collapse_turn_sample": "turns",
}


def collapse_curves(labels: Mapping[str, CollapsePoints]) -> Figure:
    """Three panels: does it depend on the prompt (information, retrieval), and does it vary (entropies)?"""
    figure = new_figure(12, 3.6)
    panels = figure.subplots(1, 3)
    heads = (("Information about the prompt", "nats a reasoning"), ("Own prompt found", "share of rows"),
             ("Entropy per token", "nats"))  # fmt: skip
    for panel, (title, unit) in zip(panels, heads, strict=True):
        panel.set(title=title, ylabel=unit, xlabel="step")
        panel.grid(alpha=0.3)
    for n, (label, points) in enumerate(labels.items()):
        name, colour = COLLAPSE_NAMES.get(label, label), f"C{n}"
        estimate = "mi_seq_distinct_columns"
        if not _collapse_series(points, estimate)[0]:
            estimate = "mi_seq_estimate"
        lines: Sequence[tuple[int, str, str, str | None]] = (
            (0, estimate, "o-", name),
            (1, "retrieval_accuracy", "o-", name),
            (1, "retrieval_chance_level", ":", None),
            (2, "conditional_entropy_est", "o-", f"given the prompt, {name}"),
            (2, "reasoning_entropy_est", "s--", f"over all prompts, {name}"),
        )
        for panel, column, look, words in lines:
            panels[panel].plot(*_collapse_series(points, column), look, color=colour, label=words)
        for panel, column in ((0, "mi_seq_distinct_columns"), (1, "retrieval_accuracy")):
            steps, low = _collapse_series(points, f"{column}_ci_low")
            if steps:
                high = _collapse_series(points, f"{column}_ci_high")[1]
                panels[panel].fill_between(steps, low, high, color=colour, alpha=0.15)
    panels[1].set_ylim(-0.02, 1.02)
    panels[2].legend(fontsize="small")
    return figure


def _collapse_series(points: CollapsePoints, name: str) -> tuple[list[int], list[float]]:
    """The steps at which a number exists, and the numbers."""
    steps, values = [], []
    for step, metrics in points:
        value = metrics.get(name)
        if value is not None:
            steps.append(step)
            values.append(float(value))
    return steps, values


# ---- attacks ---------------------------------------------------------------------------------------------------------

SUBJECTS = {"model": "unlearned", "retain": "never trained (control)"}


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
        axes.plot(*zip(*line, strict=True), marker="o", markersize=4, color=colour, label=SUBJECTS.get(who, who))
        axes.axhline(line[0][1], color=colour, linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"{attack}: {unit}")
    axes.set_ylabel(metric)
    axes.legend(frameon=False, fontsize=8)
    axes.tick_params(colors=GREY, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
