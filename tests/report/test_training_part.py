"""Training runs that were watched, in a report: curves, bands, both models, the best look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vestige.errors import UserError
from vestige.report.build import ReportRequest, assemble, check_report
from vestige.report.gather import gather
from vestige.report.page import render_page
from vestige.runs.run import kind, kind_of


def look(step: int, prob: float | None, share: float | None, score: float | None, why: str = "") -> dict[str, Any]:
    return {
        "step": step,
        "epoch": step / 10,
        "values": {"forget_Q_A_Prob": prob, "retain_Q_A_Prob": 0.5},
        "intervals": {"forget_Q_A_Prob": [prob - 0.1, prob + 0.1]} if prob is not None else {},
        "share": share,
        "kept": 0.9,
        "score": score,
        "why": why,
        "seconds": 1.5,
        "tokens": 10,
        "directory": "",
        "verdict": {"word": "partly_forgotten"} if step else {},
    }


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    place = tmp_path / "npo" / "vestige"
    place.mkdir(parents=True)
    body = {
        "vestige": "watch",
        "version": 1,
        "suite": "tofu",
        "retain": {"forget_Q_A_Prob": 0.2},
        "before": {"forget_Q_A_Prob": 0.9, "retain_Q_A_Prob": 0.55},
        "best": 20,
        "looks": [
            look(0, 0.9, 1.0, 0.0),
            look(20, 0.3, 0.1, 0.9),
            look(10, None, None, None, "broke"),
            look(30, 0.0, -0.9, None, "over-forgotten"),
        ],
    }
    (place / "watch.json").write_text(json.dumps(body))
    return place


def test_curves_bands_and_yardsticks(watched: Path) -> None:
    report, _ = assemble(gather([watched.parent]), ReportRequest([watched.parent], watched))
    check_report(report)
    (run,) = report["training"]
    assert (run["name"], run["suite"], run["best"]) == ("npo", "tofu", 20)
    assert run["steps"] == [0, 10, 20, 30] and run["series"]["forget_Q_A_Prob"] == [0.9, None, 0.3, 0.0]
    assert run["bands"]["forget_Q_A_Prob"]["lo"] == [0.8, None, pytest.approx(0.2), -0.1]
    assert set(run["bands"]) == {"forget_Q_A_Prob"}  # a metric without intervals has no band
    assert run["retain"] == {"forget_Q_A_Prob": 0.2, "retain_Q_A_Prob": None}
    assert run["share"] == [1.0, None, 0.1, -0.9] and run["why"][3] == "over-forgotten"
    assert run["verdicts"] == ["", "partly_forgotten", "partly_forgotten", "partly_forgotten"]
    assert [s["kind"] for s in report["sources"]] == ["watch"]
    assert "Forgotten against kept" in render_page(report)


def test_it_is_a_kind_of_run(watched: Path) -> None:
    assert kind_of(watched) == "watch"
    assert kind("watch").values(watched) == {"forget_Q_A_Prob": 0.3, "retain_Q_A_Prob": 0.5}


def test_a_file_of_another_form_is_left_out_and_named(watched: Path) -> None:
    (watched / "watch.json").write_text(json.dumps({"vestige": "watch", "looks": [{"step": "one"}]}))
    found = gather([watched])
    assert found.watched_runs == [] and "watch" in found.left_out[0]
    with pytest.raises(UserError, match=r"watch\.json is damaged"):
        kind("watch").values(watched)
