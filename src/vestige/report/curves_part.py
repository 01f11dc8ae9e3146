"""Curves over steps: metrics along a denoising path, and collapse numbers along training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vestige.metrics.collapse import LABELS
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.report.format import finite, plain
from vestige.show.collapse_plots import NAMES
from vestige.store.kinds import RunSource

BAND = ("ci_low", "ci_high")
COLLAPSE_COLUMNS = {
    "mi_seq_distinct_columns": "information about the prompt, nats a reasoning (distinct prompts)",
    "mi_seq_estimate": "information about the prompt, nats a reasoning",
    "mi_bound_attainable": "the most it can be with so many prompts",
    "retrieval_accuracy": "share of reasonings whose own prompt makes them likeliest",
    "retrieval_chance_level": "the same by chance",
    "conditional_entropy_est": "entropy given the prompt, nats per token",
    "reasoning_entropy_est": "entropy over all prompts, nats per token",
}


def trajectories(source: RunSource, model: str) -> list[dict[str, Any]]:
    """Every curve of every trajectory metric, with its band over rows."""
    out = []
    for body in source.data["results"].values():
        nested = body.get("agg_value")
        if not isinstance(nested, Mapping):
            continue
        views = nested if set(nested) <= set(VIEWS) else {"": nested}  # the flat shape: one view, unnamed
        decided = (body.get("trajectory_step_metadata") or {}).get("step_values") or []
        for view, kinds in views.items():
            for kind, metrics in kinds.items():
                for metric, points in metrics.items():
                    spread = spread_of(body, view, kind, metric)
                    out.append(_curve(source, model, (view, kind, metric), points, spread, decided))
    return [t for t in out if any(v is not None for v in t["mean"])]


def _curve(
    source: RunSource, model: str, path: tuple[str, str, str], points: Any, spread: Mapping[str, Any], decided: Any
) -> dict[str, Any]:
    view, kind, metric = path
    values = [finite(v) for v in points]
    ends = {k: spread.get(name) for k, name in zip(("lo", "hi"), BAND, strict=True) if spread.get(name)}
    told = {"decided": decided} if len(decided) == len(values) and kind in ("steps", "fixation_start") else {}
    rows = spread.get("n") or spread.get("count")
    n = {"n": max((int(x) for x in rows if x is not None), default=0)} if isinstance(rows, list) else {}
    body = {"model": model, "metric": metric, "view": view, "kind": kind, "steps": list(range(len(values)))}
    return dict(plain({**body, **told, "mean": values, **ends, **n, "source": source.id, "heat": []}))


def collapse(source: RunSource) -> list[dict[str, Any]]:
    """One record for each way of sampling turns."""
    steps = sorted(source.data["steps"], key=lambda s: s["step"])
    out = []
    for label in LABELS:
        mine = [s for s in steps if label in (s.get("verdicts") or {})]
        if mine:
            out.append(_collapse(source, label, mine))
    return out


def _collapse(source: RunSource, label: str, steps: list[Mapping[str, Any]]) -> dict[str, Any]:
    def series(name: str) -> list[float | None]:
        return [finite(s["metrics"].get(f"{label}/{name}")) for s in steps]

    found = {c: series(c) for c in COLLAPSE_COLUMNS}
    found = {c: v for c, v in found.items() if any(x is not None for x in v)}
    bands = {c: {"lo": series(f"{c}_ci_low"), "hi": series(f"{c}_ci_high")} for c in found}
    notes = [*(source.data.get("notes") or []), *(n for s in steps for n in (s.get("notes") or {}).get(label) or ())]
    body = {
        "name": source.path.resolve().name,
        "label": NAMES.get(label, label),
        "steps": [s["step"] for s in steps],
        "series": found,
        "bands": {c: b for c, b in bands.items() if any(x is not None for x in b["lo"])},
        "verdicts": [str(s["verdicts"][label]) for s in steps],
        "columns": {c: COLLAPSE_COLUMNS[c] for c in found},
        "notes": list(dict.fromkeys(str(n) for n in notes)),
        "source": source.id,
    }
    return dict(plain(body))
