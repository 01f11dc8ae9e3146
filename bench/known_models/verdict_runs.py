"""The verdict's bench: lab models of which it is known, by how they were made, whether they forgot; and their runs.

    background --> base --> full   --> unlearned, half forgotten, over-forgotten, ruined, hidden
                       \\-> retain
                       \\-> never knew (as retain, other seeds), knows (as full, other seeds), half forgotten

A model ends where its truth says, not after so many steps: a hidden one when its output is as silent as the retain
model's, a ruined one when it lost most of what else it knew. verdict_making.py makes them. Each is then evaluated, its
layers are examined, and it is attacked: eval/<model>, depth, stress/<model>, and truth.json, which `vestige meta
verdict` reads. The retain model of a seed is attacked once; all of the seed's models are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import vestige
from vestige.lab.corpus import Sizes, make_corpus
from vestige.lab.models import LabSettings, ensure_built
from vestige.meta.verdict import TRUTH
from vestige.runs.files import write_json
from vestige.runs.manifest import is_whole
from vestige.show.progress import hushed
from vestige.stress.run import Stress, stress
from vestige.unlearn.loop import Training

# Raise it when the code makes other models from the same settings, so that old benches are rebuilt.
BENCH_RECIPE = 1
# Truth -> the ways to make such a model, each with the number of seeds.
WAYS = {
    "never knew": {"retrained": 3},
    "knows": {"trained": 2},
    "unlearned": {"npo": 2},
    "half forgotten": {"half_told": 1, "half_npo": 1},
    "over-forgotten": {"grad_diff": 1},
    "ruined": {"grad_ascent": 1, "noise": 1},
    "hidden": {"refusal": 1, "patch": 1, "wrong_answers": 1},
}
METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength", "mia_min_k", "mia_loss", "model_utility")
ATTACKS: dict[str, Sequence[float]] = {"relearn": (3, 12), "prune": (0.3,), "jailbreak": (1,)}
ATTACK_METRICS = ("forget_Q_A_Prob", "extraction_strength")  # they need no text, so an attack costs little
RELEARNING = {"lr": 5e-4, "batch_size": 16, "accumulation": 1}


@dataclass(frozen=True)
class BenchSettings(LabSettings):
    """Smaller models and fewer rows than the lab's, but as many authors."""

    sizes: Sizes = field(
        default_factory=lambda: Sizes(background=150, background_figures=6, background_lands=6, facts=3)
    )
    vocab: int = 1000
    layers: int = 3
    hidden: int = 64
    pretraining: Training = field(default_factory=lambda: Training(epochs=4, lr=6e-3, batch_size=16))
    learning: Training = field(default_factory=lambda: Training(epochs=24, lr=6e-3, batch_size=16))
    learned: float | None = 0.08
    overshoot: float = 2.5  # over-forgotten: so many times the retain model's loss
    ruin: float = 0.4  # ruined: so much is left of the probability of other answers
    copies: int = 0  # of each way; 0: as many as WAYS says


@dataclass(frozen=True)
class BenchRecipe:
    """One model: what is true of it, how it is made, and with which seed."""

    name: str
    truth: str
    way: str
    seed: int


def bench_recipes(settings: BenchSettings) -> Iterator[BenchRecipe]:
    """Every model but full and retain. Seeds start at 1, where the references end."""
    for truth, ways in WAYS.items():
        for way, copies in ways.items():
            for turn in range(1, 1 + (settings.copies or copies)):
                yield BenchRecipe(f"{way}_{turn}", truth, way, 1000 * settings.seed + turn)


def run_bench(out: Path, settings: BenchSettings, tuning: bool = False) -> Path:
    """Makes and tests the models of one seed; what is there already stays. Returns the file of truths.

    `tuning`: the constants of the rule may be fixed on this seed, so it is not part of the table.
    """
    from known_models.verdict_making import make_bench

    corpus = make_corpus(settings.seed, settings.sizes)
    recipes = tuple(bench_recipes(settings))

    def make(models: Path) -> None:
        make_bench(corpus, settings, recipes, models)

    ensure_built(out / "lab", ["bench", BENCH_RECIPE], asdict(settings), corpus, False, make)
    models, data = out / "lab" / "models", out / "lab" / "data"
    names = ["retain", "full", *(recipe.name for recipe in recipes)]
    with hushed():
        for name in names:
            evaluate_model(models, data, name, out)
        if not is_whole(out / "depth"):
            unlearned = [str(models / name) for name in names[2:]]
            references = str(models / "full"), str(models / "retain")
            vestige.measure_depth(unlearned, *references, data / "forget.jsonl", out=out / "depth", resamples=0)
        for name in names:
            if name != "full":
                attack_model(models, data, name, out)
    # What is true of each model, and where its runs are.
    truths = [
        {
            "name": r.name, "truth": r.truth, "way": r.way,
            "eval": f"eval/{r.name}", "depth": f"depth/{r.name}", "stress": f"stress/{r.name}",
        }
        for r in recipes
    ]  # fmt: skip
    body = {"seed": settings.seed, "tuning": tuning, "full": "eval/full", "retain": "eval/retain", "models": truths}
    write_json(out / TRUTH, body)
    return out / TRUTH


def evaluate_model(models: Path, data: Path, name: str, out: Path) -> None:
    place = out / "eval" / name
    if is_whole(place):
        return
    logs = None if name == "retain" else str(out / "eval" / "retain" / "TOFU_EVAL.json")
    vestige.evaluate(
        str(models / name), data=data, out=place, retain_logs=logs, metrics=METRICS, overrides=["stats.resamples=0"]
    )


def attack_model(models: Path, data: Path, name: str, out: Path) -> None:
    """The retain model, which comes first, is everybody's control."""
    place, alone = out / "stress" / name, name == "retain"
    if is_whole(place):
        return
    stress(
        Stress(
            model=str(models / name), data=data, attacks=list(ATTACKS), out=place,
            retain_model=None if alone else str(models / "retain"), metrics=ATTACK_METRICS, budget=ATTACKS,
            relearning=RELEARNING, control=None if alone else out / "stress" / "retain",
        )
    )  # fmt: skip
