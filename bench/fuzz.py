"""Fuzzing campaigns over every reader of other people's files, by coverage (atheris) or by properties (hypothesis).

    python bench/fuzz.py --engine hypothesis --minutes 30 --out /tmp/fuzz
    python bench/fuzz.py --engine atheris --minutes 30 --out /tmp/fuzz      (needs: pip install atheris)
    python bench/fuzz.py --replay /tmp/fuzz                                 (the inputs found, once more)

The targets are those of tests/fuzz_targets.py. Each gets an equal share of the time, in a process of its own: a crash
of the interpreter is a finding as well. Inputs that found something are saved in OUT/found, the corpus in OUT/corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

ROUND = 60.0  # seconds a target gets at a time, so that a short campaign reaches all of them


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", choices=("atheris", "hypothesis"), default="hypothesis")
    p.add_argument("--minutes", type=float, default=1.0)
    p.add_argument("--targets", metavar="NAME,...", help="default: all")
    p.add_argument("--out", type=Path, default=Path("/tmp/vestige-fuzz"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--replay", type=Path, metavar="OUT", help="run the inputs saved there instead")
    p.add_argument("--one", help=argparse.SUPPRESS)  # the child process: one target for --seconds
    p.add_argument("--seconds", type=float, default=10.0, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.replay:
        return replay(args.replay)
    if args.one:
        return child(args)
    return parent(args)


def parent(args: argparse.Namespace) -> int:
    """Rounds over the targets until the time is up."""
    from fuzz_targets import TARGETS

    names = args.targets.split(",") if args.targets else list(TARGETS)
    end, turn = time.monotonic() + 60 * args.minutes, 0
    share = min(ROUND, 60 * args.minutes / len(names))
    while time.monotonic() < end:
        name, seed = names[turn % len(names)], args.seed + turn // len(names)
        turn += 1
        run_child(args, name, min(share, max(1.0, end - time.monotonic())), seed)
    return report(args, names)


def run_child(args: argparse.Namespace, name: str, seconds: float, seed: int) -> None:
    words = [sys.executable, __file__, "--one", name, "--engine", args.engine, "--out", str(args.out)]
    words += ["--seconds", f"{seconds:.1f}", "--seed", str(seed)]
    try:
        done = subprocess.run(words, capture_output=True, timeout=seconds + 120, stdin=subprocess.DEVNULL)
        code, said = done.returncode, done.stderr.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        code, said = -9, "the process did not end"
    if code:  # the interpreter itself fell over: the input it was at is what counts
        save(args.out, name, f"the process ended with status {code}", "", last(args, name), said[-3000:])


def last(args: argparse.Namespace, name: str) -> bytes:
    path = args.out / "last" / f"{args.engine}-{name}"
    return path.read_bytes() if path.is_file() else b""


def child(args: argparse.Namespace) -> int:
    (args.out / "last").mkdir(parents=True, exist_ok=True)
    return with_atheris(args) if args.engine == "atheris" else with_hypothesis(args)


class Counter:
    """Runs inputs, saves what they find, and keeps count on disk, because some engines leave without a word."""

    def __init__(self, args: argparse.Namespace) -> None:
        from fuzz_targets import TARGETS

        self.args, self.target = args, TARGETS[args.one]
        self.file = args.out / "counts" / f"{args.engine}-{args.one}-{args.seed}.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.last = args.out / "last" / f"{args.engine}-{args.one}"
        self.runs, self.written = 0, 0.0

    def run(self, data: bytes) -> None:
        from fuzz_tools import attempt

        self.last.write_bytes(data)
        found = attempt(self.target, data)
        self.runs += 1
        if found:
            save(self.args.out, self.args.one, found.what, found.where, data, found.trace)
        if time.monotonic() - self.written > 1:
            self.write()

    def write(self) -> None:
        self.written = time.monotonic()
        self.file.write_text(json.dumps({"runs": self.runs}))


def with_hypothesis(args: argparse.Namespace) -> int:
    """Hypothesis draws the inputs, with a new seed in each round; its own time limits are off."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from fuzz_tools import strategy

    counter, end = Counter(args), time.monotonic() + args.seconds
    number = random.Random(f"{args.one}{args.seed}").randrange(2**32)
    while time.monotonic() < end:
        number += 1

        @seed(number)
        @settings(
            max_examples=50, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy(counter.target))
        def once(data: bytes) -> None:
            if time.monotonic() < end:
                counter.run(data)

        once()
    counter.write()
    return 0


def with_atheris(args: argparse.Namespace) -> int:
    """libFuzzer chooses inputs by the branches of ours that they reach; half of its changes are made to the tree."""
    import atheris

    with atheris.instrument_imports(include=["vestige"], enable_loader_override=False):
        import vestige.cli  # noqa: F401

        counter = Counter(args)
        for seed in counter.target.seeds():  # what targets import, they import here
            counter.run(seed)
    from fuzz_inputs import mutated

    corpus = args.out / "corpus" / args.one
    corpus.mkdir(parents=True, exist_ok=True)
    for n, data in enumerate(counter.target.seeds()):
        (corpus / f"seed-{n}").write_bytes(data)

    def vary(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.4:
            return bytes(atheris.Mutate(data, most))
        return mutated(data, counter.target.kind, rng)[:most]

    flags = [sys.argv[0], f"-max_total_time={int(args.seconds)}", "-timeout=60", "-rss_limit_mb=6000", "-max_len=65536",
             f"-seed={args.seed + 1}", "-verbosity=0", "-artifact_prefix=" + str(args.out / "last") + "/"]  # fmt: skip
    atheris.Setup([*flags, str(corpus)], counter.run, custom_mutator=vary)
    atheris.Fuzz()
    return 0


def save(out: Path, name: str, what: str, where: str, data: bytes, trace: str) -> None:
    """One file for each kind of finding; the first input that showed it is kept."""
    key = hashlib.sha256(f"{name} {what.split(':')[0]} {where}".encode()).hexdigest()[:10]
    place = out / "found"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / f"{name}-{key}.bin").exists():
        (place / f"{name}-{key}.bin").write_bytes(data)
        (place / f"{name}-{key}.txt").write_text(f"{what}\n{where}\n\n{trace}", "utf-8", "replace")


def report(args: argparse.Namespace, names: list[str]) -> int:
    total = 0
    print(f"{'target':28}{'executions':>12}")
    for name in names:
        files = (args.out / "counts").glob(f"{args.engine}-{name}-*.json")
        runs = sum(json.loads(f.read_text())["runs"] for f in files)
        total += runs
        print(f"{name:28}{runs:12,}")
    print(f"{'all':28}{total:12,}\n")
    found = sorted((args.out / "found").glob("*.txt"))
    for path in found:
        print(f"{path.stem}: {path.read_text().splitlines()[0][:150]}")
    print(f"{len(found)} findings (inputs in {args.out / 'found'})")
    return 1 if found else 0


def replay(out: Path) -> int:
    """Every saved input once more; what is still wrong is printed."""
    from fuzz_targets import TARGETS
    from fuzz_tools import attempt

    left = 0
    for path in sorted((out / "found").glob("*.bin")):
        found = attempt(TARGETS[path.name.rsplit("-", 1)[0]], path.read_bytes())
        left += found is not None
        print(f"{path.name}: {found.what + ' | ' + found.where if found else 'fine'}", flush=True)
    print(f"{left} still found")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
