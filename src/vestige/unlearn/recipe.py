"""How to train: the settings of the optimiser, under our names and under those of transformers.

    trainer.args of a configuration --recipe_from--> TrainingRecipe --settings_on, training_arguments--> transformers

Attacks and Python users write a TrainingRecipe directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, first_line, unknown_name

if TYPE_CHECKING:
    from transformers import TrainingArguments

# trainer.args of open-unlearning and of transformers, and what they are called in a TrainingRecipe.
RECIPE_NAMES = {
    "num_train_epochs": "epochs",
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "weight_decay": "weight_decay",
    "warmup_epochs": "warmup_epochs",
    "lr_scheduler_type": "scheduler",
    "optim": "optim",
    "bf16": "bf16",
    "max_grad_norm": "clip",
    "max_steps": "max_steps",
    "gradient_checkpointing": "gradient_checkpointing",
    "seed": "seed",
}
# Named in guides, and without a meaning here: when to evaluate and what to save is ours. (logging_dir has its own way.)
IGNORED = (
    "eval_strategy", "eval_on_start", "do_train", "do_eval", "per_device_eval_batch_size", "bf16_full_eval",
    "output_dir", "logging_dir", "logging_steps", "save_strategy", "save_only_model", "remove_unused_columns",
    "hub_token",  # nothing is uploaded; transformers would write it into every checkpoint
)  # fmt: skip
HUB = ("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision")


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter instead of the whole model."""

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    targets: Any = "all-linear"  # PEFT finds attention and MLP projections by itself


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


def recipe_from(args: Mapping[str, Any], lora: Mapping[str, Any] | None = None) -> TrainingRecipe:
    """trainer.args and the lora settings of a configuration; what is not known here goes to transformers as it is."""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in args.items():
        if name in HUB and value:
            raise UserError(
                f"trainer.args.{name} has no effect here: nothing is uploaded. Leave it out, and upload the finished "
                "checkpoint with `hf upload`."
            )
        if value is None or name in IGNORED:
            continue
        if name in RECIPE_NAMES:
            known[RECIPE_NAMES[name]] = value
        else:
            extra[name] = value
    for name in ("epochs", "lr", "batch_size", "accumulation"):
        if name in known and float(known[name]) <= 0:
            raise UserError(f"The training setting '{name}' must be more than 0, it is {known[name]}.")
    if "lr" in known:
        known["lr"] = float(known["lr"])  # YAML reads 1e-5 as a text
    adapter = None
    if lora is not None:
        names = [f.name for f in fields(Lora)]
        for name in lora:
            if name not in names:
                raise unknown_name("setting of lora", name, names)
        adapter = Lora(**lora)
        if not isinstance(adapter.rank, int) or adapter.rank < 1:
            raise UserError(
                f"The rank of an adapter (--lora) must be a whole number of at least 1, it is {adapter.rank}."
            )
    return TrainingRecipe(**known, extra=extra, lora=adapter)


def settings_on(recipe: TrainingRecipe, device: str) -> tuple[TrainingRecipe, list[str]]:
    """The recipe as this device can follow it, and notes on what replaces what it cannot do."""
    cuda, notes = device.startswith("cuda"), []
    # One pass over the weights instead of a dozen: on a CPU a step takes a quarter of the time.
    plain = "adamw_torch_fused" if device == "cpu" else "adamw_torch"
    optim, bf16 = recipe.optim, recipe.bf16
    if optim == "auto":
        optim = "paged_adamw_32bit" if cuda else plain
    elif "paged" in optim and not cuda:
        notes.append(f"{optim} needs CUDA; {plain} computes the same steps without paging.")
        optim = plain
    if bf16 == "auto":
        bf16 = cuda
    elif bf16 is True and not cuda:
        notes.append("bfloat16 mixed precision is for CUDA; trained in the model's own precision.")
        bf16 = False
    return replace(recipe, optim=optim, bf16=bool(bf16)), notes


def training_arguments(
    recipe: TrainingRecipe, out: Path, rows: int, device: str, checkpoints: Path | None = None
) -> TrainingArguments:
    """The recipe in the words of transformers. `checkpoints`: where the state of every epoch is kept."""
    from transformers import TrainingArguments

    arguments = {theirs: getattr(recipe, ours) for theirs, ours in RECIPE_NAMES.items()}
    epochs = arguments.pop("warmup_epochs")  # open-unlearning counts in epochs, transformers in steps
    arguments |= {
        "warmup_steps": round(epochs * recipe.steps_per_epoch(rows)),
        "output_dir": str(checkpoints or out),
        "use_cpu": device == "cpu",
        "logging_steps": 1,
        "save_strategy": "no" if checkpoints is None else "epoch",
        "save_total_limit": 1,  # the newest: it is whole before the one before it goes
        "report_to": "none",
        "remove_unused_columns": False,
        "disable_tqdm": True,  # its bar prints one line per step; the caller has its own
    }
    try:
        return TrainingArguments(**{**arguments, **recipe.extra})
    except (TypeError, ValueError) as error:
        raise UserError(f"The training settings are not accepted: {first_line(error)}") from None
