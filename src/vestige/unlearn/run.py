"""`vestige train` and `vestige unlearn`: from configuration to a checkpoint directory with a record of how it was made.

configuration --rows--> trainer.train --> OUT/  model or adapter, tokenizer, training.json
                                          OUT/evals/epoch-N   evaluations while training, if asked for
                                          OUT/best/           the checkpoint with the best score, if one is stated

The checkpoint is read by `vestige eval` like any other.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.adapters.plugins import plugin_digests
from vestige.data.chat import make_template
from vestige.data.datasets import make_context
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.models.load import LoadedModel, load_model
from vestige.models.quantised import cpu_setting
from vestige.runs.directory import (
    RunDirectory,
    delete,
    install,
    is_listed,
    not_ours,
    open_run,
    refuse_input_in_output,
)
from vestige.runs.files import write_json
from vestige.runs.manifest import manifest, versions
from vestige.secrets import masked
from vestige.show.progress import Bar
from vestige.types import content_key
from vestige.unlearn.config import TrainConfig
from vestige.unlearn.lesson import Lesson, TrainingRows, read_training_rows
from vestige.unlearn.live import WatchSettings, path_list
from vestige.unlearn.recipe import TrainingRecipe, recipe_from
from vestige.unlearn.trainer import Trained, TrainingWatch, save_model, train
from vestige.unlearn.watch import Callback
from vestige.verdict.best import rule_named

log = logging.getLogger("vestige.unlearn")

RECORD, RESULT = "training.json", "result"
WEIGHTS = ("model*.safetensors*", "adapter_model*", "adapter_config.json", "config.json", RECORD)
# What else the libraries write, as far as it is known beforehand.
OTHER_FILES = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "vocab.*", "merges.txt", "*.model",
)  # fmt: skip


@dataclass
class TrainOutcome:
    directory: Path
    record: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


def run_training(config: TrainConfig) -> TrainOutcome:
    """Trains in a folder of the output directory, which outlives this process if it is killed."""
    started = time.perf_counter()
    recipe, out = recipe_from(config.args, config.lora), config.output_dir
    refuse_input_in_output(out, _inputs(config))
    with open_run(out, "train") as run:
        _check_place(config, run)
        loaded = load_model(model_args(config))  # type: ignore[arg-type]
        notes = list(loaded.notes)
        rows = _read_rows(config, loaded, notes)
        with run.workspace(_key(config, loaded, rows)) as shop:
            result = shop / RESULT
            if not result.is_dir():  # else a process was killed while it moved the result into place
                callback = _make_callback(config, loaded, shop)
                trained = _train(config, recipe, loaded, rows, shop, callback)
                notes += trained.notes
                model = {"name": loaded.name, "fingerprint": loaded.fingerprint, "dtype": loaded.dtype}
                record = {
                    "mode": config.mode,
                    "config": config.describe(),
                    "settings": trained.settings,
                    "model": {**model, **cpu_setting()},
                    "data": {kind: read.sources for kind, read in rows.items()},
                    "losses": [loss if math.isfinite(loss) else None for loss in trained.losses],
                    **_evaluations(config, callback),
                    "versions": versions(),
                    "notes": notes,
                    "seconds": round(time.perf_counter() - started, 2),
                }
                if config.plugins:
                    record["plugins"] = plugin_digests(config.plugins)
                # All that belongs to the result in one folder, which has its name when it is whole.
                made = shop / "unfinished"
                delete(made)
                save_model(loaded, made)
                write_json(made / RECORD, masked(record))
                for name in ("evals", "best", "runs"):  # evaluations, the best checkpoint, TensorBoard's files
                    if (shop / name).is_dir():
                        (shop / name).rename(made / name)
                made.rename(result)
            where = result if (result / RECORD).is_file() else out
            record = read_json(where / RECORD)
            run.begin()
            install(result, out, last=RECORD)
            facts = {key: record[key] for key in ("model", "data", "seconds", "notes")}
            run.finish(manifest("train", record["config"], mode=config.mode, **facts))
    return TrainOutcome(out, record, notes)


def _train(
    config: TrainConfig,
    recipe: TrainingRecipe,
    loaded: LoadedModel,
    rows: Mapping[str, TrainingRows],
    shop: Path,
    callback: Callback | None,
) -> Trained:
    taught = rows["train" if config.method is None else "forget"]
    retain = rows["retain"].rows if "retain" in rows else ()
    lesson = Lesson(taught.rows, config.method, config.method_args, retain, taught.alternates)
    with Bar("training", 0, "step", config.progress) as bar:

        def count_steps(done: int, total: int) -> None:
            if done == 0:
                bar.expect(0, total)
            bar.to(done)

        watch = TrainingWatch(
            callbacks=[callback] if callback else [],
            on_step=count_steps,
            save=False,
            checkpoints=shop if config.checkpoints else None,
            logging_dir=config.args.get("logging_dir"),
        )
        return train(loaded, lesson, shop, recipe, watch)


def _key(config: TrainConfig, loaded: LoadedModel, rows: Mapping[str, TrainingRows]) -> str:
    """Names a training by all that decides its weights: only the same one resumes an interrupted run."""
    run = config.evaluation
    parts = [
        config.describe(),
        None if run is None else run.describe(),
        [loaded.fingerprint, loaded.dtype, loaded.device],
        {kind: read.sources for kind, read in rows.items()},
        versions(),
        plugin_digests(config.plugins) if config.plugins else {},
    ]
    return content_key(json.dumps(parts, sort_keys=True, default=str).encode())[:16]


def _inputs(config: TrainConfig) -> dict[str, Any]:
    """The files that are read, by what the user calls them."""
    model, tokenizer = (a.get("pretrained_model_name_or_path") for a in (config.model_args, config.tokenizer_args))
    inputs = {"--model": model, "--tokenizer": tokenizer}
    for kind, datasets in config.data.items():
        for name, dataset in (datasets or {}).items():
            args = dataset.get("args") if isinstance(dataset, Mapping) else None
            path = ((args or {}).get("hf_args") or {}).get("path")
            inputs[f"--{'data' if kind == 'train' else kind} ({name})"] = path
    return inputs


def _check_place(config: TrainConfig, run: RunDirectory) -> None:
    """An old checkpoint is not trained over by accident, and one that is not ours not at all. Nothing is removed."""
    out = config.output_dir
    has_weights = any(path for pattern in WEIGHTS for path in out.glob(pattern))
    if has_weights and not config.overwrite and run.state != "unfinished":
        raise UserError(f"{out} already holds a checkpoint; choose another place (--out DIR) or add --overwrite.")
    replaced = list(out.glob("evals/epoch-*/*.json")) if config.evaluation is not None else []
    for place in [out, out / "best"] if config.best else [out]:
        for pattern in (*WEIGHTS, *OTHER_FILES):
            replaced += place.glob(pattern)
    for path in replaced:
        if path.is_symlink() or not is_listed(path):
            raise not_ours(path)


def _read_rows(config: TrainConfig, loaded: LoadedModel, notes: list[str]) -> dict[str, TrainingRows]:
    template = make_template(config.template_args, loaded.tokenizer, notes)
    context = make_context(loaded.tokenizer, template, "none", "count")
    context.longest = ModelHandle(None, loaded).context_length
    kinds = ("train",) if config.method is None else ("forget", "retain")
    rows = {}
    for kind in kinds:
        if config.data.get(kind):
            rows[kind] = read_training_rows(config.data[kind], context, config.local, config.limit, config.seed)
    if kinds[0] not in rows:
        raise UserError(f"No rows to {config.mode}; give data.{kinds[0]}.")
    return rows


def _make_callback(config: TrainConfig, loaded: LoadedModel, place: Path) -> Callback | None:
    """The callback that evaluates while training, if any is asked for; the best checkpoint goes to `place`/best."""
    run = config.evaluation
    if run is None:
        return None
    needs_start = isinstance(config.best, str)  # a rule by name compares with the model before
    settings = WatchSettings(
        path_list(run.settings.get("retain_logs_path")),
        rule=rule_named(config.best),
        at_start=bool(config.args.get("eval_on_start")) or needs_start,
        on_error="raise",
        label="epoch",
        name=config.task_name,
        diffusion=loaded.diffusion.kind if loaded.diffusion else None,
    )
    callback = Callback.of(run, place / "evals", settings, loaded.tokenizer)

    def save_best(model: Any) -> None:
        """Whole before it replaces the one before."""
        made = place / "best-unfinished"
        delete(made)
        save_model(replace(loaded, model=model), made)
        delete(place / "best")
        made.rename(place / "best")

    callback.on_best = save_best
    return callback


def _evaluations(config: TrainConfig, callback: Callback | None) -> dict[str, Any]:
    """What training.json records of the evaluations."""
    if callback is None:
        return {"evals": [], "eval_seconds": 0.0, "best": None}
    looks, best = callback.looks, None
    if config.best:
        for look in looks:
            if look.score is None and look.step:
                log.warning("epoch-%g has no score: %s.", look.epoch, look.why)
        found = callback.best
        if found is not None:
            rule = config.best if isinstance(config.best, str) else dict(config.best)
            best = {"epoch": found.epoch, "score": found.score, "rule": rule, "path": "best"}
    return {
        "evals": [{"epoch": look.epoch, "score": look.score, "values": dict(look.values)} for look in looks],
        "eval_seconds": round(sum(look.seconds for look in looks), 2),
        "best": best,
    }
