"""The Python API has the shape of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vestige
from collapse_tools import turn_rows, write
from conftest import LAB, SYSTEM
from staleness_tools import forwards
from vestige.cli import main
from vestige.errors import UserError

FULL, RETAIN, UNLEARNED = (LAB / "models" / name for name in ("full", "retain", "unlearned"))
SHORT: dict[str, Any] = {"data": LAB / "data", "limit": 4, "overrides": ["stats.resamples=200"]}


def test_a_model_in_memory_gives_the_same_numbers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = LAB / "models" / "full"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    settings = {"data": LAB / "data", "limit": 4, "system_prompt": SYSTEM}
    live = vestige.evaluate(model, tokenizer=tokenizer, out=tmp_path / "a", **settings)
    read = vestige.evaluate(path, out=tmp_path / "b", **settings)
    assert live.summary == read.summary
    with pytest.raises(UserError, match="needs its tokenizer"):
        vestige.evaluate(model, **settings)


def test_evaluating_does_not_change_a_training_run(tmp_path: Path) -> None:
    """Dropout, shuffles and samples of a run that is looked at are those of a run that is not."""
    import random

    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = LAB / "models" / "full"
    tokenizer = AutoTokenizer.from_pretrained(path)

    def trained(look: bool) -> tuple[list[torch.Tensor], list[float]]:
        model = AutoModelForCausalLM.from_pretrained(path, attention_dropout=0.3)
        model.train()
        model.lm_head.eval()  # part of a model may be frozen in eval mode
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            if look and step == 1:
                settings = {"data": LAB / "data", "limit": 2, "metrics": ["forget_Q_A_Prob", "forget_Q_A_ROUGE"]}
                vestige.evaluate(model, tokenizer=tokenizer, out=tmp_path / "live", **settings)
                vestige.evaluate(path, out=tmp_path / "path", **settings)  # nor does the look at a checkpoint
                assert model.training and not model.lm_head.training
            ids = torch.randint(0, 500, (2, 12))
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        drawn = [random.random(), float(np.random.random()), float(torch.rand(1))]
        return [p.detach().clone() for p in model.parameters()], drawn

    (weights, drawn), (others, others_drawn) = trained(False), trained(True)
    assert drawn == others_drawn
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def files_of(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, vestige.Result]:
    """The unlearned and the retain model, evaluated."""
    place = tmp_path_factory.mktemp("runs")
    chosen = {**SHORT, "metrics": ["forget_Q_A_Prob", "forget_quality", "mia_min_k"], "cluster": "none"}
    retain = vestige.evaluate(RETAIN, out=place / "retain", **chosen)
    mine = vestige.evaluate(UNLEARNED, out=place / "mine", retain_logs=place / "retain", **chosen)
    return {"retain": retain, "mine": mine}


def test_load_run_reads_what_was_written(runs: dict[str, vestige.Result]) -> None:
    mine = runs["mine"]
    before = files_of(mine.directory)
    with forwards() as pushed:
        loaded = vestige.load_run(mine.directory)
        assert pushed[0] == 0
    assert files_of(mine.directory) == before
    assert repr(loaded) == repr(mine)
    assert loaded.summary == mine.summary and loaded.intervals == mine.intervals
    assert loaded.rows("mia_min_k") == mine.rows("mia_min_k")
    with pytest.raises(UserError, match="is not a run directory"):
        vestige.load_run(mine.directory.parent)


def test_load_run_refuses_a_run_that_is_not_as_it_was_left(runs: dict[str, vestige.Result], tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(runs["mine"].directory, copy)
    file = copy / "TOFU_EVAL.json"
    body = json.loads(file.read_text())
    body["forget_Q_A_Prob"]["agg_value"] = 0.5
    file.write_text(json.dumps(body))
    with pytest.raises(UserError, match="its checksum does not fit"):
        vestige.load_run(copy)
    about = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**about, "state": "unfinished", "root": ""}))
    with pytest.raises(UserError, match="is not finished"):
        vestige.load_run(copy)


def test_score_by_another_definition(runs: dict[str, vestige.Result]) -> None:
    mine = runs["mine"]
    with forwards() as pushed:
        strict = vestige.score(mine.directory, dialect="strict")
        other = vestige.score(mine.directory, changes={"mia_min_k": {"k": 0.9}})
        assert pushed[0] == 0
    assert strict.outcome.dialect == "strict" and "scores/strict" in repr(strict)
    assert other.rows("mia_min_k") != mine.rows("mia_min_k")
    assert other.files[0].parent.name == "open-unlearning_mia_min_k.k=0.9"
    alone = vestige.score(runs["retain"].directory, retain_logs=mine.directory)
    assert runs["retain"]["forget_quality"].agg_value is None
    assert alone["forget_quality"].agg_value == pytest.approx(mine["forget_quality"].agg_value)  # KS is symmetric
    with pytest.raises(UserError, match="Did you mean 'mia_min_k'"):
        vestige.score(mine.directory, changes={"mia_mink": {"k": 0.9}})


def test_compare_runs_prints_as_the_command_line(
    runs: dict[str, vestige.Result], capsys: pytest.CaptureFixture[str]
) -> None:
    places = [runs["retain"].directory, runs["mine"].directory]
    found = vestige.compare_runs(*places, metrics=["forget_Q_A_Prob", "mia_min_k"], resamples=200)
    words = ["--metrics", "forget_Q_A_Prob,mia_min_k", "--resamples", "200"]
    assert main(["compare", *map(str, places), *words]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    first = found.differences["mine"][0]
    values = found.values["mine"]["forget_Q_A_Prob"], found.values["retain"]["forget_Q_A_Prob"]
    assert first.metric == "forget_Q_A_Prob" and first.value == pytest.approx(values[0] - values[1])  # type: ignore[operator]
    assert found.rows()[0]["run"] == "mine" and found.rows()[0]["holm"] == first.holm
    with pytest.raises(UserError, match="at least two runs"):
        vestige.compare_runs(places[0])
    with pytest.raises(UserError, match=r"compare_runs\(\*runs\)"):
        vestige.compare_runs(places)  # type: ignore[arg-type]


def test_plan_prints_as_the_command_line_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    cost = vestige.plan(UNLEARNED, "tofu", metrics="mia_loss", out=out, data=LAB / "data", limit=4)
    assert not out.exists()
    words = ["--data", str(LAB / "data"), "--limit", "4", "--metrics", "mia_loss", "--out", str(out)]
    assert main(["plan", "tofu", "--model", str(UNLEARNED), *words]) == 0

    def without_time(text: str) -> list[str]:
        return [line for line in text.strip().splitlines() if not line.startswith("time ")]

    assert without_time(capsys.readouterr().out) == without_time(str(cost))
    assert cost.answers.distinct == 8 and cost.answers.cached == 0 and cost.seconds > 0
    vestige.evaluate(UNLEARNED, metrics="mia_loss", out=out, data=LAB / "data", limit=4)
    assert vestige.plan(UNLEARNED, metrics=["mia_loss"], out=out, data=LAB / "data", limit=4).answers.cached == 8
    with pytest.raises(UserError, match="takes paths"):
        vestige.plan(object())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"'limt'.*'limit'"):
        vestige.plan(UNLEARNED, limt=4)  # type: ignore[call-arg]


def test_measure_depth(tmp_path: Path) -> None:
    data = LAB / "data" / "forget.jsonl"
    [one] = vestige.measure_depth(UNLEARNED, FULL, RETAIN, data, out=tmp_path, limit=3, layers="0,1")
    assert one.uds is None or 0 <= one.uds <= 1
    assert len(one.examples) == 3 and json.loads((tmp_path / "summary.json").read_text())["avg_uds"] == one.uds
    with pytest.raises(UserError, match="Did you mean 'layers'"):
        vestige.measure_depth(UNLEARNED, FULL, RETAIN, data, layer="0")


def test_measure_collapse_takes_settings_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", turn_rows())
    report = vestige.measure_collapse(file, FULL, num_samples="all", resamples=20, steps=[7], out=tmp_path / "out")
    assert len(report.outcomes[0].samples["collapse_first_turn_sample"].turns) == 12
    assert list(report.metrics) == [7] and (tmp_path / "out" / "metrics.json").is_file()
    with pytest.raises(UserError, match="Did you mean 'resamples'"):
        vestige.measure_collapse(file, FULL, resample=20)
    with pytest.raises(UserError, match="needs its tokenizer"):
        vestige.measure_collapse(file, torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match="not object"):
        vestige.measure_collapse(file, object())  # type: ignore[arg-type]


def test_attack_with_words_or_a_mapping(tmp_path: Path) -> None:
    said: dict[str, Any] = {"limit": 2, "metrics": ["forget_Q_A_Prob"]}
    rows = vestige.attack(UNLEARNED, LAB / "data", "prune=0.3,0.6", tmp_path / "a", RETAIN, **said)
    assert [(r.model, r.attack, r.budget) for r in rows[:3]] == [
        ("model", "none", None), ("model", "prune", 0.3), ("model", "prune", 0.6),
    ]  # fmt: skip
    assert {r.model for r in rows} == {"model", "retain"} and (tmp_path / "a" / "stress.json").is_file()
    again = vestige.attack(UNLEARNED, LAB / "data", {"prune": [0.3, 0.6]}, tmp_path / "b", **said)
    assert [(r.attack, r.budget) for r in again] == [(r.attack, r.budget) for r in rows[:3]]
    with pytest.raises(UserError, match=r"'epoch'.*'epochs'"):
        vestige.attack(UNLEARNED, LAB / "data", "relearn", epoch=1)
    with pytest.raises(UserError, match="Did you mean 'prune'"):
        vestige.attack(UNLEARNED, LAB / "data", {"prunes": 0.3})
    with pytest.raises(UserError, match="a budget is a number"):
        vestige.attack(UNLEARNED, LAB / "data", {"prune": "much"})


def test_make_report_writes_the_page(
    runs: dict[str, vestige.Result], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = [r.directory for r in runs.values()]
    page = vestige.make_report(places, tmp_path / "report", title="Mine", retain="retain")
    assert page == tmp_path / "report" / "index.html" and "Mine" in page.read_text()
    data = json.loads((page.parent / "report.json").read_text())
    assert data["title"] == "Mine" and len(data["models"]) == 2
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "TOFU_EVAL.json").write_text("{")
    vestige.make_report([*places, tmp_path / "broken"], tmp_path / "again")
    assert "TOFU_EVAL.json" in caplog.text
    with pytest.raises(UserError, match="Did you mean 'title'"):
        vestige.make_report(places, tmp_path / "report", titel="Mine")
