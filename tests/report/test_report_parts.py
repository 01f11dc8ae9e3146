"""Parts of a report from small files: published tables, old keys, who is who, rows, tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vestige.cli import main
from vestige.errors import UserError
from vestige.report.build import ReportRequest, assemble, check_report
from vestige.report.gather import gather
from vestige.report.models import ModelMention, Models
from vestige.report.rows import roc
from vestige.report.tables import models_table
from vestige.show.tables import FORMATS, Cell, Table, TableLook
from vestige.stats import vectors

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "uds_published.json").read_text())
ROWS = [dict(zip(GOLDEN["columns"], row, strict=True)) for row in GOLDEN["models"]]
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "uds" / "published"
AGGREGATES = ("mem", "privacy_mia", "privacy", "model_utility", "utility", "utility_rel", "overall")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The published tables as files, from the numbers committed here; aggregates are left for the report to make."""
    place = tmp_path / "published"
    place.mkdir()
    rows = [{k: v for k, v in row.items() if k not in AGGREGATES} for row in ROWS]
    methods = {"models": rows, "full_utility": GOLDEN["full_utility"]}
    (place / "method_results.json").write_text(json.dumps(methods))
    meta = {part: GOLDEN[part] for part in ("faithfulness", "robustness")}
    (place / "meta_eval.json").write_text(json.dumps(meta))
    return place


def made(*paths: Path, **ask: Any) -> dict[str, Any]:
    report, _ = assemble(gather(paths), ReportRequest(paths, paths[0], **ask))
    check_report(report)
    json.dumps(report, allow_nan=False)
    return report


def test_the_tables_aggregates_equal_the_published_ones(published: Path) -> None:
    report = made(published)
    printed = models_table(report, ["name", *AGGREGATES])
    assert len(printed.rows) == len(ROWS) == 152
    for row, cells in zip(ROWS, printed.rows, strict=True):
        assert cells[0].text == row["model"]
        for key, cell in zip(AGGREGATES, cells[1:], strict=True):
            assert cell.value == pytest.approx(row[key], abs=1e-12), (row["model"], key)


def test_124_of_150_published_models_are_still_useful(published: Path) -> None:
    report = made(published)
    unlearned = [m for m in report["models"] if m["role"] == "unlearned"]
    useful = [m for m in unlearned if m["values"]["utility_rel"]["v"] >= report["meta"]["least_utility"]]
    assert (len(useful), len(unlearned)) == (124, 150)
    assert sum(v >= 0.8 for v in report["meta"]["utility"].values()) == 124
    roles = [m["role"] for m in report["models"]]
    assert roles.count("full") == roles.count("retain") == 1


def test_the_published_meta_evaluation_is_shown_as_printed(published: Path) -> None:
    metrics = {m["key"]: m for m in made(published)["meta"]["metrics"]}
    assert len(metrics) == 22
    for key, said in GOLDEN["robustness"].items():
        m = metrics[key]
        assert (m["r"], m["q"], m["agg"]) == (said["relearning"], said["quantization"], said["agg"])
        assert m["auc"] == GOLDEN["faithfulness"][key]["auc_roc"]
        assert m["p"] is None and "not in the file" in m["reason"]
        if m["r"] and m["q"]:
            assert vectors.harmonic_mean([m["r"], m["q"]]) == pytest.approx(m["agg"], abs=1e-4)  # printed in 4 digits


def test_models_under_the_published_thresholds(published: Path) -> None:
    """What the page's sliders count, from the values before attacks: 12 models for UDS at 0.23, 14 for ES at 0.07."""
    meta = made(published)["meta"]
    for key, cut, expected in (("uds", 0.23, 12), ("es", 0.07, 14), ("logit_lens", 0.32, 16), ("paraprob", 0.05, 40)):
        rows = meta["states"][key]["models"]
        kept = [r for r in rows if meta["utility"][r["model"]] >= 0.8 and r["before"] <= cut]
        assert len(kept) == expected, key


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_files_themselves_give_the_same_report(published: Path) -> None:
    ours, theirs = made(published), made(PUBLISHED)
    assert [m["name"] for m in ours["models"]] == [m["name"] for m in theirs["models"]]
    for a, b in zip(ours["models"], theirs["models"], strict=True):
        assert {k: v["v"] for k, v in a["values"].items()} == {k: v["v"] for k, v in b["values"].items()}
    assert theirs["problems"] == []  # the stored aggregates are those of their parts


def test_former_keys_are_read_as_todays(tmp_path: Path) -> None:
    place = tmp_path / "old"
    place.mkdir()
    (place / "summary.json").write_text(json.dumps({"avg_udr": 0.4, "unlearn_model": "npo", "full_model": "full"}))
    report = made(place)
    values = {m["name"]: m["values"] for m in report["models"]}
    assert values["npo"]["uds"]["v"] == 0.4
    assert values["full"]["uds"]["v"] == 0.0 and "by definition" in values["full"]["uds"]["note"]


def test_roles_by_flag_by_run_and_by_name() -> None:
    models = Models()
    for name in ("tofu_retain90", "full", "npo", "mine"):
        models.register(ModelMention(name), "s")
    models.assign_roles(["mine"], [])
    assert {e.name: e.role for e in models.all} == {
        "tofu_retain90": "retain", "full": "full", "npo": "unlearned", "mine": "full",
    }  # fmt: skip
    with pytest.raises(UserError, match="Did you mean 'npo'"):
        models.assign_roles(["npoo"], [])


def test_a_roc_curve_has_the_area_of_the_auc() -> None:
    rng = np.random.default_rng(0)
    forget, holdout = rng.integers(0, 6, 40).astype(float), rng.integers(2, 9, 30).astype(float)
    fpr, tpr = roc(forget, holdout)
    assert np.trapezoid(tpr, fpr) == pytest.approx(vectors.auc(forget, holdout))
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_broken_files_are_problems_not_tracebacks(tmp_path: Path, published: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "TOFU_EVAL.json").write_text("{")
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "TOFU_EVAL.json").write_text("[1]")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "TOFU_EVAL.json").write_text('{"forget_Q_A_Prob": {"agg_value": NaN}}')
    report = made(tmp_path)
    words = " ".join(p["text"] for p in report["problems"])
    assert "cannot be read" in words and "JSON dict" in words and "no manifest.json" in words
    alone = next(m for m in report["models"] if m["name"] == "alone")
    assert alone["values"]["forget_Q_A_Prob"]["v"] is None and alone["values"]["forget_Q_A_Prob"]["reason"]


def test_results_of_another_tool_are_audited_by_their_names(tmp_path: Path) -> None:
    """No manifest, no intervals: open-unlearning's own files. Rows are the same if their numbers are."""
    for name, rouge, loss in (("retain", 0.2, 3.0), ("full", 0.9, 0.2), ("npo", 0.85, 0.4)):
        rows = {str(i): {"rougeL_recall": rouge, "generation": f"text {i}", "ground_truth": "truth"} for i in range(3)}
        fresh = {str(i): {"score": 2.0 + i} for i in range(3)}
        mia = {"forget": {"value_by_index": {str(i): {"score": loss + i} for i in range(3)}},
               "holdout": {"value_by_index": fresh}, "agg_value": 1.0 if loss < 1 else 0.5}  # fmt: skip
        body = {"forget_Q_A_ROUGE": {"agg_value": rouge, "value_by_index": rows}, "mia_loss": mia}
        (tmp_path / name).mkdir()
        (tmp_path / name / "TOFU_EVAL.json").write_text(json.dumps(body))
    report = made(tmp_path)
    (audit,) = report["audits"]
    assert audit["verdict"]["word"] == "not_forgotten" and audit["retain"] and audit["full"]
    assert len(audit["says"]["rows"]) == 3 and len(audit["says"]["rows"][0]["texts"]) == 3
    assert {c["metric"] for c in audit["roc"]} == {"mia_loss"}
    assert audit["says"]["rows"][0]["leak"] == pytest.approx(0.65)


STRANGE = {
    "eval": {"TOFU_EVAL.json": {"forget_Q_A_Prob": {"agg_value": 0.1}}, "manifest.json": {"data": {"x": {}}}},
    "rows": {"TOFU_EVAL.json": {"forget_Q_A_ROUGE": {"agg_value": 0.1, "value_by_index": [1, 2]}}},
    "depth": {"summary.json": {"avg_uds": "high", "unlearn_model": "x"}},
    "stress": {"stress.json": {"rows": [{"attack": "relearn"}], "asked": {"model": "x"}}},
    "collapse": {"metrics.json": {"steps": [{"step": 1, "verdicts": 3}], "settings": {}, "reasoning": {}}},
    "sweep": {"sweep.json": {"plan": [], "tasks": []}},
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_run_of_a_strange_form_is_left_out_and_named(kind: str, tmp_path: Path, published: Path) -> None:
    (tmp_path / kind).mkdir()
    for name, body in STRANGE[kind].items():
        (tmp_path / kind / name).write_text(json.dumps(body))
    report = made(tmp_path)
    assert any(p["text"].startswith(f"{kind} was left out") for p in report["problems"]), report["problems"]
    assert len(report["models"]) == 152


def test_an_empty_directory_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished run"):
        gather([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        gather([tmp_path / "nowhere"])


def test_a_text_that_a_spreadsheet_would_compute_is_quoted() -> None:
    text = FORMATS["csv"](Table(("name", "x"), ((Cell('=HYPERLINK("x")'), Cell(value=0.1)),)), TableLook())
    assert text.splitlines()[1].startswith("\"'=HYPERLINK") and text.endswith(",0.1")


def test_tables_sort_choose_and_mark(capsys: pytest.CaptureFixture[str], published: Path) -> None:
    columns = "name,method,lr,uds,overall_floored"
    assert main(["table", str(published), "--columns", columns, "--sort", "uds", "--best", "--digits", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = [float(line.split("|")[4].strip(" *")) for line in lines[2:]]
    assert scores == sorted(scores, reverse=True)
    assert sum("**" in line for line in lines) >= 1
    assert main(["table", str(published), "--columns", "nme"]) == 2
    assert "Did you mean 'name'" in capsys.readouterr().err
    assert main(["table", str(published), "--of", "meta", "--format", "latex"]) == 0
    assert capsys.readouterr().out.count(r"\\") == 23
    (published / "meta_eval.json").unlink()
    assert main(["table", str(published), "--of", "meta"]) == 2
    assert "no meta-evaluation" in capsys.readouterr().err
