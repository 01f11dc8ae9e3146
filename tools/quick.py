"""`make quick`: the rooms that need no model, and one path from a checkpoint to a page; under 90 s on two cores.

The rooms and their tests are those of tools/pythons.py, and a few more that are quick. `make test` runs everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pythons import ROOMS, TESTS

ROOT = Path(__file__).resolve().parent.parent
MORE = (
    *("test_architecture", "test_end_to_end", "test_errors", "test_writing", "suites/test_handlers"),
    *("report/test_report_parts", "metrics/test_rouge", "compare/test_verdict"),
)
BUDGET = 90  # seconds on two idle cores


def main() -> int:
    files = [*(f"src/vestige/{room}" for room in ROOMS), *(f"tests/{name}.py" for name in (*TESTS, *MORE))]
    words = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    since = time.monotonic()
    status = subprocess.run([sys.executable, "-m", "pytest", *words, *files], cwd=ROOT).returncode
    used = os.times()
    spent = used.children_user + used.children_system
    wall = time.monotonic() - since
    print(f"make quick: {wall:.0f} s, {spent:.0f} s of processor time (budget: {BUDGET} s on two idle cores)")
    return status


if __name__ == "__main__":
    sys.exit(main())
