"""What a training is asked to do: the composed configuration of `vestige train` and `vestige unlearn`.

In: Hydra overrides (unlearn/flags.py writes those of the flags). Out: a TrainConfig, checked, for unlearn/run.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.configs.compose import compose_config, composing, explain_value, seed_of
from vestige.engine.config import AnyConfig, RunConfig, compose_runs
from vestige.errors import UserError, unknown_name
from vestige.guard import inside

FINETUNE = "FinetuneTrainer"
# trainer.args of open-unlearning and of transformers, and what they are called in a Recipe.
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
# Said in guides, and without a meaning here: when to evaluate and what to save is ours. (logging_dir has its own way.)
IGNORED = (
    "eval_strategy", "eval_on_start", "do_train", "do_eval", "per_device_eval_batch_size", "bf16_full_eval",
    "output_dir", "logging_dir", "logging_steps", "save_strategy", "save_only_model", "remove_unused_columns",
    "hub_token",  # nothing is uploaded; transformers would write it into every checkpoint
)  # fmt: skip
HUB = ("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision")


@dataclass(frozen=True)
class TrainConfig:
    """One training, said completely."""

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
    checkpoints: bool = True  # of every epoch: a killed run goes on

    @property
    def method(self) -> str | None:
        return None if self.handler == FINETUNE else self.handler

    def describe(self) -> dict[str, Any]:
        hidden = (
            "evaluation",
            "progress",
            "overwrite",
            "output_dir",
            "checkpoints",
            *(() if self.plugins else ("plugins",)),
        )
        return {k: v for k, v in vars(self).items() if k not in hidden}


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
            parts: Any = {k: _plain(cfg, k) for k in ("model", "trainer", "data", "lora", "evaluate")}
            task_name = inside(str(cfg.task_name), "task_name")
            output_dir, mode = str(cfg.paths.output_dir), str(cfg.mode)
            flags = {k: bool(cfg.get(k)) for k in ("progress", "overwrite")}
            flags["checkpoints"] = bool(cfg.get("checkpoints", True))
            seed = seed_of(cfg)
        except OmegaConfBaseException as error:
            raise explain_value(error) from None
    trainer, evaluate = parts["trainer"] or {}, parts["evaluate"] or {}
    args = trainer.get("args") or {}
    if evaluating is None:
        evaluating = str(args.get("eval_strategy", "no")) == "epoch"
    evaluation = None
    if evaluating:
        evaluation = _evaluation(
            evaluate, lambda only: compose_runs(overrides, config_name, config_dir, only, plugins, values)[0]
        )
    data = dict(parts["data"] or {})
    return TrainConfig(
        mode=mode,
        task_name=task_name,
        output_dir=Path(output_dir),
        model_args=parts["model"].get("model_args") or {},
        tokenizer_args=parts["model"].get("tokenizer_args") or {},
        template_args=parts["model"].get("template_args") or {},
        handler=str(trainer.get("handler") or FINETUNE),
        args=args,
        method_args=trainer.get("method_args") or {},
        data={k: v for k, v in data.items() if k in ("train", "forget", "retain")},
        lora=parts["lora"],
        seed=seed,
        limit=data.get("max_samples"),
        local=data.get("local") or {},
        best=evaluate.get("best"),
        evaluation=evaluation,
        plugins=tuple(plugins),
        **flags,
    )


def _plain(cfg: Any, key: str) -> Any:
    """One branch of the configuration as plain data, its interpolations resolved in the whole tree."""
    from omegaconf import OmegaConf

    node = cfg.get(key)
    # A knob that is left open (???) would reach the method as a text.
    missing = key == "trainer"
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=missing) if OmegaConf.is_config(node) else node


def _evaluation(evaluate: Mapping[str, Any], compose: Callable[[list[str] | None], AnyConfig]) -> RunConfig:
    metrics, best = evaluate.get("metrics"), evaluate.get("best")
    best = {} if rule_of(best) is None or isinstance(best, str) else best
    wanted = [*(metrics or []), *(m for m in (best or {}) if metrics and m not in metrics)]
    run = compose(wanted or None)
    if not isinstance(run, RunConfig):
        raise UserError("Evaluation while training takes a suite of metrics (eval=tofu), not a harness of tasks.")
    for name in best or {}:
        if name not in run.suite.metrics:
            raise unknown_name("metric", name, run.suite.metrics, "(evaluate.best)")
    return run


def recipe_of(config: TrainConfig) -> Any:
    """trainer.args as a Recipe; what it does not know goes to transformers as it is."""
    from vestige.unlearn.recipe import Lora, TrainingRecipe

    for name in HUB:
        if config.args.get(name):
            raise UserError(
                f"trainer.args.{name} has no effect here: nothing is uploaded. Leave it out, and upload the finished "
                "checkpoint with `hf upload`."
            )
    known = {RECIPE_NAMES[k]: v for k, v in config.args.items() if k in RECIPE_NAMES and v is not None}
    extra = {k: v for k, v in config.args.items() if k not in (*RECIPE_NAMES, *IGNORED) and v is not None}
    for name in ("epochs", "lr", "batch_size", "accumulation"):
        if name in known and float(known[name]) <= 0:
            raise UserError(f"The training setting '{name}' must be more than 0, it is {known[name]}.")
    if "lr" in known:
        known["lr"] = float(known["lr"])
    if config.lora is None:
        return TrainingRecipe(**known, extra=extra)
    strange = [k for k in config.lora if k not in Lora.__dataclass_fields__]
    if strange:
        raise unknown_name("setting of lora", strange[0], list(Lora.__dataclass_fields__))
    lora = Lora(**config.lora)
    if not isinstance(lora.rank, int) or lora.rank < 1:
        raise UserError(f"The rank of an adapter (--lora) must be a whole number of at least 1, it is {lora.rank}.")
    return TrainingRecipe(**known, extra=extra, lora=lora)


def check_training(config: TrainConfig) -> None:
    """Refuses settings and knobs that no training could follow, without reading a model or a row."""
    from vestige.unlearn.methods import split_knobs

    recipe_of(config)
    if config.method is not None:
        split_knobs(config.method, config.method_args)


def rule_of(best: Mapping[str, float] | str | None) -> Mapping[str, float] | str | None:
    """The rule that evaluate.best states: weights of metrics, or a rule's name."""
    from vestige.verdict.best import rule_named

    rule_named(best)
    return best
