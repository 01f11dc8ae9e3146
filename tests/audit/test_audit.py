"""Two checkpoints and one's own rows: what applies is worked out, what fits is done, what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB, SYSTEM
from loops import one_test
from vestige.audit import run as budget
from vestige.audit.run import FEWEST, plan_audit, shown
from vestige.audit.work import Audit, AuditWork, Step
from vestige.cli import main
from vestige.errors import UserError
from vestige.verdict.judge import judge
from vestige.verdict.runs import read_runs

DATA = LAB / "data"
SHORT = ("--minutes", "0.001")  # no test but the evaluations fits


def audit(*more: str) -> int:
    models = ["--before", str(LAB / "models" / "full"), "--after", str(LAB / "models" / "unlearned")]
    return main(["audit", *models, "--system-prompt", SYSTEM, "--limit", "6", *more])


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def forget_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "forget.jsonl").read_text().splitlines()]


def plain_rows(place: Path) -> str:
    return write(place, [{k: r[k] for k in ("question", "answer")} for r in forget_rows()])


def test_forget_and_retain_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = plain_rows(tmp_path / "f.jsonl")
    place = tmp_path / "o"
    assert audit("--forget", plain, "--retain", str(DATA / "retain.jsonl"), "--out", str(place), *SHORT) == 0
    out = capsys.readouterr().out
    assert "forget_ROUGE" in out
    assert "mia_loss" not in out  # nothing to attack with
    for what in ("holdout rows", "paraphrased_answer", "retain model", "nothing can be called forgotten"):
        assert what in out
    assert "- retain rows" not in out
    summary = json.loads((place / "after" / "OWN_SUMMARY.json").read_text())
    assert {"forget_Prob", "retain_ROUGE", "forget_extraction_strength"} <= set(summary)
    assert "forget_truth_ratio" not in summary
    # What did not fit is said twice: before the work, and at the end with what is to be done.
    left_out, not_tested = out.split("Left out:")[1].split("[1/2]")[0], out.split("Not tested:")[1]
    for part in (left_out, not_tested):
        assert "jailbreak: about" in part and "of --minutes left" in part and "layers: it needs a retain model" in part
    assert "more --minutes goes on" in not_tested
    assert not (place / "attacks").exists()
    assert f"Page:  {place / 'report' / 'index.html'}" in out and (place / "report" / "index.html").is_file()


def test_everything_given_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vestige.audit.run.find_spec", lambda name: None)  # 4 bits take long, and have their tests
    more = ["--forget", str(DATA / "forget.jsonl"), "--retain", str(DATA / "retain.jsonl")]
    more += ["--holdout", str(DATA / "holdout.jsonl"), "--retain-model", str(LAB / "models" / "retain")]
    assert audit(*more, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "What would make this firmer" not in out
    stressed = [tmp_path / "attacks" / name for name in ("jailbreak", "relearn", "prune")]
    runs = read_runs([tmp_path / "after"], [tmp_path / "before"], [tmp_path / "retain"], tmp_path / "depth", stressed)
    words = judge(runs)
    assert f"Did it forget? {words['title']}. {words['headline']}" in out
    assert words["power"]["text"] in out and "tells forget rows from fresh ones" in out
    assert set(words["parts"]["testing"]["done"]) >= {"layers", "teach", "disturb", "membership"}
    page = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [a["verdict"]["headline"] for a in page["audits"]] == [words["headline"]]  # one judgement
    not_tested = out.split("Not tested:")[1]
    assert "bitsandbytes is not installed" in not_tested and "layers" not in not_tested
    before = json.loads((tmp_path / "before" / "OWN_SUMMARY.json").read_text())
    assert {"forget_quality", "privleak", "mia_loss", "forget_truth_ratio"} <= set(before)
    # What was collected for the evaluation was not collected again before an attack.
    cost = json.loads((stressed[0] / "evals" / "model" / "before" / "manifest.json").read_text())["cost"]
    assert not any(value for key, value in cost.items() if key.endswith(("tokens", "forwards")))

    def must_not(*_: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr("vestige.audit.work.stress", must_not)
    monkeypatch.setattr("vestige.audit.work.depth_run", must_not)
    assert audit(*more, "--out", str(tmp_path)) == 0
    again = capsys.readouterr().out
    assert "layers, jailbreak, relearn, prune" in again
    assert again.split("Did it forget?")[1].split("Page:")[0] == out.split("Did it forget?")[1].split("Page:")[0]


def work_on(place: Path, forget: str, **more: Any) -> AuditWork:
    models = {name: str(LAB / "models" / name) for name in ("full", "unlearned")}
    return AuditWork(Audit(models["full"], models["unlearned"], forget, out=place / "o", **more))


def test_rows_are_cut_to_the_minutes_and_the_same_command_keeps_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"What is {i}?", "answer": f"It is number {i}."} for i in range(100)]
    many = write(tmp_path / "many.jsonl", rows)
    monkeypatch.setattr(budget, "likely", lambda cost: 1.0 * sum(len(r) for r in cost.prepared.rows.values()))
    work = work_on(tmp_path, many, minutes=2.0)
    plan = plan_audit(work)
    assert plan.limit == work.limit == 36  # 0.6 of 120 s, for two models of one second for each row
    assert sum(s.seconds for s in plan.steps) <= 120
    assert "36 of 100" in shown(plan, 2.0)
    work.note("before", Step("done"))
    monkeypatch.setattr(budget, "likely", lambda cost: 0.1)  # as when everything is cached
    assert plan_audit(work_on(tmp_path, many, minutes=2.0)).limit == 36
    assert plan_audit(work_on(tmp_path, many, minutes=3.0)).limit is None  # another command
    monkeypatch.setattr(budget, "likely", lambda cost: 1e6)
    short = plan_audit(work_on(tmp_path / "b", many, minutes=1.0))
    assert short.limit == FEWEST and "--minutes 1" in shown(short, 1.0)
    assert "Too long" not in shown(plan, 2.0)
    assert plan_audit(work_on(tmp_path / "c", many)).limit is None  # as long as it takes


def test_a_test_that_the_models_do_not_allow_is_named_and_the_audit_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise UserError("this checkpoint has no linear layers.")

    monkeypatch.setattr("vestige.audit.work.stress", refuses)
    assert audit("--forget", plain_rows(tmp_path / "f.jsonl"), "--out", str(tmp_path / "o")) == 0
    out = capsys.readouterr().out
    assert "- prune: this checkpoint has no linear layers." in out.split("Not tested:")[1]
    assert "Did it forget?" in out and "- any attack" in out


def test_plain_text_rows_are_cut_in_the_middle(tmp_path: Path) -> None:
    rows = write(tmp_path / "t.jsonl", [{"text": f"{r['question']} {r['answer']}"} for r in forget_rows()])
    assert audit("--forget", rows, "--out", str(tmp_path / "o"), *SHORT) == 0
    result = json.loads((tmp_path / "o" / "before" / "OWN_EVAL.json").read_text())
    first = result["forget_ROUGE"]["value_by_index"]["0"]
    assert first["input"] == "Where was Anselm Varga born? Anselm"


@one_test(
    ("file", "content", "more", "needle"),
    [
        ("missing.jsonl", None, (), "no such file"),
        ("odd.jsonl", '{"body": "x"}\n', SHORT, "neither the columns question and answer nor text"),
        ("f.jsonl", '{"question": "a", "answer": "b"}\n', ("--minutes", "0"), "--minutes must be more than 0"),
    ],
)
def test_mistakes(
    file: str, content: str | None, more: tuple[str, ...], needle: str, tmp_path: Path, capsys: Any
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    assert audit("--forget", str(tmp_path / file), "--out", str(tmp_path / "o"), *more) == 2
    assert needle in capsys.readouterr().err
