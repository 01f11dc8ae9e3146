"""Every MUSE number open-unlearning produced on the golden lab, with plain tags and with the chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import LAB, SYSTEM
from golden_tools import check
from vestige.cli import main

MODELS = ("full", "retain", "unlearned")


def muse_args(name: str, out: Path, *more: str) -> list[str]:
    args = ["eval", "muse", "--model", str(LAB / "models" / name), "--data", str(LAB / "data" / "muse")]
    # The golden retain run had no reference logs; the others were compared with it.
    logs = [] if name == "retain" else ["--retain-logs", str(LAB / "expected" / "retain" / "MUSE_EVAL.json")]
    reference = ["--reference-model", str(LAB / "models" / "retain")]
    return [*args, "--out", str(out), "--metrics", "all", *logs, *reference, *more]


@pytest.mark.parametrize("name", MODELS)
def test_with_question_and_answer_tags(name: str, tmp_path: Path) -> None:
    """The template of Llama-2-7b-hf: 'Question: q', 'Answer: '."""
    assert main(muse_args(name, tmp_path, "model=Llama-2-7b-hf")) == 0
    check(LAB / "expected" / name / "MUSE_EVAL.json", tmp_path / "MUSE_EVAL.json", least=1000)
    check(LAB / "expected" / name / "MUSE_SUMMARY.json", tmp_path / "MUSE_SUMMARY.json", least=12)


@pytest.mark.parametrize("name", MODELS)
def test_with_the_chat_template(name: str, tmp_path: Path) -> None:
    assert main(muse_args(name, tmp_path, "--system-prompt", SYSTEM)) == 0
    check(LAB / "expected" / name / "MUSE_CHAT_EVAL.json", tmp_path / "MUSE_EVAL.json", least=1000)


def test_experiment_composes_for_both_splits(capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("News", "Books"):
        assert main(["eval", "experiment=eval/muse/default", f"data_split={split}", "--cfg"]) == 0
        out = capsys.readouterr().out
        assert f"muse-bench/MUSE-{split}" in out
        assert f"MUSE-{split}_target" in out
