"""What is fuzzed: every reader of other people's files, as a function of bytes. Tests share the list.

A target may do two things with any input: work, or raise a UserError of one sentence. Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import vestige
from fuzz_inputs import mutated

SECONDS = 10  # no input of a few kilobytes should keep a reader busy for as long
MEGABYTES = 1500  # nor make it grow by as much


@dataclass(frozen=True)
class Target:
    """One way for a file to come in. `kind` says how seeds are varied: json, jsonl, yaml, words or bytes."""

    name: str
    kind: str
    run: Callable[[bytes, Path], None]
    seeds: Callable[[], Sequence[bytes]]


@dataclass(frozen=True)
class Finding:
    """An input that did something else than work or say what is wrong."""

    target: str
    what: str  # the exception, or what is wrong with the sentence
    where: str  # the innermost line of ours
    data: bytes = b""
    trace: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target, self.what.split(":")[0], self.where


class Stuck(BaseException):
    """The time is up. Not an Exception, so that no reader takes it for a broken file."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Stops what computes for too long. Computing is counted, not waiting: the machine may have other work."""

    def ring(*_: Any) -> None:
        raise Stuck

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 30 * seconds))
    before = [signal.signal(number, ring) for number, _, _ in clocks]
    for _, clock, limit in clocks:
        signal.setitimer(clock, limit)
    try:
        yield
    finally:
        for (number, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


@cache
def warm(target: Target) -> int:
    """Runs the seeds once, so that what is imported and built the first time counts against no input.

    Returns how many of them worked.
    """
    from vestige.errors import UserError

    worked = 0
    for seed in target.seeds():
        with scratch() as place, contextlib.suppress(UserError):
            target.run(seed, place)
            worked += 1
    return worked


def memory() -> float:
    """The most this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory to be in: what a target writes by a relative path stays there."""
    before, home = Path.cwd(), Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        os.chdir(home)
        yield home
    finally:
        os.chdir(before)
        shutil.rmtree(home, ignore_errors=True)


def attempt(target: Target, data: bytes) -> Finding | None:
    """Runs one input; None if it worked or was refused properly."""
    from vestige.errors import UserError

    logging.disable(logging.CRITICAL)
    warm(target)
    held = memory()
    try:
        with scratch() as place, alarm(SECONDS):
            target.run(data, place)
    except UserError as error:
        if wrong := bad_sentence(str(error)):
            return Finding(target.name, f"{wrong}: {str(error)[:300]}", _ours(error), data)
    except Stuck as error:
        return Finding(target.name, f"no answer after {SECONDS} s", _ours(error), data, traceback.format_exc())
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Finding(target.name, what, _ours(error), data, traceback.format_exc())
    finally:
        logging.disable(logging.NOTSET)
    grown = memory() - held
    return Finding(target.name, f"grew by {grown:.0f} MB", "", data) if grown > MEGABYTES else None


def bad_sentence(text: str) -> str:
    """What is wrong with an error message, or nothing."""
    if not text.strip():
        return "an empty message"
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        return "control characters in the message"
    if "Traceback" in text:
        return "a traceback in the message"
    return "a very long message" if len(text) > 1300 else ""


def _ours(error: BaseException) -> str:
    package = f"{Path(vestige.__file__).parent}{os.sep}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(package)]
    return f"{frames[-1].filename.removeprefix(package)}:{frames[-1].name}" if frames else "?"


# ---- for targets --------------------------------------------------------------------------------------------------


def written(place: Path, name: str, data: bytes) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def json_seeds(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(v).encode() for v in values]


def line_seeds(*files: list[Any]) -> Callable[[], list[bytes]]:
    return lambda: ["".join(json.dumps(r) + "\n" for r in rows).encode() for rows in files]


def text_seeds(*files: str) -> Callable[[], list[bytes]]:
    return lambda: [f.encode() for f in files]


def loads(data: bytes) -> Any:
    """The input as plain data where a target takes values and not a file; None when it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def words(data: bytes) -> list[str]:
    """Words as a shell would pass them: no NUL, one a line."""
    return [w for w in data.decode("utf-8", "replace").replace("\0", "").split("\n") if w][:8]


@contextlib.contextmanager
def tolerant() -> Iterator[None]:
    """A proper refusal lets the next step have its try; a bad one is raised."""
    from vestige.errors import UserError

    try:
        yield
    except UserError as error:
        if bad_sentence(str(error)):
            raise


def strategy(target: Target) -> Any:
    """Inputs for hypothesis: varied seeds, seeds cut and joined, and bytes out of nowhere."""
    from hypothesis import strategies as st

    seeds = st.sampled_from(list(target.seeds()))
    varied = st.builds(lambda seed, rng: mutated(seed, target.kind, rng), seeds, st.randoms(use_true_random=False))
    return st.one_of(varied, varied, varied, st.binary(max_size=200))
