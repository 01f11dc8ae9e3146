"""The files that bench/demo_meta.py writes and reads: sweep plans, and the three pool files of `vestige meta`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from known_models.pools import PoolLab
from vestige.io import write_file
from vestige.stress.attacks import OURS

# Everything the published tables have of outputs, by their short names; utility and fluency serve the axes.
OUTPUTS = (
    "em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge",
    "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp",
)  # fmt: skip
METRICS = (*OUTPUTS, "model_utility", "forget_Q_A_gibberish")
# What the bench judges; parents of metrics (the probability of wrong answers) are in the runs, too.
JUDGED = (*OUTPUTS, *(f"s_{name}" for name in OUTPUTS if name.startswith("mia_")), "uds")
DIALECT = "depth-score"  # the short names' own definitions
# Relearning as the lab needs it: the published rate is for models a thousand times as large.
RELEARN = {"lr": 5e-4, "batch_size": 8, "accumulation": 1}
STEPS = 8  # two passes over the forget rows
CURVE_STEPS = (2, 4, 16)  # the recovery curve's other budgets


def evaluation(lab: PoolLab, metrics: Sequence[str] = METRICS) -> dict[str, Any]:
    """The suite of output metrics. Intervals over rows are left out: the bench has its own, over models."""
    overrides = ["stats.resamples=0"]
    if "forget_Q_A_gibberish" in metrics:
        key = "+eval.tofu.metrics.forget_Q_A_gibberish.classifier_model_args.pretrained_model_name_or_path"
        judge = str(lab.judge.absolute()).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
        overrides.append(f"{key}='{judge}'")
    return {"data": str(lab.data), "metrics": list(metrics), "dialect": DIALECT, "overrides": overrides}


def _plan(lab: PoolLab, out: Path, names: Iterable[str], suites: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    places = lab.models()
    body = {"out": str(out), "retain": "retain", "models": {n: str(places[n]) for n in names}, "suites": dict(suites)}
    return {**body, "threads": 1, "free_space": "200 MB", **more}


def plans(lab: PoolLab, out: Path) -> dict[str, dict[str, Any]]:
    """Three sweeps: the pools as they are, the unlearned models with both attacks, and the recovery curve."""
    forget = str(lab.data / "forget.jsonl")
    depth = {"full": str(lab.models()["full"]), "data": forget, "resamples": 0}
    suites = {"tofu": evaluation(lab), "depth": depth}
    unlearned = list(lab.models("unlearned"))
    attacks = {"relearn": {**RELEARN, "steps": STEPS}, "quantise": {"bits": 4}}
    budgets = {f"relearn-{n}": {"attack": "relearn", **RELEARN, "steps": n} for n in CURVE_STEPS}
    prob = {"tofu": evaluation(lab, ["prob"])}
    return {
        "pools": _plan(lab, out / "pools", ["full", "retain", *lab.models("P", "N")], suites),
        "attacks": _plan(lab, out / "attacks", ["retain", *unlearned], suites, attacks=attacks),
        "curve": _plan(lab, out / "curve", ["retain", *thorough(unlearned)], prob, attacks=budgets),
    }


def thorough(unlearned: Sequence[str]) -> list[str]:
    """The last setting of each method: those whose return is worth a curve."""
    last = {name.rsplit("_", 1)[0]: name for name in unlearned if name.rsplit("_", 1)[1].isdigit()}
    return list(last.values())


def runs_of(folder: str, model: str, attack: str | None = None) -> list[str]:
    """A model's two runs, relative to the pool files."""
    name = model if attack is None else f"{model}+{attack}"
    return [f"{folder}/runs/{suite}/{name}" for suite in ("tofu", "depth")]


def pool_files(lab: PoolLab) -> dict[str, dict[str, Any]]:
    """What `vestige meta` reads: faithfulness, axes, robustness."""

    def listed(folder: str, *pools: str) -> list[dict[str, Any]]:
        return [{"model": name, "run": runs_of(folder, name)} for name in lab.models(*pools)]

    after = {name: record.state for name, record in OURS.items() if record.state}

    def states(name: str) -> dict[str, Any]:
        return {"before": runs_of("attacks", name)} | {
            state: runs_of("attacks", name, attack) for attack, state in after.items()
        }

    methods = {r.name: r.unlearning.method for r in lab.recipes if r.unlearning is not None}
    return {
        "pools.yaml": {
            "retain": runs_of("pools", "retain"),
            "positive": listed("pools", "P"),
            "negative": listed("pools", "N"),
        },
        "methods.yaml": {
            "retain": runs_of("pools", "retain"),
            "full": runs_of("pools", "full"),
            "models": [{**entry, "method": methods[entry["model"]]} for entry in listed("attacks", "unlearned")],
        },
        "robustness.yaml": {
            "retain": states("retain"),
            "models": [{"model": name, **states(name)} for name in lab.models("unlearned")],
        },
    }


def write_yaml(path: Path, body: Mapping[str, Any]) -> Path:
    """The same body, the same bytes; a file that is already so is left alone."""
    import yaml

    text = yaml.safe_dump(dict(body), sort_keys=False, width=120).encode()
    if not path.is_file() or path.read_bytes() != text:
        write_file(path, text)
    return path


def processes(asked: int | None) -> int:
    """As many as asked for; else two, or one where there is one core."""
    return asked if asked is not None else min(2, os.cpu_count() or 1)
