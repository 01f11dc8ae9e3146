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
    from vestige.adapters.plugins import load_plugins
    from vestige.unlearn.config import compose_training

    load_plugins(args.plugin)
    strange = [w for w in args.words if "=" not in w and not w.startswith("~")]
    if strange:
        raise _bare_word(strange[0], args)
    if getattr(args, "data", None):
        _take_folder(args)
    evaluating = True if args.eval_data or args.metrics or args.keep_best or args.retain_logs else None
    config_dir = Path(args.config_dir) if args.config_dir else None
    name = args.config_name or f"{args.verb}.yaml"
    words, values = [*_choices(args), *args.words], _values(args)
    config = compose_training(words, name, config_dir, evaluating, args.plugin, values)
    if args.retain_logs and config.evaluation is not None:  # only the composed configuration knows the suite
        values[f"eval.{config.evaluation.suite.name}.retain_logs_path"] = args.retain_logs
        config = compose_training(words, name, config_dir, evaluating, args.plugin, values)
    given = {kind: getattr(args, kind, None) for kind in ("forget", "retain")} | {"train": getattr(args, "learn", None)}
    data = {**config.data, **{kind: _files(kind, files) for kind, files in given.items() if files}}
    if given["forget"] and not given["retain"] and not any("data.retain" in w for w in args.words):
        data.pop("retain", None)  # rows of one's own are not mixed with a benchmark's
    config = replace(config, data=_with_alternates(data, getattr(args, "alternate", None)))
    return _with_folder(config, args.eval_data) if args.eval_data else config


def _take_folder(args: argparse.Namespace) -> None:
    """--data DIR stands for the files in it, and for the folder that evaluations while training read."""
    from vestige.data.rows import file_in

    for kind in ("forget", "retain"):
        if getattr(args, kind):
            raise UserError(f"The {kind} rows are named twice, by --{kind} and by --data; give one of them.")
        found = file_in(args.data, kind)
        if found is not None:
            setattr(args, kind, [found])
    if not args.forget:
        raise UserError(
            f"--data {args.data} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget."
        )
    if args.metrics or args.keep_best or args.retain_logs:
        args.eval_data = args.eval_data or args.data


def _bare_word(word: str, args: argparse.Namespace) -> UserError:
    """A method, where none was chosen, is what somebody means who writes one word."""
    if args.verb == "unlearn" and args.method is None:
        names = ", ".join(_methods())
        return UserError(f"Cannot read the word '{word}'; a method is given as --method NAME: {names}.")
    return UserError(f"Cannot read '{word}'; overrides are written KEY=VALUE.")


def _is_friendly(args: argparse.Namespace) -> bool:
    return any(getattr(args, name, None) for name in FRIENDLY)


def _choices(args: argparse.Namespace) -> list[str]:
    """Which configuration files, and the method's knobs, as the user wrote them."""
    chosen = any(w.startswith("model=") for w in args.words)
    out = ["model=local"] if _is_friendly(args) and not chosen else []
    out += _method(args.method) if getattr(args, "method", None) else []
    return out + [f"++trainer.method_args.{knob}" for knob in _knobs(getattr(args, "knob", []))]


def _values(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, as settings of the configuration."""
    own = ("overwrite", "batch_size", "retain_logs")  # keys that are an evaluation's
    name = args.task_name or (_task_name(args) if _is_friendly(args) else None)
    shared = settings_of({k: v for k, v in vars(args).items() if k not in own} | {"task_name": name})
    said: dict[str, Any] = {
        "trainer.args.num_train_epochs": args.epochs,
        "trainer.args.learning_rate": args.lr,
        "trainer.args.per_device_train_batch_size": args.batch_size,
        "trainer.args.gradient_accumulation_steps": args.accumulation,
        "lora.rank": args.lora,
        "lora.alpha": None if args.lora is None else 2 * args.lora,
        "overwrite": args.overwrite or None,
        "progress": False if args.quiet else None,
        "evaluate.metrics": [m.strip() for m in args.metrics.split(",") if m.strip()] if args.metrics else None,
        "evaluate.best": _best(args.keep_best or ("closest" if args.retain_logs else None)),
    }
    return shared | {key: value for key, value in said.items() if value is not None}


def _configured() -> dict[str, str]:
    """Methods by key -> the name of the configuration that trains with them."""
    from vestige.configs.compose import PACKAGE_DIR
    from vestige.unlearn.methods import METHODS, method_key

    configs = [p.stem for p in (PACKAGE_DIR / "trainer").glob("*.yaml")]
    return {method_key(stem): stem for stem in configs if method_key(stem) in METHODS}


def _methods() -> list[str]:
    """Every method as it is written: by its configuration's name, or where it has none (a plug-in's) its own."""
    from vestige.unlearn.methods import METHODS

    by_key = _configured()
    return sorted(by_key.get(key, key) for key in METHODS)


def _method(name: str) -> list[str]:
    """The trainer of a method in any spelling: its configuration, or where it has none (a plug-in's) the plain one."""
    from vestige.unlearn.methods import METHODS, method_key

    key, by_key = method_key(name), _configured()
    if key not in METHODS:
        raise unknown_name("unlearning method", name, _methods())
    return [f"trainer={by_key[key]}"] if key in by_key else ["trainer=finetune", f"++trainer.handler={key}"]


def _knobs(words: list[str]) -> list[str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"--knob takes NAME=VALUE, as in --knob beta=0.3; it is '{word}'.")
    return words


def _best(text: str | None) -> str | dict[str, float] | None:
    """A rule by its name, or weights of metrics.

    >>> _best("closest"), _best("model_utility=1"), _best(None)
    ('closest', {'model_utility': 1.0}, None)
    """
    from vestige.verdict.best import RULES

    return text if text in RULES else _weights(text) or None


def _weights(text: str | None) -> dict[str, float]:
    """--keep-best forget_Q_A_Prob=-1,model_utility=1

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
            raise UserError(f"--keep-best takes NAME=WEIGHT,...; '{weight}' is not a number.") from None
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
            flag = "learn" if kind == "train" else kind
            wrong = "it is a directory" if place.is_dir() else "no such file"
            raise UserError(f"--{flag} {file}: {wrong}; give rows as .jsonl, .json, .csv or .parquet.")
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
    from vestige.data.rows import local_data

    run = config.evaluation
    local = local_data(run.suite.name, run.settings.get("local_data"), folder)
    return replace(config, evaluation=replace(run, missing="skip", local=local))


def make_checkpoint(args: argparse.Namespace) -> int:
    from vestige.unlearn.config import check_training
    from vestige.unlearn.run import run_training

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
    if record["evals"]:
        print(f"evaluations took {record['eval_seconds']:.1f} s of the {record['seconds']:.1f} s")
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
