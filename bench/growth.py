"""How cost grows: processor seconds and peak memory at n, 2n and 4n, for what runs a model, and all that can double.

    python bench/growth.py                      everything (some minutes on a quiet core)
    python bench/growth.py --only depth         one capability
    python bench/growth.py --smallest --json F  the smallest sizes only, to see that it works
    python bench/growth.py --only eval --axis rows --from 2500 --to 20000 --write    many rows (about a quarter of
                                                an hour), and put into docs/bench.md

Each size runs in a process of its own, on one thread, after the job's default size has warmed it up.
Models are small, random and made on the spot. A ratio of 2 for a doubling is linear; below 2, a fixed part is still
visible. Growth that is steeper by definition is named, and so is what it is expected to be.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive a fork
sys.path.insert(0, str(Path(__file__).parent))

import torch

import growth_jobs as jobs
from measure import DOCS, alone, circumstances, markdown, replace_section

QUADRATIC = 2.0
OPEN, CLOSE = "<!-- many rows -->", "<!-- /many rows -->"
MANY = ("", "rows of each split", "CPU s", "peak MB above the start", "ms per further pair", "KB per further pair")
SLACK = 1.25  # a ratio of up to 2 * SLACK counts as near-linear: caches and attention take their share


@dataclass(frozen=True)
class Axis:
    """One thing that doubles: the job's argument, where it starts, and what else is held at which size."""

    capability: str
    job: Callable[..., jobs.Work]
    name: str
    start: int
    power: float = 1.0  # of the growth that the definition implies
    why: str = ""
    held: tuple[tuple[str, int], ...] = ()

    @property
    def limit(self) -> float:
        return 2**self.power * SLACK


@dataclass(frozen=True)
class Growth:
    capability: str
    axis: str
    sizes: list[int]
    seconds: list[float]
    megabytes: list[float]
    overhead: float | None  # beside the forwards, at the largest size
    expected: str
    good: bool

    @property
    def ratios(self) -> list[float]:
        return [b / a for a, b in pairwise(self.seconds)]

    @property
    def kilobytes_each(self) -> float:
        """Peak memory that one more of what doubles takes, from the last doubling: what is held anyway is left out."""
        return 1024 * (self.megabytes[-1] - self.megabytes[-2]) / (self.sizes[-1] - self.sizes[-2])

    def to_json(self) -> dict[str, Any]:
        more = {"ratios": self.ratios, "per_doubling": per_doubling(self.sizes, self.seconds)}
        return asdict(self) | more | {"kilobytes": self.kilobytes_each}


CELLS = "cells of the matrix: prompts x reasonings, and reasonings come with prompts"
STAIRS = "each layer's patch climbs the layers above it"
AXES = (
    Axis("eval", jobs.evaluation, "rows", 32),
    Axis("eval", jobs.evaluation, "words", 16, held=(("rows", 16),)),
    Axis("depth", jobs.depth, "rows", 16),
    Axis("depth", jobs.depth, "tokens", 8, held=(("rows", 8),)),
    Axis("depth", jobs.depth, "models", 2, held=(("rows", 8),)),
    Axis("depth", jobs.depth, "layers", 8, QUADRATIC, STAIRS, held=(("rows", 8),)),
    Axis("trajectory", jobs.trajectory, "rows", 16),
    Axis("trajectory", jobs.trajectory, "tokens", 32),
    Axis("trajectory", jobs.trajectory, "steps", 16, held=(("tokens", 64),)),
    Axis("collapse", jobs.collapse, "samples", 4),
    Axis("collapse", jobs.collapse, "tokens", 32),
    Axis("collapse", jobs.collapse, "prompts", 4, QUADRATIC, CELLS),
)


def grow(axis: Axis, sizes: list[int], repeat: int) -> Growth:
    spent = [
        alone(lambda n=n: axis.job(**dict(axis.held), **{axis.name: n}), lambda: axis.job()(), repeat)  # type: ignore[misc]
        for n in sizes
    ]
    seconds = [s.seconds for s in spent]
    good = per_doubling(sizes, seconds) <= axis.limit
    expected = "linear" if axis.power == 1 else f"power {axis.power:g}: {axis.why}"
    megabytes = [s.megabytes for s in spent]
    return Growth(axis.capability, axis.name, sizes, seconds, megabytes, spent[-1].overhead, expected, good)


def per_doubling(sizes: list[int], seconds: list[float]) -> float:
    """The factor of one doubling, from the first size to the last: a single ratio wobbles more."""
    return (seconds[-1] / seconds[0]) ** (1 / math.log2(sizes[-1] / sizes[0]))


def sizes_of(axis: Axis, args: argparse.Namespace) -> list[int]:
    """What is measured: two doublings, one for a trial, or rows until there are so many as --to says."""
    if args.to and axis.name == "rows":
        sizes = [args.first]
        while sizes[-1] < args.to:
            sizes.append(min(2 * sizes[-1], args.to))
        return sizes
    if args.smallest:
        start = max(1, axis.start // 4)
        return [start, 2 * start]
    return [axis.start, 2 * axis.start, 4 * axis.start]


def many_rows(found: list[Growth]) -> str:
    """A line for each size: what it took, and what each row of the step before it added."""
    lines = []
    for growth in found:
        last = (0, 0.0, 0.0)
        for size, seconds, megabytes in zip(growth.sizes, growth.seconds, growth.megabytes, strict=True):
            more = size - last[0]
            each = [f"{1000 * (seconds - last[1]) / more:.1f}", f"{1024 * (megabytes - last[2]) / more:.0f}"]
            lines.append([growth.capability, f"{size:,}", f"{seconds:.0f}", f"{megabytes:.0f}", *each])
            last = (size, seconds, megabytes)
    return f"{circumstances()}\n\n{markdown(MANY, lines)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted({a.capability for a in AXES}), help="one capability")
    parser.add_argument("--smallest", action="store_true", help="quarter sizes, one doubling: does it work?")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each size; the least disturbed counts")
    parser.add_argument("--axis", choices=sorted({a.name for a in AXES}), help="one thing that doubles")
    parser.add_argument("--from", type=int, default=32, dest="first", metavar="ROWS", help="with --to: the first size")
    parser.add_argument("--to", type=int, default=0, metavar="ROWS", help="double rows until there are so many")
    parser.add_argument("--write", action="store_true", help="the table of many rows into docs/bench.md")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # evaluations without retain logs say so each time
    found = []
    try:
        for axis in AXES:
            if args.only in (None, axis.capability) and args.axis in (None, axis.name):
                found.append(grow(axis, sizes_of(axis, args), args.repeat))
                print(found[-1], flush=True)
    finally:
        shutil.rmtree(jobs.SCRATCH, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps([growth.to_json() for growth in found], indent=1))
    if args.write:
        replace_section(DOCS / "bench.md", many_rows(found), OPEN, CLOSE)
    return 0 if all(g.good for g in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
