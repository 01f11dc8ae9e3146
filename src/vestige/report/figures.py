"""Figures of a report for papers: the same data as on the page, drawn with matplotlib. A figure for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, unknown_name
from vestige.report.gather import Json
from vestige.show import figures as draw_figure
from vestige.show.figures import COLOURS, GREY, KINDS, new_figure, plain_text, save, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"full": ("s", "#D55E00"), "retain": ("D", "#009E73"), "unlearned": ("o", "#0072B2"), "other": ("x", GREY)}
MOST_NAMED = 30  # points of a role with names and intervals
COLUMN_WIDTHS = {"column": 3.25, "page": 6.75}  # inches: of a two-column page, and of its text
LEAST_WIDTH, MOST_WIDTH = 1.0, 30.0


@dataclass(frozen=True)
class Choice:
    """Which of the things a report holds to draw; None: the first there is."""

    model: str | None = None
    metric: str | None = None
    attack: str | None = None
    x: str | None = None
    y: str | None = None


def draw(report: Json, what: str, choice: Choice, path: Path, width: float | None = None) -> Path:
    """One figure; the ending of its name says which kind of file. `width` in inches."""
    if what not in FIGURES:
        raise unknown_name("picture", what, FIGURES)
    if path.suffix.lower().lstrip(".") not in KINDS:
        raise UserError(f"{path}: a picture's name ends in {', '.join(f'.{kind}' for kind in KINDS)}.")
    return save(FIGURES[what](report, choice), path, width=width)


def width_in_inches(words: str | None) -> float | None:
    """
    >>> width_in_inches("column"), width_in_inches("5.5"), width_in_inches(None)
    (3.25, 5.5, None)
    """
    if words is None or words in COLUMN_WIDTHS:
        return COLUMN_WIDTHS.get(words or "")
    try:
        inches = float(words)
    except ValueError:
        inches = 0.0
    if not LEAST_WIDTH <= inches <= MOST_WIDTH:
        raise UserError(f"--width is {words}; write column, page, or inches from {LEAST_WIDTH:g} to {MOST_WIDTH:g}.")
    return inches


def _new_axes(width: float = 4.8, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    style_axes(axes)
    return figure, axes


def _pick(kind: str, wanted: str | None, known: Iterable[str]) -> str:
    """The name that was asked for, else the first."""
    names = list(known)
    if wanted is not None and wanted not in names:
        raise unknown_name(kind, wanted, names)
    return wanted or names[0]


def _first(items: Iterable[Json], has: Callable[[Json], Any], of: str | None, lacks: str) -> Json:
    """The first that has what a figure needs."""
    for item in items:
        if has(item):
            return item
    where = f" of {of}" if of else ""
    raise UserError(f"{lacks}{where}; choose another picture, or add runs that have it.")


# ---- many models -----------------------------------------------------------------------------------------------------


def scatter(report: Json, choice: Choice) -> Figure:
    """Two columns against each other, intervals as bars, references marked and named."""
    default = report["pareto"] or {}
    keys = choice.x or default.get("x"), choice.y or default.get("y")
    for key in keys:
        if key is None:
            raise UserError("Say which columns to draw: --x NAME --y NAME.")
        if key not in report["metrics"]:
            raise unknown_name("column", key, report["metrics"], lists="")
    figure, axes = _new_axes()
    drawn = 0
    for role, (marker, colour) in MARKS.items():
        points = []
        for model in report["models"]:
            both = [model["values"].get(key) or {} for key in keys]
            if model["role"] == role and all(value.get("v") is not None for value in both):
                points.append((model["name"], *both))
        if not points:
            continue
        drawn += len(points)
        xs, ys = [x["v"] for _, x, _ in points], [y["v"] for _, _, y in points]
        axes.scatter(xs, ys, marker=marker, s=22, color=colour, alpha=0.85, linewidths=0.8, label=role, zorder=3)
        if len(points) > MOST_NAMED:
            continue
        for name, x, y in points:
            for value, across in ((x, True), (y, False)):
                if value.get("lo") is not None and not value.get("of"):
                    ends = [value["lo"], value["hi"]]
                    line = (ends, [y["v"]] * 2) if across else ([x["v"]] * 2, ends)
                    axes.plot(*line, color=colour, linewidth=0.8, alpha=0.5)
            name = plain_text(name if len(name) <= 24 else f"{name[:21]}...")
            look: Any = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7, "color": GREY}
            axes.annotate(name, (x["v"], y["v"]), **look)
    if not drawn:
        raise UserError(f"No model has both {keys[0]} and {keys[1]}.")
    labels = [plain_text(str(report["metrics"][key].get("label") or key)) for key in keys]
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.legend(frameon=False, fontsize=8)
    return figure


# ---- metrics put to the test -----------------------------------------------------------------------------------------


def _meta_metric(report: Json, choice: Choice, has: Callable[[Json], Any], lacks: str) -> Json:
    meta = report["meta"]
    if meta is None:
        raise UserError("These runs have no meta-evaluation; give a meta_eval.json (vestige meta).")
    metrics = meta["metrics"]
    if choice.metric:
        key = _pick("metric of this meta-evaluation", choice.metric, [m["key"] for m in metrics])
        metrics = [m for m in metrics if m["key"] == key]
    return _first(metrics, has, choice.metric, lacks)


def histogram(report: Json, choice: Choice) -> Figure:
    """Models that know (P) and models that do not (N), and the threshold between them."""
    lacks = "The runs do not say the values of single pool models"
    metric = _meta_metric(report, choice, lambda m: m.get("p") and m.get("n"), lacks)
    figure, axes = _new_axes()
    knowing, others = ([v for v in metric[pool].values() if v is not None] for pool in ("p", "n"))
    low, high = min(*knowing, *others), max(*knowing, *others)
    edges = [low + (high - low or 1.0) * i / 16 for i in range(17)]
    axes.hist(knowing, bins=edges, color=COLOURS[1], alpha=0.55, label=f"P: knows ({len(knowing)})")
    axes.hist(others, bins=edges, color=COLOURS[0], alpha=0.55, label=f"N: does not ({len(others)})")
    cut = metric.get("threshold_m")
    if cut is not None:
        axes.axvline(cut, color="black", linestyle="--", linewidth=1, label=f"threshold {cut:.3g}")
    axes.set_xlabel(plain_text(metric["label"]) + ("" if metric["space"] == "raw" else f" (m = {metric['space']})"))
    axes.set_ylabel("models")
    axes.set_title("" if metric["auc"] is None else f"AUC {metric['auc']:.3f}", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return figure


def before_after(report: Json, choice: Choice) -> Figure:
    """A metric before and after an attack; above the line something came back."""
    states = (report["meta"] or {}).get("states") or {}
    attack = _pick("attack", choice.attack, ("relearning", "quantization"))

    def pairs(rows: Iterable[Json | None]) -> list[tuple[float, float]]:
        both = [(row["before"], row[attack]) for row in rows if row]
        return [(a, b) for a, b in both if a is not None and b is not None]

    def models(metric: Json) -> list[tuple[float, float]]:
        return pairs((states.get(metric["key"]) or {}).get("models") or [])

    metric = _meta_metric(report, choice, models, f"The runs do not say values before and after {attack}")
    figure, axes = _new_axes(4.2, 4.0)
    unlearned, retain = models(metric), pairs([states[metric["key"]].get("retain")])
    xs, ys = zip(*unlearned, strict=True)
    axes.scatter(xs, ys, s=18, color=COLOURS[0], alpha=0.8, label="unlearned", zorder=3)
    if retain:
        axes.scatter(*zip(*retain, strict=True), marker="D", color=COLOURS[2], label="retain", zorder=4)
    values = [value for point in (*unlearned, *retain) for value in point]
    ends = [min(values), max(values)]
    axes.plot(ends, ends, color=GREY, linewidth=0.8, linestyle="--", label="y = x")
    if metric.get("threshold_m") is not None:
        axes.axvline(metric["threshold_m"], color="black", linewidth=0.8, linestyle=":", label="threshold")
    space = "" if metric["space"] == "raw" else f" ({metric['space']})"
    axes.set_xlabel(f"{plain_text(metric['label'])}{space} before")
    axes.set_ylabel(f"after {attack}")
    corner: Any = {"transform": axes.transAxes, "color": GREY, "fontsize": 8}
    axes.text(0.03, 0.97, "knowledge returned", va="top", **corner)
    axes.text(0.97, 0.03, "robust", ha="right", **corner)
    axes.legend(frameon=False, fontsize=8)
    return figure


# ---- one model -------------------------------------------------------------------------------------------------------


def _audit(report: Json, choice: Choice, has: Callable[[Json], Any], lacks: str) -> tuple[str, Json]:
    """An audited model's name and audit."""
    names = {model["id"]: model["name"] for model in report["models"]}
    audited = {names[audit["model"]]: audit for audit in report["audits"]}
    if choice.model:
        audited = {choice.model: audited[_pick("audited model", choice.model, audited)]}
    audit = _first(audited.values(), has, choice.model, lacks)
    return names[audit["model"]], audit


def layers(report: Json, choice: Choice) -> Figure:
    """Where the knowledge sits, layer by layer, and what is left of it."""
    lacks = "These runs have no layer profile"
    name, audit = _audit(report, choice, lambda a: a["layers"] and a["layers"]["profile"], lacks)
    held = audit["layers"]
    profile = held["profile"][0]
    rows = []
    for i, layer in enumerate(held["layers"]):
        row: Json = {"layer": layer}
        for stage in ("s1", "s2"):
            has_ends = f"{stage}_lo" in profile
            row[f"{stage}_drop"] = profile[stage][i]
            row[f"{stage}_interval"] = [profile[f"{stage}_lo"][i], profile[f"{stage}_hi"][i]] if has_ends else None
        rows.append(row)
    summary = {"unlearn_model": name, "avg_uds": held["uds"], "n": held["n"], "delta_threshold": held["threshold"]}
    return draw_figure.layer_profile({**summary, "profile": rows})


def recovery(report: Json, choice: Choice) -> Figure:
    """What comes back against what the attacker spends, beside a model that never knew."""
    _, audit = _audit(report, choice, lambda a: a["attacks"], "These runs have no attack")
    budgets = {curve["attack"]: len(curve["budgets"]) for curve in audit["attacks"]}
    attack = _pick("attack", choice.attack, sorted(budgets, key=lambda name: -budgets[name]))
    curves = [curve for curve in audit["attacks"] if curve["attack"] == attack]
    if curves[0]["reverse"]:  # bits run the other way: fewer are the stronger attack, and none is not the start
        raise UserError(f"{attack} has no recovery curve: its budget does not grow; see the table instead.")
    metric = _pick("metric of this attack", choice.metric, dict.fromkeys(curve["metric"] for curve in curves))
    rows = []
    for curve in curves:
        if curve["metric"] != metric:
            continue
        points = [("none", None, curve["before"])]
        points += [(attack, b, v) for b, v in zip(curve["budgets"], curve["values"], strict=True)]
        who = "retain" if curve["is_control"] else "model"
        rows += [{"model": who, "attack": a, "budget": b, "values": {metric: v}} for a, b, v in points]
    return draw_figure.recovery_curve(rows, attack, metric, curves[0]["unit"] or "budget")


# ---- over steps ------------------------------------------------------------------------------------------------------


def trajectory(report: Json, choice: Choice) -> Figure:
    """A metric along the denoising steps: a panel for each trajectory, a colour for each model."""
    names = {model["id"]: model["name"] for model in report["models"]}
    curves = [curve for curve in report["trajectories"] if choice.model in (None, names[curve["model"]])]
    if not curves:
        raise UserError("These runs have no trajectories; evaluate a diffusion model along its steps.")
    metrics = dict.fromkeys(curve["metric"] for curve in curves)
    default = "probability" if "probability" in metrics else None
    metric = _pick("metric of these trajectories", choice.metric or default, metrics)
    runs: dict[str, Json] = {}
    for curve in curves:
        if curve["metric"] != metric:
            continue
        run = runs.setdefault(names[curve["model"]], {"agg_value": {}, "step_distribution": {}})
        view, kind = curve["view"] or "full", curve["kind"]
        run["agg_value"].setdefault(view, {})[kind] = {metric: curve["mean"]}
        if curve.get("lo"):
            spread = {"ci_low": curve["lo"], "ci_high": curve["hi"]}
            run["step_distribution"].setdefault(view, {})[kind] = {metric: spread}
        if curve.get("decided"):
            run["trajectory_step_metadata"] = {"step_values": curve["decided"]}
    return draw_figure.curves(runs, metric)


def collapse(report: Json, choice: Choice) -> Figure:
    """Information about the prompt, retrieval and entropies over training steps."""
    runs = [run for run in report["collapse"] if choice.model in (None, run["name"])]
    if not runs:
        raise UserError("These runs have no collapse numbers; vestige collapse writes them.")
    points = {}
    for run in runs:
        if run["name"] != runs[0]["name"]:
            continue
        rows = []
        for i, step in enumerate(run["steps"]):
            numbers = {column: values[i] for column, values in run["series"].items()}
            for column, band in run["bands"].items():
                numbers |= {f"{column}_ci_low": band["lo"][i], f"{column}_ci_high": band["hi"][i]}
            rows.append((step, numbers))
        points[run["label"]] = rows
    return draw_figure.collapse_curves(points)


FIGURES: Mapping[str, Callable[[Json, Choice], Figure]] = {
    "scatter": scatter,
    "histogram": histogram,
    "before-after": before_after,
    "layers": layers,
    "recovery": recovery,
    "trajectory": trajectory,
    "collapse": collapse,
}
