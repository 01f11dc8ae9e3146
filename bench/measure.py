"""What benchmarks share: processor seconds, peak memory, two ways in alternation, tables, and pages that hold them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"

# ---- time and memory -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """What one piece of work took: one thread's seconds, of them inside the model, and megabytes above the start."""

    seconds: float
    forwards: float
    megabytes: float

    @property
    def overhead(self) -> float | None:
        """The work around the forwards as a share of them; None without a model."""
        return self.seconds / self.forwards - 1 if self.forwards else None


def cpu_seconds() -> float:
    """Of this process and of children it has waited for. Load on the machine does not count."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(p.ru_utime + p.ru_stime for p in parts)


def peak_megabytes() -> float:
    """The most this process ever held (on Linux in kilobytes, on macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


@contextmanager
def measured_memory() -> Iterator[dict[str, float]]:
    """Megabytes that a block held at its peak, above what the process held before it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of importing
    before, found = _status_megabytes("VmRSS"), {"megabytes": 0.0}
    yield found
    found["megabytes"] = _status_megabytes("VmHWM") - before


def _status_megabytes(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


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


def over_forwards(work: Callable[[], Any]) -> float:
    """What a piece of work adds to its own bare forwards, as a share of them."""
    with forwards() as inside:
        start = time.process_time()
        work()
        return (time.process_time() - start) / inside["seconds"] - 1


def operations(work: Callable[[], Any]) -> int:
    """Operations of matrix products, attention included, that a piece of work asks for."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        work()
    return counted.get_total_flops()


def time_in_turns(ways: Mapping[Any, Callable[[], Any]], rounds: int) -> tuple[dict[Any, Any], dict[Any, float]]:
    """Each way's last result and its fewest processor seconds; the ways alternate, so that load favours none."""
    results: dict[Any, Any] = {}
    seconds: dict[Any, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.process_time()
            results[name] = work()
            seconds[name].append(time.process_time() - start)
    return results, {name: min(values) for name, values in seconds.items()}


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
            os.write(sink, json.dumps(_measure(make, warm, repeat)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sink)
    with os.fdopen(source) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the measured process failed; its traceback is above")
    return Spent(**json.loads(answer))


def _measure(make: Callable[[], Callable[[], Any]], warm: Callable[[], Any] | None, repeat: int) -> dict[str, float]:
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


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A capability and a reference written as peers do it, on the same inputs: processor seconds, and equality."""

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

    def __str__(self) -> str:
        times = self.peer_seconds / self.seconds
        timed = f"{self.peer}: {self.peer_seconds:.2f} s, vestige {self.seconds:.2f} s, {times:.1f} times faster"
        return f"{self.capability}, {self.case}: {timed}; {self.equality}{'' if self.equal else ' (DIFFERENT)'}"


def save(path: Path | None, rows: Sequence[Comparison]) -> None:
    """Prints the outcomes, and writes them for bench/table.py if there is a path."""
    for row in rows:
        print(row)
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


# ---- circumstances, tables, pages ------------------------------------------------------------------------------------


def machine() -> str:
    """The processor, its cores, and the versions that matter for speed."""
    import torch
    import transformers

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}; {versions}"


def circumstances(more: str = "") -> str:
    """Where and when something was measured on one thread, and whether others worked there.

    Their load changes caches and clocks, though not counts.
    """
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    words = f"{machine()}; one thread; {today}{more}."
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores + 1:
        words += f" Measured on a crowded machine (load {load:.0f} on {cores} cores)."
    return words


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def replace_section(page: Path, section: str, opened: str, closed: str) -> None:
    """Writes a section of a page between its two marks; everything outside them stays."""
    before, rest = page.read_text(encoding="utf-8").split(opened, 1)
    after = rest.split(closed, 1)[1]
    page.write_text(f"{before}{opened}\n{section}\n{closed}{after}", encoding="utf-8")
