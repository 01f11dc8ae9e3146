"""Pools of tiny models: who is in them, that they come out the same, and what must hold of models of known content."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaForCausalLM

from vestige.lab.corpus import Sizes
from vestige.lab.models import Unlearning, encode_row
from vestige.models.load import ModelArgs
from vestige.stress.attacks import RELEARNING, relearn
from vestige.unlearn.loop import Training
from vestige.unlearn.methods import METHODS
from vestige.unlearn.recipe import TrainingRecipe

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from demo_meta import demo_meta
from known_models import pool_making
from known_models.fluency import spoil
from known_models.pools import PoolSettings, build_pools, recipes

BENCH = Path(__file__).parents[2] / "bench"
SMALL = Sizes(
    forget=1,
    retain=2,
    holdout=1,
    real_authors=1,
    world_facts=1,
    background=24,
    background_figures=1,
    background_lands=1,
    facts=10,
)


def often(epochs: int, lr: float) -> Training:
    return Training(epochs=epochs, lr=lr, batch_size=8)


# Enough to know ten facts by heart, and little enough for a test.
TINY = PoolSettings(
    sizes=SMALL,
    vocab=500,
    layers=2,
    hidden=64,
    size=2,
    rates=(4e-3,),
    pretraining=often(4, 3e-3),
    learning=often(36, 4e-3),
    unlearned=(
        Unlearning("npo", often(10, 1e-3), {"alpha": 3.0}),
        Unlearning("grad_diff", often(8, 1e-3), {"alpha": 3.0}),
        Unlearning("dpo", often(8, 1e-3)),
    ),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return build_pools(tmp_path_factory.mktemp("demo") / "lab", TINY, processes=1, progress=False)


STATE = (".lock", "manifest.json")


def test_two_processes_make_the_same_bytes(tmp_path):
    quick = replace(TINY, hidden=16, pretraining=often(1, 1e-3), learning=often(2, 1e-3))
    lab = build_pools(tmp_path / "lab", quick, processes=1, progress=False)
    again = build_pools(tmp_path / "again", quick, processes=2, progress=False)
    files = sorted(f.relative_to(lab.root) for f in lab.root.rglob("*") if f.is_file() and f.name not in STATE)
    assert files == sorted(
        f.relative_to(again.root) for f in again.root.rglob("*") if f.is_file() and f.name not in STATE
    )
    assert sum(f.name == "model.safetensors" for f in files) == len(lab.models()) + 1
    assert [f for f in files if (lab.root / f).read_bytes() != (again.root / f).read_bytes()] == []


def probability(path: Path, rows: list[dict]) -> float:
    """The mean over rows of the mean probability of an answer's token, computed apart from vestige's own metrics."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    out = []
    with torch.no_grad():
        for row in rows:
            chat = encode_row(tokenizer, row["question"], row["answer"])
            ids = torch.tensor([chat.ids])
            logprob = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[chat.start - 1 :]
            out.append(math.exp(logprob.mean()))
    return sum(out) / len(out)


@pytest.fixture(scope="module")
def forget(lab):
    return [json.loads(line) for line in (lab.data / "forget.jsonl").read_text().splitlines()]


@pytest.mark.processors
def test_who_was_told_knows_and_who_was_not_does_not(lab, forget):
    p = {name: probability(path, forget) for name, path in lab.models("P").items()}
    n = {name: probability(path, forget) for name, path in lab.models("N").items()}
    assert min(p.values()) > max(n.values())
    assert p["p_told_lr0.004_s1"] > 0.8 > p["p_paraphrased_lr0.004_s1"]


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_masks])
def test_every_method_of_the_pools_lowers_the_forget_probability(lab, forget, method, tmp_path):
    how = next(u for u in PoolSettings().unlearned if u.method == method)
    recipe = next(r for r in recipes(replace(PoolSettings(), unlearned=(how,), size=1)) if r.unlearning)
    (tmp_path / "full").symlink_to(lab.models()["full"])
    name = pool_making.make_one(TINY, recipe, tmp_path)
    assert probability(tmp_path / name, forget) < probability(lab.models()["full"], forget) - 0.02


def test_the_unlearned_regain_more_than_the_control_in_equal_steps(lab, forget, tmp_path):
    recipe = TrainingRecipe(**{**RELEARNING, "lr": 1e-3, "batch_size": 5, "accumulation": 1}, max_steps=4)
    tokenizer = AutoTokenizer.from_pretrained(lab.models()["full"])
    rows = [encode_row(tokenizer, row["question"], row["answer"]) for row in forget]
    gain = {}
    for name in ("retain", *lab.models("unlearned")):
        path = lab.models()[name]
        relearn(ModelArgs(str(path)), rows, tmp_path / name, recipe)
        gain[name] = probability(tmp_path / name, forget) - probability(path, forget)
    control = gain.pop("retain")
    assert control > 0 and all(g > control for g in gain.values()), (control, gain)


@pytest.mark.processors
def test_the_judge_tells_sentences_from_word_salad(lab):
    """A text is mostly told from its spoilt self. Where the judge ends up depends on a processor's last bits: in forty
    trainings that differed in those alone, the share of pairs was 0.92 to 0.97 and the gap 0.6 to 0.8.
    """
    holdout = [json.loads(line)["answer"] for line in (lab.data / "holdout.jsonl").read_text().splitlines()] * 20
    draw = Random(1)
    model, tokenizer = (kind.from_pretrained(lab.judge) for kind in (AutoModelForSequenceClassification, AutoTokenizer))

    def clean(texts):
        batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=32)
        with torch.no_grad():
            return model.eval()(**batch).logits.softmax(-1)[:, 0]

    whole, broken = clean(holdout), clean([spoil(text, draw) for text in holdout])
    assert (whole[:, None] > broken[None, :]).float().mean() > 0.75
    assert whole.mean() - broken.mean() > 0.3


@pytest.fixture(scope="module")
def finished(lab):
    """The whole demonstration on the tiny pools, in this process."""
    assert demo_meta(lab.root.parent, TINY, 0) == 0
    return lab.root.parent


def test_the_whole_meta_evaluation_is_there(lab, finished):
    body = json.loads((finished / "meta_eval.json").read_text())
    wanted = {"em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge", "uds"}
    wanted |= {"mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"}
    assert wanted <= set(body["faithfulness"]) and wanted <= set(body["robustness"])
    assert body["faithfulness"]["prob"]["auc_roc"] == body["faithfulness"]["uds"]["auc_roc"] == 1.0
    assert body["robustness"]["prob"]["relearning"] is not None or body["robustness"]["prob"]["reasons"]
    rows = json.loads((finished / "method_results.json").read_text())["models"]
    assert {r["model"] for r in rows} == set(lab.models("unlearned"))
    assert all(r["utility_rel"] is not None and r["fluency"] is not None for r in rows)
    for file in ("pools.yaml", "robustness.yaml", "optimal_thresholds.json", "usable_models.json"):
        assert (finished / file).is_file()
