"""`make quick`: packages that need no model, and one evaluation by the command line; under 90 s on two cores.

The packages and their tests are those of tools/pythons.py, and a few more that are quick.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pythons import PACKAGES_WITHOUT_TORCH, TESTS

ROOT = Path(__file__).resolve().parent.parent
MORE = ("suites/test_handlers", "metrics/test_rouge", "verdict/test_verdict")
ONE_EVALUATION = "tests/contract/test_tofu_muse.py::test_default_metrics_by_the_guides_command"
BUDGET = 90  # seconds on two idle cores


def main() -> int:
    files = [
        *(f"src/vestige/{name}" for name in PACKAGES_WITHOUT_TORCH),
        *(f"tests/{name}.py" for name in (*TESTS, *MORE)),
        ONE_EVALUATION,
    ]
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
