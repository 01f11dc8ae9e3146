"""What a training is asked to do: the composed configuration of `vestige train` and `vestige unlearn`.

`training_config` takes the options of a command line, `compose_training` Hydra overrides; both return a TrainConfig for
run.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR, compose_config, composing, explain_value, seed_of
from vestige.data.rows import file_in, local_data
from vestige.engine.config import RunConfig, compose_runs
from vestige.errors import UserError, unknown_name
from vestige.guard import inside
from vestige.in_memory import name_list
from vestige.options import settings_of
from vestige.unlearn.methods import METHODS, method_key, split_knobs
from vestige.unlearn.recipe import recipe_from
from vestige.verdict.best import RULES, rule_named

FINETUNE = "FinetuneTrainer"


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
    recipe_from(config.args, config.lora)
    if config.method is not None:
        split_knobs(config.method, config.method_args)


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
        names = ", ".join(sorted(_method_names().values()))
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
    metrics = name_list(metrics)
    values = settings_of({**settings, "model": model, "out": out, "task_name": task_name})
    training: dict[str, Any] = {
        "trainer.args.num_train_epochs": epochs,
        "trainer.args.learning_rate": lr,
        "trainer.args.per_device_train_batch_size": batch_size,
        "trainer.args.gradient_accumulation_steps": accumulation,
        "lora.rank": lora,
        "lora.alpha": None if lora is None else 2 * lora,
        "eval.{suite}.retain_logs_path": logs,
        "overwrite": overwrite or None,
        "progress": None if progress else False,
        "evaluate.metrics": metrics or None,
        "evaluate.best": _best_rule(best) if best else None,
    }
    values |= {key: value for key, value in training.items() if value is not None}
    evaluating = True if eval_data or metrics or keep_best or logs else None
    directory = Path(config_dir) if config_dir else None
    file = config_name or f"{mode}.yaml"
    composed = [*choices, *words]
    config = compose_training(composed, file, directory, evaluating, plugins, values)
    rows = dict(config.data)
    for kind, files in (("forget", forget), ("retain", retain), ("train", learn)):
        if files:
            rows[kind] = _data_sets(kind, files)
    if forget and not retain and not any("data.retain" in word for word in words):
        rows.pop("retain", None)  # rows of one's own are not mixed with a benchmark's
    if alternate is not None:
        rows["forget"] = {name: _with_alternate(dataset, alternate) for name, dataset in rows["forget"].items()}
    config = replace(config, data=rows)
    run = config.evaluation
    if eval_data and run is not None:  # evaluation while training reads the user's folder
        local = local_data(run.suite.name, run.settings.get("local_data"), eval_data)
        config = replace(config, evaluation=replace(run, missing="skip", local=local))
    return config


def _rows_in(folder: str, forget: Sequence[str], retain: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of forget and retain rows in a folder."""
    for kind, named in (("forget", forget), ("retain", retain)):
        if named:
            raise UserError(f"The {kind} rows are named twice, by --{kind} and by --data; give one of them.")
    forget_file, retain_file = file_in(folder, "forget"), file_in(folder, "retain")
    if forget_file is None:
        raise UserError(f"--data {folder} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget.")
    return [forget_file], [] if retain_file is None else [retain_file]


def _method_names() -> dict[str, str]:
    """Methods -> the name of the configuration that trains with them; a plug-in's that has none is its own name."""
    names = {key: key for key in METHODS}
    for path in (PACKAGE_DIR / "trainer").glob("*.yaml"):
        if method_key(path.stem) in METHODS:
            names[method_key(path.stem)] = path.stem
    return names


def _trainer_of(method: str) -> list[str]:
    """The overrides for a method in any spelling: its configuration, or (a plug-in's) the plain one."""
    key, names = method_key(method), _method_names()
    if key not in names:
        raise unknown_name("unlearning method", method, names.values())
    if names[key] == key:
        return ["trainer=finetune", f"++trainer.handler={key}"]
    return [f"trainer={names[key]}"]


def _best_rule(text: str) -> str | dict[str, float]:
    """The rule of --keep-best by its name, or weights of metrics.

    >>> _best_rule("closest"), _best_rule("forget_Q_A_Prob=-1,model_utility")
    ('closest', {'forget_Q_A_Prob': -1.0, 'model_utility': 1.0})
    """
    if text in RULES:
        return text
    weights = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if not name:  # after a comma at the end
            continue
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            raise UserError(f"--keep-best takes NAME=WEIGHT,...; '{weight}' is not a number.") from None
    return weights


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


def _with_alternate(dataset: Mapping[str, Any], alternate: str) -> dict[str, Any]:
    """Forget rows with an answer to prefer: refusals (idk), or another of their columns."""
    if alternate == "idk":
        return {"handler": "QAwithIdkDataset", "args": dataset["args"]}
    return {"handler": "QAwithAlternateDataset", "args": {**dataset["args"], "alternate_key": alternate}}
