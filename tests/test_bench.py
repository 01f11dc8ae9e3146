"""Resampling gives the numbers of plain loops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench"


def test_resampling_is_what_plain_loops_say(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    words = ["--rows", "30", "--resamples", "40", "--models", "8", "--json", str(note)]
    subprocess.run([sys.executable, str(BENCH / "resampling.py"), *words], capture_output=True, check=True)
    rows = json.loads(note.read_text())
    assert {r["capability"] for r in rows} == {"statistics", "meta-evaluation"}
    assert all(r["equal"] for r in rows)
