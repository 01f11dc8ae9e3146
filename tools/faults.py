"""Faults injected into every long command, and what came of them after a restart.

    python tools/faults.py --faults 200 --seed 0          # prints the table; exit status 1 on any loss or silent error

`--capabilities eval,depth` strikes only these; `--log FILE` keeps a line of JSON for every fault; `--table FILE...`
prints the table of such files and strikes nothing. The kit is tests/fault_*.py.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fault_commands import capabilities
from fault_strikes import LOST, WRONG, Result, schedule, strike, table


def main() -> int:
    args = _arguments()
    if args.table:
        lines = [line for file in args.table for line in Path(file).read_text().splitlines()]
        return _finish([Result(**json.loads(line)) for line in lines])
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        os.environ["VESTIGE_CACHE"] = str(Path(scratch) / "cache")
        (Path(scratch) / "cache").mkdir()
        return _finish(_strike_all(args, Path(scratch)))


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description="Fault injection into every long command.")
    p.add_argument("--faults", type=int, default=200)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--capabilities", default="", metavar="NAME,...")
    p.add_argument("--log", metavar="FILE")
    p.add_argument("--table", nargs="+", metavar="FILE")
    return p.parse_args()


def _strike_all(args: argparse.Namespace, base: Path) -> list[Result]:
    known = {c.name: c for c in capabilities(base, [n for n in args.capabilities.split(",") if n])}
    for c in known.values():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            c.measure()
        print(f"{c.name}: {c.events} file operations, {c.forwards} forwards, {c.seconds:.1f} s", file=sys.stderr)
    results = []
    for number, (name, fault, seed) in enumerate(schedule(list(known), args.faults, args.seed), 1):
        result = strike(known[name], fault, seed)
        results.append(result)
        words = f"{number}/{args.faults} {name}, {fault}, seed {seed}: {result.outcome}: {result.detail}"
        print(words if result.outcome in (LOST, WRONG) else words[:200], file=sys.stderr, flush=True)
        if args.log:
            with Path(args.log).open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(result)) + "\n")
    return results


def _finish(results: Sequence[Result]) -> int:
    print(table(results))
    bad = [r for r in results if r.outcome in (LOST, WRONG)]
    for r in bad:
        print(f"{r.outcome}: {r.capability}, {r.fault}: {r.detail}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
