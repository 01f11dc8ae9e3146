"""What a training is asked to do: the composed configuration of `vestige train` and `vestige unlearn`.

`training_config` takes the options of a command line, `compose_training` Hydra overrides; both return a TrainConfig for
unlearn/run.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR, compose_config, composing, explain_value, seed_of
from vestige.engine.config import AnyConfig, RunConfig, compose_runs
from vestige.errors import UserError, unknown_name
from vestige.guard import inside
from vestige.in_memory import name_list
from vestige.options import settings_of

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


# ---- from options ----------------------------------------------------------------------------------------------------


def training_config(
    mode: str,
    words: Sequence[str] = (),
    *,
    model: Any = None,
    learn: Sequence[str] = (),
    forget: Sequence[str] = (),
    retain: Sequence[str] = (),
    data: str | None = None,
    method: str | None = None,
    alternate: str | None = None,
    knobs: Sequence[str] = (),
    out: Any = None,
    task_name: str | None = None,
    overwrite: bool = False,
    batch_size: int | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    accumulation: int | None = None,
    lora: int | None = None,
    retain_logs: Any = None,
    metrics: Any = None,
    eval_data: str | None = None,
    keep_best: str | None = None,
    config_dir: Any = None,
    config_name: str | None = None,
    plugins: Sequence[str] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainConfig:
    """The training that a command line means; `settings` are options that an evaluation has as well.

    `mode`: train or unlearn. `words` are Hydra overrides; they win over options.
    """
    strange = [word for word in words if "=" not in word and not word.startswith("~")]
    if strange and mode == "unlearn" and method is None:  # who writes one word means a method
        names = ", ".join(_method_names())
        raise UserError(f"Cannot read the word '{strange[0]}'; a method is given as --method NAME: {names}.")
    if strange:
        raise UserError(f"Cannot read '{strange[0]}'; overrides are written KEY=VALUE.")
    if data:
        forget, retain = _rows_in(data, forget, retain)
        if metrics or keep_best or retain_logs:
            eval_data = eval_data or data
    for knob in knobs:
        if "=" not in knob:
            raise UserError(f"--knob takes NAME=VALUE, as in --knob beta=0.3; it is '{knob}'.")
    # With rows or a model of one's own, any checkpoint is meant; otherwise the configuration names one.
    is_own = bool(model or learn or forget or retain or data)
    choices = []
    if is_own and not any(word.startswith("model=") for word in words):
        choices.append("model=local")
    if method:
        choices += _trainer_of(method)
    choices += [f"++trainer.method_args.{knob}" for knob in knobs]
    if task_name is None and is_own:
        if out:
            task_name = Path(out).absolute().name.replace("..", "_") or "run"
        else:
            start = Path(str(model or "model")).name
            task_name = f"{start}_{method}" if method else start
    logs = None if retain_logs is None else str(retain_logs)
    best = keep_best or ("closest" if logs else None)
    metric_names = name_list(metrics)
    values = settings_of({**settings, "model": model, "out": out, "task_name": task_name})
    training: dict[str, Any] = {
        "trainer.args.num_train_epochs": epochs,
        "trainer.args.learning_rate": lr,
        "trainer.args.per_device_train_batch_size": batch_size,
        "trainer.args.gradient_accumulation_steps": accumulation,
        "lora.rank": lora,
        "lora.alpha": None if lora is None else 2 * lora,
        "overwrite": overwrite or None,
        "progress": None if progress else False,
        "evaluate.metrics": metric_names or None,
        "evaluate.best": _best_rule(best),
    }
    values |= {key: value for key, value in training.items() if value is not None}
    evaluating = True if eval_data or metrics or keep_best or logs else None
    directory = Path(config_dir) if config_dir else None
    file = config_name or f"{mode}.yaml"
    composed = [*choices, *words]
    config = compose_training(composed, file, directory, evaluating, plugins, values)
    if logs and config.evaluation is not None:  # only the composed configuration knows the suite
        values[f"eval.{config.evaluation.suite.name}.retain_logs_path"] = logs
        config = compose_training(composed, file, directory, evaluating, plugins, values)
    rows = dict(config.data)
    for kind, files in (("forget", forget), ("retain", retain), ("train", learn)):
        if files:
            rows[kind] = _data_sets(kind, files)
    if forget and not retain and not any("data.retain" in word for word in words):
        rows.pop("retain", None)  # rows of one's own are not mixed with a benchmark's
    if alternate is not None:
        rows["forget"] = _with_alternate(rows["forget"], alternate)
    config = replace(config, data=rows)
    return _evaluating_on(config, eval_data) if eval_data else config


def _rows_in(folder: str, forget: Sequence[str], retain: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of forget and retain rows in a folder."""
    from vestige.data.rows import file_in

    for kind, named in (("forget", forget), ("retain", retain)):
        if named:
            raise UserError(f"The {kind} rows are named twice, by --{kind} and by --data; give one of them.")
    forget_file, retain_file = file_in(folder, "forget"), file_in(folder, "retain")
    if forget_file is None:
        raise UserError(f"--data {folder} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget.")
    return [forget_file], [] if retain_file is None else [retain_file]


def _configured_methods() -> dict[str, str]:
    """Methods by key -> the name of the configuration that trains with them."""
    from vestige.unlearn.methods import METHODS, method_key

    configured = {}
    for path in (PACKAGE_DIR / "trainer").glob("*.yaml"):
        key = method_key(path.stem)
        if key in METHODS:
            configured[key] = path.stem
    return configured


def _method_names() -> list[str]:
    """Every method as it is written: by its configuration's name, or where it has none (a plug-in's) its own."""
    from vestige.unlearn.methods import METHODS

    configured = _configured_methods()
    return sorted(configured.get(key, key) for key in METHODS)


def _trainer_of(method: str) -> list[str]:
    """The overrides for a method in any spelling: its configuration, or (a plug-in's) the plain one."""
    from vestige.unlearn.methods import METHODS, method_key

    key, configured = method_key(method), _configured_methods()
    if key not in METHODS:
        raise unknown_name("unlearning method", method, _method_names())
    if key in configured:
        return [f"trainer={configured[key]}"]
    return ["trainer=finetune", f"++trainer.handler={key}"]


def _best_rule(text: str | None) -> str | dict[str, float] | None:
    """The rule of --keep-best by its name, or weights of metrics.

    >>> _best_rule("closest"), _best_rule("forget_Q_A_Prob=-1,model_utility"), _best_rule(None)
    ('closest', {'forget_Q_A_Prob': -1.0, 'model_utility': 1.0}, None)
    """
    from vestige.verdict.best import RULES

    if text is None or text in RULES:
        return text
    weights = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if not name:
            continue
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            raise UserError(f"--keep-best takes NAME=WEIGHT,...; '{weight}' is not a number.") from None
    return weights or None


def _data_sets(kind: str, files: Sequence[str]) -> dict[str, Any]:
    """The data sets of one kind; the first has the name of its kind, others are counted."""
    sets = {}
    for number, file in enumerate(files):
        place = Path(file).expanduser()
        if not place.is_file():
            flag = "learn" if kind == "train" else kind
            wrong = "it is a directory" if place.is_dir() else "no such file"
            raise UserError(f"--{flag} {file}: {wrong}; give rows as .jsonl, .json, .csv or .parquet.")
        name = f"{kind}_{number + 1}" if number else kind
        sets[name] = {"handler": "AutoDataset", "args": {"hf_args": {"path": str(place)}}}
    return sets


def _with_alternate(sets: Mapping[str, Any], alternate: str) -> dict[str, Any]:
    """The forget rows with an answer to prefer: refusals (idk), or another of their columns."""
    changed = {}
    for name, config in sets.items():
        if alternate == "idk":
            changed[name] = {"handler": "QAwithIdkDataset", "args": config["args"]}
        else:
            changed[name] = {
                "handler": "QAwithAlternateDataset",
                "args": {**config["args"], "alternate_key": alternate},
            }
    return changed


def _evaluating_on(config: TrainConfig, folder: str) -> TrainConfig:
    """Evaluation while training reads the user's folder."""
    from vestige.data.rows import local_data

    run = config.evaluation
    assert run is not None
    local = local_data(run.suite.name, run.settings.get("local_data"), folder)
    return replace(config, evaluation=replace(run, missing="skip", local=local))
