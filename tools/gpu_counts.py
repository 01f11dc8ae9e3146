"""What each way through a model would make a GPU wait for, counted on pretend tensors.

    python tools/gpu_counts.py                 prints the table
    python tools/gpu_counts.py --write PAGE    also puts it into a page, between the marks

The counts are exact and the same on every machine; tests/collect/test_gpu.py holds them to their budgets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from gpu_paths import PATHS, GpuPath
from measure import markdown, replace_section
from pretend_gpu import on_gpu, pretending

OPEN, CLOSE = "<!-- gpu counts: written by tools/gpu_counts.py -->", "<!-- /gpu counts -->"
HEAD = (
    "path", "unit", "units", "synchronisations", "of them in transformers", "copies to the host",
    "copies to the device, not waited for", "budget per unit", "budget beside them",
)  # fmt: skip


def row(path: GpuPath) -> list[str]:
    with pretending() as ledger:
        outcome = path.run(on_gpu)
    counts = (outcome.units, ledger.waits, ledger.library, ledger.copies("to_host"), ledger.copies("sent"))
    return [path.name, path.unit, *map(str, counts), str(path.waits), str(path.fixed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    table = markdown(HEAD, [row(path) for path in PATHS])
    print(table)
    if args.write:
        replace_section(args.write, table, OPEN, CLOSE)


if __name__ == "__main__":
    main()
