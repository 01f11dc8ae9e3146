"""Result files in the shape open-unlearning writes, so that its users' scripts and retain logs work both ways.

In: Scores by metric. Out: NAME_EVAL.json and NAME_SUMMARY.json. Callers: engine/evaluate.py, engine/rescore.py; others
for `versions`, the versions of libraries that go into a manifest.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vestige.store.files import write_json
from vestige.types import Score

PACKAGES = (
    "vestige",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "scipy",
    "peft",
    "bitsandbytes",
    "lm_eval",
)


def write_results(directory: Path, stem: str, scores: Mapping[str, Score], top: Iterable[str]) -> tuple[Path, Path]:
    """NAME_EVAL.json holds every metric and parent; NAME_SUMMARY.json the asked-for metrics that have a value."""
    details, summary = directory / f"{stem}_EVAL.json", directory / f"{stem}_SUMMARY.json"
    write_json(details, {name: score.to_json() for name, score in scores.items()})
    write_json(summary, {name: scores[name].to_json()["agg_value"] for name in top if not scores[name].missing})
    return details, summary


def versions() -> dict[str, str]:
    return dict(_versions())


@functools.cache  # they cannot change under a running process, and looking them up takes a second on a slow disk
def _versions() -> Mapping[str, str]:
    out = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out
