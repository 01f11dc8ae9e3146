"""Attacks that change the question: each turns a data-set configuration into one with another prompt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.stress.registry import PromptAttack, register

DataConfig = Mapping[str, Any]


def jailbreak(config: DataConfig, prefix: str | None = None) -> dict[str, Any]:
    """The answer begun for the model. The tokens of the prefix follow those of the prompt."""
    from vestige.data.chat import PREFIX
    from vestige.data.datasets import PREFILLED

    opening = PREFIX if prefix is None else prefix
    return {**config, "handler": PREFILLED, "args": {**config["args"], "answer_prefix": opening}}


def paraphrase(config: DataConfig, column: str = "paraphrased_question") -> dict[str, Any]:
    """The question from another column."""
    return {**config, "args": {**config["args"], "question_key": column}}


def few_shot(config: DataConfig, shots: str, count: int = 3) -> dict[str, Any]:
    """The first `count` rows of the file `shots` before every question."""
    return {
        **config,
        "args": {**config["args"], "few_shot_dataset_hf_args": {"path": shots, "split": f"train[:{count}]"}},
    }


def _retain_shots(config: DataConfig, budget: float, data: Path) -> dict[str, Any]:
    from vestige.stress.copies import rows_file

    return few_shot(config, str(rows_file(data, "retain")), int(budget))


register(
    PromptAttack(
        "jailbreak",
        'begins the answer for the model: "Sure, here is the answer:"',
        change=lambda config, budget, data: jailbreak(config),
    )
)
register(
    PromptAttack(
        "paraphrase", "asks the question in other words", change=lambda config, budget, data: paraphrase(config)
    )
)
register(
    PromptAttack(
        "few-shot",
        "puts retain questions with their answers before every question",
        unit="examples",
        budgets=(3,),
        teaches=True,
        change=_retain_shots,
    )
)
