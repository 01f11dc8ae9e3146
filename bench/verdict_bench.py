"""The verdict's bench from end to end: models of known truth are made, tested and judged, and the table is written.

    python bench/verdict_bench.py run OUT        # a seed after the other; what is there already stays
    python bench/verdict_bench.py store OUT      # tests/golden/verdict/facts.json, and the table in docs/verdict.md
    python bench/verdict_bench.py docs           # the table once more, from the stored facts

The constants in verdict/rule.py were fixed on TUNING; the table is made on TABLE, whose models no constant has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from known_models.verdict_runs import BenchSettings, run_bench
from measure import replace_section
from vestige.meta.verdict import bench_json, bench_lines, facts_json, read_bench

ROOT = Path(__file__).parent.parent
STORED = ROOT / "tests" / "golden" / "verdict" / "facts.json"
PAGE = ROOT / "docs" / "verdict.md"
START, END = "<!-- the bench: written by bench/verdict_bench.py -->", "<!-- end of the bench -->"
TUNING = (1,)
TABLE = (2, 3, 4, 5)
DIGITS = 6  # significant ones of a stored number: a verdict that rests on more would tip anyway


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("run", "store", "docs"))
    parser.add_argument("place", nargs="?", type=Path, default=STORED)
    parser.add_argument("--seeds", default="", help="run: only these, as 1,2")
    args = parser.parse_args()
    if args.step == "run":
        for seed in map(int, args.seeds.split(",")) if args.seeds else (*TUNING, *TABLE):
            print(run_bench(args.place / f"s{seed}", BenchSettings(seed=seed), seed in TUNING), flush=True)
    elif args.step == "store":
        STORED.parent.mkdir(parents=True, exist_ok=True)
        STORED.write_text(stored(args.place))
        write_page()
    else:
        write_page()
    return 0


def stored(place: Path) -> str:
    """The facts of every model, a model to a line."""
    lines = (json.dumps(_short(m), separators=(",", ":")) for m in facts_json(read_bench(place))["models"])
    return '{"models": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(v) for key, v in value.items() if key not in ("commands", "notes")}
    return [_short(v) for v in value] if isinstance(value, (list, tuple)) else value


def page_part() -> str:
    """What docs/verdict.md shows between its two marks."""
    body = bench_json(read_bench(STORED))
    apart = f"{body['tuning']['models']} further models of {_seeds(TUNING)} served to fix the rule's constants"
    head = f"{body['table']['models']} models of {_seeds(TABLE)}; {apart}, and are not in the table."
    return f"{head}\n\n```text\n{bench_lines(body)}\n```"


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"the seeds {seeds[0]} to {seeds[-1]}"


def write_page() -> None:
    replace_section(PAGE, page_part(), START, END)


if __name__ == "__main__":
    sys.exit(main())
