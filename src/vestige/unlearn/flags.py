"""The flags of `vestige train` and `vestige unlearn`, as configuration. Imports nothing heavy: --help is instant."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.flags import settings_of, shared_flags

# Flags that make a command a friendly one: the model configuration is then `local` unless model=NAME is given.
FRIENDLY = ("model", "learn", "forget", "retain", "data")


def add_verbs(verbs: Any) -> None:
    train = verbs.add_parser("train", help="fine-tune a model on rows", description="Fine-tune a model on rows.")
    train.add_argument(
        "--learn", metavar="FILE", action="append", help="rows to learn: question and answer, or text; may be repeated"
    )
    _shared(train, "train")
    unlearn = verbs.add_parser("unlearn", help="make a model forget rows", description="Make a model forget rows.")
    unlearn.add_argument("--method", metavar="NAME", help="NPO, GradDiff, RMU, ... (trainer=NAME)")
    unlearn.add_argument("--alternate", metavar="idk|COLUMN", help="answers to prefer (DPO): refusals, or a column")
    unlearn.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="of the method: beta=0.3")
    many = {"action": "append", "says": "may be repeated"}
    _shared(unlearn, "unlearn", forget=many, retain=many, data="in place of --forget, --retain and --eval-data")


def _shared(p: argparse.ArgumentParser, verb: str, **here: Any) -> None:
    p.set_defaults(do=make_checkpoint, late="words")
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
    p.add_argument("--lora", nargs="?", type=int, const=8, metavar="RANK", help="train an adapter (rank 8), not all")
    p.add_argument("--eval-data", metavar="DIR", help="evaluate after each epoch on this folder")
    p.add_argument("--keep-best", metavar="RULE", help="keep the best checkpoint: closest, or weights NAME=WEIGHT,...")
    shared_flags(
        p,
        verb,
        model="to start from",
        out=f"default: saves/{verb}/<task_name>",
        epochs="default: 10",
        lr="default: 1e-5",
        batch_size="default: 8",
        accumulation="default: 4",
        metrics="to evaluate after each epoch",
        retain_logs="the yardstick of evaluations; keeps the closest checkpoint",
        **here,
    )


def config_of(args: argparse.Namespace) -> Any:
    """The TrainConfig that a command line means."""
    from vestige.data.rows import local_data
    from vestige.integrations.plugins import load_plugins
    from vestige.unlearn.recipe import compose_training

    load_plugins(args.plugin)
    method = getattr(args, "method", None)  # of unlearn only
    for word in args.words:
        if "=" in word or word.startswith("~"):
            continue
        if args.verb == "unlearn" and method is None:  # a method is what somebody means who writes one word
            names = ", ".join(sorted(_configurations().values()))
            raise UserError(f"Cannot read the word '{word}'; a method is given as --method NAME: {names}.")
        raise UserError(f"Cannot read '{word}'; overrides are written KEY=VALUE.")
    if getattr(args, "data", None):
        _use_folder(args)
    friendly = any(getattr(args, name, None) for name in FRIENDLY)
    words = []
    if friendly and not any(word.startswith("model=") for word in args.words):
        words.append("model=local")
    if method:
        words += _trainer_of(method)
    for knob in getattr(args, "knob", []):
        if "=" not in knob:
            raise UserError(f"--knob takes NAME=VALUE, as in --knob beta=0.3; it is '{knob}'.")
        words.append(f"++trainer.method_args.{knob}")
    words += args.words
    values = _values(args, args.task_name or (_task_name(args, method) if friendly else None))
    evaluating = True if args.eval_data or args.metrics or args.keep_best or args.retain_logs else None
    config_dir = Path(args.config_dir) if args.config_dir else None
    name = args.config_name or f"{args.verb}.yaml"
    config = compose_training(words, name, config_dir, evaluating, args.plugin, values)
    if args.retain_logs and config.evaluation is not None:  # only the composed configuration knows the suite
        values[f"eval.{config.evaluation.suite.name}.retain_logs_path"] = args.retain_logs
        config = compose_training(words, name, config_dir, evaluating, args.plugin, values)
    data = dict(config.data)
    for kind, flag in (("forget", "forget"), ("retain", "retain"), ("train", "learn")):
        files = getattr(args, flag, None)
        if files:
            data[kind] = _datasets(kind, flag, files)
    if getattr(args, "forget", None) and not args.retain and not any("data.retain" in w for w in args.words):
        data.pop("retain", None)  # rows of one's own are not mixed with a benchmark's
    alternate = getattr(args, "alternate", None)
    if alternate is not None:
        data["forget"] = {key: _with_alternate(dataset, alternate) for key, dataset in data["forget"].items()}
    config = replace(config, data=data)
    run = config.evaluation
    if args.eval_data and run is not None:  # evaluation while training reads the user's folder
        local = local_data(run.suite.name, run.settings.get("local_data"), args.eval_data)
        config = replace(config, evaluation=replace(run, missing="skip", local=local))
    return config


def _use_folder(args: argparse.Namespace) -> None:
    """--data DIR stands for the files in it, and for the folder that evaluations while training read."""
    from vestige.data.rows import file_in

    for kind in ("forget", "retain"):
        if getattr(args, kind):
            raise UserError(f"The {kind} rows are named twice, by --{kind} and by --data; give one of them.")
        file = file_in(args.data, kind)
        if file is not None:
            setattr(args, kind, [file])
    if not args.forget:
        raise UserError(
            f"--data {args.data} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget."
        )
    if args.metrics or args.keep_best or args.retain_logs:
        args.eval_data = args.eval_data or args.data


def _values(args: argparse.Namespace, task_name: str | None) -> dict[str, Any]:
    """What the flags say, as settings of the configuration."""
    # In an evaluation these three are other settings.
    shared = {key: value for key, value in vars(args).items() if key not in ("overwrite", "batch_size", "retain_logs")}
    best = args.keep_best or ("closest" if args.retain_logs else None)
    own: dict[str, Any] = {
        "trainer.args.num_train_epochs": args.epochs,
        "trainer.args.learning_rate": args.lr,
        "trainer.args.per_device_train_batch_size": args.batch_size,
        "trainer.args.gradient_accumulation_steps": args.accumulation,
        "overwrite": args.overwrite or None,
        "progress": False if args.quiet else None,
        "evaluate.best": _best_rule(best) if best else None,
    }
    if args.lora is not None:
        own |= {"lora.rank": args.lora, "lora.alpha": 2 * args.lora}
    if args.metrics:
        own["evaluate.metrics"] = [metric.strip() for metric in args.metrics.split(",") if metric.strip()]
    values = settings_of({**shared, "task_name": task_name})
    return values | {key: value for key, value in own.items() if value is not None}


def _task_name(args: argparse.Namespace, method: str | None) -> str:
    """Names the output directory: as --out does, or by the model and the method."""
    if args.out:
        return Path(args.out).absolute().name.replace("..", "_") or "run"
    start = Path(str(args.model or "model")).name
    return f"{start}_{method}" if method else start


def _configurations() -> dict[str, str]:
    """Methods -> the name of the configuration that trains with them; a plug-in's method may have none, and its own."""
    from vestige.configs.compose import PACKAGE_DIR
    from vestige.unlearn.methods import METHODS, method_key

    names = {key: key for key in METHODS}
    for file in (PACKAGE_DIR / "trainer").glob("*.yaml"):
        if method_key(file.stem) in METHODS:
            names[method_key(file.stem)] = file.stem
    return names


def _trainer_of(method: str) -> list[str]:
    """The words that choose a method in any spelling: its configuration, or where it has none the plain one."""
    from vestige.unlearn.methods import method_key

    key, names = method_key(method), _configurations()
    if key not in names:
        raise unknown_name("unlearning method", method, names.values())
    if names[key] == key:
        return ["trainer=finetune", f"++trainer.handler={key}"]
    return [f"trainer={names[key]}"]


def _best_rule(text: str) -> str | dict[str, float]:
    """A rule by its name, or weights of metrics.

    >>> _best_rule("closest"), _best_rule("forget_Q_A_Prob=-1,model_utility")
    ('closest', {'forget_Q_A_Prob': -1.0, 'model_utility': 1.0})
    """
    from vestige.verdict.best import RULES

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


def _datasets(kind: str, flag: str, files: list[str]) -> dict[str, Any]:
    """The data sets of one kind; the first has the name of its kind, others are counted."""
    out = {}
    for number, file in enumerate(files):
        place = Path(file).expanduser()
        if not place.is_file():
            wrong = "it is a directory" if place.is_dir() else "no such file"
            raise UserError(f"--{flag} {file}: {wrong}; give rows as .jsonl, .json, .csv or .parquet.")
        name = f"{kind}_{number + 1}" if number else kind
        out[name] = {"handler": "AutoDataset", "args": {"hf_args": {"path": str(place)}}}
    return out


def _with_alternate(dataset: dict[str, Any], alternate: str) -> dict[str, Any]:
    """Forget rows with an answer to prefer: refusals, or another of their columns."""
    if alternate == "idk":
        return {"handler": "QAwithIdkDataset", "args": dataset["args"]}
    return {"handler": "QAwithAlternateDataset", "args": {**dataset["args"], "alternate_key": alternate}}


def make_checkpoint(args: argparse.Namespace) -> int:
    config = config_of(args)
    if args.cfg:
        from omegaconf import OmegaConf

        from vestige.unlearn.recipe import check_training

        check_training(config)
        shown = {**vars(config), "output_dir": str(config.output_dir)}
        del shown["evaluation"]
        print(OmegaConf.to_yaml(OmegaConf.create(shown)))
        return 0
    from vestige.unlearn.run import run_training

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
    if record["evals"]:
        print(f"evaluations took {record['eval_seconds']:.1f} s of the {record['seconds']:.1f} s")
    if record["best"]:
        print(f"best:  epoch {record['best']['epoch']:g}, in {outcome.directory / 'best'}")
    for note in outcome.notes:
        print(f"note: {note}")
    print(f"files: {outcome.directory}")
    return 0
