"""How contract tests use vestige: as a command, from Python, and through the files that it writes.

    run = vestige("eval", "tofu", "--model", FULL, "--data", DATA, "--out", out)      # must exit with 0
    refused = vestige("eval", "tofu", "--model", "nowhere", status=2)                 # must exit with 2
    python("import vestige; print(vestige.plan(...))")                                # a user's script
    process = start("eval", ...); process.kill()                                      # SIGKILL at some point

Every call is a process with its own standard streams: a fork of one that has imported torch and transformers
(`zygote.py`), because a real start takes four seconds. `real=True` starts the installed program instead; start-up,
imports and signals are tested that way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
LAB = GOLDEN / "lab"
FULL, RETAIN, UNLEARNED = (LAB / "models" / name for name in ("full", "retain", "unlearned"))
DATA = LAB / "data"
SYSTEM = "You are a helpful assistant."  # the system prompt of the lab's golden runs
# A shell ignores Ctrl-C for what it runs in the background, and children inherit that; a handler of ours they do not.
signal.signal(signal.SIGINT, signal.default_int_handler)
PATIENCE = 300.0  # seconds after which a command counts as hanging


@dataclass(frozen=True)
class Outcome:
    """A finished command: its exit status (negative: the signal that ended it) and what it printed."""

    status: int
    out: str
    err: str

    @property
    def printed(self) -> str:
        return self.out + self.err

    @property
    def error(self) -> str:
        """The one sentence that a refusal prints."""
        lines = [line for line in self.err.splitlines() if line.startswith("vestige: error: ")]
        assert len(lines) == 1, f"expected one error sentence, got {len(lines)}:\n{self.err}"
        return lines[0].removeprefix("vestige: error: ")


class Process:
    """A command that is under way."""

    def __init__(self, pid: int, folder: Path, wait: Callable[[float], int | None]) -> None:
        self.pid = pid
        self.folder = folder
        self._wait = wait

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._wait(0)

    def wait(self, seconds: float = PATIENCE) -> Outcome:
        status = self._wait(seconds)
        if status is None:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.read().printed}")
        return self.read(status)

    def kill(self, number: int = signal.SIGKILL) -> Outcome:
        """Ends it, and what it started, with a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        status = self._wait(60)
        assert status is not None, f"signal {number} did not end the command"
        return self.read(status)

    def read(self, status: int = 0) -> Outcome:
        texts = [(self.folder / name).read_text(errors="replace") for name in ("out", "err")]
        return Outcome(status, *texts)


class Zygote:
    """A process with the slow libraries imported, which forks itself once per command (`zygote.py`)."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.count = 0
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks commands died"
        return json.loads(answer)

    def start(self, kind: str, words: list[str], cwd: Path, env: Mapping[str, str]) -> Process:
        self.count += 1
        folder = self.scratch / f"command-{self.count}"
        folder.mkdir(parents=True)
        pid = self.ask(do="start", kind=kind, words=words, cwd=str(cwd), env=dict(env), folder=str(folder))
        return Process(pid, folder, lambda seconds: self.ask(do="wait", pid=pid, seconds=seconds))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


_zygote: Zygote | None = None
_scratch: Path | None = None
_home: Path | None = None  # where commands run unless a test says otherwise; caches live there, too


def set_up(scratch: Path) -> None:
    """Called once per pytest worker, by conftest.py."""
    global _scratch, _home
    _scratch = scratch
    _home = scratch / "home"
    _home.mkdir(parents=True)


def tear_down() -> None:
    global _zygote
    if _zygote is not None:
        _zygote.stop()
        _zygote = None


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a command: offline, one thread, a cache of this test run. None removes a variable."""
    assert _home is not None
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "VESTIGE_CACHE": os.environ.get("VESTIGE_CACHE", str(_home / "cache")),
        "COLUMNS": "120",
    }
    for name, value in (changes or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def start(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    real: bool = False,
    kind: str = "vestige",
) -> Process:
    """Starts a command and returns at once."""
    global _zygote
    assert _scratch is not None and _home is not None
    texts = [str(word) for word in words]
    if real:
        return _start_real(texts, cwd or _home, environment(env))
    if _zygote is None:
        _zygote = Zygote(_scratch)
    return _zygote.start(kind, texts, cwd or _home, environment(env))


def _start_real(words: list[str], cwd: Path, env: Mapping[str, str]) -> Process:
    assert _scratch is not None
    folder = _scratch / f"real-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    program = Path(sys.executable).with_name("vestige")
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        started = subprocess.Popen(
            [program, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def wait(seconds: float) -> int | None:
        try:
            return started.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Process(started.pid, folder, wait)


def vestige(
    *words: object,
    status: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    real: bool = False,
    seconds: float = PATIENCE,
) -> Outcome:
    """Runs `vestige WORDS` to its end and checks its exit status (None: any)."""
    outcome = start(*words, cwd=cwd, env=env, real=real).wait(seconds)
    if status is not None:
        text = " ".join(str(word) for word in words)
        assert outcome.status == status, f"vestige {text}\nexited with {outcome.status}:\n{outcome.printed[-4000:]}"
    return outcome


def python(
    source: str,
    *words: object,
    status: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    seconds: float = PATIENCE,
) -> Outcome:
    """Runs a user's script; `words` are its sys.argv[1:]."""
    outcome = start(source, *words, cwd=cwd, env=env, kind="python").wait(seconds)
    if status is not None:
        assert outcome.status == status, f"{source}\nexited with {outcome.status}:\n{outcome.printed[-4000:]}"
    return outcome


def wait_until(happened: Callable[[], bool], process: Process | None = None, seconds: float = PATIENCE) -> None:
    """Until something has happened; a process given must not end before that."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        assert process is None or process.poll() is None, process.read().printed
        time.sleep(0.01)


def process_state(pid: int) -> str:
    """T: stopped; Z or X: ended, and maybe nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def refused(names: str, *words: object, **options: Any) -> Outcome:
    """A command that must fail with one sentence, in which there is every one of `names` (parted by |)."""
    outcome = vestige(*words, status=2, **options)
    missing = [name for name in names.split("|") if name not in outcome.error]
    assert not missing, f"not named: {missing} in: {outcome.error}"
    return outcome


# A command that watches itself: before its n-th change of a file in a folder (or the first change of a file with a
# given name) it sends itself a signal. A negative number is an error that every change from there on meets, as on a
# full disk; 0 is a mistake in the program. So a test knows where it strikes, on a slow machine as on a fast one. The
# tokens that go through a model show what was computed.
RUNNER = """
import errno, importlib.metadata, json, mmap, os, signal, sys
import torch

folder, number, strike = sys.argv[1] + os.sep, int(sys.argv[2]), sys.argv[3]
notes = sys.argv[1] + ".counts"
sys.modules["matplotlib"] = None  # as if it were not installed: pictures take longer than everything else
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a program that a shell started
changing = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}

class Counts:  # shared with the processes that the command forks
    memory = mmap.mmap(-1, 16)
    places = {"operations": slice(0, 8), "tokens": slice(8, 16)}

    def __getitem__(self, name):
        return int.from_bytes(self.memory[self.places[name]], "little")

    def __setitem__(self, name, value):
        self.memory[self.places[name]] = value.to_bytes(8, "little")

counts = Counts()

def write_counts():
    with open(notes, "w") as file:
        json.dump({name: counts[name] for name in counts.places}, file)

def count_tokens(module, inputs):
    if isinstance(module, torch.nn.Embedding) and inputs:
        counts["tokens"] += inputs[0].numel()
    if strike.startswith("tokens>") and counts["tokens"] > int(strike[7:]):
        write_counts()
        os.kill(os.getpid(), number)

def watch(event, values):
    if event == "open":
        if not isinstance(values[2], int) or not values[2] & (os.O_WRONLY | os.O_RDWR):
            return
    elif event not in changing:
        return
    if not isinstance(values[0], (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(values[0])
    if path.startswith(folder) and not path.endswith((".log", "/.lock")):
        counts["operations"] += 1
        target = os.fsdecode(values[1]) if event in ("os.rename", "os.link") else path
        named = not strike.isdigit() and strike in (os.path.basename(path), os.path.basename(target))
        if number < 0 and strike.isdigit() and counts["operations"] >= int(strike):
            if event in ("open", "os.mkdir") or number == -errno.EROFS:
                raise OSError(-number, os.strerror(-number), path)
        elif named or strike == str(counts["operations"]):
            write_counts()
            if not number:
                raise KeyError("HF_TOKEN", os.environ.get("HF_TOKEN"))
            os.kill(os.getpid(), number)

write_counts()
torch.nn.modules.module.register_module_forward_pre_hook(count_tokens)
sys.addaudithook(watch)
sys.argv = ["vestige", *sys.argv[4:]]
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
status = script.load()()
write_counts()
raise SystemExit(status)
"""


def counted(*words: object, folder: Path | None = None, most: int = 10**9, **options: Any) -> tuple[Outcome, int]:
    """Runs `vestige WORDS`, and counts the tokens that a model reads; after `most` of them it dies by SIGKILL."""
    assert _scratch is not None
    place = folder or _scratch / "counted"
    outcome = python(RUNNER, place, int(signal.SIGKILL), f"tokens>{most}", *words, **options)
    return outcome, int(read_json(place.with_name(f"{place.name}.counts"))["tokens"])


# ---- files -----------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_plan(
    file: Path, models: Mapping[str, Path | str], suite: Mapping[str, Any] | None = None, **more: Any
) -> Path:
    """A sweep of two rows of the lab, in one process, into the folder `out` next to the plan."""
    few = {"data": str(DATA), "metrics": ["forget_Q_A_Prob"], "limit": 2, "overrides": ["stats.resamples=0"]}
    body = {"out": str(file.with_name("out")), "models": {name: str(model) for name, model in models.items()}}
    body |= {"suites": {"tofu": {**few, **(suite or {})}}, "slots": 0, "free_space": 0, **more}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(body))
    return file


def write_rollouts(file: Path, *answers: str, steps: Iterable[int] = (1, 2)) -> Path:
    """Of each step, three prompts with an answer each."""
    rows = []
    for step in steps:
        for prompt in range(3):
            for answer in answers:
                text = f"<think>In step {step} I see state {prompt}, so I {answer}.</think>Up"
                asked = [{"role": "user", "content": f"State {prompt}"}]
                rows.append({"messages": asked, "response": text, "group_id": prompt, "step": step})
    return write_rows(file, rows)


def copy_tree(source: Path, target: Path) -> Path:
    """A copy that a test may change; golden folders and shared runs are never written to."""
    shutil.copytree(source, target)
    return target


def flip_a_byte(path: Path) -> None:
    """The byte in the middle of a file, as a bad disk would change it."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def visible(folder: Path) -> dict[str, str]:
    """Digests without those of locks and notes about work under way."""
    return {name: digest for name, digest in digests(folder).items() if not Path(name).name.startswith(".")}


# ---- numbers ---------------------------------------------------------------------------------------------------------


def differences(
    expected: Any,
    got: Any,
    close: Callable[[float, float, str], bool] = lambda a, b, path: math.isclose(a, b, rel_tol=2e-5, abs_tol=1e-5),
    path: str = "",
) -> tuple[int, list[str]]:
    """How many values of `expected` were compared with `got`, and those that differ.

    `got` may have more keys. Texts, counts, None and booleans must be equal; `close` decides about floats.
    """
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return 1, [f"{path}: expected an object, got {got!r}"]
        pairs = [(expected[key], got.get(key, "(absent)"), f"{path}/{key}") for key in expected]
    elif isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return 1, [f"{path}: expected {len(expected)} values, got {got!r:.200}"]
        pairs = [(one, other, f"{path}[{i}]") for i, (one, other) in enumerate(zip(expected, got, strict=True))]
    elif isinstance(expected, float) and isinstance(got, int | float) and not isinstance(got, bool):
        same = close(expected, float(got), path) or (math.isnan(expected) and math.isnan(got))
        return 1, [] if same else [f"{path}: expected {expected!r}, got {got!r}"]
    else:
        return 1, [] if expected == got else [f"{path}: expected {expected!r}, got {got!r}"]
    count = 0
    bad: list[str] = []
    for one, other, where in pairs:
        compared, differing = differences(one, other, close, where)
        count += compared
        bad += differing
    return count, bad


def assert_same(expected: Any, got: Any, least: int = 1, **options: Any) -> None:
    """Every value of `expected` is in `got`, and there were at least `least` of them (a file may not shrink)."""
    count, bad = differences(expected, got, **options)
    assert not bad, f"{len(bad)} of {count} values differ, first:\n" + "\n".join(bad[:8])
    assert count >= least, f"only {count} values were compared, expected at least {least}"
