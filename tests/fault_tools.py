"""The fault kit: commands run in forked children, struck by one fault each, and what came of it after a restart.

    clean run -> what it leaves        struck run -> (repair as told) -> the same command again -> the same files?

Faults strike from outside the shipped code: an audit hook sees every file operation of the child and may kill it or
refuse; a full or read-only disk is a tiny tmpfs where mounting is allowed; memory runs out in a hook on forwards or by
a limit on the address space. A child is a fork of a process that has imported everything, so it costs a second.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from conftest import GOLDEN, LAB, SYSTEM

LIMIT = 150.0  # seconds after which a child is taken to hang
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
Arm = Callable[[], None]
IDENTICAL, SAID, LOST, WRONG = "identical", "said", "lost", "silently wrong"


# ---- children -------------------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a child ended: its status (negative: the signal that killed it) and what it said."""

    status: int
    text: str

    @property
    def sentence(self) -> str:
        """The one sentence of an orderly failure; empty if there is none, or a traceback beside it."""
        found = re.findall(r"^vestige: error: .+$|^failed: .+$", self.text, re.M)
        return found[-1] if found and "Traceback" not in self.text else ""


def child(argv: Sequence[str], arm: Arm | None = None, strike: Callable[[int], None] | None = None) -> Ended:
    """One command in a fork of this process. `arm` runs in the child, `strike(pid)` beside it."""
    said = Path(os.environ["VESTIGE_CACHE"]) / "child.txt"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _be_child(argv, arm, said)
    try:
        if strike is not None:
            strike(pid)
        status = _await(pid)
    finally:
        _end(pid)
    return Ended(status, said.read_text(encoding="utf-8", errors="replace"))


def _be_child(argv: Sequence[str], arm: Arm | None, said: Path) -> None:
    code = 70
    try:
        os.setsid()
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        logging.root.handlers.clear()
        from vestige.cli import main

        if arm is not None:
            arm()
        code = main(list(argv))
    except SystemExit as stop:
        code = int(stop.code) if isinstance(stop.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _await(pid: int) -> int:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return -999


def _end(pid: int) -> None:
    """Nothing of the child's session stays behind (workers end with their driver, this is for the rest)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


# ---- what a run leaves ----------------------------------------------------------------------------------------------

TIMES: dict[str, tuple[str, ...]] = {
    "manifest.json": ("created", "seconds", "cost", "load_seconds"),
    "summary.json": ("created", "elapsed_sec", "sec_per_evaluable", "cost", "s1_cache"),
    "metrics.json": ("timing_s/",),
    "sweep.json": ("seconds", "attempts", "lost"),
    "checksums.json": ("root", "manifest.json", "summary.json", "metrics.json"),
}


def snapshot(place: Path) -> dict[str, Any]:
    """Every file a command left but locks and logs, without what says when, how long and at what cost."""
    out: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if path.is_dir() or path.name in (".lock", "lost+found") or path.suffix == ".log":
            continue
        times = TIMES.get(path.name, ("seconds", "attempts", "lost") if "tasks/" in name else None)
        if times is None:
            out[name] = path.read_bytes()
        else:
            out[name] = _without(json.loads(path.read_text()), times)
    return out


def _without(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(k == t or (t[-1] == "/" and k.startswith(t)) for t in keys)}
        kept = {k: v for k, v in kept.items() if not any(k.endswith(f"/{t}") for t in keys if "." in t)}
        return {k: _without(v, keys) for k, v in kept.items()}
    return [_without(v, keys) for v in value] if isinstance(value, list) else value


def differences(clean: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*clean, *now}) if clean.get(name) != now.get(name)]


# ---- capabilities ---------------------------------------------------------------------------------------------------


@dataclass
class Capability:
    """One long command on tiny models, its output directory, and what an undisturbed run of it leaves."""

    name: str
    out: Path
    argv: list[str]
    clean: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    seconds: float = 0.0
    size: int = 0

    def measure(self) -> None:
        """The clean run, twice: once here for the imports, once in a child to count and time its file operations."""
        from vestige.cli import main

        wipe(self.out)
        assert main(self.argv) == 0
        wipe(self.out)
        count = self.out.parent / f"{self.name}.count"
        start = time.monotonic()
        ended = child(self.argv, lambda: watch(self.out, lambda n, *_: count.write_text(str(n)) and None))
        self.seconds = time.monotonic() - start
        assert ended.status == 0, ended.text
        self.events = int(count.read_text())
        self.clean = snapshot(self.out)
        self.size = sum(p.stat().st_size for p in self.out.rglob("*") if p.is_file())


def wipe(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def capabilities(base: Path, names: Sequence[str] = ()) -> list[Capability]:
    """Every long command, small. Each has a directory of its own, which is wiped between faults."""
    base.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], list[str]]] = {
        "eval": _eval, "trajectory": _trajectory, "depth": _depth, "collapse": _collapse, "sweep": _sweep,
        "stress": _stress,
    }  # fmt: skip
    return [
        Capability(name, base / name / "out", make(base / name)) for name, make in makers.items() if not names or name in names
    ]


def _lab(kind: str, out: Path, *more: str) -> list[str]:
    return ["--data", str(GOLDEN / kind / "data"), "--out", str(out / "out"), "--quiet", *more]


def _eval(place: Path) -> list[str]:
    metrics = "forget_Q_A_Prob,forget_Q_A_ROUGE,forget_quality,mia_gradnorm"
    logs = str(LAB / "expected" / "retain_noref" / "TOFU_EVAL.json")
    more = ["--metrics", metrics, "--limit", "3", "--batch-tokens", "150", "max_rows=2", "--retain-logs", logs]
    model = ["eval", "tofu", "--model", str(LAB / "models" / "unlearned"), "--system-prompt", SYSTEM]
    return [*model, *_lab("lab", place, *more)]


def _trajectory(place: Path) -> list[str]:
    kwargs = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    model = ["eval", "tofu_trajectory", "--model", str(GOLDEN / "lab_diffusion" / "models" / "npo")]
    return [*model, *_lab("lab_diffusion", place, "--limit", "2", f"{kwargs}.steps=4", f"{kwargs}.max_new_tokens=8")]


def _depth(place: Path) -> list[str]:
    models = LAB / "models"
    more = ["--full", str(models / "full"), "--retain", str(models / "retain"), "--limit", "4", "--batch-size", "2"]
    both = ["--unlearned", str(models / "unlearned"), str(models / "full"), "--quiet"]
    return ["depth", *more, *both, "--data", str(LAB / "data" / "forget.jsonl"), "--out", str(place / "out")]


def _collapse(place: Path) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "messages": [{"role": "user", "content": f"State {p}"}],
            "response": f"<think>I see state {p} so {'go' if s else 'wait'}.</think>Up",
            "group_id": p,
            "step": step,
        }
        for step in (1, 2)
        for p in range(3)
        for s in range(2)
    ]
    file = place / "rollouts.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    tiny = str(GOLDEN / "collapse" / "tiny")
    return ["collapse", str(file), "--model", tiny, "--out", str(place / "out"), "--resamples", "20", "--quiet"]


def _sweep(place: Path, slots: int = 0) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    models = {name: str(LAB / "models" / name) for name in ("full", "retain")}
    suite = {"data": str(LAB / "data"), "metrics": ["forget_Q_A_Prob"], "limit": 2, "overrides": ["stats.resamples=0"]}
    body = {"out": str(place / "out"), "retain": "retain", "models": models, "suites": {"tofu": suite}, "retries": 1, "free_space": 0}
    (place / "plan.yaml").write_text(yaml.safe_dump({**body, "slots": slots}))
    return ["sweep", str(place / "plan.yaml")]


def _stress(place: Path) -> list[str]:
    more = ["--metrics", "forget_Q_A_Prob", "--limit", "2", "--out", str(place / "out")]
    return ["stress", "jailbreak", "--model", str(LAB / "models" / "full"), "--data", str(LAB / "data"), *more]


# ---- faults ---------------------------------------------------------------------------------------------------------


def watch(out: Path, act: Callable[[int, str, str], None]) -> None:
    """Calls `act(n, event, path)` before the n-th file operation below `out` that changes something."""
    top, seen, busy = str(out), [0], [False]
    changing = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if busy[0] or not (event == "open" or event in changing) or not args:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITING):
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
        if path.startswith(top) and not path.endswith((".log", "/.lock")):
            seen[0] += 1
            busy[0] = True
            try:
                act(seen[0], event, path)
            finally:
                busy[0] = False

    sys.addaudithook(hook)


def kill_at(out: Path, n: int) -> Arm:
    def act(i: int, event: str, path: str) -> None:
        if i == n:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: watch(out, act)


def refuse_from(out: Path, n: int, code: int) -> Arm:
    """From the n-th operation on the disk takes nothing new; removing still works, as it does."""

    def act(i: int, event: str, path: str) -> None:
        if i >= n and event in ("open", "os.mkdir", "os.rename" if code != errno.ENOSPC else "open"):
            raise OSError(code, os.strerror(code), path)

    return lambda: watch(out, act)


def killer(delay: float) -> Callable[[int], None]:
    def strike(pid: int) -> None:
        time.sleep(delay)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    return strike


def no_memory(first: int, always: bool) -> Arm:
    """Forwards raise what torch's CPU allocator raises: once, or from then on."""

    def arm() -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from transformers import PreTrainedModel

        seen = [0]

        def hook(module: Any, args: Any) -> None:
            if isinstance(module, PreTrainedModel):
                seen[0] += 1
                if seen[0] == first or (always and seen[0] > first):
                    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

        register_module_forward_pre_hook(hook)

    return arm


def little_memory(room: int) -> Arm:
    def arm() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))

    return arm


def clock_jumps(rng: random.Random) -> Arm:
    """Every clock that Python offers jumps by up to a year, back and forth."""
    jumps = [rng.uniform(-3e7, 3e7) for _ in range(64)]

    def arm() -> None:
        calls = [0]

        def shaken(real: Callable[[], float]) -> Callable[[], float]:
            def now() -> float:
                calls[0] += 1
                return real() + jumps[calls[0] // 50 % len(jumps)]

            return now

        time.time, time.perf_counter = shaken(time.time), shaken(time.perf_counter)

    return arm


def lose_worker(rng: random.Random) -> Callable[[int], None]:
    """Kills the driver's worker process while it works."""

    def strike(pid: int) -> None:
        import psutil

        until, hit = time.monotonic() + 90, False
        while time.monotonic() < until and not hit:
            try:
                workers = [p for p in psutil.Process(pid).children() if "vestige.run.worker" in " ".join(p.cmdline())]
            except psutil.Error:
                return
            if workers and workers[0].cpu_times().user > rng.uniform(0.2, 4.0):
                workers[0].kill()
                hit = True
            time.sleep(0.05)

    return strike


UNSEEN = "and verify saw nothing"
DAMAGES = ("truncated", "flipped", "emptied", "overwritten")


def damage(path: Path, how: str, rng: random.Random) -> None:
    data = path.read_bytes()
    if how == "truncated":
        data = data[: rng.randrange(max(1, len(data)))]
    elif how == "flipped" and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    else:
        data = b"" if how == "emptied" else rng.randbytes(rng.randrange(1, 400))
    path.write_bytes(data)


FILE_CLASSES: dict[str, Callable[[Path], bool]] = {
    "evidence": lambda p: "evidence" in p.parts or "s1_cache" in p.parts or p.suffix == ".npz",
    "json": lambda p: p.suffix in (".json", ".jsonl", ".csv") and "evidence" not in p.parts,
    "lock": lambda p: p.name in (".lock", ".holder.json"),
}


@contextmanager
def mounted(place: Path, size: int) -> Iterator[bool]:
    """A tmpfs of so many bytes at `place`; False where that is not allowed."""
    wipe(place)
    place.mkdir(parents=True)
    yes = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield yes
    finally:
        if yes:
            subprocess.run(["umount", "-l", str(place)], capture_output=True)
        wipe(place)


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0


# ---- one fault ------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What one fault came to."""

    capability: str
    fault: str
    outcome: str
    detail: str


FAULTS = (
    "kill at a file operation", "kill at a moment", "disk full (refused)", "disk full (tmpfs)", "read-only",
    "evidence damaged", "json damaged", "lock damaged", "clock jumps", "memory once", "memory out", "address space",
    "worker lost",
)  # fmt: skip


def applies(capability: str, fault: str) -> bool:
    if fault == "worker lost":
        return capability == "sweep"
    return True


def strike(c: Capability, fault: str, seed: int) -> Result:
    """One fault on one command, then the same command again, and a look at what it left."""
    rng = random.Random(f"{c.name}/{fault}/{seed}")
    wipe(c.out)
    if fault in ("disk full (tmpfs)", "read-only"):
        outcome, detail = _on_tmpfs(c, fault, rng)
    else:
        first, detail = _first(c, fault, rng)
        outcome, more = _after(c, first)
        detail = f"{detail}; {more}"
        outcome = WRONG if UNSEEN in detail else outcome
    wipe(c.out)
    return Result(c.name, fault, outcome, detail)


def _first(c: Capability, fault: str, rng: random.Random) -> tuple[Ended | None, str]:
    """The struck run. None: it is over and what is left on disk was struck."""
    n = rng.randint(1, max(1, c.events))
    if fault == "kill at a file operation":
        return child(c.argv, kill_at(c.out, n)), f"operation {n} of {c.events}"
    if fault == "kill at a moment":
        delay = rng.uniform(0, c.seconds)
        return child(c.argv, None, killer(delay)), f"after {delay:.2f} s"
    if fault == "disk full (refused)":
        return child(c.argv, refuse_from(c.out, n, errno.ENOSPC)), f"from operation {n} of {c.events}"
    if fault.endswith("damaged"):
        return None, _damage_some(c, fault.split()[0], n, rng)
    if fault == "clock jumps":
        child(c.argv, kill_at(c.out, n))
        for path in (p for p in c.out.rglob("*") if p.is_file()):
            os.utime(path, (t := time.time() + rng.uniform(-3e8, 3e8), t))
        return child(c.argv, clock_jumps(rng)), f"killed at operation {n}, times of files changed, clocks jump"
    if fault == "worker lost":
        _sweep(c.out.parent, slots=1)
        ended = child(c.argv, None, lose_worker(rng))
        _sweep(c.out.parent, slots=0)
        return ended, "worker killed"
    k = rng.randint(1, 12)
    if fault == "address space":
        room = rng.randint(1 << 20, 64 << 20)
        return child(c.argv, little_memory(room)), f"{room >> 20} MB left"
    return child(c.argv, no_memory(k, fault == "memory out")), f"forward {k}"


def _damage_some(c: Capability, what: str, n: int, rng: random.Random) -> str:
    """A file of an interrupted or of a finished run is damaged; of a finished one `verify` must say so."""
    finished = rng.random() < 0.5
    child(c.argv, None if finished else kill_at(c.out, n))
    chosen = sorted(p for p in c.out.rglob("*") if p.is_file() and FILE_CLASSES[what](p))
    if not chosen:
        if what != "lock":
            return "nothing there yet"
        c.out.mkdir(parents=True, exist_ok=True)
        chosen = [c.out / ".holder.json"]
        chosen[0].write_text("{}")
    path, how = rng.choice(chosen), rng.choice(DAMAGES)
    before = path.read_bytes()
    damage(path, how, rng)
    words = f"{path.relative_to(c.out)} {how} in {'a finished' if finished else 'an interrupted'} run"
    if finished and path.read_bytes() != before and _must_be_seen(c, path):
        seen = child(["verify", str(c.out)])
        if seen.status != 1:
            words += f" {UNSEEN}"
    return words


def _must_be_seen(c: Capability, path: Path) -> bool:
    """Every file but locks, S1's shared cache, and what a sweep keeps outside its runs."""
    inside = c.name != "sweep" or "runs" in path.relative_to(c.out).parts
    return inside and path.name not in (".lock", ".holder.json") and "s1_cache" not in path.parts


def _after(c: Capability, first: Ended | None) -> tuple[str, str]:
    """Restarts until it is done, deleting what it says; then compares."""
    said = ""
    if first is not None and first.status not in (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        if not first.sentence:
            return LOST, f"no sentence: {first.text[-600:]}"
        said = first.sentence
    told = 0
    for _ in range(5):
        ended = child(c.argv)
        if ended.status == 0:
            break
        found = re.search(r"(/\S+) is damaged .*delete it", ended.text)
        if not ended.sentence or not found:
            return LOST, f"restart: {ended.status} {ended.text[-600:]}"
        Path(found[1]).unlink(missing_ok=True)
        told += 1
    else:
        return LOST, f"still refused: {ended.text[-300:]}"
    try:
        apart = differences(c.clean, snapshot(c.out))
    except ValueError as error:
        return WRONG, f"a file is not JSON: {error}"
    if apart and notes_of(snapshot(c.out)) != notes_of(c.clean):
        return _near(c)
    if apart:
        return WRONG, f"differs: {apart[:6]} ({said})"
    if child(["verify", str(c.out)]).status != 0:
        return WRONG, "verify is not content with the restarted run"
    return (SAID, f"deleted {told} as told") if told else (IDENTICAL, said)


def notes_of(left: dict[str, Any]) -> list[Any]:
    """What a reader is told about how the numbers came about."""
    bodies = [v for k, v in sorted(left.items()) if Path(k).name in ("manifest.json", "summary.json", "metrics.json")]
    return [[b.get("notes"), [s.get("notes") for s in b.values() if isinstance(s, dict)]] for b in bodies]


def _near(c: Capability) -> tuple[str, str]:
    """It was computed in another way (batches halved, one source alone): the notes say so, and the numbers agree."""
    now = snapshot(c.out)
    other = {n for n in set(now) ^ set(c.clean) if not n.endswith("evidence/notes.json")}
    if other:
        return WRONG, f"other files: {sorted(other)[:4]}"
    for name in (n for n in c.clean if n.endswith(("SUMMARY.json", "summary.json", "stress.json", "metrics.json"))):
        a, b = (x[name] if not isinstance(x[name], bytes) else json.loads(x[name]) for x in (c.clean, now))
        if not close(a, b):
            return WRONG, f"{name} moved"
    return SAID, "noted; numbers the same to 1e-4"


def close(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(close(a[k], b.get(k)) for k in a if k not in ("notes", "interval", "profile"))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4 * max(1.0, abs(a))
    return bool(a == b)


def _on_tmpfs(c: Capability, fault: str, rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1, max(1, c.events))
    size = rng.randrange(4096, max(8192, c.size))
    full = fault == "disk full (tmpfs)"
    with mounted(c.out, size if full else 64 << 20) as real:
        if not real:  # not allowed here: the same refusal, made by the hook
            wipe(c.out)
            first = child(c.argv, refuse_from(c.out, n if full else 1, errno.ENOSPC if full else errno.EROFS))
            outcome, more = _after(c, first)
            return outcome, f"refused, no mount; {more}"
        if full:
            first = child(c.argv)
            _mount("-o", "remount,size=64m", str(c.out))
            outcome, more = _after(c, first)
            return outcome, f"{size} of {c.size} bytes; {more}"
        child(c.argv, kill_at(c.out, n))
        _mount("-o", "remount,ro", str(c.out))
        first = child(c.argv)
        _mount("-o", "remount,rw", str(c.out))
        if first.status == 0 or not first.sentence:
            return LOST, f"read-only, yet {first.status}: {first.text[-500:]}"
        outcome, more = _after(c, first)
        return outcome, f"after operation {n}; {more}"
