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
