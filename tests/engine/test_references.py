"""Like is compared with like: retain logs in another definition, on other rows, or moved about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from golden_tools import eval_args
from vestige.cli import main

METRICS = ("--metrics", "privleak,forget_quality,mia_min_k")


def run(name: str, out: Path, *more: str) -> dict[str, Any]:
    assert main(eval_args(LAB / "models" / name, out, *METRICS, *more)) == 0
    return read(out)


def read(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "TOFU_EVAL.json").read_text()))


@pytest.fixture(scope="module")
def retain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("retain")
    run("retain", place)
    return place


def test_retain_logs_in_another_dialect_are_rescored(retain: Path, tmp_path: Path, caplog: Any) -> None:
    strict_retain = tmp_path / "strict-retain"
    run("retain", strict_retain, "--dialect", "strict")
    direct = run("unlearned", tmp_path / "a", "--dialect", "strict", "--retain-logs", str(strict_retain))
    caplog.clear()
    mixed = run("unlearned", tmp_path / "b", "--dialect", "strict", "--retain-logs", str(retain))
    assert mixed["privleak"] == direct["privleak"]
    assert mixed["forget_quality"] == direct["forget_quality"]
    assert any("re-scored to match" in r.getMessage() for r in caplog.records)
    loose = run("unlearned", tmp_path / "c", "--retain-logs", str(retain))
    assert loose["privleak"] != mixed["privleak"]  # so that the comparison above could have failed


def test_a_changed_setting_changes_both_sides(retain: Path, tmp_path: Path) -> None:
    """k of a parent, said once, holds for the parent of privleak and for the retain model's value."""
    retain_k = tmp_path / "retain-k"
    run("retain", retain_k, "+eval.tofu.metrics.mia_min_k.k=0.9")
    both = run("unlearned", tmp_path / "a", "+eval.tofu.metrics.mia_min_k.k=0.9", "--retain-logs", str(retain_k))
    one = run("unlearned", tmp_path / "b", "+eval.tofu.metrics.mia_min_k.k=0.9", "--retain-logs", str(retain))
    assert one["privleak"] == both["privleak"]
    assert one["mia_min_k"]["forget"] != run("unlearned", tmp_path / "c")["mia_min_k"]["forget"]
    assert main(["score", str(tmp_path / "c"), "mia_min_k.k=0.9", "--retain-logs", str(retain)]) == 0
    again = read(next((tmp_path / "c" / "scores").iterdir()))
    assert again["privleak"] == both["privleak"]


def test_an_override_reaches_a_parent_that_is_not_listed(tmp_path: Path) -> None:
    args = eval_args(LAB / "models" / "unlearned", tmp_path, "--metrics", "privleak")
    assert main([*args, "+eval.tofu.metrics.mia_min_k.k=0.9"]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["config"]["metrics"]["mia_min_k"]["k"] == 0.9


def test_a_retain_checkpoint_is_evaluated_on_the_fly(retain: Path, tmp_path: Path) -> None:
    model = str(LAB / "models" / "retain")
    fly = run("unlearned", tmp_path / "a", "--retain-model", model)
    logs = run("unlearned", tmp_path / "b", "--retain-logs", str(retain))
    assert fly["privleak"] == logs["privleak"]
    assert fly["forget_quality"] == logs["forget_quality"]
    assert (tmp_path / "a" / "retain-model" / "TOFU_EVAL.json").is_file()


def test_several_retain_models_give_a_range(retain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    run("full", other)  # any second run will do as a "retain model" that says something else
    capsys.readouterr()
    both = run("unlearned", tmp_path / "a", "--retain-logs", str(retain), str(other))
    out = capsys.readouterr().out
    first = run("unlearned", tmp_path / "b", "--retain-logs", str(retain))
    second = run("unlearned", tmp_path / "c", "--retain-logs", str(other))
    assert both["privleak"]["agg_value"] == first["privleak"]["agg_value"]
    assert sorted(both["privleak"]["by_reference"].values()) == sorted(
        [first["privleak"]["agg_value"], second["privleak"]["agg_value"]]
    )
    assert "against 2 retain models" in both["forget_quality"]["notes"][0]
    assert ".." in next(line for line in out.splitlines() if line.startswith("mia_min_k"))  # the retain column
    assert main(["score", str(tmp_path / "a")]) == 0
    assert read(tmp_path / "a") == both
