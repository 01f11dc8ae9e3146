"""Attacks: each changes what it should, leaves nothing behind, and is measured beside a control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import LAB, SYSTEM
from vestige.data.chat import Encoder, Template
from vestige.data.datasets import Context, build_rows, make_context
from vestige.data.rows import read_file
from vestige.errors import UserError
from vestige.models.load import ModelArgs, load_model, load_tokenizer
from vestige.models.quantised import repair
from vestige.show.figures import recovery_curve, recovery_points
from vestige.stress.attacks import (
    expected_best,
    few_shot,
    jailbreak,
    paraphrase,
    quantise,
)
from vestige.stress.run import AttackRow, Stress, relearning_r, show, show_r, stress
from vestige.types import content_key

DATA = LAB / "data"
UNLEARNED, RETAIN = (LAB / "models" / name for name in ("unlearned", "retain"))
STATES = (("none", None), ("relearn", 0))
CONFIG = {"handler": "QADataset", "args": {"hf_args": {"path": str(DATA / "forget.jsonl")}}}
SAID = {"system_prompt": SYSTEM, "limit": 8}


@pytest.fixture(scope="module")
def context() -> Context:
    tokenizer, _ = load_tokenizer(ModelArgs(str(UNLEARNED)))
    return make_context(tokenizer, Template(system_prompt=SYSTEM), "none", "count")


def asked(tmp_path: Path, *attacks: str, **more: object) -> Stress:
    metrics = more.pop("metrics", ["forget_Q_A_Prob"])
    return Stress(str(UNLEARNED), DATA, attacks, tmp_path / "out", metrics=metrics, settings=SAID, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _checkpoints_stay_as_they_are() -> Iterator[None]:
    """No attack writes into the checkpoint it attacks."""
    files = {p: p.stat().st_mtime_ns for m in (UNLEARNED, RETAIN) for p in m.iterdir()}
    before = {p: content_key(p.read_bytes()) for p in files}
    yield
    assert {p: p.stat().st_mtime_ns for m in (UNLEARNED, RETAIN) for p in m.iterdir()} == files
    assert {p: content_key(p.read_bytes()) for p in before} == before


def linear_layers(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}


def test_r_needs_a_control_and_a_metric_that_tells_knowing() -> None:
    before, after = (
        AttackRow("model", "none", None, {"em": 0.1, "loss": 2.0}),
        AttackRow("model", "relearn", 0, {"em": 0.5}),
    )
    assert relearning_r([asdict(before), asdict(after)]) == []
    utility = [AttackRow(who, a, b, {"model_utility": 0.4}) for who in ("model", "retain") for a, b in STATES]
    assert relearning_r([asdict(row) for row in utility]) == []
    depth = [
        AttackRow(who, a, b, {"uds": 0.9 - 0.4 * (a == "relearn")}) for who in ("model", "retain") for a, b in STATES
    ]
    [r] = relearning_r([asdict(row) for row in depth])
    assert r["gained"] == pytest.approx(0.4) and r["one-sided"] == 1.0  # a low depth score means: knows
    assert "1 epoch" in show_r([r])


def read_back(layer: torch.nn.Module) -> torch.Tensor:
    """The weights a layer computes with, seen from outside: what it makes of each unit vector."""
    with torch.inference_mode():
        return layer(torch.eye(layer.in_features)).T.contiguous()  # type: ignore[arg-type]


def test_four_bits_are_sixteen_levels_a_block() -> None:
    attacked = quantise(ModelArgs(str(UNLEARNED), device="cpu"), 4)
    assert attacked.path == str(UNLEARNED)  # nothing is written: the same files, read otherwise
    before = load_model(ModelArgs(str(UNLEARNED), device="cpu")).model
    exact = {"quantization": attacked.quantization, "compute_dtype": "float32"}  # or the levels come out rounded
    after = load_model(ModelArgs(attacked.path, device="cpu", **exact)).model
    levels: set[float] = set()
    for name, layer in linear_layers(before).items():
        now = read_back(after.get_submodule(name)).reshape(-1, 64).numpy()
        was = layer.weight.detach().reshape(-1, 64).numpy()
        peak = np.abs(was).max(axis=1, keepdims=True)
        assert max(len(set(block.tolist())) for block in now) <= 16
        assert (
            np.abs(now - was).max() > 0 and np.abs(now / peak - was / peak).max() <= 0.16
        )  # half the widest gap of NF4
        levels |= set(np.round(now / peak, 4).ravel().tolist())
    assert len(levels) == 16  # the same sixteen in every block of every layer
    _same_besides(before, after)


@pytest.mark.parametrize(
    ("shape", "wrong"), [((64, 160), True), ((100, 32), True), ((160, 64), False), ((7, 128), False)]
)
def test_four_bit_layers_are_read_back_as_they_were_written(shape: tuple[int, int], wrong: bool) -> None:
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    layer = Linear4bit(shape[1], shape[0], quant_type="nf4", compute_dtype=torch.float32)
    layer.weight = Params4bit(weight.clone(), requires_grad=False, quant_type="nf4", blocksize=64)
    model = torch.nn.Sequential(torch.nn.Identity(), layer).to("cpu")
    bias = layer.bias.detach().clone()
    blocks = weight.reshape(-1, 64) / weight.reshape(-1, 64).abs().amax(dim=1, keepdim=True)
    code = layer.weight.quant_state.code
    nearest = code[(blocks[..., None] - code).abs().argmin(-1)] * weight.reshape(-1, 64).abs().amax(1, keepdim=True)
    repaired = repair(model)
    assert set(repaired) <= {"1"} and (wrong or not repaired)
    with torch.inference_mode():
        found = (model(torch.eye(shape[1])) - bias).T
    torch.testing.assert_close(found, nearest.reshape(shape), atol=0.03, rtol=0)  # its products are not in float32
    assert repair(model) == []


def _same_besides(before: torch.nn.Module, after: torch.nn.Module) -> None:
    """All that is no linear layer, the output layer among it, is left alone."""
    skip = {f"{n}.weight" for n in linear_layers(before)}
    theirs = dict(after.named_parameters())
    rest = {n: p for n, p in before.named_parameters() if n not in skip}
    assert rest and all(torch.equal(p, theirs[n]) for n, p in rest.items())
    assert torch.equal(before.get_submodule("lm_head").weight, after.get_submodule("lm_head").weight)


def test_paraphrase_and_few_shot_ask_otherwise(context: Context) -> None:
    row, shots = read_file(DATA / "forget.jsonl")[0], read_file(DATA / "retain.jsonl")[:2]
    encoder = Encoder(context.encoder.tokenizer, Template(system_prompt=SYSTEM))
    other = build_rows("forget", paraphrase(CONFIG), context, 1).examples[0][0]
    assert other.prompt.ids == encoder.encode([(row["paraphrased_question"], row["answer"])])[0].prompt
    taught = build_rows("forget", few_shot(CONFIG, str(DATA / "retain.jsonl"), 2), context, 1).examples[0][0]
    pairs = [(shot["question"], shot["answer"]) for shot in shots]
    assert taught.prompt.ids == encoder.encode([(row["question"], row["answer"])], pairs)[0].prompt


def test_prompt_attacks_change_the_prompt_only(context: Context) -> None:
    """Whatever is asked, the answer's tokens and the reference are the same, and so is the number of rows."""
    plain = build_rows("forget", CONFIG, context, 8)
    shots = str(DATA / "retain.jsonl")
    for change in (jailbreak(CONFIG), paraphrase(CONFIG), few_shot(CONFIG, shots, 3)):
        attacked = build_rows("forget", change, context, 8)
        assert len(attacked) == len(plain) and attacked.fingerprint == plain.fingerprint
        for [a], [b] in zip(plain.examples, attacked.examples, strict=True):
            assert a.prompt.ids != b.prompt.ids
            assert a.target is not None and b.target is not None
            assert (a.target.labels, a.reference, a.answer) == (b.target.labels, b.reference, b.answer)
    assert CONFIG["handler"] == "QADataset" and "answer_prefix" not in CONFIG["args"]  # the original is not touched


def test_the_jailbreak_metric_is_the_jailbreak_attack(tmp_path: Path) -> None:
    ask = asked(tmp_path, "jailbreak", metrics=["forget_Q_A_ROUGE", "jailbreak_rouge"])
    none, attacked = stress(ask)
    assert attacked.values["forget_Q_A_ROUGE"] == none.values["jailbreak_rouge"] == attacked.values["jailbreak_rouge"]
    assert attacked.values["forget_Q_A_ROUGE"] != none.values["forget_Q_A_ROUGE"]


def test_expected_best_against_every_choice() -> None:
    values = [0.3, 0.9, 0.1, 0.9, 0.5]
    for k in range(1, 6):
        assert expected_best(values, k) == pytest.approx(np.mean([max(c) for c in combinations(values, k)]))
    with pytest.raises(ValueError, match="between 1 and the 5"):
        expected_best(values, 6)


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
    with pytest.raises(UserError, match="No curve"):
        recovery_curve(rows, "jailbreak", "m")


def test_the_table_has_the_control_beside_each_value() -> None:
    rows = [
        AttackRow("model", "none", None, {"m": 0.5}),
        AttackRow("model", "relearn", 0, {"m": 0.75}),
        AttackRow("retain", "none", None, {"m": 0.25}),
        AttackRow("retain", "relearn", 0, {"m": None}),
    ]
    lines = show(rows).splitlines()
    assert lines[0].split() == ["attack", "budget", "m", "retain"]
    assert lines[2].split() == ["none", "0.5000", "0.2500"] and lines[3].split()[:4] == [
        "relearn",
        "1",
        "epoch",
        "0.7500",
    ]
