"""Writes the table of GPUs in docs/bench.md: what each way through a model makes a GPU wait for, on pretend tensors.

    python tools/gpu_counts.py           prints it
    python tools/gpu_counts.py --write   puts it into docs/bench.md, between the markers

The counts are exact and the same on every machine; tests/test_gpu.py holds them to their budgets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from gpu_paths import PATHS, GpuPath
from pretend_gpu import on_gpu, pretending

PAGE = Path(__file__).parent.parent / "docs" / "bench.md"
OPEN, CLOSE = "<!-- gpu counts: written by tools/gpu_counts.py -->", "<!-- /gpu counts -->"
HEAD = (
    "path", "unit", "units", "synchronisations", "of them in transformers", "copies to the host",
    "copies to the device, not waited for", "budget per unit", "further budget",
)  # fmt: skip


def row(path: GpuPath) -> list[str]:
    with pretending() as ledger:
        outcome = path.run(on_gpu)
    counts = (outcome.units, ledger.waits, ledger.library, ledger.copies("to_host"), ledger.copies("sent"))
    return [path.name, path.unit, *map(str, counts), str(path.waits), str(path.fixed)]


def section() -> str:
    lines = [HEAD, ["---"] * len(HEAD), *(row(path) for path in PATHS)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    table = section()
    if parser.parse_args().write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(OPEN, 1)
        PAGE.write_text(f"{before}{OPEN}\n{table}\n{CLOSE}{rest.split(CLOSE, 1)[1]}", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
