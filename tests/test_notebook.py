"""docs/notebook.ipynb runs from top to bottom, and is kept without outputs: what a reader sees is never stale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "notebook.ipynb"


def read() -> Any:
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_holds_no_outputs() -> None:
    cells = [c for c in read().cells if c.cell_type == "code"]
    assert len(cells) >= 10
    assert all(c.outputs == [] and c.execution_count is None for c in cells)


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    source = Path(__file__).resolve().parent.parent / "src"
    for name, value in {"VESTIGE_LAB": LAB, "VESTIGE_OUT": tmp_path / "out"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read()
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    html = [o["data"]["text/html"] for o in shown if "text/html" in o.get("data", {})]
    tables = [text for text in html if "forget_Q_A_Prob" in text]
    assert len(tables) == 2  # the result, before and after its report
    assert "report</a>" not in tables[0] and "report</a>" in tables[1]
    assert any("<iframe" in text for text in html)
    assert [o for o in shown if "image/png" in o.get("data", {})]  # the curve
    watched = (tmp_path / "out" / "watch" / "watch.json").read_text()
    assert watched.count('"step":') >= 6  # before the first step, and every other step
