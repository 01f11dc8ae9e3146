"""One definition each: an attack, a metric, a method and a family from one plug-in file, through the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from family_tools import copy_of
from vestige.cli import main
from vestige.metrics.cards import CARDS
from vestige.models.families import FAMILIES, OURS
from vestige.stress.attacks import ATTACKS
from vestige.stress.attacks import OURS as OUR_ATTACKS
from vestige.suites.registry import HANDLERS
from vestige.unlearn.methods import METHODS

DATA, UNLEARNED = str(LAB / "data"), str(LAB / "models" / "unlearned")
METRIC = "forget_Q_A_Prob"

PLUGIN = '''
from dataclasses import replace
import shutil

import torch
from safetensors.torch import load_file, save_file

from vestige.plugins import (
    Card, FAMILIES, PromptAttack, attack, by_index, handler, mean_score, method, metric, one_stat, register,
    register_family, wants_answers,
)


@attack("noise", unit="share", budgets=(0.5,), budget="scale", fewer_is_stronger=False)
def noise(checkpoint, copy, scale=0.01, seed=0):
    """adds noise to every weight"""
    shutil.copytree(checkpoint, copy)
    torch.manual_seed(seed)
    for file in copy.glob("*.safetensors"):
        weights = load_file(file)
        noisy = {k: w + SIZE * scale * w.std() * torch.randn_like(w) for k, w in weights.items()}
        save_file(noisy, file, {"format": "pt"})
    return copy


SIZE = 1.0
register(PromptAttack(
    "polite", "says please", teaches=True,
    change=lambda config, budget, data: {**config, "args": {**config["args"], "question_key": "paraphrased_question"}},
))


@metric(knows="low", source="tests/test_one_definition.py")
def worst_token(t):
    """Minus the log-probability of the least likely token."""
    return -t.logprob.min(axis=-1)


@handler("worst_token", wants_answers, card=Card(
    formula="-(least lp_t)", high="some token surprises the model", low="near 0: known", tokens="all of the answer",
    unit=False, reading=lambda v: "surprising" if v > 1 else "expected", group="likely",
))
def score(inputs):
    """The least likely token of the answer."""
    return mean_score(by_index(inputs.rows, one_stat(inputs, lambda t: {"score": worst_token(t)})), "score")


@method("drift", "drifting away", needs_retain=False)
def drift(step, gain=1.0):
    return -gain * step.forget_loss


llada = next(family for family in FAMILIES if family.title == "LLaDA")
register_family(replace(llada, title="Tadpole", model_type="tadpole", architecture="TadpoleLM", words=("tadpole",)))
'''
CONFIG = """# @package eval.tofu.metrics.forget_worst_token
handler: worst_token
datasets:
  TOFU_QA_forget: {args: {hf_args: {name: "${eval.tofu.forget_split}_perturbed"}}}
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """The plug-in's file; what it registers does not outlive the test."""
    kept = [(registry, dict(registry)) for registry in (ATTACKS, HANDLERS, CARDS, METHODS)]
    file = tmp_path / "everything.py"
    file.write_text(PLUGIN)
    config = tmp_path / "configs" / "eval" / "tofu_metrics" / "forget_worst_token.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    yield file
    FAMILIES[:] = OURS
    for registry, before in kept:
        registry.clear()
        registry.update(before)


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_an_attack_of_a_plugin_under_stress(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stress"
    words = ["--model", UNLEARNED, "--data", DATA, "--limit", "2", "--metrics", METRIC, "--out", str(out)]
    assert main(["stress", "noise=0.5,3", "polite", *words, "--plugin", str(plugin)]) == 0
    assert "3 share" in capsys.readouterr().out
    found = read(out / "stress.json")
    rows = {(r["attack"], r["budget"]): r for r in found["rows"]}
    assert len({r["values"][METRIC] for r in rows.values()}) == 4
    assert rows["noise", 3.0]["settings"]["scale"] == 3.0
    assert found["attacks"]["noise"] == {
        "does": "adds noise to every weight", "unit": "share", "zero": "", "teaches": False, "reverse": False,
    }  # fmt: skip
    assert found["attacks"]["polite"]["teaches"] is True
    assert list(found["plugins"]) == ["everything.py"]
    assert main(["stress", "noize", *words, "--plugin", str(plugin)]) == 2
    assert "Did you mean 'noise'" in capsys.readouterr().err


def test_a_metric_of_a_plugin_has_a_card_like_ours(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--plugin", str(plugin), "--config-dir", str(tmp_path / "configs")]
    words = ["--model", UNLEARNED, "--data", DATA, "--limit", "2", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["eval", "tofu", *words, "--metrics", "forget_worst_token", *more]) == 0
    assert "surprising" in capsys.readouterr().out
    assert main(["explain", "forget_worst_token", *more]) == 0
    said = capsys.readouterr().out
    assert "-(least lp_t)" in said and "source   tests/test_one_definition.py" in said
    from vestige.report.metrics import describe_metric

    facts = describe_metric("forget_worst_token", "worst_token")
    assert (facts["group"], facts["range"], facts["formula"]) == ("likely", None, "-(least lp_t)")


def test_a_method_of_a_plugin_unlearns(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    words = ["unlearn", "--method", "Drift", "--model", UNLEARNED, "--forget", f"{DATA}/forget.jsonl", "--limit", "2",
             "--epochs", "1", "--lr", "1e-3", "--quiet", "--out", str(out)]  # fmt: skip
    assert main([*words, "--knob", "gain=0.5", "--plugin", str(plugin)]) == 0
    record = read(out / "training.json")
    assert record["settings"]["method"] == "drift" and record["config"]["method_args"] == {"gain": 0.5}
    assert list(record["plugins"]) == ["everything.py"] and (out / "model.safetensors").is_file()
    capsys.readouterr()
    assert main([*words, "--overwrite", "--knob", "gian=0.5", "--plugin", str(plugin)]) == 2
    assert "Did you mean 'gain'" in capsys.readouterr().err


def test_a_family_of_a_plugin_is_loaded_and_part_of_the_evidence(plugin: Path, tmp_path: Path) -> None:
    """A LLaDA that calls itself something else, by a record made of LLaDA's, gives LLaDA's numbers."""
    values, names = [], []
    for model, more in (
        (copy_of("llada", tmp_path / "a"), []),
        (copy_of("llada", tmp_path / "b", model_type="tadpole", architectures=["TadpoleLM"], auto_map="absent"),
         ["--plugin", str(plugin)]),
    ):  # fmt: skip
        out = tmp_path / f"run{len(values)}"
        words = ["eval", "tofu", "--model", str(model), "--data", DATA, "--limit", "2", "--metrics", METRIC, "--quiet"]
        assert main([*words, "--out", str(out), *more]) == 0
        values.append(read(out / "TOFU_EVAL.json")[METRIC]["agg_value"])
        names.append(read(out / "manifest.json")["model"]["fingerprint"])
    assert values[0] == pytest.approx(values[1], rel=1e-6) and values[0] is not None
    from vestige.models.args import ModelArgs
    from vestige.models.fingerprint import fingerprint

    FAMILIES[0] = type(FAMILIES[0])(**{**vars(FAMILIES[0]), "mask_id": 7})  # the plug-in says something else by now
    assert fingerprint(ModelArgs(str(tmp_path / "b" / "llada"))) != names[1]


def test_a_plugin_may_not_take_a_name_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", UNLEARNED, "--data", DATA, "--limit", "2", "--metrics", METRIC]
    mine = tmp_path / "mine.py"
    for text, verb in (
        ("from vestige.plugins import attack\n@attack('prune')\ndef f(a, b): return b\n", ["stress", "prune", *words]),
        ("from vestige.plugins import method\n@method('npo')\ndef f(step): return 0\n",
         ["unlearn", "--method", "npo", "--model", UNLEARNED, "--forget", f"{DATA}/forget.jsonl"]),
    ):  # fmt: skip
        mine.write_text(text)
        try:
            assert main([*verb, "--out", str(tmp_path / "out"), "--plugin", str(mine)]) == 2
            assert "which vestige has itself" in capsys.readouterr().err
        finally:
            ATTACKS["prune"] = OUR_ATTACKS["prune"]


# ---- the interface -----------------------------------------------------------------------------------------------

# Verbs that evaluate, train or attack, or read numbers that a plug-in's definitions say something of.
