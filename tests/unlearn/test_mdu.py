"""MDU, and training of the published diffusion families: asked as each wants to be, saved as each was published."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from vestige.cli import main
from vestige.models.load import LoadedModel, ModelArgs, load_model
from vestige.unlearn import losses
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import Training, finetune, unlearn
from vestige.unlearn.methods import METHODS, Step
from vestige.unlearn.objectives import ChatRow, MaskedDiffusion
from vestige.unlearn.recipe import Lora, TrainingRecipe
from vestige.unlearn.trainer import objective_of, train

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ["llada", "llada-gqa", "dream", "a2d-llama", "a2d-qwen2", "a2d-qwen3"]
DATA = GOLDEN / "lab" / "data"
FORGET = [ChatRow((10, 50, 60, 70, 71, 72), 2), ChatRow((11, 80, 90, 91), 2), ChatRow((12, 40, 100, 110, 111), 3)]
RETAIN = [ChatRow((13, 120, 130, 140), 2), ChatRow((14, 150, 160), 2)]


def load(family: str) -> LoadedModel:
    return load_model(ModelArgs(str(GOLDEN / "families" / family), device="cpu"))


def all_logits(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    assert loaded.diffusion is not None
    row = torch.tensor([ids])
    with torch.no_grad():
        return loaded.diffusion.logits(row, torch.ones_like(row, dtype=torch.bool), torch.arange(len(ids)))


def test_the_formula_by_hand() -> None:
    given, anchor = np.array([[0.3, -1.0, 2.0], [1.0, 0.0, -0.5]]), np.array([[0.1, 0.4, -0.2], [0.0, 2.0, 1.0]])

    def log_softmax(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    for eta, tau in ((0.0, 1.0), (0.5, 2.0), (1.0, 0.0)):
        goal = log_softmax(tau * (anchor - eta * (given - anchor)))
        ours = log_softmax(given)
        expected = (np.exp(ours) * (ours - goal)).sum(-1).mean() * 3.0 + 0.25 * 8.0
        got = losses.mdu(torch.tensor(given), torch.tensor(anchor), torch.tensor(8.0), eta, tau, gamma=3.0, alpha=0.25)
        assert float(got) == pytest.approx(expected, rel=1e-6)


def test_the_goal_is_a_constant_of_the_step() -> None:
    """With eta, the goal reads the model's own logits; no gradient may go through it."""
    given = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    anchor = torch.tensor([[0.1, 0.4, -0.2]], dtype=torch.float64)
    losses.mdu(given, anchor, torch.tensor(0.0), eta=0.7).backward()
    goal = (anchor - 0.7 * (given.detach() - anchor)).log_softmax(-1)
    ours = given.detach().log_softmax(-1)
    apart = ours - goal
    expected = ours.exp() * (apart - (ours.exp() * apart).sum(-1, keepdim=True))
    torch.testing.assert_close(given.grad, expected, atol=1e-7, rtol=1e-5)  # losses are computed in float32


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_unlearns_and_loads_again(family: str, tmp_path: Path) -> None:
    loaded = load(family)
    objective = objective_of(loaded)
    assert isinstance(objective, MaskedDiffusion)
    objective = replace(objective, window=6)
    history = finetune(loaded.model, FORGET + RETAIN, Training(epochs=25, lr=3e-3), objective=objective)
    assert np.mean(history[-4:]) < np.mean(history[:2]) / 2
    lesson = Lesson(FORGET, "MDU", {"alpha": 0.0}, RETAIN)
    start = copy.deepcopy(loaded.model)
    recipe = TrainingRecipe(epochs=40, lr=1e-3, batch_size=3, accumulation=1, warmup_epochs=0, weight_decay=0)
    train(loaded, lesson, tmp_path, recipe)
    # It answers as if the prompt had not been read.
    assert from_anchor(loaded.model, start, objective) < from_anchor(start, start, objective) / 2
    again = load_model(ModelArgs(str(tmp_path), device="cpu"))
    ids = list(range(20, 44))
    torch.testing.assert_close(all_logits(again, ids), all_logits(loaded, ids), atol=0, rtol=0)
    published = GOLDEN / "families" / family
    assert names(tmp_path) == names(published)
    assert config(tmp_path).keys() == config(published).keys()
    assert config(tmp_path)["architectures"] == config(published)["architectures"]


def from_anchor(model: Any, start: Any, objective: MaskedDiffusion) -> float:
    """The mean distance from what the starting model says without a prompt, on the same twenty batches each time."""
    noise, hiding, out = Random("fixed"), replace(objective, eps=0.5), []
    for _ in range(20):
        batch = hiding.collate(FORGET, 0, noise)
        with torch.no_grad():
            anchor = hiding.logits(start, hiding.without_prompt(batch))
            out.append(float(losses.mdu(hiding.logits(model, batch), anchor, torch.tensor(0.0))))
    return float(np.mean(out))


def names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_an_adapter_carries_the_published_names(family: str, tmp_path: Path) -> None:
    loaded = load(family)
    before = all_logits(loaded, list(range(20, 44)))
    recipe = TrainingRecipe(epochs=4, lr=1e-2, batch_size=3, accumulation=1, warmup_epochs=0, lora=Lora(rank=2))
    train(loaded, Lesson(FORGET, "MDU", {"alpha": 0.1}, RETAIN), tmp_path, recipe)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        modules = {name.removeprefix("base_model.model.").split(".lora_")[0] for name in file.keys()}  # noqa: SIM118
    published = {name.removesuffix(".weight") for name in names(GOLDEN / "families" / family)}
    assert modules and modules <= published
    again = load_model(ModelArgs(str(tmp_path), device="cpu"))
    trained = all_logits(replace(loaded, diffusion=replace(loaded.diffusion, model=loaded.model)), list(range(20, 44)))
    torch.testing.assert_close(all_logits(again, list(range(20, 44))), trained, atol=1e-6, rtol=1e-6)
    assert float((trained - before).abs().max()) > 1e-3


def test_the_anchor_is_the_starting_model_without_the_prompt() -> None:
    loaded = load("llada")
    objective = replace(objective_of(loaded), window=6, eps=0.5)  # type: ignore[type-var]
    batch = objective.collate(FORGET, 0, Random(1))
    start = copy.deepcopy(loaded.model)
    blind = objective.without_prompt(batch)
    with torch.no_grad():
        same = losses.mdu(objective.logits(start, batch), objective.logits(start, blind), torch.tensor(0.0))
    step = Step(loaded.model, batch, batch, start, objective)
    assert float(METHODS["mdu"].loss(step, alpha=0.0).detach()) == pytest.approx(float(same), rel=1e-6)
    lesson = Lesson(FORGET, "mdu", {"alpha": 0.0}, RETAIN)
    unlearn(loaded.model, lesson, Training(epochs=40, lr=1e-3), objective=objective)
    step = Step(loaded.model, batch, batch, start, objective)
    assert float(METHODS["mdu"].loss(step, alpha=0.0).detach()) < float(same)


def test_a_causal_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--model", str(GOLDEN / "lab" / "models" / "full"), "--forget", str(DATA / "forget.jsonl")]
    told += ["--retain", str(DATA / "retain.jsonl"), "--out", str(tmp_path / "out"), "--limit", "4"]
    assert main(["unlearn", "--method", "MDU", *told]) == 2
    assert "masked diffusion models" in capsys.readouterr().err
