"""Walks the first hour of somebody new, in a fresh clone and an empty environment; the times go to docs/bench.md.

    python tools/first_hour.py [--tutorial] [--no-write] [--keep DIR]

A clone of the committed tree, an empty home, no cache of pip and none of a hub, and no variable but those that pip and
a proxy need: what `make demo` does there is what it does for a stranger. Then, with the command it installed: help, the
three commands that the demo prints, and (--tutorial) every command of docs/tutorial.md.

Seconds are by the clock and of the processor, so that a busy machine shows. It takes some minutes and downloads torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bench.md"
START, END = "<!-- the first hour: written by tools/first_hour.py -->", "<!-- end of the first hour -->"
# What a stranger's shell has, and what pip needs to reach a package index from here.
KEPT = re.compile(
    r"^(PATH|LANG|LC_.*|TERM|PIP_(?!NO_CACHE).*|(https?|no|all)_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE)$", re.I
)
FIRST_TABLE = "How to read it:"  # printed below the demo's first table


@dataclass
class Walked:
    """One command: seconds by the clock and of the processor, and what it printed."""

    what: str
    wall: float
    cpu: float
    said: str
    table: float | None = None  # seconds until its first table


class Stranger:
    """A fresh clone, an empty home, and commands in them."""

    def __init__(self, place: Path) -> None:
        self.clone, self.home = place / "vestige", place / "home"
        self.home.mkdir()
        self.walked: list[Walked] = []

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if KEPT.match(k)}
        path = [p for p in kept["PATH"].split(os.pathsep) if not (Path(p).parent / "pyvenv.cfg").exists()]
        here = self.clone / ".venv" / "bin"
        return {**kept, "PATH": os.pathsep.join([str(here), *path]), "HOME": str(self.home), "PIP_NO_CACHE_DIR": "1"}

    def run(self, what: str, words: list[str], cwd: Path | None = None) -> Walked:
        """Runs a command to its end, or stops the walk and shows why it failed."""
        before, begun, table = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), None
        lines: list[str] = []
        # One stream: what a person would see, in its order.
        with subprocess.Popen(
            words, cwd=cwd or self.clone, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as command:
            assert command.stdout is not None
            for line in command.stdout:
                lines.append(line)
                if table is None and line.startswith(FIRST_TABLE):
                    table = time.monotonic() - begun
        wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = "".join(lines)
        if command.returncode:
            sys.exit(f"first hour: {what} failed with status {command.returncode}:\n{said[-3000:]}")
        print(f"{wall:7.1f} s {cpu:7.1f} s  {what}", flush=True)
        self.walked.append(Walked(what, wall, cpu, said, table))
        return self.walked[-1]


def walk(stranger: Stranger, tutorial: bool) -> None:
    stranger.run("git clone", ["git", "clone", "-q", str(ROOT), str(stranger.clone)], cwd=stranger.home)
    # Two commands of the Makefile apart, so that installing and the demo have their own times.
    stranger.run("make demo: installing", ["make", ".venv/.core"])
    demo = stranger.run("make demo: the demo", ["make", "demo"])
    stranger.run("vestige --help", ["vestige", "--help"])
    told = [line.strip() for line in demo.said.splitlines() if line.startswith("  vestige ")]
    assert len(told) == 3, "the demo ends with three commands"
    for line in told:
        stranger.run(" ".join(line.split()[:2]), shlex.split(line))
    if tutorial:
        stranger.run("docs/tutorial.md", [sys.executable, "tools/tutorial.py", "--skip-install"])


def installed(stranger: Stranger) -> str:
    site = stranger.clone / ".venv"
    packages = len(list(site.glob("lib/python*/site-packages/*.dist-info")))
    size = sum(p.stat().st_size for p in site.rglob("*") if p.is_file() and not p.is_symlink()) / 1e9
    return f"{packages} packages, {size:.1f} GB"


def written(stranger: Stranger, load: float) -> str:
    """The part of docs/bench.md, with the machine and how busy it was."""
    rows = [f"| {w.what} | {w.wall:.0f} | {w.cpu:.0f} |" for w in stranger.walked]
    to_demo = [w for w in stranger.walked if w.what.startswith("make demo")]
    first = sum(w.wall for w in to_demo[:-1]) + (to_demo[-1].table or 0.0)
    whole = sum(w.wall for w in to_demo)
    return "\n".join(
        [
            START,
            f"In a fresh clone, with an empty home and without caches ({_processor()}, {os.cpu_count()} cores, load "
            f"{load:.1f} at the start, Python {platform.python_version()}): {installed(stranger)} installed, the first "
            f"table after {first:.0f} s, the whole `make demo` after {whole:.0f} s.",
            "",
            "| command | seconds by the clock | of the processor |",
            "|---|---:|---:|",
            *rows,
            END,
        ]
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutorial", action="store_true", help="also docs/tutorial.md, command by command")
    parser.add_argument("--no-write", action="store_true", help="print the times, and leave docs/bench.md alone")
    parser.add_argument("--keep", type=Path, help="work there, and leave it")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    place = args.keep or Path(tempfile.mkdtemp(prefix="first-hour-"))
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        parser.error(f"{place} is not empty: a first hour begins with nothing.")
    stranger = Stranger(place)
    print("  clock     cpu  command")
    try:
        walk(stranger, args.tutorial)
        part = written(stranger, load)
    finally:
        if args.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    print(part)
    if not args.no_write:
        before, rest = PAGE.read_text(encoding="utf-8").split(START)
        PAGE.write_text(before + part + rest.split(END)[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
