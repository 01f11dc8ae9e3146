"""The verb `eval`: its flags, and from flags to runs.

In: parsed arguments. Out: run directories, a table on the screen, an exit status. Callers: cli.py; costs/flags.py
for the runs that `vestige plan` estimates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    evaluate = verbs.add_parser("eval", help="evaluate a checkpoint", description="Evaluate a checkpoint.")
    evaluation_flags(evaluate, "eval")
    evaluate.set_defaults(do=run_eval, late="words")


def suite_names() -> list[str]:
    from vestige.configs.compose import PACKAGE_DIR

    return sorted(file.stem for file in (PACKAGE_DIR / "eval").glob("*.yaml"))


def evaluation_flags(p: Any, verb: str) -> None:
    p.names = suite_names
    p.add_argument("words", nargs="*", metavar="SUITE | KEY=VALUE", help="a suite (tofu) and/or Hydra overrides")
    shared_flags(
        p,
        verb,
        retain_model="it is evaluated first, and the model compared with it",
        retain_logs={"nargs": "+", "says": "or of several"},
        metrics="instead of the suite's own",
        out="default: saves/eval/<task_name>",
        batch_size="at most; default: 128",
        config_name={"default": "eval.yaml"},
    )


def _words(args: argparse.Namespace) -> tuple[str | None, list[str]]:
    """A suite name, if one is given, and the Hydra overrides."""
    suites = [w for w in args.words if "=" not in w and not w.startswith(("+", "~"))]
    if len(suites) > 1:
        raise UserError(f"One suite at a time, please: {', '.join(suites)}. Overrides are written KEY=VALUE.")
    return (suites[0] if suites else None), [w for w in args.words if w not in suites]


def runs_of(args: argparse.Namespace) -> list[Any]:
    """The evaluations a command line means: friendly flags, Hydra overrides, or both."""
    from vestige.engine.config import compose_runs
    from vestige.engine.friendly import EvalAsk, to_run

    if args.plugin:
        from vestige.integrations.plugins import load_plugins

        load_plugins(args.plugin)
    suite, overrides = _words(args)
    metrics = None if args.metrics is None else [m.strip() for m in args.metrics.split(",") if m.strip()]
    if metrics == []:
        raise UserError("--metrics is empty; name metrics (see `vestige ls metrics`) or write all.")
    said = {f.name: getattr(args, f.name) for f in fields(EvalAsk) if hasattr(args, f.name)}
    said = {name: value for name, value in said.items() if name not in ("metrics", "config_dir")}
    progress = False if args.quiet else None
    hydra_alone = suite is None and not any(v not in (None, False) for v in said.values())
    said |= {"plugins": args.plugin, "progress": progress, "config_dir": args.config_dir}

    def compose(words: list[str]) -> list[Any]:
        if not hydra_alone:
            return [to_run(EvalAsk(suite=suite or "tofu", metrics=metrics, overrides=words, **said))]
        config_dir = Path(args.config_dir) if args.config_dir else None
        values = {} if progress is None else {"progress": progress}
        return list(compose_runs(words, args.config_name, config_dir, metrics, args.plugin, values))

    if not args.multirun:
        return compose(overrides)
    from vestige.configs.overrides import multirun

    return multirun(overrides, compose)  # every combination of the values that they list


def _retain_first(args: argparse.Namespace) -> None:
    """Evaluates --retain-model into a folder of the run, and makes it the reference."""
    from vestige.engine.evaluate import evaluate_config
    from vestige.show.progress import hushed

    out = runs_of(args)[0].output_dir / "retain-model"
    retain = argparse.Namespace(**{**vars(args), "model": args.retain_model, "out": str(out), "retain_logs": None})
    print(f"Evaluating the retain model {args.retain_model} ...", flush=True)
    with hushed():  # it has no retain logs itself
        evaluate_config(runs_of(retain)[0])
    args.retain_logs = [*(args.retain_logs or []), str(out)]


def run_eval(args: argparse.Namespace) -> int:
    if args.retain_model and not args.cfg:
        _retain_first(args)
    runs = runs_of(args)
    if args.cfg:
        return print_config(runs)
    from vestige.engine.evaluate import evaluate_config

    status = 0
    for run in runs:
        status = max(status, _report(evaluate_config(run), run))
    return status


def _report(outcome: Any, run: Any) -> int:
    from vestige.show.tables import harness_report, summary, without_retain

    if "harness" in outcome.manifest:
        print(harness_report(outcome))
        return _nothing(outcome)
    by_source = {d["source"]: d["rows"] for d in outcome.manifest["data"].values()}
    rows = sum(by_source.values())
    print(f"\n{outcome.manifest['model']['name']}  ({run.suite.name}, dialect {outcome.dialect}, {rows} rows read)\n")
    print(summary(outcome.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats))
    for note in outcome.notes:
        print(f"note: {note}")
    if run.retain_logs is None and (words := without_retain(outcome.metrics, outcome.scores)):
        print(f"\n{words}")
    print(f"\nfiles: {', '.join(str(f) for f in outcome.files)}")
    cost, seconds = outcome.manifest["cost"], outcome.manifest["seconds"]
    print(
        f"cost:  {cost['score_tokens']:,} tokens scored, {cost['tokens_produced']:,} generated "
        f"({cost['tokens_proven']:,} of them without a step), "
        + (
            f"{cost['denoise_tokens']:,} denoised in {cost['denoise_forwards']:,} passes, "
            * bool(cost["denoise_tokens"])
        )
        + f"{seconds['total']:.1f} s"
    )
    return _nothing(outcome)


def _nothing(outcome: Any) -> int:
    """A run without any value is a failure, though its files and reasons are written."""
    if not outcome.top or not all(outcome.scores[name].missing for name in outcome.top):
        return 0
    print("vestige: error: none of the metrics asked for could be computed; the reasons are above.", file=sys.stderr)
    return 2


def print_config(runs: Sequence[Any]) -> int:
    from omegaconf import OmegaConf

    from vestige.store.manifest import config_json

    for run in runs:
        body = {**config_json(run.describe()), "output_dir": str(run.output_dir)}
        if hasattr(run, "dialect"):
            body["dialect"] = run.dialect
        print(OmegaConf.to_yaml(OmegaConf.create(body)))
    return 0
