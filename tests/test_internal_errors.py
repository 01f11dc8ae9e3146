"""Our own bugs are not the user's fault: errors planted in our code, met at the command line."""

from __future__ import annotations

import importlib
import json
import re
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import vestige
from collapse_tools import TINY
from conftest import LAB
from vestige.cli import main
from vestige.internal import STATUS

UNLEARNED, FULL, RETAIN = (str(LAB / "models" / name) for name in ("unlearned", "full", "retain"))
DATA = str(LAB / "data")
METRICS = "mia_loss,forget_truth_ratio,forget_Q_A_ROUGE,forget_Q_A_Prob"
MISTAKES = {
    "name": "undefined_name",
    "attribute": "None.anything",
    "type": "None + 1",
    "key": "{}['absent']",
    "index": "[][0]",
    "assert": "assert False",
    "division": "1 / 0",
    "unbound": "x = x + 1",
}
BLAMES = ("make it again", "does not have the form", "vestige: error:", "does not fit this model", "left out")


def plant(patch: pytest.MonkeyPatch, where: str, mistake: str) -> None:
    """Replaces a function (or method) of ours by one with a mistake in it, as if it stood in that very file."""
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    space, file = vars(owner), str(owner.__file__)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    made: dict[str, Any] = {}
    exec(compile(f"def {name}(*args, **more):\n    {MISTAKES[mistake]}", file, "exec"), space, made)
    patch.setattr(owner, name, made[name])


@dataclass(frozen=True)
class Case:
    where: str
    mistake: str
    command: Callable[[dict[str, Path], Path], list[str]]
    kept: tuple[str, ...] = ()  # what was computed before, below the scratch directory


def evaluate(out: str = "e", *more: str) -> Callable[[dict[str, Path], Path], list[str]]:
    def words(runs: dict[str, Path], tmp: Path) -> list[str]:
        flags = ["--data", DATA, "--limit", "2", "--metrics", METRICS, "--out", str(tmp / out), "--quiet"]
        return ["eval", "tofu", "--model", UNLEARNED, *flags, "stats.resamples=20", *more]

    return words


def plain(*words: str) -> Callable[[dict[str, Path], Path], list[str]]:
    """Words in which {eval}, {depth}, ... are finished runs and {tmp} is scratch."""
    return lambda runs, tmp: [w.format(**{k: str(v) for k, v in runs.items()}, tmp=tmp) for w in words]


DEPTH = ["depth", "--unlearned", UNLEARNED, "--full", FULL, "--retain-model", RETAIN,
         "--forget", f"{DATA}/forget.jsonl",
         "--limit", "2", "--out", "{tmp}/d", "--quiet"]  # fmt: skip
ATTACK = ["stress", "quantise=4", "--model", FULL, "--data", DATA, "--limit", "2", "--metrics", "mia_loss",
          "--out", "{tmp}/s"]  # fmt: skip
LESSON = ["unlearn", "--method", "NPO", "--model", FULL, "--forget", f"{DATA}/forget.jsonl",
          "--retain", f"{DATA}/retain.jsonl", "--out", "{tmp}/u", "--limit", "2", "--epochs", "1"]  # fmt: skip

# One for each verb, and for each stage of an evaluation.
CASES = [
    Case("vestige.collect.answers:score_packed", "name", evaluate()),
    Case("vestige.collect.texts:TextCollector._decode_cached", "attribute", evaluate(), ("e/evidence/answers-*",)),
    Case("vestige.metrics.text:rouge_scores", "key", evaluate(), ("e/evidence/texts-*",)),
    Case("vestige.stats.vectors:auc", "division", evaluate(), ("e/evidence/answers-*",)),
    Case("vestige.engine.scores:intervals", "name", evaluate(), ("e/evidence/answers-*", "e/TOFU_EVAL.json")),
    Case("vestige.data.rows:read_file", "attribute", evaluate()),
    Case("vestige.models.fingerprint:fingerprint_place", "unbound", evaluate()),
    Case("vestige.runs.plan:_references", "type", plain("plan", "tofu", "--model", UNLEARNED, "--data", DATA)),
    Case("vestige.runs.evaluation:stored_scores", "key", plain("score", "{copy}")),
    Case("vestige.runs.compare:differences", "type", plain("compare", "{eval}", "{copy}", "--resamples", "100")),
    Case("vestige.runs.compare:compare_parts", "attribute", plain("diff", "{eval}", "{copy}")),
    Case("vestige.runs.evaluation:intervals", "key", plain("verify", "{eval}")),
    Case("vestige.report.build:render_page", "type", plain("report", "{eval}", "-o", "{tmp}/r"), ("r/report.json",)),
    Case("vestige.report.tables:models_table", "assert", plain("table", "{eval}")),
    Case("vestige.report.figures:draw", "name", plain("plot", "{eval}", "scatter", "-o", "{tmp}/x.png")),
    Case("vestige.runs.evaluation:suite_from_manifest", "key", plain("pack", "{eval}", "-o", "{tmp}/x.zip")),
    Case("vestige.runs.imports:import_results", "type", plain("import", "{eval}/TOFU_EVAL.json")),
    Case("vestige.depth.run:check_tokenizers", "type", plain(*DEPTH)),
    Case("vestige.collapse.run:show", "key", plain("collapse", "{rollouts}", "--model", str(TINY), "--out", "{tmp}/c")),
    Case("vestige.stress.run:show", "attribute", plain(*ATTACK), ("s/stress.json",)),
    Case("vestige.unlearn.run:run_training", "unbound", plain(*LESSON)),
    Case("vestige.meta.run:_axes_table", "type", plain("meta", "axes", "{methods}", "--out", "{tmp}/m")),
    Case("vestige.sweep.plan:_read_models", "type", plain("sweep", "{plan}", "--list")),
    Case("vestige.runs.explain:listing", "name", plain("ls", "metrics")),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs of the kinds that the commands read."""
    home = tmp_path_factory.mktemp("runs")
    assert main(evaluate("eval")({}, home)) == 0
    assert main(evaluate("copy")({}, home)) == 0
    assert main([w.format(tmp=home) for w in DEPTH]) == 0
    turns = [
        {"prompt": f"p{i}", "response": f"<think>r{i} x</think>", "step": 1, "turn": 0, "group_id": i} for i in range(4)
    ]
    rollouts = home / "rollouts.jsonl"
    rollouts.write_text("".join(json.dumps(t) + "\n" for t in turns))
    methods = home / "methods.json"
    from fuzz_config import METHOD_RESULTS

    methods.write_text(json.dumps(METHOD_RESULTS))
    plan = home / "plan.yaml"
    plan.write_text(yaml.safe_dump({"models": [UNLEARNED, RETAIN], "suites": {"tofu": {"data": DATA, "limit": 2,
                    "metrics": "mia_loss"}}, "out": str(home / "sweep"), "slots": 0, "retries": 0}))  # fmt: skip
    return {"eval": home / "eval", "copy": home / "copy", "depth": home / "d", "rollouts": rollouts,
            "methods": methods, "plan": plan}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.where.removeprefix("vestige."))
def test_a_planted_mistake_is_an_internal_error(
    case: Case, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = case.command(runs, tmp_path)
    notes = tmp_path / "tmp"
    notes.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(notes))
    plant(monkeypatch, case.where, case.mistake)
    assert main(command) == STATUS
    said = capsys.readouterr()
    assert "internal error: " in said.err and "this is a bug of vestige." in said.err, said.err
    assert not any(words in said.err + said.out for words in BLAMES), said.err + said.out
    assert "Traceback" not in said.err + said.out
    (file,) = re.findall(r"the traceback is in (\S+);", said.err)
    text = Path(file).read_text()
    assert (
        "Traceback (most recent call last)" in text and command[0] in text and f"vestige {vestige.__version__}" in text
    )
    assert Path(file).parent == notes and stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    for pattern in case.kept:
        assert list(tmp_path.glob(pattern)), f"{pattern} is gone"


def test_a_task_of_a_sweep_with_a_bug_fails_and_the_others_go_on(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vestige.sweep import tasks

    evaluate_it, calls = tasks._evaluate, []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def sometimes(task: Any) -> None:
        calls.append(task.id)
        if "unlearned" in task.id:
            broken(task)
        evaluate_it(task)

    plant(monkeypatch, "vestige.sweep.tasks:_evaluate", "name")
    broken = tasks._evaluate
    monkeypatch.setattr(tasks, "_evaluate", sometimes)
    assert main(["sweep", str(runs["plan"]), "--slots", "0"]) == 1
    said = capsys.readouterr().out
    assert calls == ["tofu/unlearned", "tofu/retain"]
    assert "failed: tofu/unlearned" in said
    (file,) = set(re.findall(r"traceback: (\S+vestige-bug\S+\.txt)", said))
    assert "undefined_name" in Path(file).read_text()
    summary = json.loads((runs["plan"].parent / "sweep" / "sweep.json").read_text())
    assert {t["id"]: t["status"] for t in summary["tasks"]} == {"tofu/unlearned": "failed", "tofu/retain": "done"}
    log = next(t["log"] for t in summary["tasks"] if t["status"] == "failed")
    assert "Traceback (most recent call last)" in Path(log).read_text()


def test_debug_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plant(monkeypatch, "vestige.runs.explain:listing", "name")
    assert main(["ls", "metrics", "--debug"]) == STATUS
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert main(["ls", "metrics"]) == STATUS
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("VESTIGE_DEBUG", "1")
    assert main(["ls", "metrics"]) == STATUS
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert len(list(tmp_path.glob("vestige-bug-*.txt"))) == 3  # none replaced another


def test_without_a_place_for_the_file_the_traceback_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    plant(monkeypatch, "vestige.runs.explain:listing", "type")
    assert main(["ls", "metrics"]) == STATUS
    assert "could not be written" in (err := capsys.readouterr().err) and "Traceback" in err


SECRETS = ["hf_abcdefghijklmnop", "sk-abcdefghijklmnop", "hunter2hunter2", "correcthorse"]


def test_secrets_stay_out_of_what_is_written_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def broken(*_: Any) -> None:
        raise KeyError(f"no access with {SECRETS[0]} or {SECRETS[1]}; password={SECRETS[2]}")

    monkeypatch.setattr("vestige.engine.config._run", broken)
    words = ["eval", "tofu", "--model", UNLEARNED, "--out", str(tmp_path), f"+model.model_args.token={SECRETS[3]}"]
    assert main([*words, "--debug"]) == STATUS
    said = capsys.readouterr()
    (file,) = tmp_path.glob("vestige-bug-*.txt")
    everything = said.err + said.out + file.read_text()
    assert "token=***" in everything and not [s for s in SECRETS if s in everything]


def test_view_keeps_its_page_and_reports_the_bug(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    from vestige.report.build import ReportRequest
    from vestige.report.view import Viewer

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = tmp_path / "run"
    shutil.copytree(runs["eval"], run)
    viewer = Viewer(ReportRequest([run]))
    try:
        page = viewer.pages
        (run / "TOFU_EVAL.json").write_text((run / "TOFU_EVAL.json").read_text() + " ")
        plant(monkeypatch, "vestige.report.build:evaluation_values", "name")
        assert not viewer.look() and viewer.pages is page
        assert "internal error: NameError" in caplog.text and not viewer.look()
        assert len(list(tmp_path.glob("vestige-bug-*.txt"))) == 1  # not one for each look
    finally:
        viewer.server.server_close()
