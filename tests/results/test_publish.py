"""`vestige publish`: the numbers in each tool's own files, every kind of run, what is never published."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import LAB
from vestige.adapters.trackers import FILES, SERVERS, Destination
from vestige.cli import main
from vestige.errors import UserError
from vestige.runs.publish import publish, without_secrets
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


def read_wandb(out: Path) -> dict[str, list[Any]]:
    (table,) = out.rglob("metrics_*.table.json")
    return {name: numbers[:3] for name, *numbers in json.loads(table.read_text())["data"]}


def read_mlflow(out: Path) -> dict[str, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(out / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("vestige")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "tables/metrics.json")).read_text())
    assert table["data"][0] == ["forget_Q_A_Prob", THIRD, THIRD / 2, THIRD * 2, 40, ""]
    found = run.data.metrics
    ends = ("", "_low", "_high")
    return {n: [found.get(n.replace("/", ".") + end) for end in ends] for n in ACCOUNT.numbers}


def read_tensorboard(out: Path) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    (file,) = out.glob("events.*")
    log = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
    log.Reload()
    [scalar] = log.Scalars("vestige/forget_Q_A_Prob_low")
    assert (scalar.step, round(scalar.value, 6)) == (0, round(THIRD / 2, 6))
    text = make_ndarray(log.Tensors("vestige/tables/metrics")[0].tensor_proto)[0].decode()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    return {row[0]: [float(cell) if cell else None for cell in row[1:4]] for row in rows}


def read_hub(out: Path) -> dict[str, list[Any]]:
    from huggingface_hub import ModelCard

    card = ModelCard.load(out / "model-card.md")
    results = {r.metric_type: r for r in card.data.eval_results}
    prob = results["forget_Q_A_Prob"]
    assert (prob.dataset_type, prob.task_type) == ("locuslab/TOFU", "text-generation")
    assert prob.metric_args == {"low": THIRD / 2, "high": THIRD * 2, "n": 40}
    assert card.data.model_name == "ada/model" and "privleak" not in results and "no retain logs" in card.text
    ends = {name: r.metric_args or {} for name, r in results.items()}
    return {n: [r.metric_value, ends[n].get("low"), ends[n].get("high")] for n, r in results.items()}


def read_json(out: Path) -> dict[str, list[Any]]:
    made = msgspec.json.decode((out / "publication.json").read_bytes(), type=RunAccount)
    assert made == ACCOUNT
    return {name: [number.value, number.low, number.high] for name, number in made.numbers.items()}


READERS = {
    "wandb": read_wandb, "mlflow": read_mlflow, "tensorboard": read_tensorboard, "hub": read_hub, "json": read_json,
}  # fmt: skip


@pytest.mark.parametrize("to", READERS)
def test_every_number_is_in_the_tools_own_files(to: str, tmp_path: Path) -> None:
    if to in ("wandb", "mlflow", "tensorboard"):
        pytest.importorskip(to)
    out = tmp_path / "out"
    foreign = [out / place / "mine.txt" for place in (".", "wandb", "mlruns")]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    {**FILES, **SERVERS}[to](ACCOUNT, Destination(out, dataset="locuslab/TOFU"))
    assert [file.read_text() for file in foreign] == ["precious"] * len(foreign)
    found = READERS[to](out)
    for name, number in ACCOUNT.numbers.items():
        if number.value is not None:
            assert found[name] == [number.value, number.low, number.high], name
    # Nothing about this machine or its user, in any file that could be sent.
    secret = [str(Path.home()), socket.gethostname(), os.environ.get("USER") or "nobody-at-all"]
    for file in _sendable(out, to):
        data = file.read_bytes()
        assert not [word for word in secret if len(word) > 4 and word.encode() in data], file


def _sendable(out: Path, to: str) -> list[Path]:
    files = [p for p in out.rglob("*") if p.is_file()]
    if to == "wandb":  # its own logs stay on this machine; the record and the files of a run are what sync sends
        return [p for p in files if p.suffix == ".wandb" or "files" in p.parts or "data" in p.parts]
    return [p for p in files if p.name != "meta.yaml"] if to == "mlflow" else files


def test_a_card_names_a_data_set_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ORG/NAME"):
        FILES["hub"](ACCOUNT, Destination(tmp_path, dataset="no such form"))


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


def test_an_evaluation_says_all_it_has(runs: dict[str, Path], tmp_path: Path) -> None:
    made = account(runs["eval"], tmp_path)
    results = json.loads((runs["eval"] / "TOFU_EVAL.json").read_text())
    stats = json.loads((runs["eval"] / "TOFU_STATS.json").read_text())
    for name in ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "mia_loss", "retain_Q_A_Prob"):
        number = made.numbers[name]
        assert number.value == results[name]["agg_value"] and number.n == stats[name]["n"]
        assert [number.low, number.high] == stats[name]["interval"]
    table = made.tables["TOFU_QA_retain_eval"]
    assert table.columns[:3] == ("index", "input", "ground_truth") and len(table.rows) == 6
    column = table.columns.index("retain_Q_A_Prob.prob")
    rows = results["retain_Q_A_Prob"]["value_by_index"]
    assert {r[0]: r[column] for r in table.rows} == {i: body["prob"] for i, body in rows.items()}
    question = json.loads((DATA / "retain.jsonl").read_text().splitlines()[0])["question"]
    assert table.rows[0][1] == question and made.model == "full" and str(LAB) not in json.dumps(asdict(made))


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
