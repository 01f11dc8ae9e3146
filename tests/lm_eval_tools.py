"""Tasks of lm-evaluation-harness over the lab's rows, for causal and for diffusion models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB

CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}, train: {data}}}}}
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
metadata: {{version: 1.0}}
"""


@contextmanager
def own_data_cache(factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the datasets library makes of our JSONL files does not stay in the user's cache."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", factory.mktemp("datasets"))
        yield


def choice_rows(count: int, options: int) -> list[dict[str, Any]]:
    """Questions with some answers each, the right one in a place that changes from row to row."""
    out = []
    for number, line in enumerate((LAB / "data" / "forget.jsonl").read_text().splitlines()[:count]):
        row = json.loads(line)
        label, choices = number % options, row["perturbed_answer"][: options - 1]
        choices.insert(label, row["answer"])
        out.append({"question": row["question"], "answer": row["answer"], "choices": choices, "label": label})
    return out


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
