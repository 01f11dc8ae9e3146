"""One fault on one command, the same command again, and a look at what it left: identical, said, lost or wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_commands import Capability, sweep_args
from fault_tools import (
    DAMAGES,
    FILE_CLASSES,
    UNSEEN,
    Ended,
    child,
    clock_jumps,
    damage,
    differences,
    kill_at,
    killer,
    little_memory,
    lose_worker,
    mount,
    mounted,
    no_memory,
    refuse_from,
    snapshot,
    struck,
    wipe,
)

IDENTICAL, SAID, LOST, WRONG = "identical", "said", "lost", "silently wrong"
MISSED, DRAWS = "missed", 8


# ---- one fault ---------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What one fault came to."""

    capability: str
    fault: str
    outcome: str
    detail: str


FAULTS = (
    "kill at a file operation", "kill at a moment", "disk full (refused)", "disk full (tmpfs)", "read-only",
    "evidence damaged", "json damaged", "lock damaged", "clock jumps", "memory once", "memory out", "address space",
    "worker lost",
)  # fmt: skip


def applies(capability: str, fault: str) -> bool:
    if fault == "worker lost":
        return capability == "sweep"
    return True


def strike(c: Capability, fault: str, seed: int) -> Result:
    """One fault on one command, then the same command again, and a look at what it left.

    A fault that finds nothing to strike (the command was over, the memory sufficed) is drawn again.
    """
    for draw in range(DRAWS):
        struck()
        result = _strike(c, fault, random.Random(f"{c.name}/{fault}/{seed}/{draw}"))
        if result.outcome != MISSED:
            break
    return result


def _strike(c: Capability, fault: str, rng: random.Random) -> Result:
    wipe(c.out)
    if fault in ("disk full (tmpfs)", "read-only"):
        outcome, detail = _on_tmpfs(c, fault, rng)
    else:
        first, detail = _first(c, fault, rng)
        if not struck() and first is not None and first.status == 0:
            return Result(c.name, fault, MISSED, detail)
        outcome, more = _after(c, first)
        detail = f"{detail}; {more}"
        outcome = WRONG if UNSEEN in detail else outcome
    wipe(c.out)
    return Result(c.name, fault, outcome, detail)


def _first(c: Capability, fault: str, rng: random.Random) -> tuple[Ended | None, str]:
    """The struck run. None: it is over and what is left on disk was struck."""
    n = rng.randint(1, max(1, c.events))
    if fault == "kill at a file operation":
        return child(c.argv, kill_at(c.out, n)), f"operation {n} of {c.events}"
    if fault == "kill at a moment":
        delay = rng.uniform(0, 0.9 * c.seconds)
        return child(c.argv, None, killer(delay)), f"after {delay:.2f} s"
    if fault == "disk full (refused)":
        return child(c.argv, refuse_from(c.out, n, errno.ENOSPC)), f"from operation {n} of {c.events}"
    if fault.endswith("damaged"):
        return None, _damage_some(c, fault.split()[0], n, rng)
    if fault == "clock jumps":
        child(c.argv, kill_at(c.out, n))
        for path in (p for p in c.out.rglob("*") if p.is_file()):
            os.utime(path, (t := time.time() + rng.uniform(-3e8, 3e8), t))
        return child(c.argv, clock_jumps(rng)), f"killed at operation {n}, times of files changed, clocks jump"
    if fault == "worker lost":
        sweep_args(c.out.parent, slots=1)
        ended = child(c.argv, None, lose_worker(rng))
        sweep_args(c.out.parent, slots=0)
        return ended, "worker killed"
    k = rng.randint(1, max(1, c.forwards))
    if fault == "address space":
        room = rng.randint(0, 3 << 19)
        return child(c.argv, little_memory(room)), f"{room >> 10} KB left"
    return child(c.argv, no_memory(k, fault == "memory out")), f"forward {k}"


def _damage_some(c: Capability, what: str, n: int, rng: random.Random) -> str:
    """A file of an interrupted or of a finished run is damaged; of a finished one `verify` must say so."""
    finished = rng.random() < 0.5
    child(c.argv, None if finished else kill_at(c.out, n))
    chosen = sorted(p for p in c.out.rglob("*") if p.is_file() and FILE_CLASSES[what](p))
    if not chosen and what != "lock":  # it was killed before there was any: take a finished run
        finished = True
        child(c.argv)
        chosen = sorted(p for p in c.out.rglob("*") if p.is_file() and FILE_CLASSES[what](p))
    if not chosen:
        chosen = [c.out / ".vestige" / ".lock"]
        chosen[0].parent.mkdir(parents=True, exist_ok=True)
        chosen[0].write_text("{}")
    path, how = rng.choice(chosen), rng.choice(DAMAGES)
    before = path.read_bytes()
    damage(path, how, rng)
    words = f"{path.relative_to(c.out)} {how} in {'a finished' if finished else 'an interrupted'} run"
    if finished and path.read_bytes() != before and _must_be_seen(c, path):
        seen = child(["verify", str(c.out), "--hashes-only"])
        if seen.status != 1:
            words += f" {UNSEEN}"
    return words


def _must_be_seen(c: Capability, path: Path) -> bool:
    """Every file but locks, S1's shared cache, and what a sweep keeps outside its runs."""
    inside = c.name != "sweep" or "runs" in path.relative_to(c.out).parts
    return inside and not {".vestige", "s1_cache"} & set(path.parts)


def _after(c: Capability, first: Ended | None) -> tuple[str, str]:
    """Restarts until it is done, deleting what it says; then compares."""
    said = ""
    if first is not None and first.status not in (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        if not first.sentence:
            return LOST, f"no sentence: {first.text[-600:]}"
        said = first.sentence
    told = 0
    for _ in range(5):
        ended = child(c.argv)
        if ended.status == 0:
            break
        found = re.search(r"(/\S+) is damaged .*delete it", ended.text)
        if not ended.sentence or not found:
            return LOST, f"restart: {ended.status} {ended.text[-600:]}"
        Path(found[1]).unlink(missing_ok=True)
        told += 1
    else:
        return LOST, f"still refused: {ended.text[-300:]}"
    try:
        apart = differences(c.clean, snapshot(c.out))
    except ValueError as error:
        return WRONG, f"a file is not JSON: {error}"
    if apart and notes_of(snapshot(c.out)) != notes_of(c.clean):
        return _near(c)
    if apart:
        return WRONG, f"differs: {apart[:6]} ({said})"
    if child(["verify", str(c.out), "--hashes-only"]).status != 0:
        return WRONG, "verify is not content with the restarted run"
    return (SAID, f"deleted {told} as told") if told else (IDENTICAL, said)


def notes_of(left: dict[str, Any]) -> list[Any]:
    """What a reader is told about how the numbers came about."""
    bodies = [v for k, v in sorted(left.items()) if Path(k).name in ("manifest.json", "summary.json", "metrics.json")]
    return [[b.get("notes"), [s.get("notes") for s in b.values() if isinstance(s, dict)]] for b in bodies]


def _near(c: Capability) -> tuple[str, str]:
    """It was computed in another way (batches halved, one source alone): the notes say so, and the numbers agree."""
    now = snapshot(c.out)
    other = set(now) ^ set(c.clean)
    if other:
        return WRONG, f"other files: {sorted(other)[:4]}"
    for name in (n for n in c.clean if n.endswith(("SUMMARY.json", "summary.json", "stress.json", "metrics.json"))):
        a, b = (x[name] if not isinstance(x[name], bytes) else json.loads(x[name]) for x in (c.clean, now))
        if not close(a, b):
            return WRONG, f"{name} moved"
    return SAID, "noted; numbers the same to 1e-4"


def close(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(close(a[k], b.get(k)) for k in a if k not in ("notes", "interval", "profile"))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4 * max(1.0, abs(a))
    return bool(a == b)


def _on_tmpfs(c: Capability, fault: str, rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1, max(1, c.events))
    size = rng.randrange(4096, max(8192, c.size))
    full = fault == "disk full (tmpfs)"
    with mounted(c.out, size if full else 64 << 20) as real:
        if not real:  # not allowed here: the same refusal, made by the hook
            wipe(c.out)
            first = child(c.argv, refuse_from(c.out, n if full else 1, errno.ENOSPC if full else errno.EROFS))
            outcome, more = _after(c, first)
            return outcome, f"refused, no mount; {more}"
        if full:
            first = child(c.argv)
            mount("-o", "remount,size=64m", str(c.out))
            if first.status == 0:
                return MISSED, f"{size} bytes were enough"
            outcome, more = _after(c, first)
            return outcome, f"{size} of {c.size} bytes; {more}"
        child(c.argv, kill_at(c.out, n))
        mount("-o", "remount,ro", str(c.out))
        first = child(c.argv)
        mount("-o", "remount,rw", str(c.out))
        if first.status == 0 or not first.sentence:
            return LOST, f"read-only, yet {first.status}: {first.text[-500:]}"
        outcome, more = _after(c, first)
        return outcome, f"after operation {n}; {more}"


# ---- many faults -------------------------------------------------------------------------------------------------


def schedule(names: Sequence[str], count: int, seed: int) -> list[tuple[str, str, int]]:
    """(capability, fault, seed): every pair in turn, again with another seed until there are enough."""
    pairs = [(name, fault) for fault in FAULTS for name in names if applies(name, fault)]
    return [(*pairs[i % len(pairs)], seed + i // len(pairs)) for i in range(count)]


def table(results: Sequence[Result]) -> str:
    """Capability x fault, in Markdown; faults that never found anything to strike do not count."""
    missed = sum(r.outcome == MISSED for r in results)
    results = [r for r in results if r.outcome != MISSED]
    outcomes = (IDENTICAL, SAID, LOST, WRONG)
    lines = [f"| capability | fault | n | {' | '.join(outcomes)} |", "|---|---|" + "---:|" * 5]
    keys = sorted({(r.capability, r.fault) for r in results}, key=lambda k: (k[0], FAULTS.index(k[1])))
    for name, fault in keys:
        mine = [r.outcome for r in results if (r.capability, r.fault) == (name, fault)]
        lines.append(f"| {name} | {fault} | {len(mine)} | {' | '.join(str(mine.count(o)) for o in outcomes)} |")
    every = [r.outcome for r in results]
    counts = " | ".join(f"**{every.count(o)}**" for o in outcomes)
    end = [f"\n{missed} faults found nothing to strike."] if missed else []
    return "\n".join([*lines, f"| **all** | | **{len(every)}** | {counts} |", *end])
