"""Answers of `vestige meta` as a kind of run: made of other runs' numbers, so without evidence. See store/kinds.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from vestige.meta.files import META_EVAL, METHOD_RESULTS, THRESHOLDS, USABLE
from vestige.store.directories import MANIFEST, begin, contents, kind_in, seal, write_manifest
from vestige.store.files import read_ours
from vestige.store.kinds import Kind, Reader, RunSource

WRITTEN = (META_EVAL, METHOD_RESULTS, THRESHOLDS, USABLE, "verdict_bench.json", "verdict_facts.json", MANIFEST)


def finish(out: Path, question: str, asked: Mapping[str, Any]) -> None:
    """Manifest and seal of a directory that several questions may share: each answer so far stays in the manifest.

    In the directory of another run its manifest stays; where other files are (a sweep's), they change without us, so
    that a seal would soon be wrong.
    """
    if (out / MANIFEST).is_file() and kind_in(out) != "meta":
        return
    own = set(contents(out)[0]) <= set(WRITTEN)
    before = _questions(out)
    if own:
        begin(out, "meta", WRITTEN)
    write_manifest(out, "meta", {"questions": {**before, question: {k: _plain(v) for k, v in asked.items()}}})
    if own:
        seal(out, "meta")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, list)) else str(value)


def _questions(out: Path) -> dict[str, Any]:
    if not (out / MANIFEST).is_file():
        return {}
    found = read_ours(out / MANIFEST, dict[str, Any]).get("config")
    questions = found.get("questions") if isinstance(found, Mapping) else None
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
