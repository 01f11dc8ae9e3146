"""What scoring adds to the bare forwards of the same packed batches: planning, masks, reduction, records.

    python bench/overhead.py --model DIR --tofu DIR           real rows of TOFU's own files
    ... --write                                               puts it into docs/bench.md

Processor seconds on one thread. The forwards are timed inside the work itself, batch by batch, so that other load on
the machine meets both alike.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from peers import spread
from table import circumstances, markdown, put
from tofu import bare_forwards, real_rows, write_rows
from vestige.models.load import ModelArgs, load_model

OPEN, CLOSE = "<!-- overhead table -->", "<!-- /overhead table -->"
HEAD = ("model", "rows of each split", "scoring, CPU s", "of it forwards", "added, %")


def measured(model: Path, tofu: Path, rows: int, runs: int) -> list[str]:
    loaded = load_model(ModelArgs(path=str(model), device="cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_rows(Path(scratch) / "data", real_rows(tofu, rows))
        found = [bare_forwards(loaded, folder, Path(scratch) / "run") for _ in range(runs)]
    whole, bare = ([one[k] for one in found] for k in range(2))
    return [model.name, str(rows), spread(whole), spread(bare), spread([100 * (a / b - 1) for a, b in found])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tofu", type=Path, required=True, help="directory with TOFU's own files")
    parser.add_argument("--rows", type=int, default=8, help="rows of each split")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    row = measured(args.model.resolve(), args.tofu, args.rows, args.runs)
    section = f"{circumstances(f'; median and range of {args.runs} runs')}\n\n{markdown(HEAD, [row])}"
    print(section)
    if args.write:
        put(section, OPEN, CLOSE)


if __name__ == "__main__":
    main()
