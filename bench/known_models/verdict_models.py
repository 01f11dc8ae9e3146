"""The verdict's bench: lab models of which it is known, by how they were made, whether they forgot.

    background --> base --> full   --> unlearned, half forgotten, over-forgotten, ruined, hidden
                       \\-> retain
                       \\-> never knew (as retain, other seeds), knows (as full, other seeds), half forgotten

A model ends where its truth says, not after so many steps: a hidden one when its output is as silent as the retain
model's, a ruined one when it lost most of what else it knew. In: settings and a seed. Out: a lab with a list of models
and their truths. Callers: verdict_runs.py, verdict_making.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vestige.lab.corpus import Sizes, make_corpus
from vestige.lab.models import LabSettings, ensure_built
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


def _sizes() -> Sizes:
    return Sizes(background=150, background_figures=6, background_lands=6, facts=3)


@dataclass(frozen=True)
class BenchSettings(LabSettings):
    """Smaller models and fewer rows than the lab's, but as many authors."""

    sizes: Sizes = field(default_factory=_sizes)
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


@dataclass(frozen=True)
class BenchLab:
    """Where things are: JSONL splits in `data`, a checkpoint for each name."""

    root: Path
    data: Path
    recipes: tuple[BenchRecipe, ...]

    def model(self, name: str) -> Path:
        return self.root / "models" / name


def build_bench(directory: Path, settings: BenchSettings) -> BenchLab:
    """Makes the models of one seed, or returns at once if they are there."""
    from known_models.verdict_making import make_bench

    corpus = make_corpus(settings.seed, settings.sizes)
    plan = tuple(bench_recipes(settings))

    def make(models: Path) -> None:
        make_bench(corpus, settings, plan, models)

    ensure_built(directory, ["bench", BENCH_RECIPE], asdict(settings), corpus, False, make)
    return BenchLab(directory, directory / "data", plan)


def bench_recipes(settings: BenchSettings) -> Iterator[BenchRecipe]:
    """Every model but full and retain. Seeds start at 1, where the references end."""
    for truth, ways in WAYS.items():
        for way, copies in ways.items():
            for turn in range(1, 1 + (settings.copies or copies)):
                yield BenchRecipe(f"{way}_{turn}", truth, way, 1000 * settings.seed + turn)
