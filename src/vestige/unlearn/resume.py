"""What lets a killed training go on to the same weights: the newest whole checkpoint, our own state in it, its threads.

    checkpoint-N/work.pt   what our losses carry from step to step, and how sums are added here

Sums that are split over another number of threads end in other last bits, and training makes them grow. So a training
goes on with as many threads as it began with, whatever is set now. In: a folder of checkpoints. Out: the state to go on
with, and notes for the user. Callers: unlearn/trainer.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vestige.io import replacing

WORK = "work.pt"  # beside what the Trainer keeps of itself


def last_checkpoint(place: Path | None) -> Path | None:
    """The newest checkpoint that is whole: a killed process may have left half of one."""
    found = [] if place is None else [p for p in place.glob("checkpoint-*") if p.name.split("-")[1].isdigit()]
    for path in sorted(found, key=lambda p: int(p.name.split("-")[1]), reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))  # the last file that is written
        except (OSError, ValueError):
            continue
        if (path / WORK).is_file():
            return path
    return None


def save_work(checkpoint: Path, state: Mapping[str, Any]) -> None:
    kept = {**state, "threads": torch.get_num_threads(), "instructions": _instructions()}
    with replacing(checkpoint / WORK) as half:
        torch.save(kept, half)


def load_work(checkpoint: Path) -> dict[str, Any]:
    return dict(torch.load(checkpoint / WORK, weights_only=True))


@contextmanager
def threads_of(last: Path | None) -> Iterator[list[str]]:
    """As many threads as the training began with, put back at the end; yields what the user should know.

    >>> with threads_of(None) as notes:
    ...     notes
    []
    """
    before, notes = torch.get_num_threads(), []
    kept = {} if last is None else load_work(last)
    threads, instructions = kept.get("threads", before), kept.get("instructions", _instructions())
    if last is not None:
        notes.append(f"training went on from {last.name}, which an interrupted run had left.")
    if threads != before:
        notes.append(f"it used {threads} threads, as before the interruption; {before} would give other last bits.")
    if instructions != _instructions():
        notes.append(
            f"it began on a processor with {instructions} and went on with {_instructions()}: the weights are not bit "
            "for bit those of an undisturbed training."
        )
    torch.set_num_threads(threads)  # even if it is the number in force: MKL may then no longer choose fewer
    try:
        yield notes
    finally:
        torch.set_num_threads(before)


def _instructions() -> str:
    return str(torch.backends.cpu.get_cpu_capability())
