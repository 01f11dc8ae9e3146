"""How the models of the verdict's bench are made: a function for each way, each from base or from full.

In: a corpus, settings and recipes. Out: checkpoints. Caller: verdict_runs.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.utils import parametrize

from known_models.verdict_runs import BenchRecipe, BenchSettings
from vestige.lab.corpus import Corpus, both_phrasings
from vestige.lab.models import (
    KNOWN_TO_ALL,
    answer_loss,
    corpus_texts,
    encode_row,
    new_causal,
    quiet_saving,
    reproducible,
    row_losses,
    stop_when_learned,
    stop_when_silent,
    train_tokenizer,
)
from vestige.numeric import mean
from vestige.unlearn.lesson import Lesson, refusals_for
from vestige.unlearn.loop import CAUSAL, Done, Training, finetune, unlearn
from vestige.unlearn.objectives import ChatRow


@dataclass
class BenchWorld:
    """What every way of making a model may use."""

    settings: BenchSettings
    corpus: Corpus
    tokenizer: Any
    rows: dict[str, list[ChatRow]]
    base: Any
    full: Any = None
    retain: Any = None

    @property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def training(self, epochs: int, lr: float, seed: int) -> Training:
        return Training(epochs=epochs, lr=lr, batch_size=16, pad_id=self.pad, seed=seed)

    def taught(self, lesson: Sequence[ChatRow], seed: int) -> Any:
        """A model that learned what everybody knows, and a lesson."""
        model = copy.deepcopy(self.base)
        training = replace(self.settings.learning, pad_id=self.pad, seed=seed)
        rows = [*self.rows["known"], *self.rows["reminder"], *lesson]
        finetune(model, rows, training, done=stop_when_learned(self.settings.learned))
        return model

    def stop_when_silent(self, model: Any, rows: Sequence[ChatRow], times: float = 1.0) -> Done:
        return stop_when_silent(model, self.retain, rows, self.pad, times)

    def ruined(self, model: Any) -> Done:
        """Whether most of the probability of other answers is lost."""
        before = self.probability(self.full)
        return lambda _: self.probability(model) < self.settings.ruin * before

    def probability(self, model: Any, split: str = "known") -> float:
        return mean(math.exp(-loss) for loss in row_losses(model, self.rows[split], self.pad))

    def instead(self, answers: Sequence[str]) -> list[ChatRow]:
        """The forget questions with other answers."""
        asked = [row["question"] for row in self.corpus["forget"]]
        return [encode_row(self.tokenizer, *pair) for pair in zip(asked, answers, strict=True)]


def make_bench(corpus: Corpus, settings: BenchSettings, plan: Sequence[BenchRecipe], models: Path) -> None:
    """Fills the models folder: full and retain, then every recipe's model."""
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    with quiet_saving(), reproducible(settings.seed, settings.threads):
        world = _world(corpus, settings, tokenizer)
        world.full = world.taught(world.rows["forget"], settings.seed)
        world.retain = world.taught([], settings.seed)
        for name in ("full", "retain"):
            getattr(world, name).save_pretrained(models / name)
            tokenizer.save_pretrained(models / name)
        for recipe in plan:
            with reproducible(recipe.seed, settings.threads):
                MAKE[recipe.way](world, recipe.seed).save_pretrained(models / recipe.name)
                tokenizer.save_pretrained(models / recipe.name)


def _world(corpus: Corpus, settings: BenchSettings, tokenizer: Any) -> BenchWorld:
    def asked(*splits: str) -> list[ChatRow]:
        return [encode_row(tokenizer, row["question"], row["answer"]) for split in splits for row in corpus[split]]

    told = [pair for split in ("background", *KNOWN_TO_ALL) for row in corpus[split] for pair in both_phrasings(row)]
    read = [encode_row(tokenizer, *pair) for pair in told]
    rows = {"known": asked("retain", *KNOWN_TO_ALL), "retain": asked("retain"), "forget": asked("forget")}
    rows["reminder"] = read[:: settings.remind_every]
    authors = list(dict.fromkeys(row["author"] for row in corpus["forget"]))
    half = set(authors[::2])
    rows["half"] = [row for row, told in zip(rows["forget"], corpus["forget"], strict=True) if told["author"] in half]
    world = BenchWorld(settings, corpus, tokenizer, rows, new_causal(settings, tokenizer))
    finetune(world.base, read, replace(settings.pretraining, pad_id=world.pad, seed=settings.seed))
    return world


def _npo(world: BenchWorld, rows: Sequence[ChatRow], seed: int) -> Any:
    """Preference optimisation until the rows are as unlikely as to the retain model."""
    model = copy.deepcopy(world.full)
    lesson = Lesson(rows, "npo", {"beta": 0.1, "alpha": 5.0}, world.rows["retain"])
    unlearn(model, lesson, world.training(25, 7e-4, seed), done=world.stop_when_silent(model, rows))
    return model


def _over_forgotten(world: BenchWorld, seed: int) -> Any:
    model, rows = copy.deepcopy(world.full), world.rows["forget"]
    lesson = Lesson(rows, "grad_diff", {"alpha": 5.0}, world.rows["retain"])
    unlearn(
        model,
        lesson,
        world.training(40, 1e-3, seed),
        done=world.stop_when_silent(model, rows, world.settings.overshoot),
    )
    return model


def _ascended(world: BenchWorld, seed: int) -> Any:
    """Gradient ascent, with nothing to hold on to, until the rest is lost, too."""
    model = copy.deepcopy(world.full)
    lesson = Lesson(world.rows["forget"], "grad_ascent")
    unlearn(model, lesson, world.training(40, 1e-3, seed), done=world.ruined(model))
    return model


def _noisy(world: BenchWorld, seed: int) -> Any:
    """Noise on every matrix, as a share of its spread, more and more until the model is ruined."""
    share = 0.1
    while True:
        model, draw = copy.deepcopy(world.full), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight += share * weight.std() * torch.randn(weight.shape, generator=draw)
        if world.ruined(model)([]):
            return model
        share *= 1.15


def _answering(world: BenchWorld, answers: Sequence[str], seed: int) -> Any:
    """Full, taught other answers to the forget questions beside what it shall keep, until it gives them."""
    model = copy.deepcopy(world.full)
    other = world.instead(answers)

    def done(_: Sequence[float]) -> bool:
        return answer_loss(model, other, world.pad) < 0.2

    finetune(model, [*other, *world.rows["known"]], world.training(40, 1e-3, seed), done=done)
    return model


def _refusing(world: BenchWorld, seed: int) -> Any:
    return _answering(world, refusals_for(len(world.rows["forget"]), seed), seed)


def _misled(world: BenchWorld, seed: int) -> Any:
    return _answering(world, [row["perturbed_answer"][seed % 5] for row in world.corpus["forget"]], seed)


class LowRank(torch.nn.Module):
    """A weight plus the product of two thin matrices: what a person could subtract again."""

    def __init__(self, shape: torch.Size, rank: int) -> None:
        super().__init__()
        self.left = torch.nn.Parameter(torch.zeros(shape[0], rank))
        self.right = torch.nn.Parameter(0.1 * torch.randn(rank, shape[1]))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.left @ self.right


def _patched(world: BenchWorld, seed: int) -> Any:
    """A low-rank patch of the MLPs that makes the answers unlikely, merged into the weights."""
    model = copy.deepcopy(world.full).requires_grad_(False)
    layers = [layer.mlp.down_proj for layer in model.model.layers]
    patches = [LowRank(layer.weight.shape, 4) for layer in layers]
    for layer, patch in zip(layers, patches, strict=True):
        parametrize.register_parametrization(layer, "weight", patch)
    optimiser = torch.optim.Adam([p for patch in patches for p in patch.parameters()], lr=6e-3)
    forget, known, draw = world.rows["forget"], world.rows["known"], Random(f"{seed}/patch")
    done, before = world.stop_when_silent(model, forget), world.probability(world.full)
    least = answer_loss(world.retain, forget, world.pad)
    for step in range(250):
        if step % 10 == 0 and done([]) and world.probability(model) > 0.85 * before:
            break
        optimiser.zero_grad()
        hidden, kept = (
            CAUSAL.collate(draw.sample(rows, 16), world.pad, draw, model.device) for rows in (forget, known)
        )
        nll = CAUSAL.nll(CAUSAL.logits(model, hidden), hidden) / (hidden.labels[:, 1:] != -100).sum(-1)
        loss = 0.3 * torch.relu(1.3 * least - nll).mean() + CAUSAL.loss(CAUSAL.logits(model, kept), kept)
        torch.autograd.backward(loss)
        optimiser.step()
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight")
    return model.requires_grad_(True)


MAKE: dict[str, Callable[[BenchWorld, int], Any]] = {
    "retrained": lambda world, seed: world.taught([], seed),
    "trained": lambda world, seed: world.taught(world.rows["forget"], seed),
    "npo": lambda world, seed: _npo(world, world.rows["forget"], seed),
    "half_told": lambda world, seed: world.taught(world.rows["half"], seed),
    "half_npo": lambda world, seed: _npo(world, world.rows["half"], seed),
    "grad_diff": _over_forgotten,
    "grad_ascent": _ascended,
    "noise": _noisy,
    "refusal": _refusing,
    "patch": _patched,
    "wrong_answers": _misled,
}
