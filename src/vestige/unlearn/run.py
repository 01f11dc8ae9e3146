"""`vestige train` and `vestige unlearn`: from configuration to a checkpoint directory with a record of how it was made.

configuration --rows--> unlearn.train --> OUT/  model or adapter, tokenizer, training.json
                                          OUT/evals/epoch-N   evaluations while training, if asked for
                                          OUT/best/           the checkpoint with the best score, if one is stated

Callers: unlearn/flags.py for the two verbs. The checkpoint is read by `vestige eval` like any other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.configs.compose import compose_config, composing, explain_value, seed_of
from vestige.data.datasets import make_context
from vestige.engine.config import AnyConfig, RunConfig, compose_runs
from vestige.engine.evaluate import evaluate_config
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import make_template, model_args
from vestige.errors import UserError, unknown_name
from vestige.guard import inside
from vestige.installing import install, scratch
from vestige.integrations.plugin_files import plugin_digests
from vestige.journal import JOURNAL
from vestige.models.load import LoadedModel, load_model, wrap_model
from vestige.ownership import adopt, is_ours, keep_apart, ours_below, permit
from vestige.schema import misfit
from vestige.secrets import masked
from vestige.show.progress import Steps, hushed
from vestige.store.checksums import NAME as SEAL
from vestige.store.checksums import adopt_earlier, pass_over, refuse_other_kind, seal
from vestige.store.files import read_json, write_json
from vestige.store.lock import writing
from vestige.store.manifest import NAME, manifest
from vestige.store.results import versions
from vestige.unlearn.rows import RowReading, TrainingRows, read_training_rows

log = logging.getLogger("vestige.unlearn")

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
# Said in guides, and without a meaning here: evaluation, logging and saving are ours.
IGNORED = (
    "eval_strategy", "eval_on_start", "do_train", "do_eval", "per_device_eval_batch_size", "bf16_full_eval",
    "output_dir", "logging_dir", "logging_steps", "report_to", "save_strategy", "save_only_model",
    "remove_unused_columns",
)  # fmt: skip


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
    best: Mapping[str, float] | None
    evaluation: RunConfig | None = None  # what to measure after each epoch
    plugins: tuple[str, ...] = ()

    @property
    def method(self) -> str | None:
        return None if self.handler == FINETUNE else self.handler

    def describe(self) -> dict[str, Any]:
        hidden = ("evaluation", "progress", "overwrite", "output_dir", *(() if self.plugins else ("plugins",)))
        return {k: v for k, v in vars(self).items() if k not in hidden}


@dataclass
class TrainOutcome:
    directory: Path
    record: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


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
    return TrainingRecipe(**known, extra=extra, lora=Lora(**config.lora))


def check_training(config: TrainConfig) -> None:
    """Refuses settings and knobs that no training could follow, without reading a model or a row."""
    from vestige.unlearn.methods import split_knobs

    recipe_of(config)
    if config.method is not None:
        split_knobs(config.method, config.method_args)


def run_training(config: TrainConfig) -> TrainOutcome:
    """Trains in a folder beside the results; they are moved into place, over earlier ones, when they are whole."""
    from vestige.unlearn.lesson import Lesson
    from vestige.unlearn.trainer import TrainingWatch, save_model, train

    started = time.perf_counter()
    recipe = recipe_of(config)
    keep_apart(config.output_dir, _inputs(config))
    with writing(config.output_dir), scratch(config.output_dir) as made:
        _check_place(config)
        loaded = load_model(model_args(config))  # type: ignore[arg-type]
        notes = list(loaded.notes)
        rows = _read(config, loaded, notes)
        main = rows["train" if config.method is None else "forget"]
        diary = Diary(config, loaded, save_model, made)
        if config.evaluation is not None and config.args.get("eval_on_start"):
            diary.look(0.0, loaded.model)
        retain = rows["retain"].rows if "retain" in rows else ()
        lesson = Lesson(main.rows, config.method, config.method_args, retain, main.alternates)
        with Steps("training", config.progress) as steps:
            watch = TrainingWatch(diary.look if config.evaluation is not None else None, steps)
            trained = train(loaded, lesson, made, recipe, watch)
        record = {
            "mode": config.mode,
            "config": config.describe(),
            "settings": trained.settings,
            "model": {"name": loaded.name, "fingerprint": loaded.fingerprint, "dtype": loaded.dtype},
            "data": {kind: read.sources for kind, read in rows.items()},
            "losses": [x if math.isfinite(x) else None for x in trained.losses],
            "evals": diary.evals,
            "best": diary.best,
            "seconds": round(time.perf_counter() - started, 2),
            "versions": versions(),
            **({"plugins": plugin_digests(config.plugins)} if config.plugins else {}),
            "notes": [*notes, *trained.notes],
        }
        record = masked(record)
        write_json(made / RECORD, record)
        facts = {k: record[k] for k in ("model", "data", "seconds", "notes")}
        write_json(made / NAME, manifest("train", record["config"], mode=config.mode, **facts))
        seal(made, "train")  # moved with the rest: what is installed is sealed
        install(made, config.output_dir, last=RECORD, patient=True)
        pass_over(config.output_dir)
    return TrainOutcome(config.output_dir, record, [*notes, *trained.notes])


RECORD = "training.json"
WEIGHTS = ("model*.safetensors*", "adapter_model*", "adapter_config.json", "config.json", RECORD)
# What else the libraries write, as far as it is known beforehand.
BESIDE = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "vocab.*", "merges.txt", "*.model", NAME, SEAL,
)  # fmt: skip


def _inputs(config: TrainConfig) -> dict[str, Any]:
    """The files that are read, by what the user calls them."""
    rows = {}
    for kind, sets in config.data.items():
        for name, said in (sets or {}).items():
            path = ((said.get("args") or {}).get("hf_args") or {}).get("path") if isinstance(said, Mapping) else None
            rows[f"--{'data' if kind == 'train' else kind} ({name})"] = path
    model, tokenizer = (a.get("pretrained_model_name_or_path") for a in (config.model_args, config.tokenizer_args))
    return {"--model": model, "--tokenizer": tokenizer, **rows}


def _check_place(config: TrainConfig) -> None:
    """An old checkpoint is not trained over by accident, and one that is not ours not at all. Nothing is removed."""
    out = config.output_dir
    refuse_other_kind(out, "train")
    _adopt_earlier(out)
    old = [path for pattern in WEIGHTS for path in out.glob(pattern)]
    if old and not config.overwrite:
        raise UserError(f"{out} already holds a checkpoint; choose another place (--out DIR) or add --overwrite.")
    places = [out, *([out / "best"] if config.best else [])]
    permit(*(path for place in places for pattern in (*WEIGHTS, *BESIDE) for path in place.glob(pattern)))
    if config.evaluation is not None:
        permit(*(path for folder in out.glob("evals/epoch-*") for path in folder.glob("*.json")))


class _Record(TypedDict):
    settings: Any
    versions: dict[str, Any]


def _adopt_earlier(out: Path) -> None:
    """A checkpoint of a version that kept no journal: its record vouches for weights, tokenizer and evaluations."""
    if is_ours(out / RECORD) or not (out / RECORD).is_file():
        return
    try:
        record = read_json(out / RECORD)
    except (OSError, ValueError, UserError):
        return
    if not misfit(record, _Record) and "vestige" in record["versions"]:
        found = [p for place in (out, out / "best") for pattern in (*WEIGHTS, *BESIDE) for p in place.glob(pattern)]
        for folder in out.glob("evals/epoch-*"):
            adopt_earlier(folder)
            found += [*ours_below(folder), folder / JOURNAL]
        adopt(out, [p.relative_to(out).as_posix() for p in found], by="install:")


def _read(config: TrainConfig, loaded: LoadedModel, notes: list[str]) -> dict[str, TrainingRows]:
    template = make_template(config.template_args, loaded.tokenizer, notes)
    context = make_context(loaded.tokenizer, template, "none", "count")
    context.longest = ModelHandle(None, loaded).context_length
    reading = RowReading(context, config.local, config.limit, config.seed)
    kinds = ("train",) if config.method is None else ("forget", "retain")
    out = {kind: read_training_rows(config.data[kind], reading) for kind in kinds if config.data.get(kind)}
    if kinds[0] not in out:
        raise UserError(f"No rows to {config.mode}; give data.{kinds[0]}.")
    return out


class Diary:
    """Evaluates after each epoch and keeps the checkpoint whose stated score is best."""

    def __init__(self, config: TrainConfig, loaded: LoadedModel, save: Any, place: Path) -> None:
        self.config, self.loaded, self.save, self.place = config, loaded, save, place
        self.evals: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    def look(self, epoch: float, model: Any) -> None:
        assert self.config.evaluation is not None
        label = f"epoch-{epoch:g}"
        kind = self.loaded.diffusion.kind if self.loaded.diffusion else None
        seen = wrap_model(model, self.loaded.tokenizer, f"{self.config.task_name} {label}", kind)
        run = replace(self.config.evaluation, output_dir=self.place / "evals" / label, progress=False)
        with hushed():
            outcome = evaluate_config(run, seen)
        values = {name: outcome.scores[name].agg_value for name in (*outcome.top, *(self.config.best or {}))}
        score = stated_score(values, self.config.best) if self.config.best else None
        self.evals.append({"epoch": epoch, "score": score, "values": values})
        if score is not None and (self.best is None or score > self.best["score"]):
            self.save(replace(self.loaded, model=model), self.place / "best")
            self.best = {"epoch": epoch, "score": score, "rule": dict(self.config.best or {}), "path": "best"}
        elif self.config.best and score is None:
            log.warning("%s has no score: one of %s has no value.", label, ", ".join(self.config.best))


def stated_score(values: Mapping[str, float | None], rule: Mapping[str, float]) -> float | None:
    """The weighted sum of metrics; None when one of them has no value.

    >>> stated_score({"forget_Q_A_Prob": 0.25, "model_utility": 0.5}, {"forget_Q_A_Prob": -1, "model_utility": 1})
    0.25
    """
    total = 0.0
    for name, weight in rule.items():
        value = values.get(name)
        if value is None or math.isnan(value):
            return None
        total += weight * value
    return total
