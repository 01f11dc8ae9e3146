"""Every test on every model of the verdict's bench: evaluation, layers, attacks that teach and attacks that do not.

    build_bench --> eval/<model>, depth, stress/<model>, and truth.json, which `vestige meta verdict` reads

The retain model of a seed is attacked once; all of the seed's models are held against it. In: settings and a directory.
Out: finished runs. Callers: bench/demo_meta.py, bench/verdict_bench.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from known_models.verdict_models import BenchLab, BenchSettings, build_bench
from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.engine.config import RunConfig, make_config
from vestige.engine.evaluate import evaluate_config
from vestige.meta.verdict import TRUTH
from vestige.runs.files import write_json
from vestige.runs.manifest import is_whole
from vestige.show.progress import hushed
from vestige.stress.run import Stress, stress

METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength", "mia_min_k", "mia_loss", "model_utility")
ATTACKS: dict[str, Sequence[float]] = {"relearn": (3, 12), "prune": (0.3,), "jailbreak": (1,)}
ATTACK_METRICS = ("forget_Q_A_Prob", "extraction_strength")  # they need no text, so an attack costs little
RELEARNING = {"lr": 5e-4, "batch_size": 16, "accumulation": 1}


def run_bench(out: Path, settings: BenchSettings, tuning: bool = False) -> Path:
    """Makes and tests the models of one seed; what is there already stays. Returns the file of truths.

    `tuning`: the constants of the rule may be fixed on this seed, so it is not part of the table.
    """
    lab = build_bench(out / "lab", settings)
    names = ["retain", "full", *(recipe.name for recipe in lab.recipes)]
    with hushed():
        for name in names:
            _evaluate(lab, name, out)
        _look_into_layers(lab, names[2:], out)
        for name in names:
            if name != "full":
                _attack(lab, name, out)
    write_json(out / TRUTH, truths(lab, settings.seed, tuning))
    return out / TRUTH


def truths(lab: BenchLab, seed: int, tuning: bool) -> dict[str, Any]:
    """What is true of each model, and where its runs are, as `vestige meta verdict` reads it."""
    models = [
        {
            "name": r.name,
            "truth": r.truth,
            "way": r.way,
            "eval": f"eval/{r.name}",
            "depth": f"depth/{r.name}",
            "stress": f"stress/{r.name}",
        }
        for r in lab.recipes
    ]
    return {"seed": seed, "tuning": tuning, "full": "eval/full", "retain": "eval/retain", "models": models}


def _evaluate(lab: BenchLab, name: str, out: Path) -> None:
    place = out / "eval" / name
    if is_whole(place):
        return
    logs = None if name == "retain" else str(out / "eval" / "retain" / "TOFU_EVAL.json")
    ask = {
        "model": str(lab.model(name)),
        "data": str(lab.data),
        "out": str(place),
        "retain_logs": logs,
        "metrics": list(METRICS),
        "progress": False,
    }
    run = make_config(**ask)
    assert isinstance(run, RunConfig)
    evaluate_config(replace(run, resamples=0))


def _look_into_layers(lab: BenchLab, names: Sequence[str], out: Path) -> None:
    if is_whole(out / "depth"):
        return
    depth_run(
        make_ask(
            unlearned=[str(lab.model(name)) for name in names],
            full=str(lab.model("full")),
            retain=str(lab.model("retain")),
            data=lab.data / "forget.jsonl",
            out=out / "depth",
            progress=False,
            resamples=0,
        )
    )


def _attack(lab: BenchLab, name: str, out: Path) -> None:
    """The retain model, which comes first, is everybody's control."""
    place, alone = out / "stress" / name, name == "retain"
    if is_whole(place):
        return
    stress(
        Stress(
            model=str(lab.model(name)),
            data=lab.data,
            attacks=list(ATTACKS),
            out=place,
            retain_model=None if alone else str(lab.model("retain")),
            metrics=ATTACK_METRICS,
            budget=ATTACKS,
            relearning=RELEARNING,
            control=None if alone else out / "stress" / "retain",
        )
    )
