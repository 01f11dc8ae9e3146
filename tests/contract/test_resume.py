"""A command that was killed goes on when it is given again, and leaves the files of an undisturbed run.

`harness.RUNNER` strikes a command at a given change of a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness
import pytest
from harness import DATA, FULL, GOLDEN, LAB, RETAIN, UNLEARNED, Outcome, Process

# What says when, how long and at what cost; everything else must be equal to the byte (docs/faults.md).
DATED_FILES = ("manifest.json", "summary.json", "metrics.json", "sweep.json")
DATED_KEYS = "created|seconds|cost|load_seconds|elapsed_sec|sec_per_evaluable|s1_cache|attempts|lost|timing_s"
DATED_KEYS += "|sha256|root"  # hashes of dated files have dates, too
NOT_RESULTS = (".lock",)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file by its name. A temporary file left behind counts, too."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".log"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name not in NOT_RESULTS}


def assert_equal(whole: dict[str, bytes], now: dict[str, bytes], where: str) -> None:
    assert set(whole) == set(now), where
    for name, expected in whole.items():
        path = Path(name)
        if path.name in DATED_FILES or path.parent.name == "tasks":
            _, apart = harness.differences(json.loads(expected), json.loads(now[name]), close=lambda a, b, _: a == b)
            assert [one for one in apart if not re.match(rf".*/({DATED_KEYS})\b.*:", one)] == [], f"{where}: {name}"
        else:
            assert expected == now[name], f"{where}: {name} differs from an undisturbed run's"


@dataclass
class Command:
    """A command with its own place: the output directory and the words."""

    out: Path
    words: tuple[object, ...]

    def start(self, number: int = 0, strike: object = "nowhere") -> Process:
        return harness.start(harness.RUNNER, self.out, number, strike, *self.words, kind="python")

    def strike(self, number: int, strike: int) -> Outcome:
        """From an empty directory, up to the file operation at which the signal comes."""
        shutil.rmtree(self.out, ignore_errors=True)
        return self.start(number, strike).wait()

    def finish(self) -> dict[str, int]:
        """To the end; file operations and tokens that it took."""
        outcome = self.start().wait()
        assert outcome.status == 0, outcome.printed[-4000:]
        return self.counts()

    def counts(self) -> dict[str, int]:
        return dict(harness.read_json(self.out.with_name(f"{self.out.name}.counts")))


def causal(place: Path) -> Command:
    """Answers in several batches, texts and gradients, with retain logs."""
    metrics = "forget_Q_A_Prob,forget_Q_A_ROUGE,forget_quality,mia_gradnorm"
    logs = LAB / "expected" / "retain_noref" / "TOFU_EVAL.json"
    words = ("eval", "tofu", "--model", UNLEARNED, "--data", DATA, "--metrics", metrics, "--retain-logs", logs)
    small = ("--limit", 3, "--batch-tokens", 150, "max_rows=2", "--quiet", "--out", place / "out")
    return Command(place / "out", (*words, *small))


def trajectory(place: Path) -> Command:
    lab = GOLDEN / "lab_diffusion"
    settings = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    words = ("eval", "tofu_trajectory", "--model", lab / "models" / "npo", "--data", lab / "data", "--limit", 2)
    small = (f"{settings}.steps=4", f"{settings}.max_new_tokens=8", "--batch-tokens", 200, "--quiet")
    return Command(place / "out", (*words, *small, "--out", place / "out"))


def depth(place: Path) -> Command:
    models = ("--unlearned", UNLEARNED, FULL, "--full", FULL, "--retain-model", RETAIN)
    small = ("--forget", DATA / "forget.jsonl", "--limit", 4, "--batch-size", 2, "--quiet", "--out", place / "out")
    return Command(place / "out", ("depth", *models, *small))


def collapse(place: Path) -> Command:
    file = harness.write_rollouts(place / "rollouts.jsonl", "go", "wait")
    words = ("collapse", file, "--model", GOLDEN / "collapse" / "tiny", "--resamples", 20, "--quiet")
    return Command(place / "out", (*words, "--out", place / "out"))


def stress(place: Path) -> Command:
    words = ("stress", "jailbreak", "--model", FULL, "--data", DATA, "--metrics", "forget_Q_A_Prob")
    return Command(place / "out", (*words, "--limit", 2, "--quiet", "--out", place / "out"))


def sweep(place: Path) -> Command:
    plan = harness.write_plan(place / "plan.yaml", {"full": FULL, "retain": RETAIN}, retain="retain")
    return Command(place / "out", ("sweep", plan))


KILL, INTERRUPT, TERMINATE = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
STATUS = {KILL: (-KILL,), INTERRUPT: (130,), TERMINATE: (-TERMINATE, 128 + TERMINATE)}
STRIKES = [  # the fraction of the file operations after which the signal comes; the last one writes the last file
    (causal, [(0.2, KILL), (0.3, INTERRUPT), (0.45, TERMINATE), (0.7, KILL), (1, KILL)]),
    (trajectory, [(0.25, KILL), (0.36, KILL), (1, KILL)]),
    (depth, [(0.3, KILL), (0.5, INTERRUPT), (1, KILL)]),
    (collapse, [(0.3, KILL), (0.45, TERMINATE), (1, KILL)]),
    (stress, [(0.3, KILL), (0.5, KILL), (1, INTERRUPT)]),
    (sweep, [(0.2, KILL), (0.5, INTERRUPT), (0.75, KILL), (1, KILL)]),
]


def meet_a_second_process(command: Command, moment: int) -> None:
    """Halts the first process half-way, so that both are surely there at once; the second waits or is refused."""
    shutil.rmtree(command.out)
    first = command.start(signal.SIGSTOP, moment)
    harness.wait_until(lambda: harness.process_state(first.pid) == "T", first)
    second = harness.start(*command.words)
    end = time.monotonic() + 10
    while second.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait().status == 0
    refused = second.wait()
    if command.words[0] != "sweep":  # several processes may share a sweep's work
        assert refused.status == 2
        assert str(command.out) in refused.error


@pytest.mark.parametrize(("make", "strikes"), STRIKES, ids=[make.__name__ for make, _ in STRIKES])
def test_a_struck_command_goes_on(
    make: Callable[[Path], Command], strikes: list[tuple[float, signal.Signals]], tmp_path: Path
) -> None:
    """Equal files, and less work than a fresh run: what was collected before the signal is read, not computed."""
    command = make(tmp_path)
    whole = command.finish()
    files = snapshot(command.out)
    spent = []
    for fraction, number in strikes:
        where = f"{number.name} at {fraction} of {whole['operations']} file operations"
        struck = command.strike(number, round(fraction * whole["operations"]))
        assert struck.status in STATUS[number], f"{where}: status {struck.status}\n{struck.printed[-2000:]}"
        assert "Traceback" not in struck.printed, f"{where}: {struck.printed[-2000:]}"
        spent.append((command.counts()["tokens"], command.finish()["tokens"]))
        assert_equal(files, snapshot(command.out), where)
    resumed = [after for _, after in spent]
    assert whole["tokens"] > 0
    assert resumed == sorted(resumed, reverse=True), f"the later the signal, the less is left to do: {spent}"
    assert resumed[-1] == 0, f"all was collected, and yet the model was run: {spent}"
    if make not in (trajectory, depth):  # those make nearly all of their evidence between two file operations
        assert any(0 < after < whole["tokens"] for after in resumed), f"nothing was kept half-way: {spent}"
    assert command.finish()["tokens"] == 0, "a finished run was computed again"
    assert_equal(files, snapshot(command.out), "run once more")
    meet_a_second_process(command, whole["operations"] // 2)
    assert_equal(files, snapshot(command.out), "two processes")
    harness.vestige("verify", command.out)


LOAD = """
import sys, vestige
try:
    print(vestige.load_run(sys.argv[1]).summary)
except vestige.UserError as error:
    print("refused", error)
"""


def test_an_unfinished_run_is_no_result(tmp_path: Path) -> None:
    """Also when its result files are there already and only the end is missing."""
    command = causal(tmp_path)
    operations = command.finish()["operations"]
    assert "refused" not in harness.python(LOAD, command.out).out
    for moment in (operations // 2, operations * 9 // 10):
        command.strike(KILL, moment)
        assert str(command.out) in harness.vestige("verify", command.out, status=1).printed
        assert harness.python(LOAD, command.out).out.startswith("refused")
        refused = harness.vestige("pack", command.out, "-o", tmp_path / "proof.zip", status=2)
        assert str(command.out) in refused.error
        assert not (tmp_path / "proof.zip").exists()


def test_a_half_replaced_run_is_not_reported_under_the_old_name(tmp_path: Path) -> None:
    """Another model in the same directory, killed while it replaces the results of the first."""
    out, values = tmp_path / "out", {}
    few = ("--metrics", "forget_Q_A_Prob", "--limit", 3, "--quiet", "stats.resamples=0", "--overwrite", "--out", out)
    first, second = (Command(out, ("eval", "tofu", "--model", m, "--data", DATA, *few)) for m in (FULL, UNLEARNED))
    first.finish()
    before = harness.copy_tree(out, tmp_path / "before")
    second.finish()
    for name, run in (("full", before), ("unlearned", out)):
        values[name] = harness.read_json(run / "TOFU_SUMMARY.json")["forget_Q_A_Prob"]
    for strike in ("TOFU_EVAL.json", "TOFU_SUMMARY.json", "manifest.json"):
        shutil.rmtree(out)
        harness.copy_tree(before, out)
        assert second.start(KILL, strike).wait().status == -KILL
        shown = harness.vestige("report", out, "-o", tmp_path / strike[:4], status=None)
        if shown.status == 0:
            text = (tmp_path / strike[:4] / "report.json").read_text()
            for name, value in values.items():
                assert (f"  {name}:" in shown.out) == (str(value)[:8] in text), f"{name}: {value} in\n{shown.out}"
        second.finish()
        assert harness.read_json(out / "TOFU_SUMMARY.json")["forget_Q_A_Prob"] == values["unlearned"]


def test_results_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """Who reads a file while another metric is added reads the old one to its end; a hard link keeps it."""
    few = ("--limit", 3, "--quiet", "stats.resamples=0", "--out", tmp_path / "out")
    for metric in ("mia_loss", "forget_Q_A_Prob"):
        harness.vestige("eval", "tofu", "--model", FULL, "--data", DATA, *few, "--metrics", metric)
        for name in ("TOFU_EVAL.json", "TOFU_SUMMARY.json"):
            if metric == "mia_loss":
                (tmp_path / name).hardlink_to(tmp_path / "out" / name)
            assert ("forget_Q_A_Prob" in harness.read_json(tmp_path / "out" / name)) == (metric != "mia_loss")
            assert "forget_Q_A_Prob" not in harness.read_json(tmp_path / name), "written into"


def member(command: Command, rank: int, port: int, number: int = 0, strike: object = "nowhere") -> Process:
    """One process of a team of two, told of it as torchrun and accelerate do."""
    team = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    env = {name: str(value) for name, value in team.items()}
    env["MASTER_ADDR"] = "127.0.0.1"
    return harness.start(harness.RUNNER, command.out, number, strike, *command.words, kind="python", env=env)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_killed_team_leaves_its_evidence_to_one_process(tmp_path: Path) -> None:
    """Numbers to rounding, because two processes put other rows together than one."""
    command = causal(tmp_path)
    whole = command.finish()
    expected = harness.read_json(command.out / "TOFU_EVAL.json")
    shutil.rmtree(command.out)
    port = free_port()
    members = [member(command, rank, port) for rank in (0, 1)]
    for one in members:
        done = one.wait()
        assert done.status == 0, done.printed[-2000:]
    harness.assert_same(expected, harness.read_json(command.out / "TOFU_EVAL.json"), least=20)
    shutil.rmtree(command.out)
    port = free_port()
    leader = member(command, 0, port, KILL, whole["operations"] // 2)
    other = member(command, 1, port)
    assert leader.wait().status == -KILL
    other.kill()
    resumed = command.finish()
    assert 0 < resumed["tokens"] < whole["tokens"]
    harness.assert_same(expected, harness.read_json(command.out / "TOFU_EVAL.json"), least=20)
    harness.vestige("verify", command.out)


WAITS = """
import os, pathlib, time, torch

def wait_with_work_left(module, inputs):
    if list(pathlib.Path(os.environ["WAIT_IN"]).rglob("answers-*/*.safetensors")):
        pathlib.Path(os.environ["WAIT_IN"] + ".waits").touch()
        time.sleep(600)

if "WAIT_IN" in os.environ:
    torch.nn.modules.module.register_module_forward_pre_hook(wait_with_work_left)
"""


def test_an_interrupt_of_the_installed_program(tmp_path: Path) -> None:
    """Ctrl-C while it is at work: status 130, one line, and the same command ends the run. A plug-in waits for the
    signal after the first batch, so that the program cannot be done before it comes."""
    (tmp_path / "waits.py").write_text(WAITS)
    words = ("eval", "tofu", "--model", UNLEARNED, "--data", DATA, "--metrics", "forget_Q_A_Prob,forget_truth_ratio")
    out = tmp_path / "out"
    more = ("--batch-tokens", 150, "--quiet", "--plugin", tmp_path / "waits.py", "--out", out)
    process = harness.start(*words, *more, real=True, env={"WAIT_IN": str(out)})
    harness.wait_until((tmp_path / "out.waits").exists, process)
    stopped = process.kill(INTERRUPT)
    assert stopped.status == 130
    assert "Traceback" not in stopped.printed
    harness.vestige("verify", out, status=1)
    harness.vestige(*words, *more)
    harness.vestige("verify", out)
