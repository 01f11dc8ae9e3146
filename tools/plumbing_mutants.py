"""Are the tests of keys, resume, locks, seals, masks, positions, fingerprints and secrets able to fail?

    tools/plumbing_mutants.py [--only WORD] [--results FILE] [--write]

Each entry of plumbing_list.py is one fault, written by hand. It is put into a copy of the source, and the tests named
with it run against that copy, in a process of their own, until one fails. Before that the same tests must pass without
a fault. `--write` puts the table into docs/mutation.md; `--results` keeps outcomes, so that a run can be resumed.
tools/mutation.py does the same for formulas, whose faults can be made by rule.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from plumbing_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mutation.md"
MARKERS = ("<!-- plumbing: begin -->", "<!-- plumbing: end -->")
# Seconds of one mutant; an endless loop is a noticed fault. On a busy machine at least as long as all tests took.
TIMEOUT = 240.0
WANTED = 0.95
# Imported once and inherited by every child: they take longer than most tests.
LIBRARIES = ("numpy", "torch", "transformers", "transformers.modeling_utils", "transformers.generation.utils",
             "transformers.models.llama.modeling_llama", "peft", "scipy.stats", "safetensors.torch", "hydra",
             "_pytest.runner", "msgspec")  # fmt: skip
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


def mutated(mutant: Mutant, source: str) -> str:
    """The file's text with the fault in it; a list that no longer fits the source is an error."""
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} occurs {source.count(mutant.old)} times; correct the list.")
    return source.replace(mutant.old, mutant.new)


class Copy:
    """The source and the tests, in a place where faults may be put in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.whole = 0.0  # seconds that all tests took without a fault
        hidden = shutil.ignore_patterns("__pycache__")
        for name in ("src", "tests", "docs", "bench", "tools"):
            shutil.copytree(ROOT / name, place / name, ignore=hidden)
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, place)

    def outcome(self, tests: Sequence[str], mutant: Mutant | None = None) -> tuple[str, str]:
        """How the tests end, and the first that failed."""
        if mutant is None:
            return self._run(tests, math.inf)  # no fault, so no endless loop
        file = self.place / "src" / "vestige" / mutant.file
        before = file.read_text()
        file.write_text(mutated(mutant, before))
        try:
            return self._run(tests, max(TIMEOUT, self.whole))
        finally:
            file.write_text(before)

    def _run(self, tests: Sequence[str], limit: float) -> tuple[str, str]:
        begun = time.monotonic()
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.setsid()
            os._exit(self._child(tests, write))
        os.close(write)
        status = _wait(pid, limit)
        self.whole = max(self.whole, time.monotonic() - begun) if limit == math.inf else self.whole
        with os.fdopen(read, "rb") as pipe:
            first = pipe.read().decode()
        if status is None:
            return "noticed", "stopped after too long"
        code = os.waitstatus_to_exitcode(status)
        # 0: all passed. 1: a test failed. Anything else says nothing about the fault: no test, no import.
        return {0: "survived", 1: "noticed"}.get(code, f"ended with {code}"), first

    def _child(self, tests: Sequence[str], write: int) -> int:
        """pytest in this process, its output in a file beside the copy."""
        import pytest

        os.chdir(self.place)
        with (self.place / "output.txt").open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        sys.dont_write_bytecode = True
        paths = [str(self.place / "src"), str(self.place / "tests")]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:0] = paths

        class First:
            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed:
                    os.write(write, report.nodeid.removeprefix("tests/").encode())

        return int(pytest.main([*OPTIONS, f"--rootdir={self.place}", *map(_path, tests)], [First()]))


def _path(test: str) -> str:
    return test if test.startswith("src/") else f"tests/{test}"


def _wait(pid: int, limit: float) -> int | None:
    """The status of a child; one that takes too long is stopped, with all that it started."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def control(copy: Copy, chosen: Sequence[Mutant]) -> None:
    """All these tests pass without a fault, or nothing that follows would mean anything."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    fate, first = copy.outcome(tests)
    if fate != "survived":
        print((copy.place / "output.txt").read_text()[-4000:])
        sys.exit(f"Without any fault: {fate} {first}")


def table(outcomes: dict[str, tuple[str, str]]) -> str:
    """Counts by file and one line for each fault, as docs/mutation.md shows them."""
    files: dict[str, Counter[str]] = {}
    for mutant in MUTANTS:
        files.setdefault(mutant.file, Counter())[outcomes[mutant.name][0]] += 1
    lines = ["| file | faults | noticed | survived |", "|---|---|---|---|"]
    for file, counts in sorted(files.items()):
        lines.append(f"| `{file}` | {counts.total()} | {counts['noticed']} | {counts['survived']} |")
    every = sum(files.values(), Counter[str]())
    lines.append(f"| **all** | {every.total()} | {every['noticed']} | {every['survived']} |")
    lines += ["", "| fault | in | outcome |", "|---|---|---|"]
    for mutant in MUTANTS:
        fate, first = outcomes[mutant.name]
        by = f" by `{re.sub(r'.*::', '', first)}`" if "::" in first else f" ({first})" if first else ""
        why = f": {mutant.equivalent}" if fate == "survived" and mutant.equivalent else ""
        lines.append(f"| {mutant.name} | `{mutant.file}` | {fate}{by.replace('|', '/')}{why} |")
    return "\n".join(lines)


def write_page(text: str) -> None:
    begin, end = MARKERS
    page = PAGE.read_text()
    head, _, rest = page.partition(begin)
    PAGE.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or name has this in it")
    parser.add_argument("--results", type=Path, help="outcomes so far; faults in it are not tried again")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutation.md")
    args = parser.parse_args()
    known = json.loads(args.results.read_text()) if args.results and args.results.exists() else {}
    outcomes: dict[str, tuple[str, str]] = {k: tuple(v) for k, v in known.items()}
    chosen = [m for m in MUTANTS if args.only in f"{m.file} {m.name}" and m.name not in outcomes]
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copy = Copy(Path(scratch) / "tree")
        control(copy, chosen) if chosen else None
        for mutant in chosen:
            start = time.monotonic()
            outcomes[mutant.name] = fate, first = copy.outcome(mutant.tests, mutant)
            print(f"{fate:10} {time.monotonic() - start:5.1f} s  {mutant.file}: {mutant.name}  {first}", flush=True)
            if args.results:
                args.results.write_text(json.dumps(outcomes, indent=1))
    noticed = sum(fate == "noticed" for fate, _ in outcomes.values())
    print(f"{noticed} of {len(outcomes)} noticed")
    if args.write:
        write_page(table(outcomes))
    return 0 if noticed >= WANTED * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
