"""Attacks that change the question: each turns a data-set configuration into one with another prompt.

jailbreak    the answer is begun for the model: "Sure, here is the answer:"
paraphrase   the question in other words
few_shot     some retain questions with their answers come first
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vestige.data.chat import PREFIX
from vestige.data.datasets import PREFILLED

Config = Mapping[str, Any]


def jailbreak(config: Config, prefix: str = PREFIX) -> dict[str, Any]:
    """The answer begun for the model. The tokens of the prefix follow those of the prompt."""
    return {**config, "handler": PREFILLED, "args": {**config["args"], "answer_prefix": prefix}}


def paraphrase(config: Config, column: str = "paraphrased_question") -> dict[str, Any]:
    """The question from another column."""
    return {**config, "args": {**config["args"], "question_key": column}}


def few_shot(config: Config, shots: str, count: int = 3) -> dict[str, Any]:
    """The first `count` rows of the file `shots` before every question."""
    return {
        **config,
        "args": {**config["args"], "few_shot_dataset_hf_args": {"path": shots, "split": f"train[:{count}]"}},
    }


PROMPTS: dict[str, Callable[..., dict[str, Any]]] = {
    "jailbreak": jailbreak,
    "paraphrase": paraphrase,
    "few-shot": few_shot,
}
