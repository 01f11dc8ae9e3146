"""Two finished demos side by side: which numbers and which verdicts differ.

    OMP_NUM_THREADS=1 vestige demo --out a; OMP_NUM_THREADS=4 vestige demo --out b; python tools/demo_compare.py a b

Made for demos of other machines, other numbers of threads, or other instructions (tools/processors.py has their
variables). Status 1: a number that the demo prints, or the word of a verdict, is not the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vestige.lab.demo import SHOWN, two_digits

Values = dict[tuple[str, str], float | None]


def values(demo: Path) -> Values:
    """(model, metric) -> value, of everything that the first table shows."""
    found = {p.parent.name: json.loads(p.read_text()) for p in sorted(demo.glob("eval/*/TOFU_SUMMARY.json"))}
    return {(model, m): body.get(m) for model, body in found.items() for m in SHOWN if m in body}


def words(demo: Path) -> dict[str, str]:
    report: dict[str, Any] = json.loads((demo / "report" / "report.json").read_text())
    names = {m["id"]: m["name"] for m in report["models"]}
    return {names[a["model"]]: a["verdict"]["title"] for a in report["audits"]}


def differences(a: Values, b: Values) -> list[str]:
    """A line for each number that is printed otherwise, or that only one of the two has."""
    return [
        f"{model} {metric}: {two_digits(a.get((model, metric)))} and {two_digits(b.get((model, metric)))}"
        for model, metric in sorted(a.keys() | b.keys())
        if two_digits(a.get((model, metric))) != two_digits(b.get((model, metric)))
    ]


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one, other = (Path(word) for word in sys.argv[1:])
    moved = differences(values(one), values(other))
    said = [f"{n}: {w} and {words(other).get(n)}" for n, w in words(one).items() if words(other).get(n) != w]
    print("\n".join([*moved, *said]) or "the same numbers and the same verdicts")
    print(f"{len(moved)} of {len(values(one))} printed numbers differ, {len(said)} of {len(words(one))} verdicts")
    return int(bool(moved or said))


if __name__ == "__main__":
    sys.exit(main())
