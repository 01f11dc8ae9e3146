"""Pictures of a report for papers: the same data as on the page, drawn with matplotlib. A figure for each question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.report.format import Report
from vestige.show.collapse_plots import NAMES, collapse_plot
from vestige.show.depth_plots import draw_profile
from vestige.show.stress_plots import recovery_curve
from vestige.show.trajectory_plots import COLOURS, GREY, curves, new_figure, save

FIGURES: dict[str, Callable[[Report, Which, Path], Path]]
MARKS = {"full": ("s", "#D55E00"), "retain": ("D", "#009E73"), "unlearned": ("o", "#0072B2"), "other": ("x", GREY)}
KINDS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Which:
    """Which of the things a report holds to draw; None: the first there is."""

    model: str | None = None
    metric: str | None = None
    attack: str | None = None
    x: str | None = None
    y: str | None = None


def draw(report: Report, what: str, which: Which, path: Path) -> Path:
    """One picture; the ending of its name says which kind of file."""
    if what not in FIGURES:
        raise unknown_name("picture", what, FIGURES)
    if path.suffix.lower() not in KINDS:
        raise UserError(f"{path}: a picture's name ends in {', '.join(KINDS)}.")
    return FIGURES[what](report, which, path)


def _axes(width: float = 4.8, height: float = 3.6) -> tuple[Any, Any]:
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _text(words: str) -> str:
    """A dollar sign would start a formula."""
    return words.replace("$", r"\$")


def _label(report: Report, metric: str) -> str:
    return _text(str((report["metrics"].get(metric) or {}).get("label") or metric))


# ---- many models -------------------------------------------------------------------------------------------------


def scatter(report: Report, which: Which, path: Path) -> Path:
    """Two columns against each other, intervals as bars, references marked and named."""
    default = report["pareto"] or {}
    keys = which.x or default.get("x"), which.y or default.get("y")
    for key in keys:
        if key is None:
            raise UserError("Say which columns to draw: --x NAME --y NAME.")
        if key not in report["metrics"]:
            raise unknown_name("column", key, report["metrics"], lists="")
    figure, axes = _axes()
    drawn = 0
    for role, (marker, colour) in MARKS.items():
        points = [(m, *(m["values"].get(k) or {} for k in keys)) for m in report["models"] if m["role"] == role]
        points = [p for p in points if p[1].get("v") is not None and p[2].get("v") is not None]
        if not points:
            continue
        drawn += len(points)
        x, y = ([p[i]["v"] for p in points] for i in (1, 2))
        axes.scatter(x, y, marker=marker, s=22, color=colour, alpha=0.85, linewidths=0.8, label=role, zorder=3)
        if len(points) <= 30:
            _bars(axes, [(p[1], p[2]) for p in points], colour)
            _names(axes, points)
    if not drawn:
        raise UserError(f"No model has both {keys[0]} and {keys[1]}.")
    axes.set_xlabel(_label(report, str(keys[0])))
    axes.set_ylabel(_label(report, str(keys[1])))
    axes.legend(frameon=False, fontsize=8)
    return save(figure, path)


def _bars(axes: Any, points: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], colour: str) -> None:
    for a, b in points:
        for value, spot in ((a, "x"), (b, "y")):
            if value.get("lo") is None or value.get("of"):
                continue
            span = [value["lo"], value["hi"]]
            x, y = (span, [b["v"]] * 2) if spot == "x" else ([a["v"]] * 2, span)
            axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.5)


def _names(axes: Any, points: Sequence[tuple[Any, ...]]) -> None:
    for m, a, b in points:
        name = _text(m["name"] if len(m["name"]) <= 24 else f"{m['name'][:21]}...")
        axes.annotate(name, (a["v"], b["v"]), xytext=(4, 4), textcoords="offset points", fontsize=7, color=GREY)


# ---- metrics put to the test -------------------------------------------------------------------------------------


def _meta_metric(report: Report, which: Which, has: Callable[[Mapping[str, Any]], bool], lacks: str) -> dict[str, Any]:
    meta = report["meta"]
    if meta is None:
        raise UserError("These runs have no meta-evaluation; give a meta_eval.json (vestige meta).")
    keys = [m["key"] for m in meta["metrics"]]
    if which.metric and which.metric not in keys:
        raise unknown_name("metric of this meta-evaluation", which.metric, keys)
    found = [m for m in meta["metrics"] if has(m) and which.metric in (None, m["key"])]
    if not found:
        where = f" for {which.metric}" if which.metric else ""
        raise UserError(f"{lacks}{where}; choose another picture, or add runs that have it.")
    return dict(found[0])


def histogram(report: Report, which: Which, path: Path) -> Path:
    """Models that know (P) and models that do not (N), and the threshold between them."""
    lacks = "The runs do not say the values of single pool models"
    m = _meta_metric(report, which, lambda m: bool(m.get("p") and m.get("n")), lacks)
    figure, axes = _axes()
    pools = [[v for v in m[k].values() if v is not None] for k in ("p", "n")]
    low, high = min(map(min, pools)), max(map(max, pools))
    edges = [low + (high - low or 1.0) * i / 16 for i in range(17)]
    names = (f"P: knows ({len(pools[0])})", f"N: does not ({len(pools[1])})")
    for values, name, colour in zip(pools, names, COLOURS[1::-1], strict=True):
        axes.hist(values, bins=edges, color=colour, alpha=0.55, label=name)
    if m.get("threshold_m") is not None:
        cut = m["threshold_m"]
        axes.axvline(cut, color="black", linestyle="--", linewidth=1, label=f"threshold {cut:.3g}")
    axes.set_xlabel(_text(m["label"]) + ("" if m["space"] == "raw" else f" (m = {m['space']})"))
    axes.set_ylabel("models")
    axes.set_title("" if m["auc"] is None else f"AUC {m['auc']:.3f}", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return save(figure, path)


def before_after(report: Report, which: Which, path: Path) -> Path:
    """A metric before and after an attack; above the line something came back."""
    states = (report["meta"] or {}).get("states") or {}
    attack = which.attack or "relearning"
    if attack not in ("relearning", "quantization"):
        raise unknown_name("attack", attack, ("relearning", "quantization"))

    def pairs(m: Mapping[str, Any]) -> list[tuple[float, float]]:
        rows = (states.get(m["key"]) or {}).get("models") or []
        return [(r["before"], r[attack]) for r in rows if r["before"] is not None and r[attack] is not None]

    lacks = f"The runs do not say values before and after {attack}"
    m = _meta_metric(report, which, lambda m: bool(pairs(m)), lacks)
    figure, axes = _axes(4.2, 4.0)
    points = pairs(m)
    axes.scatter(*zip(*points, strict=True), s=18, color=COLOURS[0], alpha=0.8, label="unlearned", zorder=3)
    retain = states[m["key"]].get("retain")
    if retain and retain["before"] is not None and retain[attack] is not None:
        axes.scatter([retain["before"]], [retain[attack]], marker="D", color=COLOURS[2], label="retain", zorder=4)
        points = [*points, (retain["before"], retain[attack])]
    ends = [min(min(p) for p in points), max(max(p) for p in points)]
    axes.plot(ends, ends, color=GREY, linewidth=0.8, linestyle="--", label="y = x")
    if m.get("threshold_m") is not None:
        axes.axvline(m["threshold_m"], color="black", linewidth=0.8, linestyle=":", label="threshold")
    space = "" if m["space"] == "raw" else f" ({m['space']})"
    axes.set_xlabel(f"{_text(m['label'])}{space} before")
    axes.set_ylabel(f"after {attack}")
    axes.text(0.03, 0.97, "knowledge returned", transform=axes.transAxes, va="top", color=GREY, fontsize=8)
    axes.text(0.97, 0.03, "robust", transform=axes.transAxes, ha="right", color=GREY, fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    return save(figure, path)


# ---- one model ---------------------------------------------------------------------------------------------------


def _audit(report: Report, which: Which, has: Callable[[Mapping[str, Any]], bool], lacks: str) -> dict[str, Any]:
    names = {m["id"]: m["name"] for m in report["models"]}
    audited = {names[a["model"]]: a for a in report["audits"]}
    if which.model and which.model not in audited:
        raise unknown_name("audited model", which.model, audited)
    found = [a for n, a in audited.items() if has(a) and which.model in (None, n)]
    if not found:
        where = f" of {which.model}" if which.model else ""
        raise UserError(f"{lacks}{where}; choose another picture, or add runs that have it.")
    return {**found[0], "name": names[found[0]["model"]]}


def layers(report: Report, which: Which, path: Path) -> Path:
    """Where the knowledge sits, layer by layer, and what is left of it."""
    a = _audit(
        report, which, lambda a: bool(a["layers"] and a["layers"]["profile"]), "These runs have no layer profile"
    )
    told = a["layers"]
    profile = told["profile"][0]
    rows = [
        {"layer": layer, **{f"{s}_drop": profile[s][i] for s in ("s1", "s2")},
         **{f"{s}_interval": _ends(profile, s, i) for s in ("s1", "s2")}}
        for i, layer in enumerate(told["layers"])
    ]  # fmt: skip
    summary = {"unlearn_model": a["name"], "avg_uds": told["uds"], "n": told["n"]}
    return draw_profile(path, {**summary, "profile": rows, "delta_threshold": told["threshold"]})


def _ends(profile: Mapping[str, Any], stage: str, i: int) -> list[float] | None:
    return [profile[f"{stage}_lo"][i], profile[f"{stage}_hi"][i]] if f"{stage}_lo" in profile else None


def recovery(report: Report, which: Which, path: Path) -> Path:
    """What comes back against what the attacker spends, beside a model that never knew."""
    a = _audit(report, which, lambda a: bool(a["attacks"]), "These runs have no attack")
    budgets = {c["attack"]: len(c["budgets"]) for c in a["attacks"]}
    attack = which.attack or max(budgets, key=lambda name: budgets[name])
    if attack not in budgets:
        raise unknown_name("attack", attack, budgets)
    mine = [c for c in a["attacks"] if c["attack"] == attack]
    if mine[0]["reverse"]:  # bits run the other way: fewer are the stronger attack, and none is not the start
        raise UserError(f"{attack} has no recovery curve: its budget does not grow; see the table instead.")
    metrics = list(dict.fromkeys(c["metric"] for c in mine))
    metric = which.metric or metrics[0]
    if metric not in metrics:
        raise unknown_name("metric of this attack", metric, metrics)
    rows = [row for c in mine if c["metric"] == metric for row in _stress_rows(c)]
    return save(recovery_curve(rows, attack, metric, mine[0]["unit"] or "budget"), path)


def _stress_rows(curve: Mapping[str, Any]) -> list[dict[str, Any]]:
    who = "retain" if curve["is_control"] else "model"
    after = [(curve["attack"], b, v) for b, v in zip(curve["budgets"], curve["values"], strict=True)]
    points = [("none", None, curve["before"]), *after]
    return [{"model": who, "attack": a, "budget": b, "values": {curve["metric"]: v}} for a, b, v in points]


# ---- over steps --------------------------------------------------------------------------------------------------


def trajectory(report: Report, which: Which, path: Path) -> Path:
    """A metric along the denoising steps: a panel for each trajectory, a colour for each model."""
    names = {m["id"]: m["name"] for m in report["models"]}
    found = [t for t in report["trajectories"] if which.model in (None, names[t["model"]])]
    if not found:
        raise UserError("These runs have no trajectories; evaluate a diffusion model along its steps.")
    metrics = list(dict.fromkeys(t["metric"] for t in found))
    metric = which.metric or ("probability" if "probability" in metrics else metrics[0])
    if metric not in metrics:
        raise unknown_name("metric of these trajectories", metric, metrics)
    runs: dict[str, Any] = {}
    for t in (t for t in found if t["metric"] == metric):
        run = runs.setdefault(names[t["model"]], {"agg_value": {}, "step_distribution": {}})
        view, kind = t["view"] or "full", t["kind"]
        run["agg_value"].setdefault(view, {}).setdefault(kind, {})[metric] = t["mean"]
        if t.get("lo"):
            spread = {"ci_low": t["lo"], "ci_high": t["hi"]}
            run["step_distribution"].setdefault(view, {}).setdefault(kind, {})[metric] = spread
        if t.get("decided"):
            run["trajectory_step_metadata"] = {"step_values": t["decided"]}
    return save(curves(runs, metric), path)


def collapse(report: Report, which: Which, path: Path) -> Path:
    """Information about the prompt, retrieval and entropies over training steps."""
    found = [c for c in report["collapse"] if which.model in (None, c["name"])]
    if not found:
        raise UserError("These runs have no collapse numbers; vestige collapse writes them.")
    keys = {label: key for key, label in NAMES.items()}
    points = {}
    for c in (c for c in found if c["name"] == found[0]["name"]):
        rows = []
        for i, step in enumerate(c["steps"]):
            at = {name: series[i] for name, series in c["series"].items()}
            ends = {f"{n}_ci_{'low' if e == 'lo' else 'high'}": b[e][i] for n, b in c["bands"].items() for e in b}
            rows.append((step, {**at, **ends}))
        points[keys.get(c["label"], c["label"])] = rows
    return collapse_plot(points, path)


FIGURES = {
    "scatter": scatter,
    "histogram": histogram,
    "before-after": before_after,
    "layers": layers,
    "recovery": recovery,
    "trajectory": trajectory,
    "collapse": collapse,
}
