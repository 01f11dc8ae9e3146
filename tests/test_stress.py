"""Attacks: each changes what it should, leaves nothing behind, and is measured beside a control."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import LAB, SYSTEM
from vestige.cli import main
from vestige.data.chat import Encoder, Template
from vestige.data.datasets import Context, build_rows, make_context
from vestige.data.rows import read_file
from vestige.errors import UserError
from vestige.models.load import ModelArgs, load_model, load_tokenizer
from vestige.report.stress_plots import recovery_curve, recovery_points
from vestige.run.stress_robustness import relearning_r, show_r
from vestige.run.stressing import Row, Stress, Subject, show, stress, under_prompt
from vestige.stress import expected_best, few_shot, jailbreak, paraphrase, prune, quantise
from vestige.stress.attacks import RELEARNING, prune_weights

DATA = LAB / "data"
UNLEARNED, RETAIN = (LAB / "models" / name for name in ("unlearned", "retain"))
STATES = (("none", None), ("relearn", 0))
CONFIG = {"handler": "QADataset", "args": {"hf_args": {"path": str(DATA / "forget.jsonl")}}}
SAID = {"system_prompt": SYSTEM, "limit": 8}
# The lab's models are small: they need larger steps than the published attack, which is meant for billions of weights.
STEPS = {"lr": 1e-3, "accumulation": 1}


@pytest.fixture(scope="module")
def context() -> Context:
    tokenizer, _ = load_tokenizer(ModelArgs(str(UNLEARNED)))
    return make_context(tokenizer, Template(system_prompt=SYSTEM), "none", "count")


def asked(tmp_path: Path, *attacks: str, **more: object) -> Stress:
    metrics = more.pop("metrics", ["forget_Q_A_Prob"])
    return Stress(str(UNLEARNED), DATA, attacks, tmp_path / "out", metrics=metrics, settings=SAID, **more)  # type: ignore[arg-type]


def value(rows: list[Row], attack: str, who: str = "model", metric: str = "forget_Q_A_Prob") -> float:
    [found] = [r.values[metric] for r in rows if (r.attack, r.model) == (attack, who)]
    assert found is not None
    return found


def test_relearning_brings_back_what_was_only_hidden(tmp_path: Path) -> None:
    rows = stress(asked(tmp_path, "relearn", relearning=STEPS, retain_model=str(RETAIN)))
    gained = value(rows, "relearn") - value(rows, "none")
    control = value(rows, "relearn", "retain") - value(rows, "none", "retain")
    assert gained > 2 * control > 0
    assert not list((tmp_path / "out").glob(".attacked-*")) and not (tmp_path / "out" / "checkpoints").exists()
    written = json.loads((tmp_path / "out" / "stress.json").read_text())
    assert written["rows"][1]["attack"] == "relearn"
    [r] = written["relearning"]
    assert r["one-sided"] == pytest.approx(control / gained) and r["gained"] == pytest.approx(gained)


def test_the_budget_of_relearning_is_its_steps(tmp_path: Path) -> None:
    ask = asked(tmp_path, "relearn", relearning={**STEPS, "batch_size": 2}, budget={"relearn": [1, 4]}, keep=True)
    none, one, four = (row.values["forget_Q_A_Prob"] for row in stress(ask))
    assert none < one < four
    kept = load_model(ModelArgs(str(tmp_path / "out" / "checkpoints" / "model" / "relearn-4"), device="cpu"))
    start = load_model(ModelArgs(str(UNLEARNED), device="cpu"))
    assert any(not torch.equal(a, b) for a, b in zip(kept.model.parameters(), start.model.parameters(), strict=True))


def test_r_needs_a_control_and_a_metric_that_tells_knowing() -> None:
    before, after = Row("model", "none", None, {"em": 0.1, "loss": 2.0}), Row("model", "relearn", 0, {"em": 0.5})
    assert relearning_r([asdict(before), asdict(after)]) == []
    utility = [Row(who, a, b, {"model_utility": 0.4}) for who in ("model", "retain") for a, b in STATES]
    assert relearning_r([asdict(row) for row in utility]) == []
    depth = [Row(who, a, b, {"uds": 0.9 - 0.4 * (a == "relearn")}) for who in ("model", "retain") for a, b in STATES]
    [r] = relearning_r([asdict(row) for row in depth])
    assert r["gained"] == pytest.approx(0.4) and r["one-sided"] == 1.0  # a low depth score means: knows
    assert "1 epoch" in show_r([r])


def test_the_published_relearning_is_the_default() -> None:
    said = (RELEARNING.lr, RELEARNING.batch_size, RELEARNING.accumulation, RELEARNING.epochs, RELEARNING.weight_decay)
    assert said == (2e-5, 8, 4, 1, 0.0)
    assert (RELEARNING.warmup_epochs, RELEARNING.scheduler, RELEARNING.optim) == (0.0, "linear", "auto")


def test_held_out_rows_are_not_taught(tmp_path: Path) -> None:
    ask = asked(tmp_path, "relearn", relearning=STEPS, held_out=True)
    stress(ask)
    whole = read_file(DATA / "forget.jsonl")
    measured = read_file(tmp_path / "out" / "data" / "forget.jsonl")
    assert measured == whole[1::2]
    subject = Subject("model", str(UNLEARNED), ask, DATA)
    lesson = subject._lesson(ModelArgs(str(UNLEARNED)))
    tokenizer, _ = load_tokenizer(ModelArgs(str(UNLEARNED)))
    taught = [tokenizer.decode(row.ids[row.start :], skip_special_tokens=True) for row in lesson]
    assert taught == [row["answer"] for row in whole[:8:2]]
    fewer = Subject("model", str(UNLEARNED), replace(ask, examples=2), DATA)
    assert fewer._lesson(ModelArgs(str(UNLEARNED))) == lesson[:2]


def test_quantisation_moves_the_numbers_a_little(tmp_path: Path) -> None:
    rows = stress(asked(tmp_path, "quantise"))
    none, four, eight = (row.values["forget_Q_A_Prob"] for row in rows)
    assert none is not None and four is not None and eight is not None
    assert 0 < abs(eight - none) < abs(four - none) < 0.2
    with pytest.raises(UserError, match="number of bits"):
        quantise(ModelArgs("x"), 3)


def test_pruning_zeroes_the_smallest_weights_of_each_layer(tmp_path: Path) -> None:
    attacked = prune(ModelArgs(str(UNLEARNED), device="cpu"), 0.25, tmp_path)
    before = dict(load_model(ModelArgs(str(UNLEARNED), device="cpu")).model.named_parameters())
    after = dict(load_model(ModelArgs(attacked.path, device="cpu")).model.named_parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    was, now = (p[name].detach().numpy().ravel() for p in (before, after))
    gone = now == 0
    assert gone.sum() == int(0.25 * was.size)
    assert np.abs(was[gone]).max() <= np.abs(was[~gone]).min()
    np.testing.assert_array_equal(was[~gone], now[~gone])
    embedding = "model.embed_tokens.weight"  # the output layer is the same tensor
    assert torch.equal(before[embedding], after[embedding])
    with pytest.raises(UserError, match="below 1"):
        prune(ModelArgs(str(UNLEARNED)), 1.0, tmp_path)


def test_pruning_nothing_changes_nothing() -> None:
    model = load_model(ModelArgs(str(UNLEARNED), device="cpu")).model
    before = [p.clone() for p in model.parameters()]
    assert prune_weights(model, 0.0) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_jailbreak_begins_the_answer(context: Context) -> None:
    plain = build_rows("forget", CONFIG, context, 2).examples[0][0]
    attacked = build_rows("forget", jailbreak(CONFIG), context, 2).examples[0][0]
    tokenizer = context.encoder.tokenizer
    opening = tuple(tokenizer("Sure, here is the answer:", add_special_tokens=False)["input_ids"])
    assert attacked.prompt.ids == (*plain.prompt.ids, *opening)
    assert plain.target is not None and attacked.target is not None
    assert attacked.target.ids[: attacked.target.start] == attacked.prompt.ids
    assert attacked.target.ids[attacked.target.start :] == plain.target.ids[plain.target.start :]
    assert attacked.reference == plain.reference


def test_paraphrase_and_few_shot_ask_otherwise(context: Context) -> None:
    row, shots = read_file(DATA / "forget.jsonl")[0], read_file(DATA / "retain.jsonl")[:2]
    encoder = Encoder(context.encoder.tokenizer, Template(system_prompt=SYSTEM))
    other = build_rows("forget", paraphrase(CONFIG), context, 1).examples[0][0]
    assert other.prompt.ids == encoder.encode([(row["paraphrased_question"], row["answer"])])[0].prompt
    taught = build_rows("forget", few_shot(CONFIG, str(DATA / "retain.jsonl"), 2), context, 1).examples[0][0]
    pairs = [(shot["question"], shot["answer"]) for shot in shots]
    assert taught.prompt.ids == encoder.encode([(row["question"], row["answer"])], pairs)[0].prompt


def test_prompt_attacks_spare_retain_rows(tmp_path: Path) -> None:
    ask = asked(tmp_path, metrics=["forget_Q_A_Prob", "retain_Q_A_Prob"])
    run = Subject("model", str(UNLEARNED), ask, DATA)._run(str(UNLEARNED), "x")
    changed = under_prompt(run, paraphrase)
    keys = {name: [d.config["args"]["question_key"] for d in m.datasets] for name, m in changed.suite.metrics.items()}
    assert keys["forget_Q_A_Prob"] == ["paraphrased_question"] and keys["retain_Q_A_Prob"] == ["question"]
    only = Subject("model", str(UNLEARNED), asked(tmp_path, metrics=["retain_Q_A_Prob"]), DATA)
    with pytest.raises(UserError, match="changes nothing"):
        under_prompt(only._run(str(UNLEARNED), "x"), paraphrase)


def test_expected_best_against_every_choice() -> None:
    values = [0.3, 0.9, 0.1, 0.9, 0.5]
    for k in range(1, 6):
        assert expected_best(values, k) == pytest.approx(np.mean([max(c) for c in combinations(values, k)]))
    with pytest.raises(ValueError, match="between 1 and the 5"):
        expected_best(values, 6)


def test_leak_grows_with_the_number_of_samples(tmp_path: Path) -> None:
    ask = asked(tmp_path, "leak", metrics=["forget_Q_A_ROUGE"], budget={"leak": [1, 3]})
    _, one, three = (row.values["forget_Q_A_ROUGE"] for row in stress(ask))
    assert one is not None and three is not None and one < three <= 1


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["--model", str(UNLEARNED), "--data", str(DATA), "--out", str(out), "--limit", "4", "--lr", "1e-3",
             "--accumulation", "1", "--system-prompt", SYSTEM, "--metrics", "forget_Q_A_Prob"]  # fmt: skip
    picture = tmp_path / "curve.png"
    assert (
        main(["stress", "relearn=1", *words, "jailbreak", "paraphrase", "prune=0.5,0.7", "--plot", str(picture)]) == 0
    )
    assert [p.name for p in tmp_path.glob("*.png")] == ["curve_prune.png"]
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("1 steps", "jailbreak", "paraphrase", "0.5 share"))
    record = json.loads((out / "stress.json").read_text())["rows"]
    assert [row["attack"] for row in record] == ["none", "relearn", "jailbreak", "paraphrase", "prune", "prune"]
    assert len({row["values"]["forget_Q_A_Prob"] for row in record}) == 6
    for more, said in (
        (["relern"], "Did you mean 'relearn'"),
        (["relearn=x"], "a budget is a number"),
        (["leak"], "have it among --metrics"),
    ):
        assert main(["stress", *more, *words]) == 2
        assert said in capsys.readouterr().err


def test_the_curve_starts_before_the_attack_and_leaves_gaps_out() -> None:
    rows = [
        {"model": "model", "attack": "relearn", "budget": 9, "values": {"m": 0.75}},
        {"model": "model", "attack": "none", "budget": None, "values": {"m": 0.5}},
        {"model": "model", "attack": "relearn", "budget": 4, "values": {"m": None}},
        {"model": "model", "attack": "prune", "budget": 0.5, "values": {"m": 0.1}},
    ]
    assert recovery_points(rows, "relearn", "m") == {"model": [(0.0, 0.5), (9.0, 0.75)]}
    [line, _start] = recovery_curve(rows, "relearn", "m", "steps").axes[0].lines
    assert line.get_xydata().tolist() == [[0.0, 0.5], [9.0, 0.75]]
    with pytest.raises(UserError, match="no curve"):
        recovery_curve(rows, "jailbreak", "m")


def test_the_table_has_the_control_beside_each_value() -> None:
    rows = [
        Row("model", "none", None, {"m": 0.5}),
        Row("model", "relearn", 0, {"m": 0.75}),
        Row("retain", "none", None, {"m": 0.25}),
        Row("retain", "relearn", 0, {"m": None}),
    ]
    lines = show(rows).splitlines()
    assert lines[0].split() == ["attack", "budget", "m", "retain"]
    assert lines[2].split() == ["none", "0.5000", "0.2500"] and lines[3].split()[:4] == [
        "relearn",
        "1",
        "epoch",
        "0.7500",
    ]
