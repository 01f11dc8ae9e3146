"""Writes what docs/lab.md shows of the demo, from a finished one: `python tools/lab_docs.py saves/demo`.

Numbers are written with two digits: another processor trains slightly other models, and more would not hold there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vestige.lab.demo import demo_table

PAGE = Path(__file__).parent.parent / "docs" / "lab.md"
START, END = "<!-- the demo: written by tools/lab_docs.py -->", "<!-- end of the demo -->"


def demo_part(out: Path) -> str:
    """The table of numbers and the sentence on every unlearned model."""
    report = json.loads((out / "report" / "report.json").read_text())
    unlearned = ("grad_ascent", "grad_diff", "npo")
    names = {m["id"]: m["name"] for m in report["models"]}
    order = ["full", "retain", *unlearned]
    values = {n: json.loads((out / "eval" / n / "TOFU_SUMMARY.json").read_text()) for n in order}
    said = {names[a["model"]]: a["verdict"] for a in report["audits"]}
    # Where a diffusion model has the same name, the page calls the causal one lab/NAME.
    found = {n: said.get(f"lab/{n}") or said.get(n) for n in unlearned}
    lines = [f"{n}: {v['title']}. {v['headline']}" for n, v in found.items() if v]
    shown = demo_table(values)
    return f"{START}\n```text\n{shown}\n\nDid it forget?\n" + "\n".join(lines) + f"\n```\n{END}"


def main() -> int:
    text = PAGE.read_text()
    before, rest = text.split(START)
    PAGE.write_text(before + demo_part(Path(sys.argv[1])) + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
