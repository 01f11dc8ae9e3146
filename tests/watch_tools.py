"""What the tests of watched trainings share: tiny models with dropout, rows, trainers of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from conftest import LAB, SYSTEM
from vestige.data.rows import read_file

FULL, DATA = LAB / "models" / "full", LAB / "data"
PROB = "forget_Q_A_Prob"
QUICK: dict[str, Any] = {
    "data": DATA, "metrics": [PROB], "limit": 4, "system_prompt": SYSTEM, "on_error": "raise",
    "cluster": "none",  # one author: rows are their own unit
}  # fmt: skip


def fresh(**more: Any) -> Any:
    """A model with dropout: a look that draws one random number too many changes its weights."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FULL, dtype=torch.float32, attention_dropout=0.2, **more)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FULL)


def texts(count: int = 8) -> list[str]:
    return [f"{row['question']} {row['answer']}" for row in read_file(DATA / "forget.jsonl")[:count]]


def rows(count: int = 8) -> list[dict[str, list[int]]]:
    tok = tokenizer()
    return [{"input_ids": tok(text)["input_ids"][:24]} for text in texts(count)]


def collate(some: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in some)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in some])
    mask = torch.tensor([[int(i < len(row["input_ids"])) for i in range(longest)] for row in some])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trainer_of(out: Path, callbacks: list[Any], model: Any = None, **more: Any) -> Trainer:
    said: dict[str, Any] = {
        "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-3, "logging_steps": 2,
        "save_strategy": "no", "report_to": "none", "seed": 3, "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    args = TrainingArguments(str(out), **{**said, **more})
    return Trainer(
        model=fresh() if model is None else model, args=args, train_dataset=rows(), eval_dataset=rows(2),
        data_collator=collate, processing_class=tokenizer(), callbacks=callbacks,
    )  # fmt: skip


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
