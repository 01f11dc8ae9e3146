"""What takes a process down costs little: a CPU on which bfloat16 crashes, and attacks that a signal ends.

The CPU is imitated (tests/crashing_cpu): products in low precision end the process with SIGILL unless
ONEDNN_MAX_CPU_ISA was set before the first product. Attacks that end their process are plug-ins.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import DATA, FULL, RETAIN, UNLEARNED, Outcome, assert_same, digests, python, read_json, vestige

PROB = "forget_Q_A_Prob"
VARIABLE = "ONEDNN_MAX_CPU_ISA"
CPU = Path(__file__).parent.parent / "crashing_cpu" / "sitecustomize.py"
FEW = ("--data", DATA, "--limit", 2, "--metrics", PROB, "--quiet")

# `boom=11` ends its process with signal 11, as long as there is a file TRAP. 0: an error of the plug-in's own.
# `doubtful` refuses, `patient` writes its process id and waits.
PLUGIN = """
import os, shutil, signal, threading, time
from pathlib import Path
from vestige import UserError
from vestige.plugins import attack

HERE = Path(__file__).parent
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal; the harness starts without it

@attack("boom", "ends its process", budget="number")
def boom(checkpoint: Path, place: Path, number: int = 9) -> Path:
    if number == 0:
        raise ZeroDivisionError("an error of the plug-in's own")
    if (HERE / "TRAP").exists() and "retain" not in checkpoint.name:
        os.kill(os.getpid(), number)
    return shutil.copytree(checkpoint, place)

@attack("doubtful", "refuses")
def doubtful(checkpoint: Path, place: Path) -> Path:
    raise UserError("Nothing here is certain.")

@attack("patient", "waits")
def patient(checkpoint: Path, place: Path) -> Path:
    (HERE / "pid.part").write_text(str(os.getpid()))
    (HERE / "pid.part").rename(HERE / "pid")
    time.sleep(120)
    return place
"""
# Products of 4-bit layers end their process, as long as there is a file TRAP.
FOUR_BIT = """
import os, signal
from pathlib import Path
from bitsandbytes.nn import Linear4bit

def forward(layer, *args, plain=Linear4bit.forward, **kwargs):
    if (Path(__file__).parent / "TRAP").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(layer, *args, **kwargs)

Linear4bit.forward = forward
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "TRAP").touch()
    (tmp_path / "four_bit.py").write_text(FOUR_BIT)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return tmp_path / "plugin.py"


def notes(outcome: Outcome) -> list[str]:
    """What was printed about the setting."""
    return [line for line in outcome.err.splitlines() if VARIABLE in line]


def rows_of(out: Path) -> dict[tuple[str, str, float | None], float]:
    """The values of a stress run by model, attack and budget."""
    rows = read_json(out / "stress.json")["rows"]
    return {(row["model"], row["attack"], row["budget"]): row["values"][PROB] for row in rows}


# ---- the CPU ---------------------------------------------------------------------------------------------------------


def test_bfloat16_works_on_a_cpu_where_it_crashes(tmp_path: Path) -> None:
    """Only there is anything set, and what the user has set stays."""
    words = ("eval", "tofu", "--model", FULL, *FEW, "--plugin", CPU, "--out")
    expected = {"float32": (None, 0, None), "bfloat16": (None, 1, "AVX512_CORE_BF16"), "user": ("AVX2", 0, "AVX2")}
    values = {}
    for name, (before, count, after) in expected.items():
        dtype = "float32" if name == "float32" else "bfloat16"
        assert len(notes(vestige(*words, tmp_path / name, "--dtype", dtype, env={VARIABLE: before}))) == count
        model = read_json(tmp_path / name / "manifest.json")["model"]
        assert (model["dtype"], model.get(VARIABLE)) == (dtype, after)
        values[name] = read_json(tmp_path / name / "TOFU_SUMMARY.json")[PROB]
    assert values["float32"] != values["bfloat16"] == pytest.approx(values["float32"], rel=0.1)
    unsafe = ("--dtype", "bfloat16", "--overwrite")
    harness.refused("AVX512_CORE_AMX|" + VARIABLE, *words, tmp_path / "no", *unsafe, env={VARIABLE: "AVX512_CORE_AMX"})


def test_in_python_it_may_be_too_late() -> None:
    source = f"""
import sys, torch, vestige
sys.path.insert(0, {str(CPU.parent)!r})
import sitecustomize
from vestige import UserError
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4))
model = AutoModelForCausalLM.from_pretrained({str(FULL)!r}, dtype=torch.bfloat16)
try:
    vestige.evaluate(model, "tofu", tokenizer=AutoTokenizer.from_pretrained({str(FULL)!r}), data={str(DATA)!r}, limit=2)
except UserError as error:
    print("refused:", error)
"""
    found = python(source, env={VARIABLE: None})
    assert found.out.startswith("refused: ") and VARIABLE in found.out and found.out.count("\n") == 1


# ---- attacks ---------------------------------------------------------------------------------------------------------


def audit(plugin: Path, *more: object, **settings: Any) -> Outcome:
    words = ("--before", FULL, "--after", UNLEARNED, "--forget", DATA / "forget.jsonl", "--limit", 2, "--quiet")
    plugins = ("--plugin", CPU, "--plugin", plugin.with_name("four_bit.py"))
    out = plugin.parent / "audit"
    return vestige("audit", *words, *plugins, "--out", out, *more, env={VARIABLE: None}, **settings)


def test_an_audit_ends_with_a_verdict_whatever_an_attack_does(plugin: Path) -> None:
    pytest.importorskip("bitsandbytes")
    out = plugin.parent / "audit"

    def not_tested(printed: str) -> dict[str, str]:
        lines = printed.partition("Not tested:")[2].partition("\n\n")[0].splitlines()
        found = read_json(out / "audit.json")["not_tested"]
        assert {f"- {name}: {why}." for name, why in found.items()} <= set(lines)
        return dict(found)

    died = audit(plugin, "--skip", "jailbreak, layers")
    assert "Did it forget?" in died.out and len(notes(died)) == 1
    reasons = not_tested(died.out)
    assert "SIGKILL" in reasons["quantise"] and "--skip quantise" in reasons["quantise"]
    assert "--skip" in reasons["jailbreak"] and "--retain-model" in reasons["relearn"] and "prune" not in reasons
    before = {name: digests(out / name) for name in ("before", "after", "attacks/prune")}
    (plugin.parent / "TRAP").unlink()
    again = audit(plugin, "--skip", "jailbreak", "--skip", "layers")
    assert "quantise" not in not_tested(again.out) and len(notes(again)) == 1
    assert digests(out / "attacks/prune") == before["attacks/prune"]
    rows = read_json(out / "attacks/quantise/stress.json")["rows"]
    values = {row["attack"]: row["values"]["forget_Prob"] for row in rows}
    assert values["quantise"] != values["none"] and values["quantise"] == pytest.approx(values["none"], rel=0.2)
    refused = audit(plugin, "--skip", "quantize", status=2).error
    assert "quantize" in refused and "quantise" in refused


def test_an_attack_that_dies_costs_a_stress_run_that_attack_alone(plugin: Path) -> None:
    out = plugin.parent / "stress"
    words = ("stress", "boom=11,9", "prune=0.5", "--model", UNLEARNED, "--retain-model", RETAIN, *FEW)
    words = (*words, "--plugin", plugin, "--out", out)
    died = vestige(*words, status=1)
    reasons = {(row["model"], row["budget"]): row["reason"] for row in read_json(out / "stress.json")["not_tested"]}
    assert reasons.keys() == {("model", 11), ("model", 9)}
    assert "SIGSEGV" in reasons["model", 11] and "SIGKILL" in reasons["model", 9]
    assert died.out.count("not tested: boom=") == 2 and "SIGSEGV" in died.out
    found = rows_of(out)
    (plugin.parent / "TRAP").unlink()
    vestige(*words)
    whole = rows_of(out)
    assert "not_tested" not in read_json(out / "stress.json")
    assert {key: whole[key] for key in found} == found
    assert whole.keys() - found.keys() == {("model", "boom", 11.0), ("model", "boom", 9.0)}
    assert whole["model", "boom", 11.0] == whole["model", "none", None] != whole["model", "prune", 0.5]


def test_errors_of_an_attack_arrive_as_they_are(plugin: Path) -> None:
    words = ("--model", UNLEARNED, *FEW, "--plugin", plugin, "--out", plugin.parent / "stress")
    assert vestige("stress", "doubtful", *words, status=2).error == "Nothing here is certain."
    bug = vestige("stress", "boom=0", *words, "--debug", status=70)
    assert "ZeroDivisionError: an error of the plug-in's own" in bug.err
    assert f'File "{plugin}"' in bug.err and "in boom" in bug.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_attack_outlives_its_command(plugin: Path, number: int) -> None:
    process = harness.start(
        "stress", "patient", "--model", UNLEARNED, *FEW, "--plugin", plugin, "--out", plugin.parent / "out"
    )
    harness.wait_until(plugin.with_name("pid").exists, process)
    child = int(plugin.with_name("pid").read_text())
    assert child != process.pid
    os.kill(process.pid, number)
    assert process.wait(60).status == (130 if number == signal.SIGINT else -number)
    harness.wait_until(lambda: harness.process_state(child) in "ZX")


def test_an_attack_that_dies_costs_a_sweep_that_attack_alone(plugin: Path) -> None:
    attacks = [{"boom": {"number": 11}}]
    plan = harness.write_plan(plugin.parent / "plan.yaml", {"npo": UNLEARNED}, retries=0, attacks=attacks)
    words = ("sweep", plan, "--plugin", plugin)
    assert "SIGSEGV" in vestige(*words, status=1).out
    first = read_json(plugin.parent / "out" / "sweep.json")
    states = {task["id"]: task["status"] for task in first["tasks"]}
    assert states == {"tofu/npo": "done", "attack/boom/npo": "failed", "tofu/npo+boom": "blocked"}
    (plugin.parent / "TRAP").unlink()
    shown = vestige(*words).out
    assert "start   attack/boom/npo" in shown and "start   tofu/npo\n" not in shown
    results = read_json(plugin.parent / "out" / "sweep.json")["results"]["tofu"]
    assert_same(results["npo"], results["npo+boom"])
    assert results["npo"] == first["results"]["tofu"]["npo"]
