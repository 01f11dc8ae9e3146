"""Answers of `vestige meta` as a kind of run: made of other runs' numbers, so without evidence. See store/kinds.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from vestige.meta.files import META_EVAL, METHOD_RESULTS, THRESHOLDS, USABLE
from vestige.runs.directory import open_run
from vestige.runs.manifest import kind_in, manifest
from vestige.secrets import masked
from vestige.store.files import read_ours
from vestige.store.kinds import Kind, Reader, RunSource

WRITTEN = (META_EVAL, METHOD_RESULTS, THRESHOLDS, USABLE, "verdict_bench.json", "verdict_facts.json")


@contextmanager
def answering(out: Path, question: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """A directory while an answer is written there; several questions share its manifest.

    In the directory of another run the answer is one more result of that run, and what its manifest says stays.
    """
    kind = kind_in(out) or "meta"
    with open_run(out, kind, WRITTEN) as run:
        before = _questions(run.facts)
        yield
        config = {"questions": {**before, question: {k: _plain(v) for k, v in asked.items()}}}
        run.finish(manifest("meta", masked(config)) if kind == "meta" else None)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, list)) else str(value)


def _questions(facts: Mapping[str, Any]) -> dict[str, Any]:
    config = facts.get("config")
    questions = config.get("questions") if isinstance(config, Mapping) else None
    return dict(questions) if isinstance(questions, Mapping) else {}


def in_file(path: Path, read: Reader) -> Iterator[RunSource]:
    """One result file, ours or published: which of the two it is shows in its content."""
    data = read(path, dict)
    if data is not None and "faithfulness" in data:
        yield RunSource("meta", path, (path,), data)
    elif data is not None and isinstance(data.get("models"), list):
        yield RunSource("methods", path, (path,), data)


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    for name in (METHOD_RESULTS, META_EVAL):
        if (path / name).is_file():
            yield from in_file(path / name, read)


class _Overall(TypedDict, total=False):
    overall: dict[str, float | None] | None


def _values(path: Path) -> dict[str, Any]:
    """The overall figure of each metric on the bench."""
    file = path / META_EVAL
    return dict(read_ours(file, _Overall).get("overall") or {}) if file.is_file() else {}


ELSEWHERE = "its answers are made of files outside it; pack those runs, and run `vestige meta` on them again"
KIND = Kind("meta", gather=_gather, values=_values, not_packed=ELSEWHERE)
