"""`vestige unlearn` and loggers of others, for real: names of runs, numbers with intervals, verdict, cost, tables."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import vestige
from conftest import SYSTEM
from vestige.cli import main
from watch_tools import DATA, FULL, LAB, PROB, QUICK, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore")
METRICS = f"{PROB},retain_Q_A_Prob"
NAMES = [f"vestige/{PROB}", f"vestige/{PROB}_low", f"vestige/{PROB}_high", "vestige/share", "vestige/kept"]
NAMES += ["vestige/verdict_share", "vestige/verdict_utility", "vestige/seconds", "vestige/tokens"]


@pytest.fixture(scope="module")
def retain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("retain") / "run"
    said = [
        "--data",
        str(DATA),
        "--metrics",
        METRICS,
        "--limit",
        "8",
        "--system-prompt",
        SYSTEM,
        "--quiet",
        "--cluster",
        "none",
    ]
    assert main(["eval", "tofu", "--model", str(LAB / "models" / "retain"), "--out", str(out), *said]) == 0
    return out


def unlearned(out: Path, retain: Path, *more: str) -> int:
    """One epoch of ascent, watched, with the retain run as yardstick."""
    rows = ["--forget", str(DATA / "forget.jsonl"), "--limit", "8", "--system-prompt", SYSTEM, "--quiet"]
    how = ["--method", "GradAscent", "--epochs", "1", "--lr", "1e-4", "--accumulation", "1"]
    looks = ["--eval-data", str(DATA), "--metrics", METRICS, "--retain-logs", str(retain), "stats.cluster=none"]
    return main(["unlearn", "--model", str(FULL), "--out", str(out), *rows, *how, *looks, *more])


def test_unlearn_logs_to_wandb(
    retain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb.teardown()  # it keeps the environment that it met first, in whichever test that was
    more = ["trainer.args.report_to=wandb", "trainer.args.run_name=mine"]
    assert unlearned(tmp_path / "out", retain, *more) == 0
    summary, name = dict(wandb.run.summary), wandb.run.name
    wandb.finish()
    assert name == "mine" and {f"train/{key}" for key in NAMES} <= set(summary) and "train/loss" in summary
    assert "evaluations took" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert 0 < record["eval_seconds"] < record["seconds"]


def test_unlearn_logs_to_mlflow(retain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (pip install mlflow)")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    more = ["trainer.args.report_to=mlflow", "trainer.args.run_name=mine"]
    assert unlearned(tmp_path / "out", retain, *more) == 0
    run = mlflow.last_active_run() or mlflow.active_run()
    mlflow.end_run()
    found = mlflow.MlflowClient().get_run(run.info.run_id)
    assert found.info.run_name == "mine" and set(NAMES) <= set(found.data.metrics)


def test_numbers_and_rows_reach_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comet = pytest.importorskip("comet_ml", reason="comet_ml is not installed (pip install comet_ml)")
    monkeypatch.setenv("COMET_START_ONLINE", "false")
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "comet"))
    callback = vestige.Callback("tofu", every=2, rows=3, **QUICK)
    trainer_of(tmp_path, [callback], max_steps=2, report_to=["comet_ml"]).train()
    running: Any = comet.get_running_experiment()
    if running is not None:
        running.end()
    [archive] = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as files:
        said = [json.loads(line)["payload"] for line in files.read("messages.json").decode().splitlines()]
    metrics = {(p["metric"]["metricName"], p["metric"]["step"]) for p in said if "metric" in p}
    assert {(f"train/{name}", step) for name in (*NAMES[:3], *NAMES[-2:]) for step in (0, 2)} <= metrics
    tables = {(p.get("additional_params") or {}).get("fileName") for p in said}
    assert {"vestige/rows-step-0.csv", "vestige/rows-step-2.csv"} <= tables
