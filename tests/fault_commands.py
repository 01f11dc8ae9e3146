"""The commands that faults strike: every long one, on tiny models, each in a directory of its own."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from conftest import GOLDEN, LAB, SYSTEM
from fault_tools import child, on_forwards, snapshot, watch, wipe

# ---- capabilities ------------------------------------------------------------------------------------------------


@dataclass
class Capability:
    """One long command on tiny models, its output directory, and what an undisturbed run of it leaves."""

    name: str
    out: Path
    argv: list[str]
    clean: dict[str, Any] = field(default_factory=dict)
    events: int = 0  # file operations
    forwards: int = 0
    seconds: float = 0.0
    size: int = 0

    def measure(self) -> None:
        """The clean run, twice: once here for the imports, once in a child to count and time its file operations."""
        from vestige.cli import main

        compose_once()
        wipe(self.out)
        assert main(self.argv) == 0
        wipe(self.out)
        count = self.out.parent / f"{self.name}.count"
        start = time.monotonic()
        ended = child(self.argv, lambda: _count(self.out, count))
        self.seconds = time.monotonic() - start
        assert ended.status == 0, ended.text
        self.events, self.forwards = (int(f.read_text()) for f in (count, count.with_suffix(".forwards")))
        self.clean = snapshot(self.out)
        self.size = sum(p.stat().st_size for p in self.out.rglob("*") if p.is_file())


@functools.cache
def compose_once() -> None:
    """Children find the configuration of their command composed: half their time, and no fault strikes there."""

    def remembered(real: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[str, Any] = {}

        def call(*args: Any, **more: Any) -> Any:
            key = repr((args, more))
            if key not in known:
                known[key] = copy.deepcopy(real(*args, **more))
            return copy.deepcopy(known[key])  # the caller fills in what is open

        return call

    modules = ("engine.config", "depth.ask", "collapse.run")
    for name in modules:
        module: Any = importlib.import_module(f"vestige.{name}")
        module.compose_config = remembered(module.compose_config)


def _count(out: Path, file: Path) -> None:
    watch(out, lambda n, *_: file.write_text(str(n)) and None)
    on_forwards(lambda n: file.with_suffix(".forwards").write_text(str(n)) and None)


def capabilities(base: Path, names: Sequence[str] = ()) -> list[Capability]:
    """Every long command, small. Each has a directory of its own, which is wiped between faults."""
    base.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], list[str]]] = {
        "eval": _eval, "trajectory": _trajectory, "depth": _depth, "collapse": _collapse, "sweep": sweep_args,
        "stress": _stress,
    }  # fmt: skip
    return [
        Capability(name, base / name / "out", make(base / name))
        for name, make in makers.items()
        if not names or name in names
    ]


def _lab(kind: str, out: Path, *more: str) -> list[str]:
    return ["--data", str(GOLDEN / kind / "data"), "--out", str(out / "out"), "--quiet", *more]


def _eval(place: Path) -> list[str]:
    metrics = "forget_Q_A_Prob,forget_Q_A_ROUGE,forget_quality,mia_gradnorm"
    logs = str(LAB / "expected" / "retain_noref" / "TOFU_EVAL.json")
    more = ["--metrics", metrics, "--limit", "3", "--batch-tokens", "150", "max_rows=2", "--retain-logs", logs]
    model = ["eval", "tofu", "--model", str(LAB / "models" / "unlearned"), "--system-prompt", SYSTEM]
    return [*model, *_lab("lab", place, *more)]


def _trajectory(place: Path) -> list[str]:
    kwargs = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    model = ["eval", "tofu_trajectory", "--model", str(GOLDEN / "lab_diffusion" / "models" / "npo")]
    return [*model, *_lab("lab_diffusion", place, "--limit", "2", f"{kwargs}.steps=4", f"{kwargs}.max_new_tokens=8")]


def _depth(place: Path) -> list[str]:
    models = LAB / "models"
    more = [
        "--full",
        str(models / "full"),
        "--retain-model",
        str(models / "retain"),
        "--limit",
        "4",
        "--batch-size",
        "2",
    ]
    both = ["--unlearned", str(models / "unlearned"), str(models / "full"), "--quiet"]
    return ["depth", *more, *both, "--forget", str(LAB / "data" / "forget.jsonl"), "--out", str(place / "out")]


def _collapse(place: Path) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "messages": [{"role": "user", "content": f"State {p}"}],
            "response": f"<think>I see state {p} so {'go' if s else 'wait'}.</think>Up",
            "group_id": p,
            "step": step,
        }
        for step in (1, 2)
        for p in range(3)
        for s in range(2)
    ]
    file = place / "rollouts.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    tiny = str(GOLDEN / "collapse" / "tiny")
    return ["collapse", str(file), "--model", tiny, "--out", str(place / "out"), "--resamples", "20", "--quiet"]


def sweep_args(place: Path, slots: int = 0) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    models = {name: str(LAB / "models" / name) for name in ("full", "retain")}
    suite = {"data": str(LAB / "data"), "metrics": ["forget_Q_A_Prob"], "limit": 2, "overrides": ["stats.resamples=0"]}
    body = {
        "out": str(place / "out"),
        "retain": "retain",
        "models": models,
        "suites": {"tofu": suite},
        "retries": 1,
        "free_space": 0,
    }
    (place / "plan.yaml").write_text(yaml.safe_dump({**body, "slots": slots}))
    return ["sweep", str(place / "plan.yaml")]


def _stress(place: Path) -> list[str]:
    more = ["--metrics", "forget_Q_A_Prob", "--limit", "2", "--out", str(place / "out")]
    return ["stress", "jailbreak", "--model", str(LAB / "models" / "full"), "--data", str(LAB / "data"), *more]
