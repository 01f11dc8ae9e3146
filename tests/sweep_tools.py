"""Plans of sweeps over the golden lab, and what a sweep printed and noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from conftest import LAB

METRIC = "forget_Q_A_Prob"


def write_plan(place: Path, **more: Any) -> Path:
    """A plan of two golden models (so that a sweep takes a second), with changes."""
    models = {name: str(LAB / "models" / name) for name in ("full", "retain")}
    suites = {"tofu": {"data": str(LAB / "data"), "metrics": [METRIC], "limit": 2, "overrides": ["stats.resamples=0"]}}
    file = place / "plan.yaml"
    body = {"out": str(place / "sweep"), "retain": "retain", "models": models, "suites": suites, "slots": 0, **more}
    file.write_text(yaml.safe_dump(body))
    return file


def note(place: Path) -> dict[str, Any]:
    return dict(json.loads((place / "sweep" / "sweep.json").read_text()))


def started(text: str) -> list[str]:
    """The tasks that a sweep started, from what it printed."""
    return [line.split()[2] for line in text.splitlines() if "] start" in line]


# A sweep with all kinds of tasks that takes seconds: S1, two suites, an attack, the control.
WHOLE: dict[str, Any] = {
    "models": {n: str(LAB / "models" / n) for n in ("retain", "unlearned")},
    "suites": {
        "tofu": {"data": str(LAB / "data"), "metrics": [METRIC], "limit": 2, "overrides": ["stats.resamples=0"]},
        "depth": {"full": str(LAB / "models" / "full"), "data": str(LAB / "data" / "forget.jsonl"), "limit": 2},
    },
    "attacks": [{"relearn": {"lr": 1e-3, "steps": 4, "accumulation": 1}}],
    "threads": 1,
}
