"""Fuzzing campaigns over every reader of other people's files, by coverage (atheris) or by properties (hypothesis).

    python tools/fuzz.py --engine hypothesis --minutes 30 --out /tmp/fuzz
    python tools/fuzz.py --engine atheris --minutes 30 --out /tmp/fuzz      (needs: pip install atheris)
    python tools/fuzz.py --replay /tmp/fuzz                                 (the inputs found, once more)

The targets are those of tests/fuzz_targets.py. They run in one process beside this one: if it dies,
that is a finding too, and a new one goes on. Inputs that found something are saved in OUT/found, the corpus in
OUT/corpus.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

ROUND = 20.0  # seconds a target gets at a time, so that a short campaign reaches all of them
STILL = 150.0  # seconds without a new input after which a child is asked where it stands, and ended
LIFE = 600.0  # seconds a child lives: what libraries keep from one input to the next does not add up for ever


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", choices=("atheris", "hypothesis"), default="hypothesis")
    p.add_argument("--minutes", type=float, default=1.0)
    p.add_argument("--targets", metavar="NAME,...", help="default: all")
    p.add_argument("--out", type=Path, default=Path("/tmp/vestige-fuzz"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--replay", type=Path, metavar="OUT", help="run the inputs saved there instead")
    p.add_argument("--child", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.replay:
        return replay(args.replay)
    from fuzz_targets import TARGETS

    args.names = args.targets.split(",") if args.targets else list(TARGETS)
    return child(args) if args.child else parent(args)


def parent(args: argparse.Namespace) -> int:
    """A child until the time is up; another one where it died."""
    (args.out / "last").mkdir(parents=True, exist_ok=True)
    end, seed = time.monotonic() + 60 * args.minutes, args.seed
    while (left := end - time.monotonic()) > 5:
        life = min(left, LIFE)
        words = [sys.executable, __file__, "--child", f"{life:.0f}", "--engine", args.engine, "--out", str(args.out)]
        words += ["--seed", str(seed), "--targets", ",".join(args.names)]
        log = args.out / f"{args.engine}.log"
        with log.open("ab") as file:
            wrong = ended(subprocess.Popen(words, stdout=file, stderr=file), args)
        if wrong:  # the interpreter itself fell over: the input it was at is what counts
            name, data = last(args)
            save(args.out, name, wrong, "", data, log.read_text("utf-8", "replace")[-6000:])
        seed += 1
    return report(args, args.names)


def ended(child: subprocess.Popen[bytes], args: argparse.Namespace) -> str:
    """Waits for a child; what was wrong with its end, or nothing. One that stands still writes where, and is killed."""
    path = args.out / "last" / args.engine
    path.touch()
    while child.poll() is None:
        time.sleep(1)
        if time.time() - path.stat().st_mtime > STILL:
            child.send_signal(signal.SIGUSR1)  # faulthandler: every thread's stack, into the log
            time.sleep(2)
            child.kill()
            child.wait()
            return f"stood still for {STILL:.0f} s"
    return f"the process ended with status {child.returncode}" if child.returncode else ""


def last(args: argparse.Namespace) -> tuple[str, bytes]:
    path = args.out / "last" / args.engine
    name, _, data = path.read_bytes().partition(b"\n") if path.is_file() else (b"?", b"", b"")
    return name.decode(), data


def child(args: argparse.Namespace) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    return with_atheris(args) if args.engine == "atheris" else with_hypothesis(args)


class Counter:
    """Runs inputs, saves what they find, and keeps count on disk, because some engines leave without a word."""

    def __init__(self, args: argparse.Namespace) -> None:
        from fuzz_targets import TARGETS

        self.args, self.targets = args, [TARGETS[name] for name in args.names]
        self.file = args.out / "counts" / f"{args.engine}-{args.seed}.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.last = args.out / "last" / args.engine
        self.runs = dict.fromkeys(args.names, 0)
        self.written = 0.0

    def run(self, target: Any, data: bytes) -> None:
        from fuzz_tools import attempt

        self.last.write_bytes(target.name.encode() + b"\n" + data)
        found = attempt(target, data)
        self.runs[target.name] += 1
        if found:
            save(self.args.out, target.name, found.what, found.where, data, found.trace)
        if time.monotonic() - self.written > 1:
            self.write()

    def write(self) -> None:
        self.written = time.monotonic()
        body = {"runs": self.runs, "cpu_seconds": round(time.process_time())}
        self.file.write_text(json.dumps(body))


def with_hypothesis(args: argparse.Namespace) -> int:
    """Hypothesis draws the inputs, with a new seed in each round; its own time limits are off."""
    from fuzz_tools import warm

    counter, end, turn = Counter(args), time.monotonic() + args.child, 0
    first = args.seed * int(LIFE / ROUND)  # where the child before this one stopped
    while time.monotonic() < end:
        target = counter.targets[(first + turn) % len(counter.targets)]
        warm(target)
        counter.last.touch()
        draw(counter, target, min(end, time.monotonic() + ROUND), f"{args.seed} {turn}")
        turn += 1
    counter.write()
    return 0


def draw(counter: Counter, target: Any, end: float, label: str) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from fuzz_tools import strategy

    number = random.Random(label).randrange(2**32)
    while time.monotonic() < end:
        number += 1

        @seed(number)
        @settings(
            max_examples=50, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy(target))
        def once(data: bytes) -> None:
            if time.monotonic() < end:
                counter.run(target, data)

        once()


def with_atheris(args: argparse.Namespace) -> int:
    """libFuzzer chooses inputs by the branches of ours that they reach. An input's first byte chooses the target."""
    import atheris

    from fuzz_tools import warm

    # Making seeds imports most modules already, and only modules imported in here are given counters.
    with atheris.instrument_imports(include=["vestige"], enable_loader_override=False):
        counter = Counter(args)
        seeds = [list(target.seeds()) for target in counter.targets]
        for target in counter.targets:
            warm(target)
            counter.last.touch()  # it lives: the first imports take long on a busy machine
    corpus = args.out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, (target, several) in enumerate(zip(counter.targets, seeds, strict=True)):
        for n, data in enumerate(several):
            (corpus / f"seed-{target.name}-{n}").write_bytes(bytes([number]) + data)

    def once(data: bytes) -> None:
        if data:
            counter.run(counter.targets[data[0] % len(seeds)], data[1:])

    flags = [sys.argv[0], f"-max_total_time={int(args.child)}", "-timeout=0", "-rss_limit_mb=6000", "-max_len=65536",
             f"-seed={args.seed + 1}", "-verbosity=0", f"-artifact_prefix={args.out / 'last'}/"]  # fmt: skip
    atheris.Setup([*flags, str(corpus)], once, custom_mutator=mutator(counter.targets, seeds))
    atheris.Fuzz()
    return 0


def mutator(targets: list[Any], seeds: list[list[bytes]]) -> Any:
    """Changes what libFuzzer chose, mostly as a tree. One in five starts over, so that no target is forgotten."""
    import atheris

    from fuzz_inputs import mutated

    def vary(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        which, rest = (data[0] if data else 0) % len(targets), data[1:]
        if rng.random() < 0.2:
            which = rng.randrange(len(targets))
            rest = rng.choice(seeds[which])
        if rng.random() < 0.3:
            return bytes([which]) + bytes(atheris.Mutate(rest, most - 1))
        return (bytes([which]) + mutated(rest, targets[which].kind, rng))[:most]

    return vary


def save(out: Path, name: str, what: str, where: str, data: bytes, trace: str) -> None:
    """One file for each kind of finding; the first input that showed it is kept."""
    key = hashlib.sha256(f"{name} {what.split(':')[0]} {where}".encode()).hexdigest()[:10]
    place = out / "found"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / f"{name}-{key}.bin").exists():
        (place / f"{name}-{key}.bin").write_bytes(data)
        (place / f"{name}-{key}.txt").write_text(f"{what}\n{where}\n\n{trace}", "utf-8", "replace")


def report(args: argparse.Namespace, names: list[str]) -> int:
    counts = [json.loads(f.read_text()) for f in (args.out / "counts").glob(f"{args.engine}-*.json")]
    runs = {name: sum(c["runs"].get(name, 0) for c in counts) for name in names}
    print(f"{'target':28}{'executions':>12}")
    for name, number in runs.items():
        print(f"{name:28}{number:12,}")
    print(f"{'all':28}{sum(runs.values()):12,}   in {sum(c['cpu_seconds'] for c in counts):,} s of computing\n")
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
