"""A few authors cut out of TOFU, as a folder that every verb takes with --data.

    python tools/tofu_authors.py TOFU DIR [--forget 2] [--retain 2] [--holdout 2] [--rows 20] [--entities FILE]

TOFU is the hub id locuslab/TOFU, or a folder with its files (forget10_perturbed.json, retain_perturbed.json, ...). An
author has 20 rows, and authors stand one after the other; --rows keeps the first of each. The first authors of
forget10 are to be forgotten. Of retain_perturbed the first are kept, and the next are never taught: they are the
holdout of membership attacks. FILE has rows of `question`, `entity` and `prefix` (the annotated forget10 of
unlearning-depth-score). The forget rows it knows go to DIR/entities.jsonl: they tell vestige depth where the facts are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from vestige.data.rows import Row, load_rows, read_file

ROWS = 20  # of one author in TOFU
SPAN = ("prefix", "entity")  # where the fact of an answer is


def authors(rows: Sequence[Row], first: int, count: int, each: int) -> list[Row]:
    """The first rows of some authors.

    >>> authors([{"n": n} for n in range(60)], first=1, count=2, each=2)
    [{'n': 20}, {'n': 21}, {'n': 40}, {'n': 41}]
    """
    starts = range(ROWS * first, ROWS * (first + count), ROWS)
    return [row for start in starts for row in rows[start : start + each]]


def cut(tofu: str, forget: int, retain: int, holdout: int, each: int) -> dict[str, list[Row]]:
    """The rows of each file of the folder."""

    def rows(name: str) -> list[Row]:
        return load_rows({"path": tofu, "name": name, "split": "train"})[0]

    kept = rows("retain_perturbed")
    return {
        "forget": authors(rows("forget10_perturbed"), 0, forget, each),
        "retain": authors(kept, 0, retain, each),
        "holdout": authors(kept, retain, holdout, each),
        "real_authors": rows("real_authors_perturbed")[: each * forget],
        "world_facts": rows("world_facts_perturbed")[: each * forget],
    }


def with_entities(forget: Sequence[Row], annotated: Sequence[Row]) -> list[Row]:
    """The forget rows of which the fact is annotated, with it."""
    found = {row["question"]: row for row in annotated}
    return [
        {"idx": i, **{k: row[k] for k in ("question", "answer")}, **{k: found[row["question"]][k] for k in SPAN}}
        for i, row in enumerate(forget)
        if row["question"] in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tofu", metavar="TOFU")
    parser.add_argument("out", metavar="DIR", type=Path)
    parser.add_argument("--forget", type=int, default=2)
    parser.add_argument("--retain", type=int, default=2)
    parser.add_argument("--holdout", type=int, default=2)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--entities", type=Path, metavar="FILE")
    args = parser.parse_args()
    files = cut(args.tofu, args.forget, args.retain, args.holdout, args.rows)
    if args.entities:
        files["entities"] = with_entities(files["forget"], read_file(args.entities))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (args.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{args.out / name}.jsonl: {len(rows)} rows")


if __name__ == "__main__":
    main()
