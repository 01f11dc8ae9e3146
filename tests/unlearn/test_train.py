"""Training on the Trainer of transformers: every method forgets, runs repeat, files load, mistakes are one sentence."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import LAB, SYSTEM
from loops import one_test
from vestige.cli import main
from vestige.data.chat import Encoder, Template
from vestige.data.datasets import make_context
from vestige.data.rows import read_file
from vestige.errors import UserError
from vestige.models.load import LoadedModel, ModelArgs, load_model
from vestige.unlearn import losses
from vestige.unlearn.lesson import REFUSALS, Lesson, Pairs, read_training_rows
from vestige.unlearn.objectives import ChatRow, collate, logits_of
from vestige.unlearn.recipe import Lora, TrainingRecipe
from vestige.unlearn.trainer import TrainingWatch, train

DATA = LAB / "data"
UNSAVED = TrainingWatch(save=False)
QUICK = TrainingRecipe(epochs=3, lr=2e-3, batch_size=8, accumulation=1, warmup_epochs=0, weight_decay=0)


@pytest.fixture(scope="module")
def full() -> LoadedModel:
    return load_model(ModelArgs(str(LAB / "models" / "full"), device="cpu"))


@pytest.fixture
def model(full: LoadedModel) -> LoadedModel:
    return LoadedModel(**{**vars(full), "model": copy.deepcopy(full.model)})


def rows(name: str, loaded: LoadedModel, key: str = "answer", count: int = 16) -> list[ChatRow]:
    encoder = Encoder(loaded.tokenizer, Template(system_prompt=SYSTEM))
    pairs = [(row["question"], row[key]) for row in read_file(DATA / f"{name}.jsonl")[:count]]
    return [ChatRow(e.full, e.start) for e in encoder.encode(pairs)]


def probability(model: Any, some: list[ChatRow]) -> float:
    """The mean over rows of the probability of a token, as forget_Q_A_Prob has it."""
    batch = collate(some, 0)
    with torch.no_grad():
        nll = losses.sequence_nll(logits_of(model, batch), batch.labels)
    return float((-nll / (batch.labels != -100).sum(-1)).exp().mean())


def test_micro_batches_add_up(full: LoadedModel, tmp_path: Path) -> None:
    """Four equal rows at once or one after the other: the same mean, so the same step."""
    four = rows("forget", full, count=1) * 4
    ends = []
    for batch, accumulation in ((4, 1), (1, 4)):
        loaded = LoadedModel(**{**vars(full), "model": copy.deepcopy(full.model)})
        # SGD, for Adam's first step does not depend on the size of the gradient.
        extra = {"optim": "sgd", "max_grad_norm": 0.0}
        recipe = TrainingRecipe(
            epochs=1, lr=1e-1, batch_size=batch, accumulation=accumulation, warmup_epochs=0, extra=extra
        )
        train(loaded, Lesson(four, "GradAscent"), tmp_path, recipe, UNSAVED)
        ends.append(torch.cat([p.detach().flatten() for p in loaded.model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in full.model.parameters()])
    assert (ends[0] - start).norm() > 1e-4
    assert (ends[0] - ends[1]).norm() < 1e-2 * (ends[0] - start).norm()


@pytest.mark.processors
def test_lora_trains_an_adapter_and_spares_the_base(model: LoadedModel, full: LoadedModel, tmp_path: Path) -> None:
    forget, retain = rows("forget", model), rows("retain", model)
    recipe = TrainingRecipe(**{**vars(QUICK), "lora": Lora(rank=4, alpha=8), "lr": 1e-2})
    trained = train(model, Lesson(forget, "NPO", retain=retain), tmp_path, recipe)
    assert trained.losses[0] == pytest.approx(2 / 0.1 * math.log(2) + trained_retain(full, retain), rel=0.05)
    assert not (tmp_path / "model.safetensors").exists()
    again = load_model(ModelArgs(str(tmp_path), device="cpu"))
    assert probability(again.model, forget) < probability(full.model, forget) - 0.02
    with again.model.disable_adapter():
        assert probability(again.model, forget) == pytest.approx(probability(full.model, forget), rel=1e-5)


def trained_retain(loaded: LoadedModel, some: list[ChatRow]) -> float:
    batch = collate(some, 0)
    with torch.no_grad():
        return float(losses.cross_entropy(logits_of(loaded.model, batch), batch.labels))


def test_pairing_does_not_depend_on_the_order_of_reading() -> None:
    some = [ChatRow((i, i), 1) for i in range(8)]
    retain = [ChatRow((100 + i, 1), 1) for i in range(50)]
    lesson = Lesson(some, "NPO", retain=retain)
    forward, backward = Pairs(lesson, seed=3), Pairs(lesson, seed=3)
    first = [forward[i].retain for i in range(8)]
    assert first == [backward[i].retain for i in reversed(range(8))][::-1]
    assert [forward[i].retain for i in range(8)] != first  # the next epoch draws anew
    assert [Pairs(lesson, seed=4)[i].retain for i in range(8)] != first
    with pytest.raises(UserError, match="8 forget rows but 1"):
        Lesson(some, "DPO", retain=retain, alternates=some[:1]).check()


def test_alternate_answers(full: LoadedModel) -> None:
    context = make_context(full.tokenizer, Template(), "none", "count")
    reading: tuple[Any, ...] = (context, {}, 4, 0)
    args = {"hf_args": {"path": str(DATA / "forget.jsonl")}}
    idk = read_training_rows({"a": {"handler": "QAwithIdkDataset", "args": args}}, *reading)
    said = [full.tokenizer.decode(r.ids[r.start :], skip_special_tokens=True) for r in idk.alternates]
    assert len(said) == 4 and set(said) <= set(REFUSALS)
    assert all(a.ids[: a.start] == r.ids[: r.start] for a, r in zip(idk.alternates, idk.rows, strict=True))
    other = {"handler": "QAwithAlternateDataset", "args": {**args, "alternate_key": "perturbed_answer"}}
    [first, *_] = read_training_rows({"a": other}, *reading).alternates
    wrong = read_file(DATA / "forget.jsonl")[0]["perturbed_answer"][0]
    assert full.tokenizer.decode(first.ids[first.start :], skip_special_tokens=True) == wrong


def words(*more: str) -> list[str]:
    return ["--model", str(LAB / "models" / "full"), "--lr", "2e-3", "--accumulation", "1", "--limit", "16",
            "--system-prompt", SYSTEM, "--quiet", *more]  # fmt: skip


FILES = ("--forget", str(DATA / "forget.jsonl"), "--retain", str(DATA / "retain.jsonl"))


def test_overrides_in_open_unlearning_names(tmp_path: Path) -> None:
    local = f"{{locuslab/TOFU:{{path:{DATA},names:{{forget05:forget,retain95:retain}}}}}}"
    command = f"""unlearn trainer=GradDiff experiment=unlearn/tofu/default forget_split=forget05 retain_split=retain95
        task_name=X model=local model.model_args.pretrained_model_name_or_path={LAB / "models" / "full"}
        data.local={local} data.max_samples=8 trainer.args.num_train_epochs=1 trainer.method_args.alpha=2
        trainer.args.per_device_train_batch_size=4 trainer.args.gradient_accumulation_steps=1 progress=false
        paths.output_dir={tmp_path / "x"} trainer.method_args.retain_loss_type=KL"""
    assert main(command.split()) == 0
    record = json.loads((tmp_path / "x" / "training.json").read_text())
    assert record["settings"]["knobs"] == {"gamma": 1.0, "alpha": 2, "retain_loss_type": "KL"}
    assert len(record["losses"]) == 2 and record["data"]["retain"][0]["rows"] == 8


def test_no_adapter_on_an_adapter_but_a_merged_one_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, again = tmp_path / "adapter", tmp_path / "again"
    lesson = ("--epochs", "1", "--learn", FILES[1], "--learn", FILES[3])  # two files: all rows of both are taught
    assert main(["train", *words("--lora", "2", "--out", str(adapter)), *lesson]) == 0
    assert "32 train rows" in capsys.readouterr().out
    start = ["train", *words("--out", str(again)), *lesson, "--model", str(adapter)]
    assert main([*start, "--lora", "2"]) == 2
    assert "without --lora" in capsys.readouterr().err
    assert main(start) == 0
    assert "was merged before training" in capsys.readouterr().out
    assert (again / "model.safetensors").is_file() and not (again / "adapter_config.json").exists()


@one_test(
    ("more", "said"),
    [
        (["--method", "NPOO"], "Did you mean 'NPO'"),
        (["--method", "NPO", "--forget", "nowhere.jsonl"], "no such file"),
        (["--method", "NPO", "--forget", FILES[1]], "retain"),
        (["--method", "DPO", *FILES], "answers to prefer"),
        (["--method", "NPO", *FILES, "--knob", "betta=1"], "beta"),
        (["--method", "NPO", *FILES, "--keep-best", "forget_Q_A_Probb=1"], "forget_Q_A_Prob"),
        (["--method", "NPO", *FILES, "--epochs", "0"], "more than 0"),
        (["--method", "DPO", *FILES, "--alternate", "nope"], "no column 'nope'"),
    ],
)
def test_mistakes_are_one_sentence(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["unlearn", *words("--out", str(tmp_path / "x")), *more]) == 2
    err = capsys.readouterr().err.strip()
    assert said in err and "Traceback" not in err
    assert not (tmp_path / "x" / "config.json").exists()
