"""One table: each capability next to a peer-style reference, over its bare forwards, in memory, and as it grows.

    python bench/table.py             prints it (about 15 minutes on two quiet cores)
    python bench/table.py --write     also puts it into docs/bench.md, between the marks
    python bench/table.py --tiny      the smallest sizes, to see that everything works; never written

The other benchmarks do the work, each in its own process on one thread; this collects what they measured as JSON. The
exit status is 1 if a capability is slower than its reference, gives other numbers, or grows faster than its definition.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure import DOCS, circumstances, markdown, replace_section

HERE = Path(__file__).parent
OPEN, CLOSE = "<!-- bench table -->", "<!-- /bench table -->"
# script -> its arguments for the table, and for a trial
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "tofu": ([], []),
    "depth": (
        ["--rounds", "2"],
        ["--layers", "4", "--width", "64", "--vocab", "1000", "--tokens", "40", "--rounds", "1", "--examples", "2"],
    ),
    "trajectory": ([], ["--vocabulary", "2000", "--length", "8", "--steps", "4"]),
    "collapse": (["--repeat", "1"], ["--repeat", "1", "--prompts", "2"]),
    "resampling": ([], ["--rows", "50", "--resamples", "100", "--models", "10"]),
    "growth": ([], ["--smallest", "--repeat", "1"]),
}
ORDER = ("eval", "depth", "trajectory", "collapse", "statistics", "meta-evaluation")
HEAD = (
    "capability", "next to", "times faster", "the same numbers?", "over bare forwards", "peak memory",
    "growth per doubling",
)  # fmt: skip
GROWTH_HEAD = ("capability", "what doubles", "sizes", "CPU s", "ratios", "peak MB", "KB for one more", "by definition")


def run(name: str, arguments: Sequence[str]) -> list[dict[str, Any]] | None:
    """One benchmark on one thread. A status of 1 may mean a missed target: what counts is whether it wrote results."""
    print(f"bench/{name}.py {' '.join(arguments)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "results.json"
        command = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(file)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if not file.is_file():
            print(done.stderr[-2000:], file=sys.stderr)
            return None
        found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return found


def capability_rows(comparisons: list[dict[str, Any]], growths: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for name in ORDER:
        grown = [g for g in growths if g["capability"] == name]
        peers = [c for c in comparisons if c["capability"] == name]
        memory = f"{max(max(g['megabytes']) for g in grown):.0f} MB" if grown else ""
        growth = ", ".join(f"{g['axis']} {g['per_doubling']:.1f}{'' if g['good'] else ' (**steep**)'}" for g in grown)
        for i, c in enumerate(peers):
            times = f"{c['peer_seconds'] / c['seconds']:.1f}"
            if c["memory_ratio"]:
                times += f", with {c['memory_ratio']:.0f} times less memory"
            if c["fewer"]:
                times += f" ({c['fewer']:.1f} times fewer operations)"
            same = c["equality"] if c["equal"] else f"**NO**: {c['equality']}"
            over = "" if c["overhead"] is None else f"{100 * c['overhead']:.0f} %"
            first = [name, memory, growth] if i == 0 else ["", "", ""]
            rows.append([first[0], f"{c['peer']} ({c['case']})", times, same, over, *first[1:]])
    return rows


def growth_row(g: dict[str, Any]) -> list[str]:
    def listed(values: Sequence[float], digits: int) -> str:
        return ", ".join(f"{v:.{digits}f}" for v in values)

    return [
        g["capability"], g["axis"], listed(g["sizes"], 0), listed(g["seconds"], 2), listed(g["ratios"], 2),
        listed(g["megabytes"], 0), f"{g['kilobytes']:.0f}", g["expected"],
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    args = parser.parse_args()
    if args.write and (args.tiny or len(args.only) < len(RUNS)):
        parser.error("only a whole run goes into the docs; leave out --tiny and --only")
    comparisons: list[dict[str, Any]] = []
    growths: list[dict[str, Any]] = []
    failed = []
    for name in args.only:
        results = run(name, RUNS[name][args.tiny])
        if results is None:
            failed.append(name)
        elif name == "growth":
            growths = results
        else:
            comparisons += results
    parts = [circumstances(), markdown(HEAD, capability_rows(comparisons, growths))]
    if growths:
        parts += ["### Growth", markdown(GROWTH_HEAD, [growth_row(g) for g in growths])]
    if failed:
        parts.append(f"Not measured, because it failed: {', '.join(failed)}.")
    section = "\n\n".join(parts)
    print(section)
    if args.write:
        replace_section(DOCS / "bench.md", section, OPEN, CLOSE)
    faster = all(c["equal"] and c["peer_seconds"] >= c["seconds"] for c in comparisons)
    return 0 if faster and all(g["good"] for g in growths) and not failed else 1


if __name__ == "__main__":
    raise SystemExit(main())
