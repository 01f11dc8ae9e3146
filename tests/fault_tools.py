"""The fault kit: commands run in forked children, struck by one fault each, and what came of it after a restart.

    clean run -> what it leaves        struck run -> (repair as told) -> the same command again -> the same files?

Faults strike from outside the shipped code: an audit hook sees every file operation of the child and may kill it or
refuse; a full or read-only disk is a tiny tmpfs where mounting is allowed; memory runs out in a hook on forwards or by
a limit on the address space. A child is a fork of a process that has imported everything, so it costs a second.
"""

from __future__ import annotations

import errno
import gc
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 150.0  # seconds after which a child is taken to hang
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
HERE = os.getpid()  # the kit's process; its children keep the number
Arm = Callable[[], None]


# ---- children ----------------------------------------------------------------------------------------------------


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


def mark() -> None:
    """Notes that the fault did strike; a child of ours may be dead the moment after."""
    _marker().touch()


def struck() -> bool:
    """Whether one did since the last call."""
    yes = _marker().exists()
    _marker().unlink(missing_ok=True)
    return yes


def _marker() -> Path:
    return Path(os.environ["VESTIGE_CACHE"]) / f"struck-{HERE}"


def child(argv: Sequence[str], arm: Arm | None = None, strike: Callable[[int], None] | None = None) -> Ended:
    """One command in a fork of this process. `arm` runs in the child, `strike(pid)` beside it."""
    said = Path(os.environ["VESTIGE_CACHE"]) / f"child-{os.getpid()}.txt"
    sys.stdout.flush()
    gc.freeze()  # what the parent holds is not the child's to collect
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
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


# ---- what a run leaves -------------------------------------------------------------------------------------------


TIMES: dict[str, tuple[str, ...]] = {
    "manifest.json": ("created", "seconds", "cost", "load_seconds", "sha256", "root"),
    "summary.json": ("created", "elapsed_sec", "sec_per_evaluable", "cost", "s1_cache"),
    "metrics.json": ("timing_s/",),
    "sweep.json": ("seconds", "attempts", "lost"),
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


def wipe(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def differences(clean: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*clean, *now}) if clean.get(name) != now.get(name)]


# ---- faults ------------------------------------------------------------------------------------------------------


def watch(out: Path, act: Callable[[int, str, str], None]) -> None:
    """Calls `act(n, event, path)` before the n-th file operation below `out` that changes something."""
    top, seen, busy = str(out), [0], [False]
    changing = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}

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
            mark()
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: watch(out, act)


def refuse_from(out: Path, n: int, code: int) -> Arm:
    """From the n-th operation on the disk takes nothing new; removing still works, as it does."""

    def act(i: int, event: str, path: str) -> None:
        if i >= n and event in ("open", "os.mkdir", "os.rename" if code != errno.ENOSPC else "open"):
            mark()
            raise OSError(code, os.strerror(code), path)

    return lambda: watch(out, act)


def killer(delay: float) -> Callable[[int], None]:
    def strike(pid: int) -> None:
        time.sleep(delay)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    return strike


def no_memory(first: int, always: bool) -> Arm:
    """Forwards raise what torch's CPU allocator raises: once, or from then on."""

    def act(n: int) -> None:
        if n == first or (always and n > first):
            mark()
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    return lambda: on_forwards(act)


def on_forwards(act: Callable[[int], None]) -> None:
    """Calls `act(n)` before the n-th forward of a whole model (or of its body, which is a model of its own)."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from transformers import PreTrainedModel

    seen = [0]

    def hook(module: Any, args: Any) -> None:
        if isinstance(module, PreTrainedModel):
            seen[0] += 1
            act(seen[0])

    register_module_forward_pre_hook(hook)


def little_memory(room: int) -> Arm:
    def arm() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))

    return arm


def clock_jumps(rng: random.Random) -> Arm:
    """Every clock that Python offers jumps by up to a year, back and forth."""
    jumps = [rng.uniform(-3e7, 3e7) for _ in range(64)]

    def arm() -> None:
        mark()
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
                children = psutil.Process(pid).children()
                workers = [child for child in children if "vestige.sweep.workers" in " ".join(child.cmdline())]
            except psutil.Error:
                return
            if workers and workers[0].cpu_times().user > rng.uniform(0.2, 4.0):
                workers[0].kill()
                mark()
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
    "lock": lambda p: p.name == ".lock",
}


@contextmanager
def mounted(place: Path, size: int) -> Iterator[bool]:
    """A tmpfs of so many bytes at `place`; False where that is not allowed."""
    wipe(place)
    place.mkdir(parents=True)
    yes = os.geteuid() == 0 and mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield yes
    finally:
        if yes:
            subprocess.run(["umount", "-l", str(place)], capture_output=True)
        wipe(place)


def mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0
