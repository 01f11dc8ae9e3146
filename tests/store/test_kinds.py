"""Every kind of run is one directory to the verbs that read runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from collapse_tools import TINY, turn_rows, write
from conftest import LAB
from fuzz_config import METHOD_RESULTS
from golden_tools import eval_args
from staleness_tools import forwards
from vestige.cli import main
from vestige.errors import UserError
from vestige.runs import run as kinds
from vestige.runs.manifest import is_whole

MODELS, DATA = LAB / "models", LAB / "data"
WITH_EVIDENCE, WITHOUT = ("eval", "depth", "depths", "collapse"), ("stress", "meta", "train")


def commands(place: Path) -> dict[str, list[str]]:
    """One command for each kind, as small as they come; `depths` has two unlearned models."""
    rollouts = write(place / "rollouts.jsonl", turn_rows())
    methods = place / "methods.json"
    methods.write_text(json.dumps(METHOD_RESULTS))
    full, retain, unlearned = (str(MODELS / name) for name in ("full", "retain", "unlearned"))
    rows = [str(DATA / f"{split}.jsonl") for split in ("forget", "retain")]
    depth = ["depth", "--full", full, "--retain-model", retain, "--forget", rows[0], "--limit", "2", "--quiet"]
    small = ["--metrics", "forget_Q_A_Prob", "--limit", "2"]
    return {
        "eval": eval_args(MODELS / "unlearned", place / "eval", *small, "--quiet"),
        "depth": [*depth, "--unlearned", unlearned, "--out", str(place / "depth")],
        "depths": [*depth, "--unlearned", unlearned, full, "--out", str(place / "depths")],
        "collapse": ["collapse", str(rollouts), "--model", str(TINY), "--out", str(place / "collapse"),
                     "--resamples", "20", "--quiet"],
        "stress": ["stress", "jailbreak", *small, "--out", str(place / "stress"), "--model", full,
                   "--data", str(DATA)],
        "meta": ["meta", "axes", str(methods), "--out", str(place / "meta")],
        "train": ["unlearn", "--method", "NPO", "--model", full, "--forget", rows[0], "--retain", rows[1],
                  "--out", str(place / "train"), "--limit", "2", "--epochs", "1"],
    }  # fmt: skip


def kind_name(run: str) -> str:
    return run.removesuffix("s") if run == "depths" else run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    for name, words in commands(place).items():
        assert main(words) == 0, name
    return {name: place / name for name in commands(place)}


def test_every_kind_has_the_same_head(runs: dict[str, Path]) -> None:
    for name, run in runs.items():
        body = json.loads((run / "manifest.json").read_text())
        assert (body["schema"], body["kind"]) == (1, kind_name(name))
        assert {"created", "versions", "config"} <= set(body) and body["versions"]["vestige"]
        assert kinds.kind_of(run) == kinds.of(run).name == kind_name(name)
        assert main(["verify", str(run)]) == 0
        assert is_whole(run)


def changed(run: Path) -> dict[str, bytes]:
    """Wrong numbers in every result file of a run, sealed; returns what the files were."""
    good = {}
    for name, edit in EDITS[run.name].items():
        good[name] = (run / name).read_bytes()
        body = [json.loads(line) for line in good[name].splitlines()] if name.endswith("l") else json.loads(good[name])
        edit(body)
        lines = "".join(json.dumps(row) + "\n" for row in body) if name.endswith("l") else json.dumps(body)
        (run / name).write_text(lines)
    return good


def _metrics(body: Any) -> None:
    body["steps"][0]["metrics"]["collapse_first_turn_sample/mi_estimate"] += 1
    body["steps"][0]["verdicts"]["collapse_first_turn_sample"] = "never"


EDITS: dict[str, dict[str, Any]] = {
    "eval": {"TOFU_EVAL.json": lambda b: b["forget_Q_A_Prob"].update(agg_value=0.5)},
    "depth": {"summary.json": lambda b: b.update(avg_uds=0.123), "results.json": lambda b: b[0].update(uds=0.123)},
    "depths": {"full/summary.json": lambda b: b.update(n=99), "unlearned/results.json": lambda b: b.pop(),
               "summary.json": lambda b: b["unlearned"].update(avg_uds=0.123)},
    "collapse": {"metrics.json": _metrics, "rows.jsonl": lambda b: b[0].update(best_other=9.0)},
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_EVIDENCE)
def test_score_writes_the_numbers_of_evidence_again(
    name: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte what the run wrote, with no model, and the run is whole afterwards."""
    run = Path(shutil.copytree(runs[name], tmp_path / name))
    good = changed(run)
    assert main(["verify", str(run)]) == 1
    with forwards() as pushed:
        assert main(["score", str(run)]) == 0
    assert "re-scored from evidence" in capsys.readouterr().out and pushed[0] == 0
    assert {file: (run / file).read_bytes() for file in good} == good
    assert main(["verify", str(run)]) == 0


@pytest.mark.parametrize("name", WITHOUT)
def test_score_says_which_kinds_keep_no_evidence(
    name: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(runs[name])]) == 2
    said = capsys.readouterr().err
    assert f"is a {name} run, which keeps no evidence" in said and "harness, meta, stress, train" in said


def test_score_refuses_another_definition_where_there_is_one(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("depth", "collapse"):
        assert main(["score", str(runs[name]), "dialect=strict"]) == 2
        said = capsys.readouterr().err
        assert f"A {name} run" in said and "leave dialect out" in said


def test_compare_shows_runs_of_any_kind_side_by_side(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs["depth"]), str(runs["depth"])]) == 0
    said = capsys.readouterr().out
    assert "uds" in said and "is a depth run" in said
    for name in ("collapse", "stress", "meta", "train"):
        assert main(["compare", str(runs[name]), str(runs[name])]) == 0
    assert main(["diff", str(runs["depth"]), str(runs["eval"])]) == 2
    assert "is a depth run, not an evaluation" in capsys.readouterr().err


def test_manifests_of_newer_versions_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["depth"], run)
    body = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**body, "schema": 2}))
    with pytest.raises(UserError, match="newer version of vestige"):
        kinds.kind_of(run)
    (run / "manifest.json").write_text(json.dumps({**body, "kind": "dream"}))
    with pytest.raises(UserError, match="does not know"):
        kinds.kind_of(run)
