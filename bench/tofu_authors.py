"""A few authors cut out of TOFU, as a folder that every verb takes with --data.

    python bench/tofu_authors.py TOFU DIR [--forget 2] [--retain 3] [--holdout 2] [--entities FILE]

TOFU is the hub id locuslab/TOFU, or a folder with its files (forget10_perturbed.json, retain_perturbed.json, ...). An
author has 20 rows, and authors stand one after the other. The first ones of forget10 are to be forgotten. Of
retain_perturbed the first are kept and the next never taught: they are the holdout of membership attacks. FILE has
rows of `question`, `entity` and `prefix` (the annotated rows of unlearning-depth-score's forget10): vestige depth then
knows where the facts are. Questions that FILE does not have are left out of DIR/entities.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from vestige.data.rows import Row, load_rows, read_file

ROWS = 20  # of one author
FACTS = 30  # rows of real authors and of world facts: enough for a utility, and quick


def cut(tofu: str, forget: int, retain: int, holdout: int) -> dict[str, list[Row]]:
    """The rows of each file of the folder."""

    def rows(name: str) -> list[Row]:
        return load_rows({"path": tofu, "name": name, "split": "train"})[0]

    kept = rows("retain_perturbed")
    return {
        "forget": rows("forget10_perturbed")[: ROWS * forget],
        "retain": kept[: ROWS * retain],
        "holdout": kept[ROWS * retain : ROWS * (retain + holdout)],
        "real_authors": rows("real_authors_perturbed")[:FACTS],
        "world_facts": rows("world_facts_perturbed")[:FACTS],
    }


def with_entities(forget: Sequence[Row], annotated: Sequence[Row]) -> list[Row]:
    """The forget rows of which the fact is annotated, with it."""
    found = {row["question"]: row for row in annotated}
    return [
        {"idx": i, **{k: row[k] for k in ("question", "answer")}, **{k: found[row["question"]][k] for k in SPAN}}
        for i, row in enumerate(forget)
        if row["question"] in found
    ]


SPAN = ("prefix", "entity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tofu", metavar="TOFU")
    parser.add_argument("out", metavar="DIR", type=Path)
    parser.add_argument("--forget", type=int, default=2)
    parser.add_argument("--retain", type=int, default=3)
    parser.add_argument("--holdout", type=int, default=2)
    parser.add_argument("--entities", type=Path, metavar="FILE")
    args = parser.parse_args()
    files = cut(args.tofu, args.forget, args.retain, args.holdout)
    if args.entities:
        files["entities"] = with_entities(files["forget"], read_file(args.entities))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (args.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{args.out / name}.jsonl: {len(rows)} rows")


if __name__ == "__main__":
    main()
