"""Prints what each way through a model would make a GPU wait for, counted on pretend tensors.

The counts are exact and the same on every machine; tests/test_gpu.py holds them to their budgets.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from gpu_paths import PATHS, GpuPath
from pretend_gpu import on_gpu, pretending

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


if __name__ == "__main__":
    print(section())
