"""The Python API has the shape of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import vestige
from conftest import LAB, SYSTEM
from vestige.errors import UserError


def test_evaluate_a_path(tmp_path: Path) -> None:
    result = vestige.evaluate(
        LAB / "models" / "full", "tofu", data=LAB / "data", out=tmp_path, system_prompt=SYSTEM, limit=4,
        metrics=["forget_Q_A_Prob", "forget_Q_A_PERT_Prob", "mia_loss"],
    )  # fmt: skip
    assert set(result.summary) == {"forget_Q_A_Prob", "forget_Q_A_PERT_Prob", "mia_loss"}
    assert result["forget_Q_A_Prob"].agg_value == result.summary["forget_Q_A_Prob"]
    assert "forget_Q_A_Prob" in repr(result)
    assert "near certain" in repr(result)
    assert [r["index"] for r in result.rows("forget_Q_A_Prob")] == ["0", "1", "2", "3"]
    assert {r["set"] for r in result.rows("mia_loss")} == {"forget", "holdout"}
    assert result.to_pandas().loc["forget_Q_A_Prob", "value"] == result.summary["forget_Q_A_Prob"]
    assert len(result.to_pandas("forget_Q_A_Prob")) == 4
    with pytest.raises(UserError, match="Did you mean 'mia_loss'"):
        result["mia_los"]


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
