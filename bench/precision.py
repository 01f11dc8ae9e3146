"""float32 beside bfloat16: what it saves, and what moves in each metric.

    python bench/precision.py --model DIR --data DIR            prints it
    python bench/precision.py --model DIR --tofu DIR --limit 5  TOFU's own files

Both are whole commands on one thread, in turn. The numbers of bfloat16 are right for a model that was trained or is
served in bfloat16; beside float32 they show what its rounding does to each metric, row by row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure import crowded, machine
from peers import Side, our_python, our_source, spread, started
from table import markdown, today
from tofu import real_rows, worst, write_rows

DTYPES = ("float32", "bfloat16")


def sides(model: Path, rows: Path, scratch: Path) -> dict[str, Side]:
    out = {}
    for dtype in DTYPES:
        place = scratch / dtype
        order = [*our_python(), "eval", "tofu", "--model", str(model), "--data", str(rows), "--out", str(place)]
        read = lambda place=place: json.loads((place / "TOFU_EVAL.json").read_text())  # noqa: E731
        out[dtype] = Side([*order, "--dtype", dtype, "--quiet"], scratch, place, read, our_source())
    return out


def moved(found: dict[str, Any]) -> list[list[str]]:
    """For each metric its value in both, and the largest change of a number in its rows."""
    exact, low = (found[dtype] for dtype in DTYPES)
    out = []
    for name, one in sorted(exact.items()):
        a, b = one.get("agg_value"), low[name].get("agg_value")
        if a is None or b is None:
            continue
        rows = [(p, g) for p, g in worst(one.get("value_by_index", {}), low[name].get("value_by_index", {}))]
        texts = [g for p, g in rows if p.endswith("generation/text")]
        numbers = [g for p, g in rows if not p.endswith("text")]
        largest = f"{max(numbers):.2g}" if numbers else ""
        said = f"{largest}; {sum(texts):.0f} of {len(texts)} texts differ" if texts else largest
        out.append([name, f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}", said])
    return out


def notes(place: Path) -> str:
    """Whether packing was kept, and what was pushed."""
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    kept = "packed" if not any("packed scoring" in n for n in manifest["cost"]["notes"]) else "NOT packed"
    return f"{kept}, {manifest['cost']['score_tokens']:,} tokens scored"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="rows as vestige reads them (forget.jsonl, ...)")
    parser.add_argument("--tofu", type=Path, help="or TOFU's own files")
    parser.add_argument("--limit", type=int, default=5, help="rows of each split of --tofu")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        rows = write_rows(scratch / "rows", real_rows(args.tofu, args.limit)) if args.tofu else args.data.resolve()
        both = sides(args.model.resolve(), rows, scratch)
        seconds: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
        for _ in range(args.runs):
            for dtype, side in both.items():
                seconds[dtype].append(started(side))
        found = {dtype: side.found() for dtype, side in both.items()}
        kept = {dtype: notes(scratch / dtype) for dtype in DTYPES}
    ratio = statistics.median(a / b for a, b in zip(*(seconds[d] for d in DTYPES), strict=True))
    words = [f"{dtype}: {spread(seconds[dtype])} CPU s, {kept[dtype]}" for dtype in DTYPES]
    words += [f"bfloat16 is {ratio:.2f} times as fast", *filter(None, [crowded()])]
    said = f"{args.model.name}; {machine()}; {today()}. {'; '.join(words)}."
    head = ("metric", "float32", "bfloat16", "change", "largest relative change of a row's number")
    section = f"{said}\n\n{markdown(head, moved(found))}"
    print(section)


if __name__ == "__main__":
    main()
