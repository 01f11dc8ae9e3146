"""`vestige publish`: the numbers in each tool's own files, every kind of run, what is never published."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

from conftest import LAB
from vestige.adapters.trackers import FILES, SERVERS, Destination
from vestige.cli import main
from vestige.errors import UserError
from vestige.results.publish import publish, without_secrets
from vestige.runs.run import KINDS, kind
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable

DATA, FULL = LAB / "data", LAB / "models" / "full"
THIRD = 1 / 3  # not a number of single precision

ACCOUNT = RunAccount(
    name="run",
    kind="eval",
    model="ada/model",
    suite="tofu",
    created="2026-11-17T20:00:00+00:00",
    numbers={
        "forget_Q_A_Prob": RunNumber(THIRD, THIRD / 2, THIRD * 2, 40),
        "forget_quality": RunNumber(1e-17, n=40),
        "forget_quality/ks_statistic": RunNumber(0.5, 0.25, 0.75, 40),
        "privleak": RunNumber(None, reason='no retain logs, | and "quotes"'),
        "plain": RunNumber(0.0),
    },
    curves={
        "forget_Q_A_Prob": RunCurve(
            "step", (0.0, 10.0, 20.0), (RunNumber(THIRD, 0.1, 0.9), RunNumber(None, reason="broke"), RunNumber(0.125))
        ),
        "s1_drop": RunCurve("layer", (0.0, 1.0), (RunNumber(2.5, 2.0, 3.0), RunNumber(-THIRD))),
    },
    tables={
        "TOFU_QA_forget": RunTable(
            ("index", "input", "ground_truth", "generation", "forget_Q_A_Prob.prob"),
            (
                ("0", "Wer? \u00e4\u00f6\n1 | 2", "Ada", "12", THIRD),
                ("1", "null", "true", None, None),
            ),
        ),
        "odd/name, with: signs": RunTable(("a",), ((1,), (2.5,), (None,))),
    },
    facts={"weights": "abc", "version of vestige": "0.1.0"},
    notes=("a note", "another"),
)


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One real run of each kind that takes seconds."""
    place = tmp_path_factory.mktemp("runs")
    rows = ["--limit", "6", "--cluster", "none", "--quiet"]
    names = "forget_Q_A_Prob,forget_Q_A_ROUGE,mia_loss,retain_Q_A_Prob"
    lab = ["--data", str(DATA), *rows]
    assert main(["eval", "tofu", "--model", str(FULL), "--metrics", names, "--out", str(place / "eval"), *lab]) == 0
    retain = LAB / "models" / "retain"
    deep = ["--unlearned", str(LAB / "models" / "unlearned"), "--full", str(FULL), "--retain-model", str(retain)]
    forget = str(DATA / "forget.jsonl")
    assert main(["depth", *deep, "--forget", forget, "--limit", "2", "--out", str(place / "depth"), "--quiet"]) == 0
    attack = ["stress", "quantise=4", "--model", str(FULL), "--data", str(DATA), "--limit", "2"]
    assert main([*attack, "--metrics", "mia_loss", "--out", str(place / "stress"), "--quiet"]) == 0
    lesson = ["unlearn", "--method", "GradAscent", "--model", str(FULL), "--forget", forget]
    lesson += ["--retain", str(DATA / "retain.jsonl"), "--epochs", "2", "--lr", "1e-4", "--limit", "4", "--quiet"]
    watching = ["--metrics", "forget_Q_A_Prob,retain_Q_A_Prob", "--eval-data", str(DATA)]
    assert main([*lesson, *watching, "--out", str(place / "train")]) == 0
    return {name: place / name for name in ("eval", "depth", "stress", "train")} | {"watch": place / "train" / "evals"}


def account(run: Path, out: Path) -> RunAccount:
    publish(run, "json", out, online=False, project="", dataset="")
    return msgspec.json.decode((out / "publication.json").read_bytes(), type=RunAccount)


def test_every_kind_has_its_numbers(runs: dict[str, Path], tmp_path: Path) -> None:
    depth = account(runs["depth"], tmp_path / "d")
    summary = json.loads((runs["depth"] / "summary.json").read_text())
    assert depth.numbers["uds"].value == summary["avg_uds"] and depth.curves["s1_drop"].axis == "layer"
    assert len(depth.tables["examples"].rows) == summary["n"]
    stress = account(runs["stress"], tmp_path / "s")
    assert {r[1] for r in stress.tables["attacks"].rows} >= {"quantise"} and stress.numbers
    watch = account(runs["watch"], tmp_path / "w")
    looks = json.loads((runs["watch"] / "watch.json").read_text())["looks"]
    curve = watch.curves["forget_Q_A_Prob"]
    assert list(curve.at) == [look["step"] for look in looks]
    assert [p.value for p in curve.points] == [look["values"]["forget_Q_A_Prob"] for look in looks]
    train = account(runs["train"], tmp_path / "t")
    assert train.kind == "train" and "loss" in train.curves and train.curves["forget_Q_A_Prob"] == curve
    without = {name for name in KINDS if kind(name).account is None}
    assert without == {"sweep", "meta"}  # folders of runs, and answers about metrics


def test_collapse_runs_are_curves(tmp_path: Path) -> None:
    steps = [{"step": s, "metrics": {"all/mi": s / 7, "all/mi_ci_low": 0.0, "all/mi_ci_high": 1.0, "timing_s/x": 1.0},
              "verdicts": {"all": "fine"}, "ema": {}} for s in (2, 1)]  # fmt: skip
    (tmp_path / "metrics.json").write_text(json.dumps({"steps": steps, "settings": {}, "notes": ["said"]}))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"step": 1, "label": "all", "rank": 3, "where": [1, 2]}) + "\n")
    found = kind("collapse").account
    assert found is not None
    made = found(tmp_path)
    assert made.curves["all/mi"] == RunCurve(
        "step", (1.0, 2.0), (RunNumber(1 / 7, 0.0, 1.0), RunNumber(2 / 7, 0.0, 1.0))
    )
    assert list(made.numbers) == ["all/mi"] and made.tables["rollouts"].rows == ((1, "all", 3, "[1, 2]"),)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["wandb", "mlflow", "tensorboard"])
def test_a_package_that_is_missing_is_named(to: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, to, None)
    with pytest.raises(UserError, match=re.escape(f"vestige[{to}]") + r"|\.\[" + to):
        {**FILES, **SERVERS}[to](ACCOUNT, Destination(tmp_path))


def test_secrets_and_homes_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    token = "hf_" + "a" * 30
    facts = {"note": f"read /home/ada/data with {token}"}
    made = without_secrets(replace(ACCOUNT, facts=facts, notes=(f"/Users/bob/x {token}",)))
    text = json.dumps(asdict(made))
    assert token not in text and "/home/ada" not in text and "/Users/bob" not in text and "~/data" in text
    assert "token" in caplog.text and "~" in caplog.text
    assert without_secrets(ACCOUNT) == ACCOUNT
