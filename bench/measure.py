"""What benchmarks share: processor seconds and peak memory of work alone in a process; the machine's name."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spent:
    """What one piece of work took: one thread's seconds, of them inside the model, and megabytes above the start."""

    seconds: float
    forwards: float
    megabytes: float

    @property
    def overhead(self) -> float | None:
        """What stands beside the forwards, as a share of them; None without a model."""
        return self.seconds / self.forwards - 1 if self.forwards else None


def cpu_seconds() -> float:
    """Of this process and of children it has waited for. Load on the machine does not count."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(p.ru_utime + p.ru_stime for p in parts)


def peak_megabytes() -> float:
    """The most this process ever held (on Linux in kilobytes, on macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def over_forwards(work: Callable[[], Any]) -> float:
    """What a piece of work adds to its own bare forwards, as a share of them."""
    with forwards() as inside:
        start = time.process_time()
        work()
        return (time.process_time() - start) / inside["seconds"] - 1


@contextmanager
def forwards() -> Iterator[dict[str, float]]:
    """Processor seconds inside outermost calls of any torch module: what the bare forwards cost."""
    import torch

    spent, depth = {"seconds": 0.0}, 0
    real = torch.nn.Module.__call__

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth:
            return real(self, *args, **kwargs)
        depth, start = 1, time.process_time()
        try:
            return real(self, *args, **kwargs)
        finally:
            depth = 0
            spent["seconds"] += time.process_time() - start

    torch.nn.Module.__call__ = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        torch.nn.Module.__call__ = real  # type: ignore[method-assign]


def operations(work: Callable[[], Any]) -> int:
    """Operations of matrix products, attention included, that a piece of work asks for."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        work()
    return counted.get_total_flops()


def alone(make: Callable[[], Callable[[], Any]], warm: Callable[[], Any] | None = None, repeat: int = 1) -> Spent:
    """Work measured in a child of its own: `make` prepares it unmeasured, `warm` pays what is paid once.

    A fork, because importing torch takes longer than most of what is measured here. The child's peak starts at what it
    holds when it is born; preparing raises it no further than the inputs are large.
    """
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        status = 1
        try:
            os.write(sink, json.dumps(_measured(make, warm, repeat)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sink)
    with os.fdopen(source) as answers:
        said = answers.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the measured process failed; its traceback is above")
    return Spent(**json.loads(said))


def _measured(make: Callable[[], Callable[[], Any]], warm: Callable[[], Any] | None, repeat: int) -> dict[str, float]:
    if warm:
        warm()
    rounds, before = [], peak_megabytes()
    for _ in range(repeat):
        work = make()
        with forwards() as inside:
            start = cpu_seconds()
            work()
            rounds.append((cpu_seconds() - start, inside["seconds"]))
    seconds, bare = min(rounds)  # the least disturbed round
    return {"seconds": seconds, "forwards": bare, "megabytes": peak_megabytes() - before}


def machine() -> str:
    """The processor, its cores, and the versions that matter for speed."""
    import torch
    import transformers

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def crowded() -> str:
    """What to say when others work on this machine: their load changes caches and clocks, though not counts."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"measured on a crowded machine (load {load:.0f} on {cores} cores)" if load > cores + 1 else ""


@dataclass(frozen=True)
class Beside:
    """A capability and a peer-style reference on the same inputs: processor seconds, and whether both say the same."""

    capability: str
    case: str
    peer: str
    peer_seconds: float
    seconds: float
    equal: bool
    equality: str
    overhead: float | None = None  # over the bare forwards of the same work
    memory_ratio: float | None = None
    fewer: float | None = None  # how many times fewer operations of matrices: what the ratio of seconds can reach


def save(path: Path | None, rows: list[Beside]) -> None:
    """Outcomes for bench/table.py."""
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    for name, *cells in [head, *rows]:
        print("  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))]))
