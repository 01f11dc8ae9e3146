"""`vestige train` and `vestige unlearn`: from configuration to a checkpoint directory with a record of how it was made.

configuration --rows--> unlearn.train --> OUT/  model or adapter, tokenizer, training.json
                                          OUT/evals/epoch-N   evaluations while training, if asked for
                                          OUT/best/           the checkpoint with the best score, if one is stated

Callers: unlearn/flags.py for the two verbs. The checkpoint is read by `vestige eval` like any other.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.data.chat import make_template
from vestige.data.datasets import make_context
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.integrations.plugin_files import plugin_digests
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
from vestige.runs.manifest import manifest, versions
from vestige.secrets import masked
from vestige.show.progress import Bar
from vestige.store.files import write_json
from vestige.types import content_key
from vestige.unlearn.config import TrainConfig, recipe_of, rule_of
from vestige.unlearn.rows import RowReading, TrainingRows, read_training_rows

if TYPE_CHECKING:
    from vestige.unlearn.trainer import Trained
    from vestige.watch.callback import Callback

log = logging.getLogger("vestige.unlearn")


class Steps:
    """The bar of a training: called with (steps done, steps in all)."""

    def __init__(self, label: str, show: bool) -> None:
        self.bar = Bar(label, 0, "step", show)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.bar.close()

    def __call__(self, done: int, total: int) -> None:
        if done == 0:
            self.bar.expect(0, total)
        self.bar.to(done)


@dataclass
class TrainOutcome:
    directory: Path
    record: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


def run_training(config: TrainConfig) -> TrainOutcome:
    """Trains in a folder of the output directory, which outlives this process if it is killed."""
    started = time.perf_counter()
    recipe_of(config)
    refuse_input_in_output(config.output_dir, _inputs(config))
    with open_run(config.output_dir, "train") as run:
        _check_place(config, run)
        loaded = load_model(model_args(config))  # type: ignore[arg-type]
        notes = list(loaded.notes)
        rows = _read(config, loaded, notes)
        with run.workspace(_key(config, loaded, rows)) as shop:
            result = shop / RESULT
            if not result.is_dir():  # else a process was killed while it moved the result into place
                callback = watching(config, loaded, shop)
                trained = _trained(config, loaded, rows, shop, callback)
                notes += trained.notes
                record = _record(config, loaded, rows, trained, notes) | _looks(config, callback)
                record = masked(record | {"seconds": round(time.perf_counter() - started, 2)})
                _complete(loaded, record, shop)
            where = result if (result / RECORD).is_file() else config.output_dir
            record = read_json(where / RECORD)
            run.begin()
            install(result, config.output_dir, last=RECORD)
            facts = {k: record[k] for k in ("model", "data", "seconds", "notes")}
            run.finish(manifest("train", record["config"], mode=config.mode, **facts))
    return TrainOutcome(config.output_dir, record, notes)


def _key(config: TrainConfig, loaded: LoadedModel, rows: Mapping[str, TrainingRows]) -> str:
    """Names a training by all that decides its weights: only the same one goes on where it was interrupted."""
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


def _trained(
    config: TrainConfig, loaded: LoadedModel, rows: Mapping[str, TrainingRows], shop: Path, callback: Callback | None
) -> Trained:
    from vestige.unlearn.lesson import Lesson
    from vestige.unlearn.trainer import TrainingWatch, train

    main = rows["train" if config.method is None else "forget"]
    retain = rows["retain"].rows if "retain" in rows else ()
    lesson = Lesson(main.rows, config.method, config.method_args, retain, main.alternates)
    with Steps("training", config.progress) as steps:
        watch = TrainingWatch(
            callbacks=[callback] if callback else [],
            on_step=steps,
            save=False,
            checkpoints=shop if config.checkpoints else None,
            logging_dir=config.args.get("logging_dir"),
        )
        return train(loaded, lesson, shop, recipe_of(config), watch)


def _complete(loaded: LoadedModel, record: Mapping[str, Any], shop: Path) -> None:
    """Everything that belongs to the result in one folder, which is there when it is whole."""
    from vestige.unlearn.trainer import save_model

    made = shop / "unfinished"
    delete(made)
    save_model(loaded, made)
    write_json(made / RECORD, record)
    for name in ("evals", "best", "runs"):  # evaluations, the best checkpoint, TensorBoard's files
        if (shop / name).is_dir():
            (shop / name).rename(made / name)
    made.rename(shop / RESULT)


def _record(
    config: TrainConfig, loaded: LoadedModel, rows: Mapping[str, TrainingRows], trained: Trained, notes: list[str]
) -> dict[str, Any]:
    """How this checkpoint came about."""
    return {
        "mode": config.mode,
        "config": config.describe(),
        "settings": trained.settings,
        "model": {"name": loaded.name, "fingerprint": loaded.fingerprint, "dtype": loaded.dtype, **cpu_setting()},
        "data": {kind: read.sources for kind, read in rows.items()},
        "losses": [x if math.isfinite(x) else None for x in trained.losses],
        "evals": [],
        "best": None,
        "seconds": 0.0,
        "versions": versions(),
        **({"plugins": plugin_digests(config.plugins)} if config.plugins else {}),
        "notes": notes,
    }


RECORD, RESULT = "training.json", "result"
WEIGHTS = ("model*.safetensors*", "adapter_model*", "adapter_config.json", "config.json", RECORD)
# What else the libraries write, as far as it is known beforehand.
BESIDE = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "vocab.*", "merges.txt", "*.model",
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


def _check_place(config: TrainConfig, run: RunDirectory) -> None:
    """An old checkpoint is not trained over by accident, and one that is not ours not at all. Nothing is removed."""
    out = config.output_dir
    old = [path for pattern in WEIGHTS for path in out.glob(pattern)]
    if old and not config.overwrite and run.state != "unfinished":
        raise UserError(f"{out} already holds a checkpoint; choose another place (--out DIR) or add --overwrite.")
    places = [out, *([out / "best"] if config.best else [])]
    foreign = [path for place in places for pattern in (*WEIGHTS, *BESIDE) for path in place.glob(pattern)]
    if config.evaluation is not None:
        foreign += [path for folder in out.glob("evals/epoch-*") for path in folder.glob("*.json")]
    for path in foreign:
        if path.is_symlink() or not is_listed(path):
            raise not_ours(path)


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


def watching(config: TrainConfig, loaded: LoadedModel, place: Path) -> Callback | None:
    """The callback that evaluates on the way, if any is asked for; the best checkpoint goes to `place`/best."""
    from vestige.unlearn.trainer import save_model
    from vestige.watch.callback import Callback, WatchPlan
    from vestige.watch.looking import look_settings

    run = config.evaluation
    if run is None:
        return None
    rule = rule_of(config.best)
    logs = run.settings.get("retain_logs_path")
    settings = look_settings(logs, None, rule)
    kind = loaded.diffusion.kind if loaded.diffusion else None
    settings = replace(settings, label="epoch", name=config.task_name, diffusion=kind)
    needs_start = isinstance(rule, str)  # it compares with the model before
    plan = WatchPlan("epoch", at_start=bool(config.args.get("eval_on_start")) or needs_start, raises=True)
    callback = Callback.of(run, place / "evals", settings, plan, loaded.tokenizer)

    def save_best(model: Any) -> None:
        """Whole before it replaces the one before."""
        made = place / "best-unfinished"
        delete(made)
        save_model(replace(loaded, model=model), made)
        delete(place / "best")
        made.rename(place / "best")

    callback.on_best = save_best
    return callback


def _looks(config: TrainConfig, callback: Callback | None) -> dict[str, Any]:
    """What training.json records of the evaluations."""
    if callback is None:
        return {"evals": [], "eval_seconds": 0.0, "best": None}
    evals = [{"epoch": x.epoch, "score": x.rank.score, "values": dict(x.values)} for x in callback.looks]
    best = callback.best if config.best else None
    for look in callback.looks if config.best else ():
        if look.rank.score is None and look.step:
            log.warning("epoch-%g has no score: %s.", look.epoch, look.rank.why)
    rule = config.best if isinstance(config.best, str) else dict(config.best or {})
    found = best and {"epoch": best.epoch, "score": best.rank.score, "rule": rule, "path": "best"}
    return {"evals": evals, "eval_seconds": round(sum(x.seconds for x in callback.looks), 2), "best": found}
