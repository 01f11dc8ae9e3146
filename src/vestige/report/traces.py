"""Traces of a finished run, row by row: for pictures and for looking closely."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vestige.engine.stored import load_evidence, suite_from_manifest, words_of
from vestige.errors import UserError
from vestige.metrics.dialects import get_dialect
from vestige.store.files import load_rows
from vestige.store.kinds import read_manifest
from vestige.suites.handlers.trajectory_reading import TrajectoryRun, prompt_of
from vestige.suites.registry import Inputs
from vestige.types import Trace


@dataclass(frozen=True)
class RowTrace:
    """How one row's answer came about."""

    index: str
    prompt: str
    answer: str
    trace: Trace
    stream: int  # which of the trace's label streams is the answer
    tokens: list[str]  # the answer's tokens, position by position


def row_traces(directory: str | Path, metric: str = "trajectory_metrics") -> list[RowTrace]:
    """The traces behind a trajectory metric: one for each row of its first data set."""
    place = Path(directory)
    manifest = read_manifest(place)
    suite = suite_from_manifest(manifest)
    spec = suite.metrics.get(metric)
    if spec is None or spec.children is None:
        raise UserError(f"{place} holds no trajectory metric '{metric}'; evaluate one with --trajectory-views both.")
    stored = load_rows(place / "evidence" / "examples.json.gz")
    keys = manifest["data_of"].get(metric) or {}
    if not keys or any(key not in stored for key in keys.values()):
        raise UserError(f"{place} does not keep the rows of '{metric}'; evaluate it again.")
    words = words_of(place)
    inputs = Inputs(
        spec=spec,
        dialect=get_dialect(manifest["dialect"]["name"]),
        data={access: stored[key] for access, key in keys.items()},
        evidence=load_evidence(place, manifest),
        words=words,
    )
    run = TrajectoryRun(inputs)
    first = f"{spec.children.top[0]}/"
    rows = next((r for access, r in run.data.items() if access.startswith(first)), None)
    if rows is None:
        raise UserError(f"{place} does not keep the rows of '{metric}'; evaluate it again.")
    out = []
    for row in rows.examples:
        target = row[0].target
        if target is None or words is None:
            continue
        prompt = prompt_of(target)
        tokens = [words.decode([t]) for t in target.labels]
        stream = run.stream[prompt, target.labels]
        out.append(RowTrace(row[0].index, row[0].input_text, row[0].answer, run.traces[prompt], stream, tokens))
    return out
