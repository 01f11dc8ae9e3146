"""Our own bugs are not the user's fault: errors planted in our code, met at the command line."""

from __future__ import annotations

import ast
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
from vestige.internal import STATUS, masked, masked_words

SOURCE = Path(vestige.__file__).parent
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


DEPTH = ["depth", "--unlearned", UNLEARNED, "--full", FULL, "--retain", RETAIN, "--data", f"{DATA}/forget.jsonl",
         "--limit", "2", "--out", "{tmp}/d", "--quiet"]  # fmt: skip
ATTACK = ["stress", "quantise=4", "--model", FULL, "--data", DATA, "--limit", "2", "--metrics", "mia_loss",
          "--out", "{tmp}/s", "--quiet"]  # fmt: skip
LESSON = ["unlearn", "--method", "NPO", "--model", FULL, "--forget", f"{DATA}/forget.jsonl",
          "--retain", f"{DATA}/retain.jsonl", "--out", "{tmp}/u", "--limit", "2", "--epochs", "1"]  # fmt: skip

CASES = [
    Case("vestige.collect.answers:score_packed", "name", evaluate()),
    Case("vestige.collect.answers:pack", "type", evaluate()),
    Case("vestige.collect.texts:TextCollector._decode_cached", "attribute", evaluate(), ("e/evidence/answers-*",)),
    Case("vestige.suites.handlers.texts:rouge_scores", "key", evaluate(), ("e/evidence/answers-*", "e/evidence/texts-*")),
    Case("vestige.compare.vectors:auc", "division", evaluate(), ("e/evidence/answers-*",)),
    Case("vestige.run.statistics:intervals", "name", evaluate(), ("e/evidence/answers-*", "e/TOFU_EVAL.json")),
    Case("vestige.run.statistics:_averaged", "type", evaluate(), ("e/evidence/answers-*", "e/TOFU_EVAL.json")),
    Case("vestige.run.evaluate:write_results", "key", evaluate(), ("e/evidence/answers-*",)),
    Case("vestige.store.evidence:AnswerFormat.dump", "type", evaluate()),
    Case("vestige.run.config:_run", "type", evaluate()),
    Case("vestige.data.rows:read_file", "attribute", evaluate()),
    Case("vestige.data.datasets:build_rows", "index", evaluate()),
    Case("vestige.models.fingerprint:fingerprint_place", "unbound", evaluate()),
    Case("vestige.run.plan:_estimate", "type", plain("plan", "tofu", "--model", UNLEARNED, "--data", DATA)),
    Case("vestige.run.rescore:stored_scores", "key", plain("score", "{copy}")),
    Case("vestige.store.evidence:AnswerFormat.load", "key", plain("score", "{copy}")),
    Case("vestige.run.comparing:differences", "type", plain("compare", "{eval}", "{copy}", "--resamples", "100")),
    Case("vestige.run.diffing:compare_parts", "attribute", plain("diff", "{eval}", "{copy}")),
    Case("vestige.run.published:published_table", "type", plain("published", "{eval}")),
    Case("vestige.run.verifying:_scored", "index", plain("verify", "{eval}")),
    Case("vestige.run.verifying:intervals", "key", plain("verify", "{eval}")),
    Case("vestige.run.depth_kept:_one", "type", plain("verify", "{depth}")),
    Case("vestige.report.eval_part:values", "key", plain("report", "{eval}", "{depth}", "-o", "{tmp}/r")),
    Case("vestige.report.rows_part:says", "name", plain("report", "{eval}", "-o", "{tmp}/r")),
    Case("vestige.report.depth_part:values", "attribute", plain("report", "{eval}", "{depth}", "-o", "{tmp}/r")),
    Case("vestige.run.reporting:render_page", "type", plain("report", "{eval}", "-o", "{tmp}/r"), ("r/report.json",)),
    Case("vestige.report.tables:models_table", "assert", plain("table", "{eval}")),
    Case("vestige.report.figures:draw", "name", plain("plot", "{eval}", "scatter", "-o", "{tmp}/x.png")),
    Case("vestige.run.packing:references_of_run", "key", plain("pack", "{eval}", "-o", "{tmp}/x.zip")),
    Case("vestige.run.importing:import_results", "type", plain("import", "{eval}/TOFU_EVAL.json")),
    Case("vestige.run.depth:check_tokenizers", "type", plain(*DEPTH)),
    Case("vestige.collect.staircase:Patcher._fast", "name", plain(*DEPTH)),
    Case("vestige.run.collapse:show", "key", plain("collapse", "{rollouts}", "--model", str(TINY), "--out", "{tmp}/c")),
    Case("vestige.run.collapse:row_table", "index",
         plain("collapse", "{rollouts}", "--model", str(TINY), "--out", "{tmp}/c")),
    Case("vestige.run.stressing:show", "attribute", plain(*ATTACK), ("s/stress.json",)),
    Case("vestige.run.training:run_training", "unbound", plain(*LESSON)),
    Case("vestige.unlearn.trainer:Work.loss", "type", plain(*LESSON)),
    Case("vestige.run.meta:_axes_table", "type", plain("meta", "axes", "{methods}", "--out", "{tmp}/m")),
    Case("vestige.meta.methods:method", "key", plain("meta", "axes", "{methods}", "--out", "{tmp}/m")),
    Case("vestige.run.sweep_plan:_plan", "type", plain("sweep", "{plan}", "--list")),
    Case("vestige.run.listing:listing", "name", plain("ls", "metrics")),
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
