"""Result files in the shape open-unlearning writes, so that its users' scripts and retain logs work both ways.

In: Scores by metric. Out: NAME_EVAL.json and NAME_SUMMARY.json, and what such files hold. Callers: engine/evaluate.py,
engine/rescore.py and engine/references.py; results; others for `versions`, which go into a manifest.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.schema import check_form
from vestige.store.arrays import MadeByName
from vestige.store.files import read_json, write_json
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
    write_json(details, MadeByName(scores, lambda name: scores[name].to_json()))  # one metric at a time
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


def result_file(path: Path) -> Path:
    """A result file; a run directory stands for the one result file in it."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*_EVAL.json"))
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found)} *_EVAL.json files; name the one to use as retain logs.")
    return found[0]


def read_results(path: Path) -> dict[str, Any]:
    """A result file, ours or open-unlearning's."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"Retain logs {path} do not exist; evaluate the retain model first and give its *_EVAL.json."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"Retain logs {path} are not valid JSON ({error}); evaluate the retain model again.") from None
    if not isinstance(data, dict):
        raise UserError(f"Retain logs {path} must hold an object of metrics, not {type(data).__name__}.")
    return data


def read_scores(path: Path) -> dict[str, Any]:
    """The metrics of a result file, each of the form that scoring reads; other entries are passed over."""
    found = {name: body for name, body in read_results(path).items() if isinstance(body, dict)}
    from vestige.store.forms import ResultsForm

    check_form(found, ResultsForm, str(path))
    return found
