"""A paper's appendix: tables and paragraphs that LaTeX takes, pictures of a column's width, and nothing invented."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from report_samples import lab as sample
from vestige.cli import main
from vestige.report.tables import models_table
from vestige.show.tables import TableLook, paper_table

DOCUMENT = r"\documentclass[twocolumn]{article}\usepackage{booktabs}\begin{document}%s\end{document}"


def compiled(body: str, place: Path) -> None:
    """What pdflatex makes of it, where there is one (Debian: texlive-latex-base, texlive-latex-recommended)."""
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here")
    (place / "doc.tex").write_text(DOCUMENT % body, encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "doc.tex"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_paper_table_marks_intervals_best_and_what_differs(tmp_path: Path) -> None:
    report = sample()
    audit = next(a for a in report["audits"] if a["retain"])
    report["comparisons"] = [
        {"a": audit["retain"], "b": audit["model"], "rows": "", "reasons": {}, "metrics": [
            {"metric": "forget_Q_A_Prob", "value": 0.1, "lo": 0.05, "hi": 0.2, "p": 0.001, "holm": 0.01, "reading": ""},
            {"metric": "forget_Q_A_ROUGE", "value": 0.1, "lo": 0, "hi": 0.2, "p": 0.04, "holm": 0.3, "reading": ""},
        ]},
    ]  # fmt: skip
    table = models_table(report, ["name", "forget_Q_A_Prob", "forget_Q_A_ROUGE"])
    text = paper_table(table, TableLook(2, True, True, True), "50 % of it & more")
    name = next(m["name"] for m in report["models"] if m["id"] == audit["model"])
    row = next(line for line in text.splitlines() if line.startswith(name.replace("_", r"\_")))
    assert row.count("$^{*}$") == 1 and "$^{*}$" in row.split("&")[1]  # after the correction one is left
    assert r"\scriptsize [" in row and r"\textbf{" in text and r"\toprule" in text
    assert "Holm" in text and "Brackets" in text and "Bold" in text
    assert r"\caption{50 \% of it \& more}" in text
    compiled(text, tmp_path)
    bare = paper_table(models_table(report, ["name", "role"]), TableLook(2, True, True, True), "t")
    assert "Holm" not in bare and "Bold" not in bare  # no note without what it explains


def test_best_is_nearest_to_the_retain_model_not_lowest() -> None:
    report = sample()
    table = models_table(report, ["name", "forget_Q_A_Prob"])
    values = {row[0].text: row[1].value for row in table.rows}
    best = next(row[0].text for row in table.rows if row[1].best)
    retain = next(m["name"] for m in report["models"] if m["role"] == "retain")
    unlearned = {m["name"] for m in report["models"] if m["role"] == "unlearned"}
    far = {n: abs(v - values[retain]) for n, v in values.items() if n in unlearned and v is not None}
    assert best == min(far, key=lambda n: far[n])


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75), ("5", 5.0)])
def test_pictures_have_the_asked_width_and_whole_fonts(width: str, inches: float, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(sample()))
    out = tmp_path / "p.pdf"
    assert main(["plot", str(tmp_path), "layers", "-o", str(out), "--width", width]) == 0
    body = out.read_bytes()
    assert b"/Type3" not in body and b"/FontFile2" in body  # TrueType, embedded
    box = body.split(b"/MediaBox [")[1].split(b"]")[0].split()
    assert float(box[2]) == pytest.approx(72 * inches, abs=0.5)
    assert main(["plot", str(tmp_path), "layers", "-o", str(tmp_path / "p.svg"), "--width", width]) == 0
    assert "<text" not in (tmp_path / "p.svg").read_text()  # outlines: no font is looked for
