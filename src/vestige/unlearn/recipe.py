"""What a training is asked to do (TrainingRecipe), and the arguments of transformers' Trainer that say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from vestige.errors import UserError, first_line

# Where attention and MLP projections live in the common families; PEFT's "all-linear" finds them by itself.
LORA_TARGETS = "all-linear"


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter instead of the whole model."""

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    targets: Any = LORA_TARGETS


@dataclass(frozen=True)
class TrainingRecipe:
    """How to train. `auto` means paged_adamw_32bit and bfloat16 on CUDA, AdamW in float32 elsewhere."""

    epochs: float = 10.0
    lr: float = 1e-5
    batch_size: int = 8
    accumulation: int = 4
    weight_decay: float = 0.01
    warmup_epochs: float = 1.0
    scheduler: str = "linear"
    optim: str = "auto"
    bf16: bool | str = "auto"
    clip: float = 1.0
    seed: int = 0
    max_steps: int = -1  # more than 0: that many optimiser steps, whatever `epochs` says
    gradient_checkpointing: bool = False
    lora: Lora | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # other TrainingArguments

    def steps_per_epoch(self, rows: int) -> int:
        return math.ceil(math.ceil(rows / self.batch_size) / self.accumulation)


def settings_on(recipe: TrainingRecipe, device: str) -> tuple[TrainingRecipe, list[str]]:
    """The recipe as this device can follow it, and what was put in the place of what it cannot do."""
    cuda, notes = device.startswith("cuda"), []
    # One pass over the weights instead of a dozen: on a CPU a step takes a quarter of the time.
    plain = "adamw_torch_fused" if device == "cpu" else "adamw_torch"
    optim = ("paged_adamw_32bit" if cuda else plain) if recipe.optim == "auto" else recipe.optim
    bf16 = cuda if recipe.bf16 == "auto" else bool(recipe.bf16)
    if not cuda and "paged" in optim:
        notes.append(f"{optim} needs CUDA; {plain} computes the same steps without paging.")
        optim = plain
    if not cuda and recipe.bf16 is True:
        notes.append("bfloat16 mixed precision is for CUDA; trained in the model's own precision.")
        bf16 = False
    return replace(recipe, optim=optim, bf16=bf16), notes


def training_arguments(
    recipe: TrainingRecipe, out: Path, rows: int, device: str, checkpoints: Path | None = None
) -> TrainingArguments:
    """The recipe in the words of transformers. `checkpoints`: where the state of every epoch is kept."""
    warmup = round(recipe.warmup_epochs * recipe.steps_per_epoch(rows))
    said: dict[str, Any] = {
        "output_dir": str(checkpoints or out),
        "num_train_epochs": recipe.epochs,
        "max_steps": recipe.max_steps,
        "learning_rate": recipe.lr,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
        "weight_decay": recipe.weight_decay,
        "warmup_steps": warmup,
        "lr_scheduler_type": recipe.scheduler,
        "optim": recipe.optim,
        "bf16": bool(recipe.bf16),
        "max_grad_norm": recipe.clip,
        "seed": recipe.seed,
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "use_cpu": device == "cpu",
        "logging_steps": 1,
        "save_strategy": "no" if checkpoints is None else "epoch",
        "save_total_limit": 1,  # the newest: it is whole before the one before it goes
        "report_to": "none",
        "remove_unused_columns": False,
        "disable_tqdm": True,  # its bar prints one line per step; the caller has its own
    }
    try:
        return TrainingArguments(**{**said, **recipe.extra})
    except (TypeError, ValueError) as error:
        raise UserError(f"The training settings are not accepted: {first_line(error)}") from None
