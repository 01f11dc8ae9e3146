"""Follows a page of the documentation word for word: every bash block, in one shell, from the top, with times.

    python tools/tutorial.py [--page docs/tutorial.md] [--skip-install]

Run it in a fresh clone. It stops at the first command that fails and says which. `--skip-install` leaves out the first
block, for a clone in which `make demo` was run before.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.M | re.S)


def commands(block: str) -> list[str]:
    """One command per line; a backslash continues it."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", default="docs/tutorial.md")
    parser.add_argument("--skip-install", action="store_true")
    args = parser.parse_args()
    blocks = BLOCK.findall((ROOT / args.page).read_text(encoding="utf-8"))[int(args.skip_install) :]
    todo = [command for block in blocks for command in commands(block)]
    total = 0.0
    for command in todo:
        # Activating is the one command that changes the shell itself; each command here has its own.
        start = time.perf_counter()
        done = subprocess.run(["bash", "-c", f". .venv/bin/activate 2>/dev/null; {command}"], cwd=ROOT)
        seconds = time.perf_counter() - start
        total += seconds
        print(f"--- {seconds:6.1f} s  {' '.join(command.split())[:110]}", flush=True)
        if done.returncode:
            sys.exit(f"{args.page}: this command failed with status {done.returncode}: {command}")
    print(f"{len(todo)} commands, {total:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
