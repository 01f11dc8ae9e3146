"""What scoring adds to the bare forwards of the same packed batches: planning, masks, reduction, records.

    python bench/overhead.py --model DIR --tofu DIR           real rows of TOFU's own files
    ... --write                                               puts it into docs/bench.md

Processor seconds on one thread. The forwards are timed inside the work itself, batch by batch, so that other load on
the machine meets both alike.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from measure import crowded, machine
from peers import spread
from table import PAGE, markdown
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
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    said = f"{machine()}; one thread; {today}; median and range of {args.runs} runs."
    said += f" {crowded()[:1].upper() + crowded()[1:]}." if crowded() else ""
    section = f"{said}\n\n{markdown(HEAD, [row])}"
    print(section)
    if args.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(OPEN, 1)
        PAGE.write_text(f"{before}{OPEN}\n{section}\n{CLOSE}{rest.split(CLOSE, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
