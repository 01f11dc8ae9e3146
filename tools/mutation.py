"""Are the tests of metrics/ and stats/ able to fail? Small faults are put into the formulas, one at a time.

    python tools/mutation.py [--module memorisation] [--workers 2] [--out FILE]

    baseline: every quick test once, noting which statements it runs and what it costs
    mutant:   a forked child puts one fault in and runs the tests that reach its statement, quickest first

A mutant that no test notices survives and is printed with its line. Survivors are either equivalent (no input tells
them apart) or a test is missing. Time is counted in CPU seconds, so that a busy machine gives the same table.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from mutants import NOTE, Mutant, Place, mutants, watched

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "vestige"
ROOMS = ("metrics", "stats")
SKIPPED = {"explanations.py", "__init__.py", "cards.py"}  # words, not formulas
TESTS = (
    "metrics/test_metrics.py", "metrics/test_rouge.py", "metrics/test_bleu.py", "metrics/test_trajectory.py",
    "metrics/test_dialects.py", "metrics/test_depth_formulas.py", "metrics/test_collapse_formulas.py",
    "stats/test_bootstrap.py", "stats/test_vectors.py", "collapse/test_collapse_golden.py", "meta/test_meta.py",
    "test_types.py", "test_names.py",
)  # fmt: skip
SLOW = 5.0  # CPU seconds; a test that takes longer (it runs a model) is left out
SPARE = 5.0  # CPU seconds a mutant may take beyond thrice what its tests took; an endless loop is a noticed fault
MEMORY = 4 << 30  # and bytes beyond what is held already


class Bench:
    """A pytest plug-in that runs the collected tests in its own way: once for the baseline, then for every mutant."""

    def __init__(self, files: list[Path], workers: int, report: Any, out: Path | None) -> None:
        self.files, self.workers, self.report, self.out = files, workers, report, out
        self.reached: dict[str, set[Place]] = {}
        self.seconds: dict[str, float] = {}
        self.items: dict[str, Any] = {}
        self.names: dict[str, dict[str, Any]] = {}
        self.lines: list[str] = []
        self.stopped = False

    def pytest_runtestloop(self, session: Any) -> bool:
        if session.testsfailed:
            return self.stop("The tests cannot be collected; run pytest to see why.")
        self.generators = remember_generators(session.items)
        self.baseline(session.items)
        forget_caches()
        self.items = {n: i for n, i in self.items.items() if self.reached[n]}
        self.say(f"{len(self.items)} tests reach these files, {sum(self.seconds[n] for n in self.items):.0f} CPU s\n")
        if failing := self.control():
            return self.stop(f"A test fails when it is run again, without any fault: {failing}")
        self.say(f"{'module':28} {'mutants':>8} {'noticed':>8} {'survived':>9} {'untested':>9}")
        for path in self.files:
            self.judge(path)
        self.say("\n" + "\n".join(self.lines))
        return True

    def say(self, words: str) -> None:
        print(words, file=self.report, flush=True)

    def stop(self, words: str) -> bool:
        self.say(words)
        self.stopped = True
        return True

    # ---- baseline

    def baseline(self, items: list[Any]) -> None:
        seen: set[Place] = set()
        with notes(self.files, seen):
            for item, following in zip(items, [*items[1:], None], strict=True):
                seen.clear()
                start = time.process_time()
                words = self.outcome(item, following)
                seconds = time.process_time() - start
                if words or seconds > SLOW:
                    self.say(f"left out: {item.nodeid} ({words or f'{seconds:.0f} CPU s'})")
                else:
                    self.items[item.nodeid], self.reached[item.nodeid] = item, set(seen)
                    self.seconds[item.nodeid] = seconds

    def outcome(self, item: Any, following: Any) -> str:
        """Nothing when the test passed, else what happened to it."""
        self.renew(item)
        reports = runtestprotocol(item, log=False, nextitem=following)
        for report in reports:
            if report.failed:
                return "fails: " + str(report.longrepr).strip().splitlines()[-1]
        return "skipped" if any(r.skipped for r in reports) else ""

    def renew(self, item: Any) -> None:
        """Random numbers of a test module start over, and doctests (which clear their names) get theirs back."""
        if hasattr(item, "dtest"):
            item.dtest.globs.update(self.names.setdefault(item.nodeid, dict(item.dtest.globs)))
        for generator, state in self.generators.get(item.path, ()):
            generator.bit_generator.state = copy.deepcopy(state)

    # ---- mutants

    def first_failure(self, names: Iterable[str]) -> str | None:
        items = [self.items[n] for n in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.renew(item)
            if any(r.failed for r in runtestprotocol(item, log=False, nextitem=following)):
                return str(item.nodeid)
        return None

    def control(self) -> str | None:
        """The first test that fails in a child without a fault. There must be none, or every fate means nothing."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, (self.first_failure(self.quickest(self.items)) or "").encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            found = pipe.read().decode()
        return found if os.waitpid(pid, 0)[1] == 0 else "the child itself"

    def quickest(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda n: self.seconds[n])

    def judge(self, path: Path) -> None:
        """The fate of every mutant of a file: a line of the table, and a line for each that was not noticed."""
        fates: dict[int, str] = {}
        running: dict[int, int] = {}
        todo = list(mutants(path))
        for i, mutant in enumerate(todo):
            names = self.quickest(n for n, places in self.reached.items() if mutant.statement in places)
            if not names:
                fates[i] = "untested"
                continue
            if len(running) == self.workers:
                collect(running, fates)
            running[self.start(mutant, names)] = i
        while running:
            collect(running, fates)
        counts = Counter(fates.values())
        columns = f"{len(todo):8} {counts['noticed']:8} {counts['survived']:9} {counts['untested']:9}"
        self.say(f"{path.parent.name + '/' + path.stem:28} {columns}")
        self.lines += [f"{m} ({fates[i]})" for i, m in enumerate(todo) if fates[i] != "noticed"]
        if self.out:
            self.out.write_text("\n".join(self.lines) + "\n")

    def start(self, mutant: Mutant, names: list[str]) -> int:
        """A child with the fault in place. It ends with 1 when a test fails, by a signal when it takes too much."""
        pid = os.fork()
        if pid == 0:
            seconds = int(3 * sum(self.seconds[n] for n in names) + SPARE) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
            status = 1
            with contextlib.suppress(BaseException):
                mutant.put_in(live_function(mutant.path, mutant.unit))
                status = int(self.first_failure(names) is not None)
            os._exit(status)
        return pid


def collect(running: dict[int, int], fates: dict[int, str]) -> None:
    pid, status = os.wait()
    if pid in running:
        fates[running.pop(pid)] = "noticed" if status else "survived"


@contextlib.contextmanager
def notes(files: list[Path], seen: set[Place]) -> Iterator[None]:
    """While this lasts, the files' functions note every statement they come to."""
    before = []
    for path in files:
        vars(module_of(path))[NOTE] = seen.add
        for name, code in watched(path):
            function = live_function(path, name)
            before.append((function, function.__code__))
            function.__code__ = code
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def module_of(path: Path) -> Any:
    return sys.modules["vestige." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)]


def live_function(path: Path, unit: str) -> FunctionType:
    """The function object that tests call. Decorators of ours leave it as it is; others hold it inside."""
    found: Any = module_of(path)
    if unit.startswith("lambda:"):
        tables = [v for v in vars(found).values() if isinstance(v, dict)]
        line = int(unit.split(":")[1])
        return next(
            f
            for table in tables
            for f in table.values()
            if isinstance(f, FunctionType) and f.__name__ == "<lambda>" and f.__code__.co_firstlineno == line
        )
    for part in unit.split("."):
        found = vars(found)[part]
        for holder in ("fget", "func", "__func__", "__wrapped__"):
            found = getattr(found, holder, None) or found
    assert isinstance(found, FunctionType), unit
    return found


def remember_generators(items: list[Any]) -> dict[Path, list[tuple[np.random.Generator, Any]]]:
    """The random generators that test modules hold, as they are before any test."""
    modules = {item.path: item.module for item in items if getattr(item, "module", None) is not None}
    return {
        path: [
            (g, copy.deepcopy(g.bit_generator.state)) for g in vars(m).values() if isinstance(g, np.random.Generator)
        ]
        for path, m in modules.items()
    }


def forget_caches() -> None:
    """What the faultless functions remembered must not answer for the faulty ones."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith((f"{SOURCE}/", f"{ROOT / 'tests'}/")):
            for found in list(vars(module).values()):
                if callable(clear := getattr(found, "cache_clear", None)):
                    clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", default=[], help="only these (memorisation, vectors, ...)")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files of tests/; the doctests always run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", help="also write the survivors to this file")
    args = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    files = [p for room in ROOMS for p in sorted((SOURCE / room).glob("*.py")) if p.name not in SKIPPED]
    files = [p for p in files if not args.module or p.stem in args.module]
    if not files:
        sys.exit(f"No such module: {', '.join(args.module)}")
    out = Path(args.out).resolve() if args.out else None
    with os.fdopen(os.dup(1), "w") as report, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # tests write to 1 and 2; what this program prints goes to where 1 led before
        os.dup2(nowhere.fileno(), 2)
        bench = Bench(files, args.workers, report, out)
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings", f"--rootdir={ROOT}"]
        pytest.main(
            [*options, *(f"tests/{t}" for t in args.tests), "src/vestige/metrics", "src/vestige/stats"], [bench]
        )
    return int(bench.stopped)


if __name__ == "__main__":
    sys.exit(main())
