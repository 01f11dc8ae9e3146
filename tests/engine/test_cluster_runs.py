"""Clusters of whole runs: from a column of the data to intervals, comparisons and depth scores."""

from __future__ import annotations

import json
import math
import shutil
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


def test_the_manifest_has_the_cluster_of_each_row(runs: dict[str, Path]) -> None:
    manifest = read(runs["unlearned"] / "manifest.json")
    assert manifest["config"]["stats"]["cluster"] == "shelf"
    found = [d["clusters"] for d in manifest["data"].values() if d["source"].endswith("forget.jsonl")]
    assert found and all(len(c["of"]) == 32 and len(c["names"]) == CLUSTERS and c["by"] == "shelf" for c in found)
    assert [found[0]["names"][found[0]["of"][str(i)]] for i in range(32)] == [f"forget {s}" for s in SHELVES]
    facts = [d for d in manifest["data"].values() if d["source"].endswith("world_facts.jsonl")]
    assert all("clusters" not in d for d in facts)  # no such column: rows are their own clusters


def test_a_comparison_takes_clusters_from_the_runs(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    from vestige.runs.compare import compare

    found = compare([runs["retain"], runs["unlearned"]], "forget_Q_A_Prob,mia_min_k", resamples=500)
    by_metric = {d.metric: d for d in found.differences["unlearned"]}
    paired = by_row(runs["unlearned"]) - by_row(runs["retain"])
    assert by_metric["forget_Q_A_Prob"].interval == cluster_mean(paired, SHELVES).interval()
    flips = 2.0 ** (1 - CLUSTERS)  # the smallest p of eight clusters: all signs as they are, or all turned
    assert by_metric["forget_Q_A_Prob"].p >= flips * 0.3
    assert "clusters" in repr(found)
    rows = compare([runs["retain"], runs["unlearned"]], "forget_Q_A_Prob", resamples=500, cluster="none")
    assert rows.differences["unlearned"][0].interval != by_metric["forget_Q_A_Prob"].interval


def test_an_old_run_is_given_clusters_by_score(runs: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """Its manifest says nothing of clusters; the data files it names do."""
    old = tmp_path / "old"
    args = eval_args(LAB / "models" / "unlearned", old, "--metrics", METRICS, "--retain-logs", str(runs["retain"]))
    assert main([*with_paths(args, data), "--cluster", "none"]) == 0
    before = (old / "TOFU_STATS.json").read_bytes()
    assert main(["score", str(old), "--cluster", "shelf"]) == 0
    assert (old / "TOFU_STATS.json").read_bytes() == (runs["unlearned"] / "TOFU_STATS.json").read_bytes()
    assert read(old / "manifest.json")["data"] == read(runs["unlearned"] / "manifest.json")["data"]
    assert main(["verify", str(old)]) == 0
    assert main(["score", str(old)]) == 0  # it stays so
    assert (old / "TOFU_STATS.json").read_bytes() == (runs["unlearned"] / "TOFU_STATS.json").read_bytes()
    assert main(["score", str(old), "--cluster", "none"]) == 0
    assert (old / "TOFU_STATS.json").read_bytes() == before


def test_clusters_that_are_not_there(
    runs: dict[str, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs["unlearned"], copy)
    assert main(["score", str(copy), "--cluster", "chapter"]) == 2
    assert "--cluster chapter: in none of these files" in capsys.readouterr().err
    assert main(["score", str(copy), "--cluster", "author", "--dialect", "strict"]) == 2
    args = eval_args(LAB / "models" / "unlearned", tmp_path / "new", "--metrics", "forget_Q_A_Prob")
    assert main([*args, "--cluster", "chapter"]) == 2
    assert main([*args, "--cluster", "perturbed_answer"]) == 2
    assert "must be text or a whole number" in capsys.readouterr().err


def test_other_rows_than_the_run_read_do_not_say_its_clusters(
    runs: dict[str, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(data, mine)
    args = eval_args(LAB / "models" / "unlearned", run, "--metrics", "forget_Q_A_Prob")
    assert main(with_paths(args, mine)) == 0
    lines = (mine / "forget.jsonl").read_text().splitlines(keepends=True)
    (mine / "forget.jsonl").write_text("".join(reversed(lines)))
    assert main(["score", str(run), "--cluster", "shelf"]) == 2
    assert "does not hold the rows that this run read" in capsys.readouterr().err


def test_an_author_column_is_found_and_four_authors_are_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = eval_args(LAB / "models" / "unlearned", tmp_path, "--metrics", "forget_Q_A_Prob")
    assert main(args) == 0
    stat = read(tmp_path / "TOFU_STATS.json")["forget_Q_A_Prob"]
    assert stat["interval"] is None and stat["clusters"] == 4
    assert stat["reason"] == "too few clusters: 4, and an interval takes at least 5"
    assert "forget.jsonl has 4 clusters (author)" in capsys.readouterr().out


def test_a_file_of_too_few_clusters_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = LAB / "models" / "unlearned"
    metrics = "forget_Q_A_Prob,forget_truth_ratio,forget_Q_A_ROUGE"  # they read the file in different ways
    assert main(eval_args(model, tmp_path / "eval", "--limit", "2", "--metrics", metrics)) == 0
    assert capsys.readouterr().out.count("forget.jsonl has 1 cluster (author)") == 1
    models = ["--unlearned", str(model), "--full", str(model), "--retain-model", str(LAB / "models" / "retain")]
    words = ["depth", *models, "--forget", str(LAB / "data" / "forget.jsonl"), "--out", str(tmp_path / "depth")]
    assert main([*words, "--limit", "2", "--quiet"]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("forget.jsonl has 1 cluster (author)") == 1


def test_depth_scores_have_clusters_too(data: Path, tmp_path: Path) -> None:
    models = {n: str(LAB / "models" / n) for n in ("unlearned", "full", "retain")}
    words = ["depth", "--unlearned", models["unlearned"], "--full", models["full"], "--retain-model", models["retain"]]
    words += ["--forget", str(data / "forget.jsonl"), "--out", str(tmp_path), "--quiet", "--cluster", "shelf"]
    assert main(words) == 0
    summary, rows = read(tmp_path / "summary.json"), json.loads((tmp_path / "results.json").read_text())
    good = [row for row in rows if row["uds"] is not None]
    expected = cluster_mean([row["uds"] for row in good], [row["cluster"] for row in good])
    assert summary["interval"] == pytest.approx(list(expected.interval() or ()), rel=1e-6)
    assert (summary["cluster"], summary["clusters"]) == ("shelf", CLUSTERS)
    assert main(["verify", str(tmp_path)]) == 0


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
