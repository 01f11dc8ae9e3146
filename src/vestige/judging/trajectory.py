"""Diffusion models: what a trajectory says at its last step, and on the way there, for the judge.

A trajectory's results hold means over rows for each denoising step, with their 95 % intervals, and no value for single
rows. The last step is what the model says in the end; a model may know more on the way, so the mean over the path is
judged as well. Its interval is the mean of the steps' (as if they rose and fell together: not too narrow).

In: results of a trajectory run. Out: values with intervals, and the handler that each stands for. Callers:
judging/runs.py, report/audits.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.numeric import mean
from vestige.schema import number

KIND = "fixation_start"  # just before each token is decided
LAST, PATH = " at the last denoising step", " over the denoising path"


def path_values(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Values by name, {"v", "lo", "hi"}; the whole window where there are several views."""
    out: dict[str, dict[str, Any]] = {}
    for body in results.values():
        nested = body.get("agg_value")
        if not isinstance(nested, Mapping):
            continue
        view = ""
        if set(nested) <= set(VIEWS):
            view = "full" if "full" in nested else next(iter(nested))
            nested = nested[view]
        for metric, curve in (nested.get(KIND) or {}).items():
            around = spread_of(body, view, KIND, metric)
            curves = {"v": curve, "lo": around.get("ci_low"), "hi": around.get("ci_high")}
            for suffix, read in ((LAST, _last), (PATH, _mean)):
                found = {key: read(points) for key, points in curves.items()}
                if found["v"] is not None:
                    out.setdefault(f"{metric}{suffix}", found)
    return out


def _last(curve: Any) -> float | None:
    return number(curve[-1]) if isinstance(curve, list) and curve else None


def _mean(curve: Any) -> float | None:
    points = [number(x) for x in curve] if isinstance(curve, list) else []
    return mean(x for x in points if x is not None) if points and None not in points else None


def handlers(values: Mapping[str, Any]) -> dict[str, str]:
    """The handler that each value stands for.

    >>> handlers({"rouge at the last denoising step": {}, "uds": {}})
    {'rouge at the last denoising step': 'rouge'}
    """
    return {name: name.removesuffix(LAST).removesuffix(PATH) for name in values if name.endswith((LAST, PATH))}
