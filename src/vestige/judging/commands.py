"""The exact command for each test that was not made, from the paths of the runs at hand.

In: models with their paths. Out: test -> command line. Callers: report/audits.py, audit/run.py.
"""

from __future__ import annotations

import shlex
from typing import Protocol

from vestige.compare.rule import TESTS


class Placed(Protocol):
    """A model that may know where its checkpoint is, and which rows it was measured on."""

    path: str


TEMPLATES = {
    "says": "vestige eval --model {model} --data {data}",
    "likely": "vestige eval --model {model} --data {data}",
    "membership": "vestige eval --model {model} --data {data} --metrics mia_min_k",
    "layers": "vestige depth --unlearned {model} --full {full} --retain {retain} --data {data}/forget.jsonl",
    "teach": "vestige stress relearn --model {model} --retain-model {retain} --data {data}",
    "disturb": "vestige stress quantise prune --model {model} --retain-model {retain} --data {data}",
}


def commands(model: Placed, full: Placed | None, retain: Placed | None, data: str = "") -> dict[str, str]:
    """What is not known is a word in capitals."""
    names = {
        "model": model.path or "MODEL",
        "full": (full.path if full else "") or "FULL",
        "retain": (retain.path if retain else "") or "RETAIN",
        "data": data or "DATA",
    }
    quoted = {key: shlex.quote(value) for key, value in names.items()}
    return {test: TEMPLATES[test].format(**quoted) for test in TESTS}
