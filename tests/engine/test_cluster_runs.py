"""Clusters of whole runs: from a column of the data to intervals, comparisons and depth scores."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import LAB
from golden_tools import eval_args
from vestige.cli import main
from vestige.data.clusters import COMPLETE, grouping
from vestige.engine.references import load_references
from vestige.engine.scores import Run, intervals
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError
from vestige.runs.run import read_manifest
from vestige.stats.clusters import cluster_mean
from vestige.types import Score

METRICS = "forget_Q_A_Prob,forget_quality,privleak,mia_min_k,model_utility"
CLUSTERS = 8


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def with_paths(args: list[str], data: Path) -> list[str]:
    return [str(data) if word == str(LAB / "data") else word for word in args]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden lab's rows, with a column that has more values than there are authors."""
    place = tmp_path_factory.mktemp("data")
    for file in (LAB / "data").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        if file.stem in ("forget", "retain", "holdout"):
            rows = [{**row, "shelf": f"{file.stem} {i * CLUSTERS // len(rows)}"} for i, row in enumerate(rows)]
        (place / file.name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    out = {name: place / name for name in ("retain", "unlearned")}
    for name, directory in out.items():
        more = () if name == "retain" else ("--retain-logs", str(out["retain"]))
        args = eval_args(LAB / "models" / name, directory, "--metrics", METRICS, *more, "--cluster", "shelf")
        assert main(with_paths(args, data)) == 0
    return out


def by_row(run: Path, metric: str = "forget_Q_A_Prob") -> np.ndarray:
    rows = read(run / "TOFU_EVAL.json")[metric]["value_by_index"]
    return np.array([rows[str(i)]["prob"] for i in range(len(rows))])


SHELVES = [i * CLUSTERS // 32 for i in range(32)]


def test_intervals_of_a_run_have_clusters_as_the_unit(runs: dict[str, Path]) -> None:
    stats, values = (read(runs["unlearned"] / f"TOFU_{kind}.json") for kind in ("STATS", "EVAL"))
    stat = stats["forget_Q_A_Prob"]
    assert (stat["n"], stat["clusters"], stat["method"]) == (32, CLUSTERS, "cluster jackknife, Student's t")
    assert stat["interval"] == list(cluster_mean(by_row(runs["unlearned"]), SHELVES).interval() or ())
    for name in ("mia_min_k", "privleak", "model_utility", "forget_quality"):
        low, high = stats[name]["interval"]
        value = values[name]["ks_statistic"] if name == "forget_quality" else values[name]["agg_value"]
        assert low <= value <= high, name
    assert stats["mia_min_k"]["clusters"] == CLUSTERS and stats["mia_min_k"]["interval"][0] >= 0
    assert stats["forget_quality"]["method"] == "bootstrap band of the two distribution functions, of clusters"
    assert (
        stats["world_facts_Q_A_Prob"]["reason"].startswith("too few clusters") if "world_facts_Q_A_Prob" in stats else 1
    )


@pytest.mark.parametrize(("rest", "one", "shares"), [(0.0, 0.2, True), (1.0, 0.8, True), (0.0, 20.0, False)])
def test_the_interval_of_a_share_ends_at_zero_and_one(
    runs: dict[str, Path], rest: float, one: float, shares: bool
) -> None:
    manifest = read_manifest(runs["unlearned"])
    rows = {str(i): {"prob": one if i == 0 else rest, "avg_loss": 0.0} for i in range(32)}
    value = math.fsum(row["prob"] for row in rows.values()) / 32
    scores = {"forget_Q_A_Prob": Score(value, rows)}
    suite = suite_from_manifest(manifest)
    only = replace(suite, metrics={"forget_Q_A_Prob": suite.metrics["forget_Q_A_Prob"]})
    low, high = intervals(Run(only, scores, manifest, {}), 100)["forget_Q_A_Prob"]["interval"]
    plain = cluster_mean([row["prob"] for row in rows.values()], SHELVES).interval()
    assert plain is not None and (plain[0] < 0 or plain[1] > 1)
    # A metric whose rows are beyond 0 and 1 is not cut off, whatever its card says.
    assert (low, high) == ((max(0.0, plain[0]), min(1.0, plain[1])) if shares else plain)


def test_tofus_own_files_ask_twenty_questions_per_author() -> None:
    whole = grouping([{"question": str(i)} for i in range(400)], {"name": "forget10_perturbed"})
    assert whole is not None and whole.by == "every 20 rows" and len(set(whole.of.values())) == 20
    assert whole.of == (grouping([{}] * 400, {"name": "forget10"}) or whole).of  # the same authors
    assert [whole.of[str(i)] for i in (0, 19, 20, 399)] == ["forget10 0", "forget10 0", "forget10 1", "forget10 19"]
    for rows, name in ((399, "forget10"), (400, "mine"), (100, "real_authors_perturbed")):
        assert grouping([{}] * rows, {"name": name}) is None  # filtered, limited, or not TOFU's
    assert grouping([{}] * 400, {"name": "forget10"}, "none") is None
    by_task = grouping([{"task": i % 9} for i in range(400)], {"name": "forget10"}, "task")
    assert by_task is not None and by_task.by == "task"
    assert all(count % 20 == 0 for count in COMPLETE.values())


def test_columns_that_name_clusters() -> None:
    rows = [{"document": 3}, {"document": 3}, {"document": None}, {"document": 4}]
    found = grouping(rows, {})
    assert found is not None and found.of == {"0": "3", "1": "3", "3": "4"}
    assert grouping([{"author": "a"}, {"author": "b"}], {}) is None  # each row its own: independent
    with pytest.raises(UserError, match=r"row 0 .* must be text or a whole number"):
        grouping([{"author": ["a"]}, {"author": ["a"]}], {}, source="x.jsonl")


def test_intervals_without_clusters_are_what_they_were(tmp_path: Path) -> None:
    """The golden scores of open-unlearning, through the code from before clusters (commit 5acdf9c)."""
    metrics = "forget_Q_A_Prob,privleak,mia_min_k,model_utility"
    args = eval_args(LAB / "models" / "unlearned", tmp_path, "--metrics", metrics, "--cluster", "none")
    assert main([*args, "--retain-logs", str(LAB / "expected" / "retain_noref" / "TOFU_EVAL.json")]) == 0
    manifest = read_manifest(tmp_path)
    suite = suite_from_manifest(manifest)
    golden = read(LAB / "expected" / "unlearned" / "TOFU_EVAL.json")
    scores = {m: Score.from_json(golden[m]) if m in golden else Score(None) for m in suite.metrics}
    found = intervals(Run(suite, scores, manifest, load_references(suite, manifest["dialect"]["name"])), 500)
    kept = LAB / "expected" / "unlearned" / "STATS_OF_ROWS.json"
    assert json.dumps(found, indent=1) == kept.read_text().rstrip("\n")
