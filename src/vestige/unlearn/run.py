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
from vestige.installing import hand_over, install, scratch, workshop
from vestige.integrations.plugin_files import plugin_digests
from vestige.models.load import LoadedModel, load_model
from vestige.models.quantised import cpu_setting
from vestige.ownership import pass_over, permit
from vestige.secrets import masked
from vestige.show.progress import Bar
from vestige.store.directories import (
    MANIFEST,
    SEAL,
    contents,
    manifest,
    refuse_other_kind,
    seal,
    writing,
)
from vestige.store.files import versions, write_json
from vestige.types import content_key
from vestige.unlearn.config import TrainConfig, recipe_of, rule_of
from vestige.unlearn.rows import RowReading, TrainingRows, read_training_rows
from vestige.writing import keep_apart

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
    """Trains in a folder beside the results, which outlives this process if it is killed."""
    started = time.perf_counter()
    recipe_of(config)
    keep_apart(config.output_dir, _inputs(config))
    with writing(config.output_dir):
        _check_place(config)
        loaded = load_model(model_args(config))  # type: ignore[arg-type]
        notes = list(loaded.notes)
        rows = _read(config, loaded, notes)
        with workshop(config.output_dir, _key(config, loaded, rows)) as shop:
            callback = watching(config, loaded, shop)
            trained = _trained(config, loaded, rows, shop, callback)
            record = _record(config, loaded, rows, trained, notes) | _looks(config, callback)
            record = masked(record | {"seconds": round(time.perf_counter() - started, 2)})
            _finish(config, loaded, record, shop)
        pass_over(config.output_dir, contents(config.output_dir)[0])
    return TrainOutcome(config.output_dir, record, [*notes, *trained.notes])


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


def _finish(config: TrainConfig, loaded: LoadedModel, record: dict[str, Any], shop: Path) -> None:
    """Everything that belongs to the result, moved over earlier ones when it is whole."""
    from vestige.unlearn.trainer import save_model

    with scratch(config.output_dir) as made:
        hand_over(shop, made, "evals", "best", "runs")  # evaluations, the best checkpoint, TensorBoard's files
        save_model(loaded, made)
        write_json(made / RECORD, record)
        facts = {k: record[k] for k in ("model", "data", "seconds", "notes")}
        write_json(made / MANIFEST, manifest("train", record["config"], mode=config.mode, **facts))
        seal(made, "train")  # moved with the rest: what is installed is sealed
        install(made, config.output_dir, last=RECORD, patient=True)


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
        "notes": [*notes, *trained.notes],
    }


RECORD = "training.json"
WEIGHTS = ("model*.safetensors*", "adapter_model*", "adapter_config.json", "config.json", RECORD)
# What else the libraries write, as far as it is known beforehand.
BESIDE = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "vocab.*", "merges.txt", "*.model", MANIFEST, SEAL,
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
    old = [path for pattern in WEIGHTS for path in out.glob(pattern)]
    if old and not config.overwrite:
        raise UserError(f"{out} already holds a checkpoint; choose another place (--out DIR) or add --overwrite.")
    places = [out, *([out / "best"] if config.best else [])]
    permit(*(path for place in places for pattern in (*WEIGHTS, *BESIDE) for path in place.glob(pattern)))
    if config.evaluation is not None:
        permit(*(path for folder in out.glob("evals/epoch-*") for path in folder.glob("*.json")))


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
    callback.on_best = lambda model: save_model(replace(loaded, model=model), place / "best")
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
