"""In chromium: the page's filters give Python's numbers; the published tables; a page that follows its server."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import report_samples
from browser_tools import Opened, show, table, until
from vestige.meta.robustness import Filters, ModelState, robustness
from vestige.report.page import render_page

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "uds" / "published"


def random_meta(seed: int = 3) -> dict[str, Any]:
    """Metrics with every corner: negative and zero values, missing ones, another metric's filter, no threshold."""
    rng = np.random.default_rng(seed)
    report = report_samples.lab()
    meta = report["meta"]
    names = [f"model {i}" for i in range(60)]
    meta["utility"] = {n: None if i % 17 == 0 else float(rng.uniform(0.5, 1)) for i, n in enumerate(names)}
    states = {}
    for j, metric in enumerate(meta["metrics"]):
        values = rng.uniform(-0.3 if j == 1 else 0, 1, (len(names), 3)).round(3)
        values[rng.uniform(size=values.shape) < 0.05] = 0
        holes = rng.uniform(size=values.shape) < 0.08
        cells = [
            [None if h else float(v) for v, h in zip(*pair, strict=True)] for pair in zip(values, holes, strict=True)
        ]
        keys = ("before", "relearning", "quantization")
        states[metric["key"]] = {
            "retain": dict(zip(keys, (0.2, 0.1 if j == 2 else 0.5, 0.21), strict=True)),
            "models": [
                {"model": n, "id": None, **dict(zip(keys, c, strict=True))} for n, c in zip(names, cells, strict=True)
            ],
        }
        metric |= {"threshold_m": None if j == 0 else 0.6, "filtered_by": meta["metrics"][1]["key"] if j == 3 else None}
    meta["states"] = states
    return report


def by_python(meta: dict[str, Any], metric: dict[str, Any], rule: str, least: float) -> Any:
    states = meta["states"][metric["key"]]
    judge = next((m for m in meta["metrics"] if m["key"] == metric["filtered_by"]), metric)
    judged = {s["model"]: s["before"] for s in meta["states"][judge["key"]]["models"]}
    parts = ("before", "relearning", "quantization")
    models = {s["model"]: ModelState(*(s[p] for p in parts)) for s in states["models"]}
    filters = Filters(meta["utility"], judge["threshold_m"], least)
    return robustness(models, ModelState(*(states["retain"][p] for p in parts)), rule, filters, judged, resamples=0)


def test_live_robustness_equals_pythons(running: Any, folder: Path) -> None:
    report = random_meta()
    page = show(running, folder, "meta", report)
    page.go("view=metrics")
    compared = 0
    for rule in ("symmetric", "one-sided"):
        page.page.click(f'.segment:has-text("{rule}")')
        for least in (0.5, 0.8, 0.93, 1.0):
            page.set_range(".controls input[type=range]", least)
            rows = {row["metric"]: row for row in table(page.download('.table-box button:text-is("CSV")'))}
            for metric in report["meta"]["metrics"]:
                row, truth = rows[metric["label"]], by_python(report["meta"], metric, rule, least)
                assert int(row["n now"]) == len(truth.kept)
                for name, value in (("Q", truth.quantization), ("R", truth.relearning), ("HM", truth.agg)):
                    said = row[f"{name} now"]
                    assert (said == "") == (value is None), (metric["key"], name)
                    if value is not None:
                        assert float(said) == pytest.approx(value, abs=1e-12)
                        compared += 1
    assert compared > 60
    assert "k.u=1" in page.state() and "k.rule=one-sided" in page.state()
    assert page.complaints == []
    page.page.close()


def test_the_threshold_of_one_metric_moves_only_its_models(running: Any, folder: Path) -> None:
    lab: Opened = show(running, folder, "lab", report_samples.lab())
    lab.go("view=metrics&k.u=0")
    before = lab.texts('.grid tbody [data-col="8"]')
    lab.set_range("#one-metric input[type=range]", 0.0)
    after = lab.texts('.grid tbody [data-col="8"]')
    assert after[0] == "0 / 3" and after[1:] == before[1:]
    assert "k.t=es%3A0" in lab.state()


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published tables are not here")
def test_the_published_tables(running: Any, folder: Path) -> None:
    report = report_samples.published(PUBLISHED)
    page = show(running, folder, "published", report)
    assert page.file.stat().st_size < 6_000_000
    assert "152 of 152" in page.text(".count")
    page.visit("metrics")
    assert page.text(".live").startswith("124 of 150 models")
    published = json.loads((PUBLISHED / "meta_eval.json").read_text("utf-8"))
    labels = {m["key"]: m["label"] for m in published["metrics"]}
    rows = {r["metric"]: r for r in table(page.download('.table-box button:text-is("CSV")'))}
    assert len(rows) == 22
    for key, label in labels.items():
        assert float(rows[label]["faithfulness (AUC)"]) == published["faithfulness"][key]["auc_roc"]
    es = next(i for i, m in enumerate(report["meta"]["metrics"]) if m["key"] == "es")
    page.set_range("#one-metric input[type=range]", 0.07)  # the published threshold of extraction strength
    assert page.texts('.grid tbody [data-col="8"]')[es] == "14 / 150"  # and the number of models it keeps
    useful = sum((v or 0) >= 0.95 for v in report["meta"]["utility"].values())
    page.set_range(".controls input[type=range]", 0.95)
    assert page.text(".live").startswith(f"{useful} of 150 models")
    assert page.complaints == []
    page.page.close()


# ---- served ------------------------------------------------------------------------------------------------------


class Viewer(BaseHTTPRequestHandler):
    """As `vestige view` answers: the page, and which version it is. `passed` counts what was answered."""

    version = "1"
    report: ClassVar[dict[str, Any]] = report_samples.lab()
    passed: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        kind, is_page = type(self), self.path == "/"
        body = render_page(kind.report, live=kind.version) if is_page else kind.version
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if is_page else "text/plain")
        self.end_headers()
        self.wfile.write(body.encode("utf-8"))
        kind.passed[f"{self.path} {kind.version}"] += 1

    def log_message(self, *args: Any) -> None:
        pass


def test_a_served_page_loads_again_when_there_is_something_new(running: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Viewer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked: list[str] = []
    page = running.new_page()
    page.on("request", lambda r: asked.append(r.url))

    def answered(what: str) -> None:
        until(lambda: page.wait_for_timeout(50) is None and Viewer.passed[what] > 0)

    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/#view=models")
        answered("/version 1")
        assert Viewer.passed["/ 1"] == 1  # nothing new: not loaded again
        Viewer.version = "2"  # at whatever moment this comes, even before the page first asked
        answered("/ 2")
        answered("/version 2")
        assert Viewer.passed["/ 2"] == 1
        assert page.evaluate("location.hash") == "#view=models"
        assert {url.split("/")[2].split(":")[0] for url in asked} == {"127.0.0.1"}
    finally:
        page.close()
        server.shutdown()
