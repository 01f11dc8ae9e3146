"""A user's own metrics, data sets and config files, in our form and in open-unlearning's."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from golden_tools import eval_args
from vestige.cli import main

THEIRS = '''
import numpy as np
import torch
from torch.utils.data import DataLoader
from evals.metrics.base import unlearning_metric
from evals.metrics.utils import evaluate_probability, run_batchwise_evals

@unlearning_metric(name="my_probability")
def my_probability(model, **kwargs):
    """Probability, the way that framework computes it."""
    loader = DataLoader(kwargs["data"], batch_size=kwargs["batch_size"], collate_fn=kwargs["collators"])
    scores = run_batchwise_evals(model, loader, evaluate_probability, {}, "probability")
    assert kwargs["tokenizer"].eos_token_id == 2 and kwargs["flavour"] == "mint" and kwargs["batch_size"] == 7
    return {"agg_value": np.mean([s["prob"] for s in scores.values()]), "value_by_index": scores}

@unlearning_metric(name="my_length")
def my_length(model, **kwargs):
    loader = DataLoader(kwargs["data"], batch_size=kwargs["batch_size"], collate_fn=kwargs["collators"])
    lengths = {}
    for batch in loader:
        mask = batch["attention_mask"].long()
        out = model.generate(batch["input_ids"], attention_mask=mask, **kwargs["generation_args"])
        new = out[:, batch["input_ids"].shape[1]:]
        assert (batch["labels"][:, -1] != -100).all()  # padded on the left, whole conversations as labels
        texts = kwargs["tokenizer"].batch_decode(new, skip_special_tokens=True)
        for index, text in zip(batch["index"].tolist(), texts):
            lengths[index] = {"score": len(text), "generation": text}
    return {"agg_value": np.mean([v["score"] for v in lengths.values()]), "value_by_index": lengths}

@unlearning_metric(name="my_gap")
def my_gap(model, **kwargs):
    mine = kwargs["pre_compute"]["mine"]["agg_value"]
    retain = kwargs["reference_logs"]["retain_model_logs"]["retain"]["agg_value"]
    return {"agg_value": mine - retain}
'''

OURS = '''
import numpy as np
from vestige.data.datasets import DATASETS, question_answers
from vestige.suites.handlers.common import by_index, mean_score, one_stat, wants_answers
from vestige.suites.registry import handler

@handler("worst_token", wants_answers)
def worst_token(inputs):
    """The least likely token's log-probability."""
    return mean_score(by_index(inputs.rows, one_stat(inputs, lambda t: {"score": t.logprob.min(axis=-1)})), "score")

def shouted(rows, args, context):
    return question_answers([{**r, "question": r["question"].upper()} for r in rows], args, context)

DATASETS["ShoutedQA"] = shouted
'''


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A config directory with metric files as open-unlearning's guide shows them, defaults lists and all."""
    place = tmp_path / "configs"
    files = {
        "eval/tofu_metrics/my_probability.yaml": """
            # @package eval.tofu.metrics.my_probability
            defaults:
              - ../../data/datasets@datasets: TOFU_QA_forget
              - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
              - ../../generation@generation_args: default
            handler: my_probability
            flavour: mint
            batch_size: 7
            datasets:
              TOFU_QA_forget:
                args:
                  hf_args:
                    name: ${eval.tofu.forget_split}_perturbed
            """,
        "eval/tofu_metrics/my_length.yaml": """
            # @package eval.tofu.metrics.my_length
            defaults:
              - ../../data/datasets@datasets: TOFU_QA_forget
              - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
              - ../../generation@generation_args: default
            handler: my_length
            datasets:
              TOFU_QA_forget:
                args:
                  predict_with_generate: True
            collators:
              DataCollatorForSupervisedDataset:
                args:
                  padding_side: left
            """,
        "eval/tofu_metrics/my_gap.yaml": """
            # @package eval.tofu.metrics.my_gap
            defaults:
              - .@pre_compute.forget_Q_A_Prob: forget_Q_A_Prob
            pre_compute:
              forget_Q_A_Prob:
                access_key: mine
            reference_logs:
              retain_model_logs:
                path: ${eval.tofu.retain_logs_path}
                include:
                  forget_Q_A_Prob:
                    access_key: retain
            handler: my_gap
            """,
        "eval/tofu_metrics/my_truth_ratio.yaml": """
            # @package eval.tofu.metrics.my_truth_ratio
            defaults:
              - .@pre_compute.forget_Q_A_PARA_Prob: forget_Q_A_PARA_Prob
              - .@pre_compute.forget_Q_A_PERT_Prob: forget_Q_A_PERT_Prob
            pre_compute:
              forget_Q_A_PARA_Prob:
                access_key: correct
              forget_Q_A_PERT_Prob:
                access_key: wrong
            handler: forget_truth_ratio
            """,
        "eval/tofu_metrics/worst_token.yaml": """
            # @package eval.tofu.metrics.worst_token
            handler: worst_token
            datasets:
              mine:
                handler: ShoutedQA
                args:
                  hf_args: {path: locuslab/TOFU, name: forget10_perturbed, split: train}
            """,
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(textwrap.dedent(text).lstrip())
    return place


def evaluate(tmp_path: Path, configs: Path, metrics: str, *more: str) -> dict[str, Any]:
    (tmp_path / "theirs.py").write_text(THEIRS)
    (tmp_path / "ours.py").write_text(OURS)
    plugins = ["--plugin", str(tmp_path / "theirs.py"), "--plugin", str(tmp_path / "ours.py")]
    args = eval_args(LAB / "models" / "full", tmp_path / "run", "--metrics", metrics, "--config-dir", str(configs))
    assert main([*args, *plugins, *more]) == 0
    return dict(json.loads((tmp_path / "run" / "TOFU_EVAL.json").read_text()))


def test_their_metrics_run_unchanged_beside_ours(tmp_path: Path, configs: Path) -> None:
    logs = str(LAB / "expected" / "retain_noref" / "TOFU_EVAL.json")
    out = evaluate(tmp_path, configs, "my_probability,my_gap,my_truth_ratio,forget_Q_A_Prob", "--retain-logs", logs)
    ours = out["forget_Q_A_Prob"]
    assert out["my_probability"]["agg_value"] == pytest.approx(ours["agg_value"], abs=1e-6)
    assert out["my_probability"]["value_by_index"].keys() == ours["value_by_index"].keys()
    assert out["my_gap"]["agg_value"] == pytest.approx(ours["agg_value"] - 0.0532, abs=1e-3)
    expected = json.loads((LAB / "expected" / "full" / "TOFU_EVAL.json").read_text())["forget_truth_ratio"]
    assert out["my_truth_ratio"]["agg_value"] == pytest.approx(expected["agg_value"], abs=1e-5)


def test_their_generating_metrics_see_left_padded_prompts(tmp_path: Path, configs: Path) -> None:
    out = evaluate(tmp_path, configs, "my_length,forget_Q_A_ROUGE")
    theirs, ours = out["my_length"]["value_by_index"], out["forget_Q_A_ROUGE"]["value_by_index"]
    assert [v["generation"] for v in theirs.values()] == [v["generation"] for v in ours.values()]


def test_a_failing_plugin_does_not_take_the_rest_with_it(
    tmp_path: Path, configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = evaluate(tmp_path, configs, "my_gap,forget_Q_A_Prob")  # no retain logs: their code indexes None
    assert out["my_gap"]["agg_value"] is None
    assert "failed" in out["my_gap"]["reason"]
    assert out["forget_Q_A_Prob"]["agg_value"] > 0.9
