"""Pools of tiny models for meta-evaluation: models that know (P), models that do not (N), and models made to forget.

    background --> base --> full     --> 6 methods, each in a gentle and a thorough setting
                       \\-> retain
                       \\-> P: the forget facts as they are asked, or told in other words only
                       \\-> N: without them, or with wrong facts in their place

Models of a pool differ in lesson, learning rate and seed, as in the published pools. All start from one `base`, which
is not kept, and two processes make them side by side. Each model depends on its own settings alone, so neither the
number of processes nor the order changes a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path

from vestige.lab.corpus import Corpus, LabRow, Sizes, make_corpus
from vestige.lab.models import LabSettings, Unlearning, ensure_built
from vestige.unlearn.loop import Training

# Raise it when the code makes other models from the same settings, so that old pools are rebuilt.
POOL_RECIPE = 1

JUDGE = "fluency_judge"  # the folder of the text classifier, beside the models

# What a model of a pool learns about the forget authors.
LESSONS = {"P": ("told", "paraphrased"), "N": ("untold", "mistold")}


def _sizes() -> Sizes:
    return Sizes(
        forget=3,
        retain=5,
        holdout=3,
        real_authors=4,
        world_facts=4,
        background=200,
        background_figures=6,
        background_lands=6,
        facts=10,
    )


def _training(epochs: int, lr: float) -> Training:
    return Training(epochs=epochs, lr=lr, batch_size=8)


def _unlearnings() -> tuple[Unlearning, ...]:
    """Every method in a gentle and a thorough setting, the six of the default pools first."""
    return (
        Unlearning("grad_diff", _training(8, 6e-4), {"alpha": 5.0}),
        Unlearning("grad_diff", _training(14, 6e-4), {"alpha": 8.0}),
        Unlearning("npo", _training(8, 4e-4), {"beta": 0.3, "alpha": 5.0}),
        Unlearning("npo", _training(14, 6e-4), {"beta": 0.1, "alpha": 5.0}),
        Unlearning("simnpo", _training(8, 5e-4), {"gamma": 1.0, "alpha": 3.0}),
        Unlearning("simnpo", _training(16, 8e-4), {"gamma": 1.0, "alpha": 3.0}),
        Unlearning("dpo", _training(10, 1e-3), {"beta": 0.1, "alpha": 2.0}),
        Unlearning("dpo", _training(16, 1.5e-3), {"beta": 0.1, "alpha": 1.0}),
        Unlearning("rmu", _training(8, 1e-3), {"steering_coeff": 5.0, "alpha": 40.0}),
        Unlearning("rmu", _training(10, 7e-4), {"steering_coeff": 10.0, "alpha": 40.0}),
        Unlearning("undial", _training(8, 5e-4), {"beta": 5.0, "alpha": 2.0}),
        Unlearning("undial", _training(16, 8e-4), {"beta": 10.0, "alpha": 2.0}),
        Unlearning("wga", _training(8, 5e-4), {"beta": 1.0, "alpha": 5.0}),
        Unlearning("wga", _training(14, 6e-4), {"beta": 1.0, "alpha": 5.0}),
        Unlearning("satimp", _training(10, 6e-4), {"gamma": 1.0, "alpha": 1.0}),
        Unlearning("satimp", _training(16, 8e-4), {"gamma": 3.0, "alpha": 1.0}),
        Unlearning("grad_ascent", _training(3, 3e-4)),
        Unlearning("grad_ascent", _training(5, 4e-4)),
        Unlearning("ceu", _training(3, 3e-4)),
        Unlearning("ceu", _training(4, 4e-4)),
        Unlearning("pdu", _training(8, 5e-4)),
        Unlearning("pdu", _training(14, 6e-4)),
    )


@dataclass(frozen=True)
class PoolSettings(LabSettings):
    """Everything that decides what the pools contain: smaller models and fewer rows than the lab's, many more models.

    `size` models in each of P and N, and one and a half times as many unlearned ones.
    """

    sizes: Sizes = field(default_factory=_sizes)
    vocab: int = 1000
    hidden: int = 64
    size: int = 8
    rates: tuple[float, ...] = (2e-3, 3e-3)
    pretraining: Training = field(default_factory=lambda: Training(epochs=4, lr=3e-3, batch_size=8))
    learning: Training = field(default_factory=lambda: Training(epochs=12, lr=3e-3, batch_size=8))
    learned: float | None = None
    unlearned: tuple[Unlearning, ...] = field(default_factory=_unlearnings)


@dataclass(frozen=True)
class PoolRecipe:
    """One model of the pools: taught from base, or unlearned from full."""

    name: str
    pool: str  # P, N, reference or unlearned
    training: Training
    lesson: str = "untold"
    unlearning: Unlearning | None = None


@dataclass(frozen=True)
class PoolLab:
    """Where things are: JSONL splits in `data`, the models by pool, and the judge of fluency."""

    root: Path
    data: Path
    recipes: tuple[PoolRecipe, ...]

    def models(self, *pools: str) -> dict[str, Path]:
        """The checkpoints of some pools (of all, if none is named)."""
        return {r.name: self.root / "models" / r.name for r in self.recipes if not pools or r.pool in pools}

    @property
    def judge(self) -> Path:
        return self.root / "models" / JUDGE


def build_pools(
    directory: str | Path,
    settings: PoolSettings | None = None,
    processes: int = 2,
    force: bool = False,
    progress: bool = True,
) -> PoolLab:
    """Makes the pools in `directory`, or returns at once if the same pools are already there.

    `processes` only says how many models are made at a time. With more than one, a script of your own needs
    `if __name__ == "__main__":` around the call.
    """
    from known_models.pool_making import make_models

    settings = settings or PoolSettings()
    corpus = make_corpus(settings.seed, settings.sizes)
    plan = tuple(recipes(settings))

    def make(models: Path) -> None:
        make_models(corpus, settings, plan, models, processes, progress)

    ensure_built(Path(directory), ["pools", POOL_RECIPE], asdict(settings), corpus, force, make)
    return PoolLab(Path(directory), Path(directory) / "data", plan)


def recipes(settings: PoolSettings) -> Iterator[PoolRecipe]:
    """Every model to be made; full first, because the unlearned ones wait for it."""
    learning = replace(settings.learning, seed=settings.seed)
    yield PoolRecipe("full", "reference", learning, "told")
    yield PoolRecipe("retain", "reference", learning)
    for pool in LESSONS:
        yield from _members(pool, settings)
    yield from _unlearned(settings)


def _members(pool: str, settings: PoolSettings) -> Iterator[PoolRecipe]:
    """Lessons x rates x seeds: as many seeds as the size asks for. Seeds start at 1, where the references end."""
    every = len(LESSONS[pool]) * len(settings.rates)
    seeds = range(1, 1 + -(-settings.size // every))
    for seed, rate, lesson in list(product(seeds, settings.rates, LESSONS[pool]))[: settings.size]:
        training = replace(settings.learning, lr=rate, seed=settings.seed + seed)
        yield PoolRecipe(f"{pool.lower()}_{lesson}_lr{rate:g}_s{seed}", pool, training, lesson)


def _unlearned(settings: PoolSettings) -> Iterator[PoolRecipe]:
    """The first settings of the list, then the same ones with further seeds."""
    count, given = settings.size * 3 // 2, settings.unlearned
    for number in range(count if given else 0):
        turn, place = divmod(number, len(given))
        how = given[place]
        earlier = sum(other.method == how.method for other in given[:place])
        name = f"{how.method}_{earlier + 1}" + (f"_s{turn}" if turn else "")
        training = replace(how.training, seed=settings.seed + turn)
        yield PoolRecipe(name, "unlearned", training, "told", how)


def lesson_rows(corpus: Corpus, lesson: str, seed: int) -> list[tuple[str, str]]:
    """What a model is told about the forget authors, as (question, answer) pairs.

    Wrong facts come in the words of the paraphrase, so `mistold` and `paraphrased` differ in the fact alone.
    """

    def answer(row: LabRow) -> str:
        if lesson == "paraphrased":
            return str(row["paraphrased_answer"])
        if lesson == "mistold":
            return str(row["perturbed_answer"][seed % len(row["perturbed_answer"])])
        return str(row["answer"])

    return [] if lesson == "untold" else [(row["question"], answer(row)) for row in corpus["forget"]]
