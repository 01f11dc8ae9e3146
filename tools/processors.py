"""`make test-processors`: what trains, and what compares bytes or texts, run as other processors would run it.

Each run takes the tests marked `processors` and differs in three things: which instructions the libraries may use,
how many threads they have, and the seed of the jitter (tests/jitter). Together the runs cover every setting, both
thread counts and five seeds. Runs share the machine's cores: one with two threads takes two of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARK = "processors"
# What an older processor has. Unset names leave the library to choose, which is what `native` means.
SETTINGS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "sse4": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "native": {},
}


@dataclass(frozen=True)
class Run:
    setting: str
    threads: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.setting}, {self.threads} thread{'s' * (self.threads > 1)}, jitter {self.seed}"

    @property
    def variables(self) -> dict[str, str]:
        return {**SETTINGS[self.setting], "OMP_NUM_THREADS": str(self.threads)}


# With these seeds the judge of fluency ended below what its test once asked for (0.8), on an Intel Xeon.
# Runs with one thread go in pairs, so those with two threads, which need both cores, come last.
RUNS = (Run("avx2", 1, 10), Run("sse4", 1, 12), Run("native", 1, 22), Run("avx2", 2, 26), Run("sse4", 2, 24))


def marked() -> list[str]:
    """The files with marked tests: importing the others would take longer than some of the tests."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(f.relative_to(ROOT)) for f in found if f"mark.{MARK}" in f.read_text(encoding="utf-8")]


def command(run: Run) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", MARK, "--jitter", str(run.seed), "-v", "-rf", *marked()]


class Started:
    """A run under way."""

    def __init__(self, run: Run) -> None:
        self.run, self.since = run, time.monotonic()
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - open as long as the run
        plain = {k: v for k, v in os.environ.items() if not any(k in names for names in SETTINGS.values())}
        self.process = subprocess.Popen(
            command(run), cwd=ROOT, env={**plain, **run.variables}, stdout=self.output, stderr=subprocess.STDOUT
        )

    def finished(self) -> bool:
        return self.process.poll() is not None

    def report(self) -> bool:
        """One line; of a red run also what failed, and how to do it again."""
        self.output.seek(0)
        lines = self.output.read().splitlines() or ["nothing was printed"]
        good = self.process.returncode == 0
        took = time.monotonic() - self.since
        print(f"{'ok ' if good else 'RED'} {self.run.name}: {lines[-1].strip('= ')} ({took:.0f} s)", flush=True)
        if not good:
            print("\n".join(lines[-60:]))
            said = " ".join(f"{k}={v}" for k, v in self.run.variables.items())
            print(f"again: {said} {' '.join(command(self.run))}", flush=True)
        return good


def main() -> int:
    cores, since = max(2, os.cpu_count() or 2), time.monotonic()
    waiting, busy, results = list(RUNS), list[Started](), list[bool]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    try:
        while waiting or busy:
            for started in [s for s in busy if s.finished()]:
                busy.remove(started)
                results.append(started.report())
            free = cores - sum(s.run.threads for s in busy)
            if waiting and waiting[0].threads <= free:
                busy.append(Started(waiting.pop(0)))
            else:
                time.sleep(0.2)
    finally:
        for started in busy:  # interrupted: no run is left behind
            started.process.terminate()
    took = time.monotonic() - since
    print(f"test-processors: {sum(results)} of {len(RUNS)} runs green in {took:.0f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
