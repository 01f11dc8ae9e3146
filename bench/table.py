"""One table: each capability beside a peer-style reference, over its bare forwards, in memory, and as it grows.

    python bench/table.py             prints it (about 15 minutes on two quiet cores)
    python bench/table.py --write     also puts it into docs/bench.md, between the markers
    python bench/table.py --tiny      the smallest sizes, to see that everything works; never written
    ... --smollm2 DIR --tofu DIR      also evaluate a real model on real rows, as bench/tofu.py does (20 minutes more)

The other benchmarks do the work, each in its own process on one thread; this collects what they say as JSON. The exit
status is 1 if a capability is slower than its reference, says something else, or grows faster than its definition.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure import crowded, machine
from startup import rest

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "bench.md"
OPEN, CLOSE = "<!-- bench table -->", "<!-- /bench table -->"
LAB = HERE.parent / "tests" / "golden" / "lab"
GOLDEN = ["--model", str(LAB / "models" / "full"), "--data", str(LAB / "data"), "--threads", "1"]
# script -> its arguments for the table, and for a trial
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "tofu": (GOLDEN, GOLDEN),
    "depth": (
        ["--rounds", "2"],
        ["--layers", "4", "--width", "64", "--vocab", "1000", "--tokens", "40", "--rounds", "1", "--examples", "2"],
    ),
    "trajectory": (["--turns", "2"], ["--vocabulary", "2000", "--length", "8", "--steps", "4", "--turns", "0"]),
    "collapse": (["--repeat", "1"], ["--repeat", "1", "--prompts", "2"]),
    "rouge": ([], ["--rows", "50", "--models", "1"]),
    "resampling": ([], ["--rows", "50", "--resamples", "100", "--models", "10"]),
    "growth": ([], ["--smallest", "--repeat", "1"]),
    "startup": ([], ["--repeat", "1", "--only", "ls"]),
}
NO_PEER = {
    "sweep": "none: a sweep is one evaluation after another",
    "re-scoring": "none: others run the model again",
    "importing": "none: reading a file is all there is to it",
    "report page": "none",
}
ORDER = ("eval", "depth", "trajectory", "collapse", "ROUGE", "statistics", "meta-evaluation", *NO_PEER)
HEAD = (
    "capability", "compared with", "times faster", "the same numbers?", "over bare forwards", "peak memory",
    "growth per doubling",
)  # fmt: skip


@dataclass
class Found:
    """What the benchmarks said."""

    beside: list[dict[str, Any]] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    startup: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def good(self) -> bool:
        faster = all(b["equal"] and b["peer_seconds"] >= b["seconds"] for b in self.beside)
        return faster and all(g["good"] for g in self.growth) and not self.failed


def collect(orders: Sequence[tuple[str, list[str]]]) -> Found:
    found = Found()
    for name, arguments in orders:
        said = run(name, arguments)
        if said is None:
            found.failed.append(name)
        elif name == "growth":
            found.growth = said
        elif name == "startup":
            found.startup = said
        else:
            found.beside += said
    return found


def run(name: str, arguments: Sequence[str]) -> Any:
    """One benchmark on one thread. A status of 1 may mean a missed target: what counts is whether it told."""
    print(f"bench/{name}.py {' '.join(arguments)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        note = Path(scratch) / "said.json"
        order = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(note)]
        done = subprocess.run(order, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if not note.is_file():
            print(done.stderr[-2000:], file=sys.stderr)
            return None
        return json.loads(note.read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------- the page


def page(found: Found) -> str:
    """The section between the markers."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    note = crowded()
    parts = [f"{machine()}; one thread; {today}. {note[:1].upper() + note[1:] + '.' if note else ''}".strip()]
    parts += [markdown(HEAD, list(capability_rows(found)))]
    if found.growth:
        parts += ["### Growth", markdown(GROWTH_HEAD, [growth_row(g) for g in found.growth])]
    if found.startup:
        rows = [[name, *(f"{v:.2f}" for v in seconds(r))] for name, r in found.startup.items()]
        parts += [
            "### Commands on the golden lab",
            markdown(("command", "CPU s", "imports", "forwards", "the rest"), rows),
        ]
    if found.failed:
        parts += [f"Not measured, because it failed: {', '.join(found.failed)}."]
    return "\n\n".join(parts)


def seconds(r: Mapping[str, float]) -> list[float]:
    return [r["cpu"], r["imports"], r["forwards"], rest(dict(r))]


def capability_rows(found: Found) -> Iterator[list[str]]:
    for name in ORDER:
        peers = [b for b in found.beside if b["capability"] == name]
        grown = [g for g in found.growth if g["capability"] == name]
        if not peers and name not in NO_PEER:
            continue
        tail = [memory(grown), growth(grown)]
        if not peers:
            yield [name, NO_PEER[name], "", "", "", *tail]
        for i, b in enumerate(peers):
            beside = f"{b['peer']} ({b['case']})"
            ratio = f"{b['peer_seconds'] / b['seconds']:.1f}" + less_memory(b) + by_operations(b)
            same = b["equality"] if b["equal"] else f"**NO**: {b['equality']}"
            yield [
                name if i == 0 else "",
                beside,
                ratio,
                same,
                over(b.get("overhead")),
                *(tail if i == 0 else ["", ""]),
            ]


def less_memory(b: Mapping[str, Any]) -> str:
    return f", with {b['memory_ratio']:.0f} times less memory" if b.get("memory_ratio") else ""


def by_operations(b: Mapping[str, Any]) -> str:
    return f" ({b['fewer']:.1f} times fewer operations)" if b.get("fewer") else ""


def over(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def memory(grown: Sequence[Mapping[str, Any]]) -> str:
    """The most any growth measured, above the libraries."""
    return f"{max(max(g['megabytes']) for g in grown):.0f} MB" if grown else ""


def growth(grown: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{g['axis']} {g['per_doubling']:.1f}" + ("" if g["good"] else " (**steep**)") for g in grown)


GROWTH_HEAD = ("capability", "what doubles", "sizes", "CPU s", "ratios", "peak MB", "KB for one more", "by definition")


def growth_row(g: Mapping[str, Any]) -> list[str]:
    def listed(values: Sequence[float], digits: int) -> str:
        return ", ".join(f"{v:.{digits}f}" for v in values)

    return [
        g["capability"], g["axis"], listed(g["sizes"], 0), listed(g["seconds"], 2), listed(g["ratios"], 2),
        listed(g["megabytes"], 0), f"{g['kilobytes']:.0f}", g["expected"],
    ]  # fmt: skip


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def circumstances(more: str = "") -> str:
    """Where and when something was measured on one thread, and whether others worked there."""
    crowd = crowded()
    return f"{machine()}; one thread; {today()}{more}." + (f" {crowd[:1].upper()}{crowd[1:]}." if crowd else "")


def written(text: str, section: str, opened: str = OPEN, closed: str = CLOSE) -> str:
    """A page with its section replaced; everything outside the markers stays."""
    before, rest_ = text.split(opened, 1)
    _, after = rest_.split(closed, 1)
    return f"{before}{opened}\n{section}\n{closed}{after}"


def put(section: str, opened: str = OPEN, closed: str = CLOSE) -> None:
    """A section of docs/bench.md."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), section, opened, closed), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="some of the benchmarks")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    parser.add_argument("--smollm2", metavar="DIR", help="where SmolLM2 is, or is to be fetched to")
    parser.add_argument("--tofu", metavar="DIR", help="TOFU's own files")
    args = parser.parse_args()
    if bool(args.smollm2) != bool(args.tofu):
        parser.error("--smollm2 and --tofu go together")
    if args.write and (args.tiny or len(args.only) < len(RUNS)):
        parser.error("only a whole run goes into the docs; leave out --tiny and --only")
    orders = [(name, RUNS[name][args.tiny]) for name in args.only]
    if args.smollm2:
        real = ["--smollm2", args.smollm2, "--tofu", args.tofu, "--rows", "2" if args.tiny else "10", "--threads", "1"]
        orders.insert(1, ("tofu", real))
    found = collect(orders)
    section = page(found)
    print(section)
    if args.write:
        put(section.split("\n### Growth")[0].rstrip())  # growth in detail and single commands are only printed
    return 0 if found.good() else 1


if __name__ == "__main__":
    raise SystemExit(main())
