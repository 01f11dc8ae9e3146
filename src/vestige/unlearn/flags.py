"""The flags of `vestige train` and `vestige unlearn`, as configuration. Imports nothing heavy: --help is instant."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.engine.loading_flags import loading_flags, plugin_flag
from vestige.errors import UserError, unknown_name

# Flags that make a command a friendly one: the model configuration is then `local` unless model=NAME is given.
FRIENDLY = ("model", "data", "forget", "retain")


def add_verbs(verbs: Any) -> None:
    train = verbs.add_parser("train", help="fine-tune a model on rows", description="Fine-tune a model on rows.")
    files: dict[str, Any] = {"metavar": "FILE", "action": "append"}
    train.add_argument("--data", **files, help="rows to learn: question and answer, or text; may be repeated")
    unlearn = verbs.add_parser("unlearn", help="make a model forget rows", description="Make a model forget rows.")
    unlearn.add_argument("--method", metavar="NAME", help="NPO, GradDiff, RMU, ... (trainer=NAME)")
    unlearn.add_argument("--forget", **files, help="rows to forget; may be repeated")
    unlearn.add_argument("--retain", **files, help="rows to keep; may be repeated")
    unlearn.add_argument("--alternate", metavar="idk|COLUMN", help="answers to prefer (DPO): refusals, or a column")
    unlearn.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="of the method: beta=0.3")
    for verb in (train, unlearn):
        _shared(verb)
        verb.set_defaults(do=make_checkpoint, late="words")


def _shared(p: argparse.ArgumentParser) -> None:
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
    p.add_argument("--model", metavar="PATH", help="the model to start from: directory, adapter or hub id")
    p.add_argument("--out", metavar="DIR", help="output directory (default: saves/<verb>/<task_name>)")
    p.add_argument("--epochs", type=float, metavar="N", help="default: 10")
    p.add_argument("--lr", type=float, metavar="X", help="default: 1e-5")
    p.add_argument("--batch-size", type=int, metavar="N", help="rows in one forward (default: 8)")
    p.add_argument("--accumulation", type=int, metavar="N", help="forwards in one optimiser step (default: 4)")
    p.add_argument("--lora", nargs="?", type=int, const=8, metavar="RANK", help="train an adapter (rank 8), not all")
    p.add_argument("--eval-data", metavar="DIR", help="evaluate after each epoch on this folder")
    p.add_argument("--metrics", metavar="NAME,...", help="what to evaluate after each epoch")
    p.add_argument("--best", metavar="NAME=WEIGHT,...", help="keep the checkpoint with the largest weighted sum")
    p.add_argument("--system-prompt", metavar="TEXT")
    p.add_argument("--limit", type=int, metavar="N", help="first N rows of every data set")
    loading_flags(p)
    p.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is already there")
    p.add_argument("--task-name", metavar="NAME")
    p.add_argument("--seed", type=int)
    p.add_argument("--config-name", help=argparse.SUPPRESS)
    p.add_argument("--config-dir", metavar="DIR", help="your own config groups, before ours")
    plugin_flag(p, "unlearning methods, metrics, data sets")
    p.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


def config_of(args: argparse.Namespace) -> Any:
    """The TrainConfig that a command line means."""
    from vestige.integrations.plugins import load_plugins
    from vestige.unlearn.run import compose_training

    load_plugins(args.plugin)
    strange = [w for w in args.words if "=" not in w and not w.startswith("~")]
    if strange:
        raise UserError(f"Cannot read '{strange[0]}'; overrides are written KEY=VALUE.")
    evaluating = True if args.eval_data or args.metrics or args.best else None
    config_dir = Path(args.config_dir) if args.config_dir else None
    name = args.config_name or f"{args.verb}.yaml"
    config = compose_training([*_overrides(args), *args.words], name, config_dir, evaluating, args.plugin)
    given = {kind: getattr(args, kind, None) for kind in ("forget", "retain")} | {"train": getattr(args, "data", None)}
    data = {**config.data, **{kind: _files(kind, files) for kind, files in given.items() if files}}
    if given["forget"] and not given["retain"] and not any("data.retain" in w for w in args.words):
        data.pop("retain", None)  # rows of one's own are not mixed with a benchmark's
    config = replace(config, data=_with_alternates(data, getattr(args, "alternate", None)))
    return _with_folder(config, args.eval_data) if args.eval_data else config


def _overrides(args: argparse.Namespace) -> list[str]:
    from vestige.engine.friendly import quote

    friendly = any(getattr(args, name, None) for name in FRIENDLY)
    chosen = any(w.startswith("model=") for w in args.words)
    out = ["model=local"] if friendly and not chosen else []
    out += _method(args.method) if getattr(args, "method", None) else []
    said: dict[str, Any] = {
        "model.model_args.pretrained_model_name_or_path": args.model,
        "task_name": args.task_name or (_task_name(args) if friendly else None),
        "paths.output_dir": args.out,
        "trainer.args.num_train_epochs": args.epochs,
        "trainer.args.learning_rate": args.lr,
        "trainer.args.per_device_train_batch_size": args.batch_size,
        "trainer.args.gradient_accumulation_steps": args.accumulation,
        "lora.rank": args.lora,
        "lora.alpha": None if args.lora is None else 2 * args.lora,
        "model.template_args.system_prompt": args.system_prompt,
        "data.max_samples": args.limit,
        "model.model_args.torch_dtype": args.dtype,
        "model.model_args.device": args.device,
        "model.tokenizer_args.pretrained_model_name_or_path": args.tokenizer,
        "model.model_args.trust_remote_code": args.trust_remote_code or None,
        "overwrite": args.overwrite or None,
        "seed": args.seed,
        "progress": False if args.quiet else None,
    }
    out += [f"++{key}={quote(value)}" for key, value in said.items() if value is not None]
    if args.metrics:
        out.append(f"++evaluate.metrics=[{args.metrics}]")
    out += [f"++evaluate.best.{name}={weight}" for name, weight in _weights(args.best).items()]
    return out + [f"++trainer.method_args.{knob}" for knob in _knobs(getattr(args, "knob", []))]


def _method(name: str) -> list[str]:
    """The trainer of a method in any spelling: its configuration, or where it has none (a plug-in's) the plain one."""
    from vestige.configs.compose import PACKAGE_DIR
    from vestige.unlearn.methods import METHODS, method_key

    key = method_key(name)
    configs = [p.stem for p in (PACKAGE_DIR / "trainer").glob("*.yaml")]
    by_key = {method_key(stem): stem for stem in configs if method_key(stem) in METHODS}
    if key not in METHODS:
        raise unknown_name("unlearning method", name, sorted(by_key.get(key, key) for key in METHODS))
    return [f"trainer={by_key[key]}"] if key in by_key else ["trainer=finetune", f"++trainer.handler={key}"]


def _knobs(words: list[str]) -> list[str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"--knob takes NAME=VALUE, as in --knob beta=0.3; it is '{word}'.")
    return words


def _weights(text: str | None) -> dict[str, float]:
    """--best forget_Q_A_Prob=-1,model_utility=1

    >>> _weights("forget_Q_A_Prob=-1,model_utility")
    {'forget_Q_A_Prob': -1.0, 'model_utility': 1.0}
    """
    out = {}
    for part in (text or "").split(","):
        name, _, weight = part.strip().partition("=")
        if not name:
            continue
        try:
            out[name] = float(weight or 1)
        except ValueError:
            raise UserError(f"--best takes NAME=WEIGHT,...; '{weight}' is not a number.") from None
    return out


def _task_name(args: argparse.Namespace) -> str:
    if args.out:
        return Path(args.out).absolute().name.replace("..", "_") or "run"
    start = Path(str(args.model or "model")).name
    return "_".join(part for part in (start, getattr(args, "method", None)) if part)


def _files(kind: str, files: list[str]) -> dict[str, Any]:
    """The data sets of one kind; the first has the name of its kind, others are counted."""
    out = {}
    for number, file in enumerate(files):
        place = Path(file).expanduser()
        if not place.is_file():
            flag = "data" if kind == "train" else kind
            raise UserError(f"--{flag} {file}: no such file; give rows as .jsonl, .json, .csv or .parquet.")
        name = f"{kind}_{number + 1}" if number else kind
        out[name] = {"handler": "AutoDataset", "args": {"hf_args": {"path": str(place)}}}
    return out


def _with_alternates(data: dict[str, Any], alternate: str | None) -> dict[str, Any]:
    """The forget rows with an answer to prefer: refusals, or another of their columns."""
    if alternate is None:
        return data
    more = (
        {"handler": "QAwithIdkDataset"}
        if alternate == "idk"
        else {"handler": "QAwithAlternateDataset", "args": {"alternate_key": alternate}}
    )

    def changed(config: dict[str, Any]) -> dict[str, Any]:
        return {"handler": more["handler"], "args": {**config["args"], **more.get("args", {})}}  # type: ignore[dict-item]

    return {**data, "forget": {name: changed(config) for name, config in data["forget"].items()}}


def _with_folder(config: Any, folder: str) -> Any:
    """Evaluation while training reads the user's folder."""
    from vestige.engine.friendly import EvalAsk, local_data

    run = config.evaluation
    local = local_data(EvalAsk(suite=run.suite.name, data=folder), run)
    return replace(config, evaluation=replace(run, missing="skip", local=local))


def make_checkpoint(args: argparse.Namespace) -> int:
    from vestige.unlearn.run import check_training, run_training

    config = config_of(args)
    if args.cfg:
        check_training(config)
        return _print(config)

    outcome = run_training(config)
    record = outcome.record
    losses = [x for x in record["losses"] if x is not None]
    what = record["settings"]["method"] or "fine-tuning"
    rows = ", ".join(f"{sum(s['rows'] for s in read)} {kind} rows" for kind, read in record["data"].items())
    print(f"\n{record['model']['name']}  ({what}, {rows}, {len(record['losses'])} steps, {record['seconds']:.1f} s)")
    if losses:
        print(f"loss:  {losses[0]:.4f} -> {losses[-1]:.4f}")
    for look in record["evals"]:
        values = "  ".join(f"{k} {'-' if v is None else format(v, '.4f')}" for k, v in look["values"].items())
        score = "" if look["score"] is None else f"  score {look['score']:.4f}"
        print(f"epoch {look['epoch']:g}:  {values}{score}")
    if record["best"]:
        print(f"best:  epoch {record['best']['epoch']:g}, in {outcome.directory / 'best'}")
    for note in outcome.notes:
        print(f"note: {note}")
    print(f"files: {outcome.directory}")
    return 0


def _print(config: Any) -> int:
    from omegaconf import OmegaConf

    body = {k: v for k, v in vars(config).items() if k != "evaluation"}
    print(OmegaConf.to_yaml(OmegaConf.create({**body, "output_dir": str(config.output_dir)})))
    return 0
