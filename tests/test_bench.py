"""The benchmarks' own machinery: what is measured, and what is written where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import measure
import table

BENCH = Path(table.__file__).parent


def beside(**more: Any) -> dict[str, Any]:
    row = measure.Beside("eval", "a case", "a loop", 6.0, 2.0, True, "all equal", 0.25)
    return {**row.__dict__, **more}


def grown(**more: Any) -> dict[str, Any]:
    row = {"capability": "eval", "axis": "rows", "sizes": [1, 2, 4], "seconds": [1.0, 2.0, 4.2], "overhead": 0.1}
    return {
        **row,
        "ratios": [2.0, 2.1],
        "per_doubling": 2.04,
        "megabytes": [1.0, 2.0, 3.0],
        "expected": "linear",
        "good": True,
        **more,
    }


def test_a_row_says_ratio_equality_overhead_memory_and_growth() -> None:
    rows = list(table.capability_rows(table.Found([beside()], [grown()])))
    assert rows[0] == ["eval", "a loop (a case)", "3.0", "all equal", "25 %", "3 MB", "rows 2.0"]
    assert [r[0] for r in rows[1:]] == list(table.NO_PEER)  # what has no reference is said, not left out


@pytest.mark.parametrize(
    "found",
    [
        table.Found([beside(seconds=7.0)]),
        table.Found([beside(equal=False)]),
        table.Found(growth=[grown(good=False)]),
        table.Found(failed=["depth"]),
    ],
    ids=["slower", "unequal", "steep", "failed"],
)
def test_what_is_not_good_is_not_called_good(found: table.Found) -> None:
    assert table.Found([beside()], [grown()]).good()
    assert not found.good()


def test_only_the_section_between_the_markers_is_replaced() -> None:
    before = table.PAGE.read_text(encoding="utf-8")
    after = table.written(before, "NEW")
    assert after.split(table.OPEN)[0] == before.split(table.OPEN)[0]
    assert after.split(table.CLOSE)[1] == before.split(table.CLOSE)[1]
    assert f"{table.OPEN}\nNEW\n{table.CLOSE}" in after


def test_forwards_are_outermost_calls_of_modules() -> None:
    import torch

    class Slow(torch.nn.Module):
        def forward(self, seconds: float) -> None:
            start = measure.time.process_time()
            while measure.time.process_time() - start < seconds:
                pass

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Slow()

        def forward(self, seconds: float) -> None:
            self.inner(seconds)

    def work() -> None:
        Outer()(0.05)
        Slow.forward(Slow(), 0.05)  # not a call of a module

    with measure.forwards() as inside:
        work()
    assert 0.045 < inside["seconds"] < 0.09  # the inner call is not counted twice
    assert measure.over_forwards(work) == pytest.approx(1.0, abs=0.5)


def said(script: str, tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    note = tmp_path / "said.json"
    subprocess.run([sys.executable, str(BENCH / script), *words, "--json", str(note)], capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(note.read_text())
    return rows


def test_growth_measures_each_size_in_a_process_of_its_own(tmp_path: Path) -> None:
    (rows,) = said("growth.py", tmp_path, "--only", "ROUGE", "--smallest", "--repeat", "1")
    assert rows["sizes"] == [100, 200]
    assert all(s > 0 for s in rows["seconds"]) and rows["ratios"][0] > 1
    assert rows["overhead"] is None


def test_resampling_is_what_plain_loops_say(tmp_path: Path) -> None:
    rows = said("resampling.py", tmp_path, "--rows", "30", "--resamples", "40", "--models", "8")
    assert [r["capability"] for r in rows] == ["statistics", "meta-evaluation"]
    assert all(r["equal"] for r in rows)
