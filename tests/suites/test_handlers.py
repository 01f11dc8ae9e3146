"""Handlers on made-up evidence: missing rows, broken models, ragged answers, classifiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import LAB
from golden_tools import eval_args
from vestige.cli import main
from vestige.metrics.dialects import get_dialect
from vestige.suites import handlers as _register  # noqa: F401
from vestige.suites.registry import HANDLERS, Evidence, Inputs
from vestige.suites.spec import MetricSpec
from vestige.types import Example, Prompt, Rows, Score, Target, TokenStats, stats


def example(index: int, *labels: int) -> Example:
    target = Target((1, 2, *labels), 2) if labels else None
    return Example(str(index), target, Prompt((1, 2)), "x", problem="" if target else "empty")


def rows(*items: tuple[Example, ...], many: bool = False) -> Rows:
    return Rows("mine", items, many)


def inputs(handler: str, data: dict[str, Rows], answers: dict[str, TokenStats], dialect: str, **params: Any) -> Inputs:
    spec = MetricSpec("mine", handler, params=params)
    return Inputs(spec, get_dialect(dialect), data, Evidence(answers=answers))


def score(handler: str, data: Rows, answers: dict[str, TokenStats], dialect: str = "strict", **params: Any) -> Score:
    return HANDLERS[handler].score(inputs(handler, {"x": data}, answers, dialect, **params))


A, B, EMPTY = example(0, 5, 6, 7), example(1, 8, 9), example(2)
assert A.target is not None
assert B.target is not None
GOOD = {A.target.key: stats(hit=[1, 1, 1]), B.target.key: stats(hit=[0, 1])}


@pytest.mark.parametrize("handler", ["probability", "loss", "exact_memorization", "extraction_strength"])
def test_an_empty_answer_is_counted_and_named_never_scored(handler: str) -> None:
    with_it = score(handler, rows((A,), (EMPTY,), (B,)), GOOD)
    without = score(handler, rows((A,), (B,)), GOOD)
    assert with_it.agg_value == without.agg_value
    assert with_it.value_by_index is not None
    assert list(with_it.value_by_index) == ["0", "2", "1"]  # neighbours keep their index
    assert "no target tokens" in with_it.value_by_index["2"]["reason"]
    assert any("2" in note for note in with_it.notes)
    assert with_it.value_by_index["1"] == (without.value_by_index or {})["1"]


def test_a_broken_model_has_no_mean() -> None:
    nan = stats(logprob=[np.nan, -1.0])
    got = score("probability", rows((A,), (B,)), {**GOOD, B.target.key: nan})  # type: ignore[union-attr]
    assert got.agg_value is None
    assert "NaN" in got.reason
    assert "1 of 2 rows" in got.reason
    assert (got.value_by_index or {})["0"]["prob"] is not None


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sequence classifier with random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=600, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32, num_labels=3, initializer_range=1.0)  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(place)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(LAB / "models" / "full" / "tokenizer.json"), pad_token="<pad>"
    )
    tokenizer.save_pretrained(place)
    return place


def test_classifier_probabilities(tmp_path: Path, classifier: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    key = "+eval.tofu.metrics.forget_Q_A_gibberish"
    words = [f"{key}.classifier_model_args.pretrained_model_name_or_path={classifier}", f"{key}.class_id=1"]
    args = eval_args(LAB / "models" / "full", tmp_path, "--limit", "5", "--metrics", "forget_Q_A_gibberish", *words)
    assert main(args) == 0
    result = json.loads((tmp_path / "TOFU_EVAL.json").read_text())
    texts = [v["generation"] for v in result["forget_Q_A_ROUGE"]["value_by_index"].values()]
    got = [v["score"] for v in result["forget_Q_A_gibberish"]["value_by_index"].values()]
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    expected = []
    for text in texts:
        with torch.inference_mode():
            logits = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=32)).logits
        expected.append(float(logits.softmax(-1)[0, 1]))
    assert got == pytest.approx(expected, abs=1e-6)
    assert len(set(np.round(got, 6))) > 1
    assert main(["score", str(tmp_path)]) == 0  # from evidence, without the classifier
    assert json.loads((tmp_path / "TOFU_EVAL.json").read_text()) == result
