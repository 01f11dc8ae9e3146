"""The table of a sweep, for a report: the runs behind it are read one by one. See store/kinds.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vestige.schema import misfit
from vestige.store.forms import Sweep
from vestige.store.kinds import Kind, Reader, RunSource


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    file = path / "sweep.json"
    data = read(file, dict) if file.is_file() else None
    if data is None or "plan" not in data:
        return
    tasks = [] if misfit(data, Sweep) else data.get("tasks") or []  # the report says what does not fit
    bad = [t for t in tasks if t.get("status") in ("failed", "blocked", "missing")]
    problems = [f"the sweep's task {t['id']} is {t['status']}{_why(t.get('error'))}" for t in bad]
    facts = {"tasks": str(len(tasks)), "not done": str(len(bad))}
    yield RunSource("sweep", path, (file,), data, facts, tuple(problems))


def _why(error: str | None) -> str:
    return f": {error}" if error else ""


KIND = Kind("sweep", gather=_gather)
