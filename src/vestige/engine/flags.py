"""The verb `eval`: its flags, and from flags to runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vestige.engine.loading_flags import loading_flags, plugin_flag
from vestige.errors import UserError

# Flags that make a command a friendly one (as against pure Hydra overrides); the names of Ask's fields.
FRIENDLY = (
    "model", "data", "retain_logs", "out", "task_name", "reference_model", "dialect", "system_prompt", "batch_tokens",
    "limit", "dtype", "device", "tokenizer", "quantization", "compute_dtype", "trust_remote_code", "overwrite", "seed",
    "tasks", "include_path", "trajectory_views", "benchmark",
)  # fmt: skip


def add_verbs(verbs: Any) -> None:
    evaluate = verbs.add_parser("eval", help="evaluate a checkpoint", description="Evaluate a checkpoint.")
    evaluation_flags(evaluate)
    evaluate.set_defaults(do=run_eval, late="words")


def evaluation_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("words", nargs="*", metavar="SUITE | KEY=VALUE", help="a suite (tofu) and/or Hydra overrides")
    p.add_argument("--model", metavar="PATH", help="directory, .gguf file, PEFT adapter or hub id")
    p.add_argument("--data", metavar="DIR", help="folder with forget.jsonl, retain.jsonl, holdout.jsonl, ...")
    p.add_argument(
        "--retain-logs",
        nargs="+",
        metavar="FILE",
        help="result file or run directory of the retain model, or of several",
    )
    p.add_argument("--retain-model", metavar="PATH", help="evaluate this retain model first and compare with it")
    p.add_argument("--out", metavar="DIR", help="run directory (default: saves/eval/<task_name>)")
    p.add_argument("--metrics", metavar="all|NAME,...", help="instead of the suite's default metrics")
    p.add_argument("--tasks", metavar="NAME,...", help="lm_eval: names or YAML files of lm-evaluation-harness tasks")
    p.add_argument("--include-path", metavar="DIR", help="lm_eval: folder with task YAML files of your own")
    p.add_argument("--reference-model", metavar="PATH", help="second model for mia_reference")
    p.add_argument(
        "--trajectory-views", metavar="both|full|eos", help="a diffusion model: the suite's metrics at denoising steps"
    )
    p.add_argument("--benchmark", metavar="NAME", help="trajectory-eval: tofu or muse")
    p.add_argument("--dialect", metavar="NAME", help="open-unlearning | strict")
    p.add_argument("--system-prompt", metavar="TEXT")
    p.add_argument("--batch-tokens", type=int, metavar="N", help="tokens in one forward")
    p.add_argument("--limit", type=int, metavar="N", help="first N rows of every data set")
    loading_flags(p)
    p.add_argument("--quantization", metavar="4bit|8bit")
    p.add_argument("--compute-dtype", metavar="NAME", help="what 4-bit layers multiply in (bfloat16)")
    p.add_argument("--overwrite", action="store_true", help="forget evidence already collected")
    p.add_argument("--task-name", metavar="NAME")
    p.add_argument("--seed", type=int)
    p.add_argument("--config-name", default="eval.yaml", help=argparse.SUPPRESS)
    p.add_argument("--config-dir", metavar="DIR", help="your own config groups, before ours")
    plugin_flag(p)
    p.add_argument("-m", "--multirun", action="store_true", help="comma lists in overrides make several runs")
    p.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


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
    from vestige.integrations.plugins import load_plugins

    load_plugins(args.plugin)
    suite, overrides = _words(args)
    metrics = None if args.metrics is None else [m.strip() for m in args.metrics.split(",") if m.strip()]
    if metrics == []:
        raise UserError("--metrics is empty; name metrics (see `vestige ls metrics`) or write all.")
    said = {name: getattr(args, name) for name in FRIENDLY}
    if suite is None and not any(v not in (None, False) for v in said.values()):
        config_dir = Path(args.config_dir) if args.config_dir else None
        more = ["progress=false"] if args.quiet else []
        return _each(
            args, overrides, lambda o: compose_runs([*o, *more], args.config_name, config_dir, metrics, args.plugin)
        )
    progress = False if args.quiet else None
    said |= {"plugins": args.plugin, "progress": progress, "config_dir": args.config_dir}
    return _each(
        args, overrides, lambda o: [to_run(EvalAsk(suite=suite or "tofu", metrics=metrics, overrides=o, **said))]
    )


def _each(args: argparse.Namespace, overrides: list[str], compose: Any) -> list[Any]:
    """The runs of the overrides; with --multirun, of every combination of the values they list."""
    if not args.multirun:
        return list(compose(overrides))
    from vestige.engine.multirun import multirun

    return multirun(overrides, compose)


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
    from vestige.show.tables import summary, without_retain

    if "harness" in outcome.manifest:
        from vestige.engine.harness import report

        print(report(outcome))
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
