"""What the demo says between its numbers: what comes next, how long it takes, and what to try afterwards.

In: parts of the demo. Out: lines on the terminal. Callers: lab/demo.py, lab/demo_diffusion.py, lab/demo_report.py.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vestige.costs.estimate import duration


@dataclass(frozen=True)
class DemoPart:
    """A part of the story and roughly what it costs, in seconds of one core (docs/bench.md has measured times)."""

    title: str
    why: str
    seconds: float
    beside: float = 0.0  # of these, what another core does meanwhile (lab/beside.py)


PARTS = {
    "models": DemoPart(
        "Make the models",
        "one that knows made-up authors (full), one that never met them (retain), three made to forget",
        90,
        beside=30,
    ),
    "evaluate": DemoPart(
        "Evaluate them", "what does each still say, and find likely? The first table follows", 25, beside=10
    ),
    "layers": DemoPart("Look into the layers", "is it gone from inside, or only from the answers?", 5),
    "attacks": DemoPart("Attack them", "relearning, pruning, an answer begun for the model: does it come back?", 50),
    "diffusion": DemoPart(
        "The same with diffusion models", "a text comes about step by step: what is known on the way?", 85, beside=55
    ),
    "page": DemoPart("Write the page", "one verdict for each model, with its evidence", 5),
}


def two_digits(value: float | None) -> str:
    """A number of the demo: its models are trained on the spot, and more digits would not be another machine's.

    >>> two_digits(0.9516), two_digits(-99.96), two_digits(1.9e-05), two_digits(None)
    ('0.95', '-100', '1.9e-05', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def spare_core() -> bool:
    """Whether a second process would have a core of its own."""
    return (os.cpu_count() or 1) > 1


def waiting(part: DemoPart) -> float:
    """Roughly how long a reader waits for a part, in seconds."""
    return part.seconds - (part.beside if spare_core() else 0.0)


class DemoStory:
    """Announces parts in order."""

    def __init__(self, diffusion: bool) -> None:
        self.names = [name for name in PARTS if diffusion or name != "diffusion"]

    def begin(self) -> None:
        total = sum(waiting(PARTS[name]) for name in self.names)
        cores = "two cores that have" if spare_core() else "one core that has"
        print(
            f"Did it forget? {len(self.names)} parts, about {duration(total)} on {cores} nothing else to do; "
            "a second call takes what is there.",
            flush=True,
        )

    def part(self, name: str) -> None:
        told = PARTS[name]
        place = f"[{self.names.index(name) + 1}/{len(self.names)}]"
        why = told.why if told.why.endswith("?") else f"{told.why}."
        print(f"\n{place} {told.title} (about {duration(waiting(told))}): {why}", flush=True)


def last_words(out: Path, models: Mapping[str, Path], data: Path) -> str:
    """The page's address, and three commands to try."""
    page = (out / "report" / "index.html").absolute()
    unlearned = [name for name in models if name not in ("full", "retain")][-1]
    quoted = {name: shlex.quote(str(path)) for name, path in models.items()}
    evals = shlex.quote(str(out / "eval"))
    return "\n".join(
        [
            f"\nThe page: {page.as_uri()}",
            "Three commands to try:",
            "  vestige explain forget_quality",
            f"  vestige compare {evals}/retain {evals}/{unlearned}",
            f"  vestige audit --before {quoted['full']} --after {quoted[unlearned]} --retain-model {quoted['retain']} "
            f"--forget {shlex.quote(str(data / 'forget.jsonl'))} --minutes 5",
            "Then your own model: docs/tutorial.md.",
        ]
    )
