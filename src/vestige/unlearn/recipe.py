"""What a training is asked to do.

    overrides --compose_training--> TrainConfig --recipe_of--> TrainingRecipe --training_arguments--> transformers

A `TrainConfig` is the composed configuration of `vestige train` or `unlearn` (flags.py writes the overrides of the
flags). A `TrainingRecipe` has the settings of the optimiser alone; attacks and Python users write one directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.configs.compose import compose_config, composing, explain_value, seed_of
from vestige.engine.config import RunConfig, compose_runs
from vestige.errors import UserError, first_line, unknown_name
from vestige.guard import inside
from vestige.unlearn.methods import split_knobs
from vestige.verdict.best import rule_named

if TYPE_CHECKING:
    from transformers import TrainingArguments

FINETUNE = "FinetuneTrainer"
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


# ---- the configuration ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainConfig:
    """One training, described completely."""

    mode: str  # train | unlearn
    task_name: str
    output_dir: Path
    model_args: Mapping[str, Any]
    tokenizer_args: Mapping[str, Any]
    template_args: Mapping[str, Any]
    handler: str
    args: Mapping[str, Any]  # trainer.args
    method_args: Mapping[str, Any]
    data: Mapping[str, Any]  # forget, retain or train -> data-set name -> configuration
    lora: Mapping[str, Any] | None
    seed: int
    limit: int | None
    local: Mapping[str, Any]
    progress: bool
    overwrite: bool
    best: Mapping[str, float] | str | None  # weights of metrics, or a rule's name
    evaluation: RunConfig | None = None  # what to measure after each epoch
    plugins: tuple[str, ...] = ()
    checkpoints: bool = True  # of every epoch, so that a killed run can resume

    @property
    def method(self) -> str | None:
        return None if self.handler == FINETUNE else self.handler

    def describe(self) -> dict[str, Any]:
        """What training.json records, and what decides the weights."""
        out = dict(vars(self))
        for name in ("evaluation", "progress", "overwrite", "output_dir", "checkpoints"):
            del out[name]
        if not self.plugins:
            del out["plugins"]
        return out


def compose_training(
    overrides: Sequence[str],
    config_name: str,
    config_dir: Path | None = None,
    evaluating: bool | None = None,
    plugins: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """The configuration of a training. `evaluating` decides about evaluation whatever eval_strategy says.

    `values` are settings as they are; overrides are in Hydra's grammar, and win.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with composing(config_dir) as directories:
        cfg = compose_config(config_name, list(overrides), directories, values)
        OmegaConf.set_struct(cfg, False)
        try:
            if OmegaConf.is_missing(cfg, "task_name"):
                raise UserError("'task_name' must be given (it names the output directory): add task_name=NAME.")
            parts: dict[str, Any] = {}
            for key in ("model", "trainer", "data", "lora", "evaluate"):
                node = cfg.get(key)
                if OmegaConf.is_config(node):
                    # A knob that is left open (???) would reach the method as a text.
                    node = OmegaConf.to_container(node, resolve=True, throw_on_missing=key == "trainer")
                parts[key] = node
            trainer, evaluate, data = parts["trainer"] or {}, parts["evaluate"] or {}, parts["data"] or {}
            args = trainer.get("args") or {}
            best = evaluate.get("best")
            config = TrainConfig(
                mode=str(cfg.mode),
                task_name=inside(str(cfg.task_name), "task_name"),
                output_dir=Path(str(cfg.paths.output_dir)),
                model_args=parts["model"].get("model_args") or {},
                tokenizer_args=parts["model"].get("tokenizer_args") or {},
                template_args=parts["model"].get("template_args") or {},
                handler=str(trainer.get("handler") or FINETUNE),
                args=args,
                method_args=trainer.get("method_args") or {},
                data={k: v for k, v in data.items() if k in ("train", "forget", "retain")},
                lora=parts["lora"],
                seed=seed_of(cfg),
                limit=data.get("max_samples"),
                local=data.get("local") or {},
                progress=bool(cfg.get("progress")),
                overwrite=bool(cfg.get("overwrite")),
                best=best,
                plugins=tuple(plugins),
                checkpoints=bool(cfg.get("checkpoints", True)),
            )
        except OmegaConfBaseException as error:
            raise explain_value(error) from None
    if evaluating is None:
        evaluating = str(args.get("eval_strategy", "no")) == "epoch"
    if not evaluating:
        return config
    rule_named(best)  # refuses a rule that does not exist
    weights = list(best) if best is not None and not isinstance(best, str) else []
    only = None
    if evaluate.get("metrics"):  # the metrics that decide which checkpoint is best are needed, too
        only = list(dict.fromkeys([*evaluate["metrics"], *weights]))
    run = compose_runs(overrides, config_name, config_dir, only, plugins, values)[0]
    if not isinstance(run, RunConfig):
        raise UserError("Evaluation while training takes a suite of metrics (eval=tofu), not a harness of tasks.")
    for name in weights:
        if name not in run.suite.metrics:
            raise unknown_name("metric", name, run.suite.metrics, "(evaluate.best)")
    return replace(config, evaluation=run)


def check_training(config: TrainConfig) -> None:
    """Refuses settings and knobs that no training could follow, without reading a model or a row."""
    recipe_of(config)
    if config.method is not None:
        split_knobs(config.method, config.method_args)


# ---- the recipe -----------------------------------------------------------------------------------------------------


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


def recipe_of(config: TrainConfig) -> TrainingRecipe:
    """trainer.args as a recipe; what it does not know goes to transformers as it is."""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in config.args.items():
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
    lora = None
    if config.lora is not None:
        names = [f.name for f in fields(Lora)]
        for name in config.lora:
            if name not in names:
                raise unknown_name("setting of lora", name, names)
        lora = Lora(**config.lora)
        if not isinstance(lora.rank, int) or lora.rank < 1:
            raise UserError(f"The rank of an adapter (--lora) must be a whole number of at least 1, it is {lora.rank}.")
    return TrainingRecipe(**known, extra=extra, lora=lora)


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
