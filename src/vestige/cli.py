"""The command line: one verb per job. Heavy imports wait until a verb needs them, so that --help is instant."""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.errors import UserError
from vestige.run import commands
from vestige.run.mishaps import archives_opened, mishaps_said
from vestige.run.stress_flags import add_stress_verb
from vestige.run.training_flags import add_training_verbs
from vestige.run.verify_flags import VERBS as PROOF_VERBS
from vestige.run.verify_flags import add_proof_verbs

EXAMPLES = """examples:
  vestige demo                                        build a tiny lab and evaluate its models
  vestige eval tofu --model PATH --data DIR           evaluate a checkpoint on local files
  vestige eval tofu --model PATH --data DIR --retain-logs saves/eval/retain/TOFU_EVAL.json
  vestige eval experiment=eval/tofu/default model=Llama-3.2-1B-Instruct \\
      model.model_args.pretrained_model_name_or_path=PATH task_name=NAME
  vestige audit --before A --after B --forget f.jsonl --retain r.jsonl     your own rows
  vestige depth --unlearned U --full F --retain R --data f.jsonl           what the layers still hold
  vestige plan tofu --model PATH --data DIR           what that would cost
  vestige score saves/eval/NAME dialect=strict        other definitions, no model needed
  vestige compare saves/eval/A saves/eval/B           differences, and whether they could be chance
  vestige collapse rollouts.jsonl --model PATH        does reasoning still depend on its prompt?
  vestige sweep plan.yaml                             many models, suites and attacks; again for the rest
  vestige unlearn --method NPO --model PATH --forget f.jsonl --retain r.jsonl --out DIR
  vestige ls metrics                                  what there is
"""


# Flags that make a command a friendly one (as against pure Hydra overrides); the names of Ask's fields.
FRIENDLY = (
    "model", "data", "retain_logs", "out", "task_name", "reference_model", "dialect", "system_prompt", "batch_tokens",
    "limit", "dtype", "device", "tokenizer", "quantization", "trust_remote_code", "overwrite", "seed", "tasks",
    "include_path", "trajectory_views", "benchmark",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="vestige",
        description="Measures what a language model still knows after it was made to forget.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"vestige {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, words in (("eval", "evaluate a checkpoint"), ("plan", "say what an evaluation would cost")):
        _evaluation_flags(verbs.add_parser(verb, help=words, description=words.capitalize() + "."))
    score = verbs.add_parser("score", help="score a run again from its evidence, without a model")
    score.add_argument("run", help="a run directory (saves/eval/NAME)")
    score.add_argument("changes", nargs="*", help="dialect=NAME, METRIC.KEY=VALUE (mia_min_k.k=0.2)")
    score.add_argument("--dialect", metavar="NAME", help="the same as dialect=NAME")
    score.add_argument("--retain-logs", metavar="FILE", help="compare with this run instead")
    score.add_argument("--plugin", action="append", default=[], metavar="FILE")
    compare = verbs.add_parser("compare", help="runs side by side, and whether their differences could be chance")
    compare.add_argument(
        "runs", nargs="+", metavar="RUN", help="two or more run directories; the first is the yardstick"
    )
    compare.add_argument("--metrics", metavar="all|NAME,...", help="instead of those the first run was asked for")
    compare.add_argument("--margin", type=float, default=0.05, help="what counts as equal on 0..1 metrics (0.05)")
    compare.add_argument("--resamples", type=int, default=10_000, metavar="N", help="default: 10000")
    compare.add_argument("--plugin", action="append", default=[], metavar="FILE")
    listing = verbs.add_parser("ls", help="list metrics, suites, models, data sets, dialects, methods, experiments")
    listing.add_argument("what", nargs="?", default="all")
    listing.add_argument("--config-dir", metavar="DIR")
    listing.add_argument("--plugin", action="append", default=[], metavar="FILE")
    audit = verbs.add_parser("audit", help="did it forget? two checkpoints and your own rows")
    audit.add_argument("--before", required=True, metavar="PATH", help="the model before unlearning")
    audit.add_argument("--after", required=True, metavar="PATH", help="the model after unlearning")
    audit.add_argument("--forget", required=True, metavar="FILE", help="rows to forget (question and answer, or text)")
    audit.add_argument("--retain", metavar="FILE", help="rows to be kept")
    audit.add_argument("--holdout", metavar="FILE", help="rows like the forget rows, never trained on")
    audit.add_argument("--retain-model", metavar="PATH", help="a model trained without the forget rows")
    audit.add_argument("--system-prompt", metavar="TEXT")
    audit.add_argument("--limit", type=int, metavar="N", help="first N rows of every file")
    audit.add_argument("--out", default="saves/audit", metavar="DIR", help="default: saves/audit")
    _depth_flags(verbs.add_parser("depth", help="is it gone from the layers, or only from what the model says?"))
    demo = verbs.add_parser("demo", help="build the lab (tiny models, minutes) and evaluate it")
    demo.add_argument("--out", default="saves/demo", metavar="DIR", help="default: saves/demo")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--no-diffusion", action="store_true", help="leave out the diffusion models")
    _collapse_flags(verbs.add_parser("collapse", help="does reasoning still depend on its input? rollouts and a model"))
    _reading_verbs(verbs)
    _meta_verb(verbs)
    commands.add_verbs(verbs)
    add_training_verbs(verbs)
    add_stress_verb(verbs)
    add_proof_verbs(verbs)
    return top


# Flags of `depth` that are Hydra keys of the same name.
DEPTH = (
    "unlearned", "full", "retain", "data", "out", "s1_cache", "last_layer", "delta_threshold", "layers",
    "attn_implementation", "dtype", "device", "quantization", "tokenizer", "trust_remote_code", "batch_size", "limit",
    "tokenization", "patch_scope", "em_scope", "baselines", "plots", "seed",
)  # fmt: skip


def _depth_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="any of the flags as a Hydra key: last_layer=peer")
    p.add_argument("--unlearned", nargs="+", metavar="PATH", help="the checkpoints to measure")
    p.add_argument("--full", metavar="PATH", help="the model before unlearning")
    p.add_argument("--retain", metavar="PATH", help="the model trained without the forget rows")
    p.add_argument("--data", metavar="FILE", help="rows with question, answer and, if known, entity and prefix")
    p.add_argument("--out", metavar="DIR", help="default: saves/depth")
    p.add_argument("--s1-cache", metavar="DIR", help="where retain -> full is kept (default: OUT/s1_cache)")
    p.add_argument("--last-layer", metavar="residual|peer", help="before or after the source's final norm")
    p.add_argument("--delta-threshold", type=float, metavar="X", help="a layer counts above it (0.05)")
    p.add_argument("--layers", metavar="auto|0-15|0,2|0-24:2")
    p.add_argument("--attn-implementation", metavar="sdpa|eager")
    p.add_argument("--dtype", metavar="NAME", help="auto | float32 | bfloat16 | float16")
    p.add_argument("--device", metavar="NAME", help="auto | cpu | cuda | mps")
    p.add_argument("--quantization", metavar="4bit|8bit", help="of the unlearned models only")
    p.add_argument("--tokenizer", metavar="PATH")
    p.add_argument("--trust-remote-code", action="store_true")
    p.add_argument("--batch-size", type=int, metavar="N", help="examples in one forward (8)")
    p.add_argument("--limit", type=int, metavar="N", help="first N rows")
    p.add_argument("--tokenization", metavar="separate|joint", help="prompt and answer apart, or as one text")
    p.add_argument("--patch-scope", metavar="span|boundary|all", help="which positions are patched")
    p.add_argument("--em-scope", metavar="entity|full", help="which tokens are scored")
    p.add_argument("--baselines", metavar="NAME,...", help="also cka, logit_lens, fisher")
    p.add_argument("--plots", action="store_true", help="draw the layer profile, the heat map and the tokens")
    p.add_argument("--seed", type=int)
    p.add_argument("--config-dir", metavar="DIR", help="with a depth.yaml of your own")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


def _reading_verbs(verbs: Any) -> None:
    """The verbs that read results and definitions, and run no model."""
    explain = verbs.add_parser("explain", help="what a metric, handler or dialect means, with a worked example")
    explain.add_argument("name", nargs="?", help="forget_quality, extraction_strength, strict, ...")
    explain.add_argument("--config-dir", metavar="DIR")
    explain.add_argument("--plugin", action="append", default=[], metavar="FILE")
    diff = verbs.add_parser("diff", help="why two runs disagree, and which rows moved")
    diff.add_argument("run_a", metavar="RUN_A", help="a run directory")
    diff.add_argument("run_b", metavar="RUN_B", help="another")
    diff.add_argument("--metric", metavar="NAME", help="only this metric")
    diff.add_argument("--rows", type=int, default=3, metavar="N", help="rows shown for each metric (default: 3)")
    importing = verbs.add_parser("import", help="read result files of open-unlearning or locuslab/tofu")
    importing.add_argument(
        "file", metavar="FILE", help="TOFU_EVAL.json, MUSE_EVAL.json, eval_log_aggregated.json or runs/"
    )
    importing.add_argument("--out", metavar="DIR", help="write TOFU_EVAL.json and TOFU_SUMMARY.json here")
    importing.add_argument("--retain-logs", metavar="FILE", help="the retain model's file, of any of these kinds")
    published = verbs.add_parser("published", help="published figures of TOFU and MUSE, alone or beside a run")
    published.add_argument("run", nargs="?", metavar="RUN", help="a run directory or *_EVAL.json")
    published.add_argument("--model", action="append", default=[], metavar="NAME", help="part of a model's name")
    published.add_argument("--split", metavar="NAME", help="forget01, forget05, forget10, News or Books")


def _meta_verb(verbs: Any) -> None:
    meta = verbs.add_parser("meta", help="metrics put to the test: faithfulness, robustness, axes; runs no model")
    meta.add_argument("what", metavar="faithfulness|robustness|axes", help="the question")
    meta.add_argument("file", metavar="FILE", help="a YAML list of finished runs (axes: or a method_results.json)")
    meta.add_argument("--out", default="saves/meta", metavar="DIR", help="default: saves/meta")
    meta.add_argument("--metrics", metavar="NAME,...", help="instead of every metric the runs hold")
    meta.add_argument("--resamples", type=int, default=2000, metavar="N", help="default: 2000; 0: no intervals")
    meta.add_argument("--robustness", default="symmetric", metavar="RULE", help="symmetric (default) | one-sided")
    meta.add_argument("--thresholds", metavar="FILE", help="default: optimal_thresholds.json in --out, if it is there")
    meta.add_argument("--utility", metavar="FILE", help="default: method_results.json in --out, if it is there")
    meta.add_argument("--least-utility", type=float, default=0.8, metavar="X", help="default: 0.8")
    meta.add_argument("--own-thresholds", action="store_true", help="s_mia_* by their own, not by their attack's")
    meta.add_argument("--floor", type=float, default=0.05, metavar="X", help="axes: default 0.05")
    meta.add_argument("--rows", type=int, default=20, metavar="N", help="axes: rows shown (0: all)")
    meta.add_argument("--plugin", action="append", default=[], metavar="FILE")


# Flags of `vestige collapse` that stand for settings of the collapse_detection group.
COLLAPSE_SETTINGS = (
    "compute_freq", "micro_batch_size", "first_turn_enabled", "multi_turn_enabled", "turn_enabled", "num_samples",
    "std_eps", "ema_decay", "columns", "seed", "resamples", "parity",
)  # fmt: skip


def _truth(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {word!r}")
    return word.lower() == "true"


def _samples(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def _collapse_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("files", nargs="*", metavar="ROLLOUTS | KEY=VALUE", help="rollout files, and Hydra overrides")
    p.add_argument("--model", action="append", default=[], metavar="PATH", help="one for all files, or one for each")
    p.add_argument("--step", action="append", type=int, default=[], metavar="N", help="the step of each file")
    p.add_argument("--out", default="saves/collapse", metavar="DIR", help="default: saves/collapse")
    p.add_argument("--format", default="auto", metavar="NAME", help="auto, native, verl, trl, ragen-jsonl, ...")
    p.add_argument("--prompt-template", default="raw", metavar="NAME", help="raw | chatml-restore")
    p.add_argument("--parity", metavar="ragen", help="RAGEN's draws, tokens and 29 numbers only")
    p.add_argument("--compute-freq", type=int, metavar="N", help="only step 1 and multiples of N (default: all steps)")
    p.add_argument("--micro-batch-size", type=int, metavar="N", help="reasonings scored together")
    p.add_argument("--first-turn-enabled", type=_truth, metavar="true|false")
    p.add_argument("--multi-turn-enabled", type=_truth, metavar="true|false")
    p.add_argument("--turn-enabled", type=_truth, metavar="true|false", help="also turns drawn evenly")
    p.add_argument("--num-samples", type=_samples, metavar="N|all")
    p.add_argument("--std-eps", type=float, metavar="X")
    p.add_argument("--ema-decay", type=float, metavar="X")
    p.add_argument("--columns", metavar="NAME", help="auto | group | distinct | sample")
    p.add_argument("--resamples", type=int, metavar="N", help="behind intervals and the permutation null")
    p.add_argument("--seed", type=int, metavar="N")
    p.add_argument("--ema", metavar="FILE", help="running means: read if there, written at the end")
    p.add_argument("--temperature", type=float, default=1.0, metavar="X", help="the rollouts' sampling temperature")
    p.add_argument("--tokenization", metavar="NAME", help="exact | separate")
    p.add_argument("--reasoning", default="tags", metavar="NAME", help="tags | whole (the whole response)")
    p.add_argument("--open-tag", default="<think>", metavar="TEXT")
    p.add_argument("--close-tag", default="</think>", metavar="TEXT")
    p.add_argument("--reasoning-pattern", metavar="REGEX", help="instead of tags; its first group is the reasoning")
    p.add_argument("--unclosed", default="drop", metavar="NAME", help="drop | keep reasoning without its close tag")
    p.add_argument("--batch-tokens", type=int, metavar="N", help="reasoning tokens in one forward")
    p.add_argument("--dtype", metavar="NAME", help="auto | float32 | bfloat16 | float16")
    p.add_argument("--device", metavar="NAME", help="auto | cpu | cuda | mps")
    p.add_argument("--tokenizer", metavar="PATH")
    p.add_argument("--trust-remote-code", action="store_true")
    p.add_argument("--config-dir", metavar="DIR", help="your own collapse_detection group, before ours")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


def _evaluation_flags(p: argparse.ArgumentParser) -> None:
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
    p.add_argument("--dtype", metavar="NAME", help="auto | float32 | bfloat16 | float16")
    p.add_argument("--device", metavar="NAME", help="auto | cpu | cuda | mps")
    p.add_argument("--tokenizer", metavar="PATH")
    p.add_argument("--quantization", metavar="4bit|8bit")
    p.add_argument("--trust-remote-code", action="store_true")
    p.add_argument("--overwrite", action="store_true", help="forget evidence already collected")
    p.add_argument("--task-name", metavar="NAME")
    p.add_argument("--seed", type=int)
    p.add_argument("--config-name", default="eval.yaml", help=argparse.SUPPRESS)
    p.add_argument("--config-dir", metavar="DIR", help="your own config groups, before ours")
    p.add_argument("--plugin", action="append", default=[], metavar="FILE", help="Python file with your own metrics")
    p.add_argument("-m", "--multirun", action="store_true", help="comma lists in overrides make several runs")
    p.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb. User errors are one sentence and exit status 2; an interrupt loses at most one batch."""
    args = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="vestige: %(message)s", stream=sys.stderr)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # the kernels it would like are not the user's worry
    verbs = {"eval": run_eval, "plan": run_plan, "score": run_score, "compare": run_compare, "audit": run_audit}
    verbs |= {"ls": run_ls, "demo": run_demo, "depth": run_depth, "collapse": run_collapse}
    verbs |= {"explain": run_explain, "diff": run_diff, "import": run_import, "published": run_published}
    verbs |= {"meta": run_meta}
    verbs |= {"sweep": commands.run_sweep, "job": commands.run_job}
    verbs |= {"train": run_train, "unlearn": run_train, "stress": run_stress, **PROOF_VERBS}
    try:
        with mishaps_said(), archives_opened(args) as opened:
            return verbs[args.verb](opened)
    except UserError as error:
        print(f"vestige: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vestige: interrupted; run the same command again to go on where it stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags and words in any order: argparse alone stops taking words after the first flag."""
    top = parser()
    mine, carried = commands.split_command(sys.argv[1:] if argv is None else argv)
    args, rest = top.parse_known_args(mine)
    if carried:
        args.command = carried
    late = [word for word in rest if not word.startswith("-")]
    strange = [word for word in rest if word.startswith("-")]
    place = {
        "eval": "words",
        "plan": "words",
        "depth": "words",
        "score": "changes",
        "compare": "runs",
        "collapse": "files",
        "train": "words",
        "unlearn": "words",
        "stress": "attacks",
        "verify": "runs",
        "pack": "runs",
    }.get(args.verb)
    if strange or (late and place is None):
        wrong = (strange or late)[0]
        known = [o for a in _verb(top, args.verb)._actions for o in a.option_strings]
        close = difflib.get_close_matches(wrong.split("=")[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; see vestige {args.verb} --help."
        top.exit(2, f"vestige: error: vestige {args.verb} has no argument {wrong}{hint}\n")
    if place:
        getattr(args, place).extend(late)
    return args


def _verb(top: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """The parser of one verb."""
    verbs = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    found: argparse.ArgumentParser = verbs.choices[name]
    return found


def _words(args: argparse.Namespace) -> tuple[str | None, list[str]]:
    """A suite name, if one is given, and the Hydra overrides."""
    suites = [w for w in args.words if "=" not in w and not w.startswith(("+", "~"))]
    if len(suites) > 1:
        raise UserError(f"One suite at a time, please: {', '.join(suites)}. Overrides are written KEY=VALUE.")
    return (suites[0] if suites else None), [w for w in args.words if w not in suites]


def _runs(args: argparse.Namespace) -> list[Any]:
    """The evaluations a command line means: friendly flags, Hydra overrides, or both."""
    from vestige.integrations.plugins import load_plugins
    from vestige.run.config import compose_runs
    from vestige.run.friendly import Ask, to_run

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
    return _each(args, overrides, lambda o: [to_run(Ask(suite=suite or "tofu", metrics=metrics, overrides=o, **said))])


def _each(args: argparse.Namespace, overrides: list[str], compose: Any) -> list[Any]:
    """The runs of the overrides; with --multirun, of every combination of the values they list."""
    if not args.multirun:
        return list(compose(overrides))
    from vestige.run.multirun import multirun

    return multirun(overrides, compose)


def _retain_first(args: argparse.Namespace) -> None:
    """Evaluates --retain-model into a folder of the run, and makes it the reference."""
    from vestige.run.evaluate import evaluate_config
    from vestige.run.progress import hushed

    out = _runs(args)[0].output_dir / "retain-model"
    retain = argparse.Namespace(**{**vars(args), "model": args.retain_model, "out": str(out), "retain_logs": None})
    print(f"Evaluating the retain model {args.retain_model} ...", flush=True)
    with hushed():  # it has no retain logs itself
        evaluate_config(_runs(retain)[0])
    args.retain_logs = [*(args.retain_logs or []), str(out)]


def run_eval(args: argparse.Namespace) -> int:
    if args.retain_model and not args.cfg:
        _retain_first(args)
    runs = _runs(args)
    if args.cfg:
        return _print_config(runs)
    from vestige.run.evaluate import evaluate_config

    status = 0
    for run in runs:
        status = max(status, _report(evaluate_config(run), run))
    return status


def _report(outcome: Any, run: Any) -> int:
    from vestige.run.tables import summary, without_retain

    if "harness" in outcome.manifest:
        from vestige.run.harness import report

        print(report(outcome))
        return 0
    by_source = {d["source"]: d["rows"] for d in outcome.manifest["data"].values()}
    rows = sum(by_source.values())
    print(f"\n{outcome.manifest['model']['name']}  ({run.suite.name}, dialect {outcome.dialect}, {rows} rows read)\n")
    print(summary(run.suite.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats))
    for note in outcome.notes:
        print(f"note: {note}")
    if run.retain_logs is None and (words := without_retain(run.suite.metrics, outcome.scores)):
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
    if all(outcome.scores[name].missing for name in outcome.top):
        print(
            "vestige: error: none of the metrics asked for could be computed; the reasons are above.", file=sys.stderr
        )
        return 2
    return 0


def _print_config(runs: Sequence[Any]) -> int:
    from omegaconf import OmegaConf

    from vestige.run.evaluate import config_json

    for run in runs:
        body = {**config_json(run), "output_dir": str(run.output_dir)}
        if hasattr(run, "dialect"):
            body["dialect"] = run.dialect
        print(OmegaConf.to_yaml(OmegaConf.create(body)))
    return 0


def run_plan(args: argparse.Namespace) -> int:
    from vestige.run.config import HarnessConfig
    from vestige.run.plan import make_plan, show

    runs = _runs(args)
    if args.cfg:
        return _print_config(runs)
    for run in runs:
        if isinstance(run, HarnessConfig):
            raise UserError(f"vestige plan counts the cost of metrics; '{run.name}' has tasks. Try --limit 10 instead.")
        print(show(make_plan(run), run))
    return 0


def run_score(args: argparse.Namespace) -> int:
    import yaml

    from vestige.integrations.plugins import load_plugins
    from vestige.run.rescore import rescore
    from vestige.run.stored import suite_from_manifest
    from vestige.run.tables import summary

    load_plugins(args.plugin)
    dialect: str | None = args.dialect
    changes: dict[str, dict[str, Any]] = {}
    for word in args.changes:
        key, _, value = word.partition("=")
        if key == "dialect":
            dialect = value
        elif "." in key and value:
            metric, _, name = key.partition(".")
            changes.setdefault(metric, {})[name] = yaml.safe_load(value)
        else:
            raise UserError(f"Cannot read '{word}'; write dialect=NAME or METRIC.KEY=VALUE.")
    outcome = rescore(Path(args.run), dialect, changes, args.retain_logs)
    suite = suite_from_manifest(outcome.manifest, changes)
    print(f"\n{outcome.manifest['model']['name']}  (dialect {outcome.dialect}, re-scored from evidence)\n")
    print(summary(suite.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats))
    print(f"\nfiles: {', '.join(str(f) for f in outcome.files)}")
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from vestige.integrations.plugins import load_plugins
    from vestige.run.comparing import compare

    if args.runs[-1] == "published":  # a run beside printed figures
        from vestige.run.published import published

        print(published(Path(args.runs[0]), [], None))
        return 0
    load_plugins(args.plugin)
    print(compare([Path(run) for run in args.runs], args.metrics, args.margin, args.resamples))
    return 0


def run_ls(args: argparse.Namespace) -> int:
    from vestige.integrations.plugins import load_plugins
    from vestige.run.listing import listing

    load_plugins(args.plugin)
    print(listing(args.what, Path(args.config_dir) if args.config_dir else None))
    return 0


def run_audit(args: argparse.Namespace) -> int:
    from vestige.run.audit import Audit, audit

    names = ("before", "after", "forget", "retain", "holdout", "retain_model")
    ask = Audit(**{n: getattr(args, n) for n in names}, out=Path(args.out))
    return audit(ask, {"system_prompt": args.system_prompt, "limit": args.limit})


def run_depth(args: argparse.Namespace) -> int:
    from vestige.run.depth import depth_run, report
    from vestige.run.depth_ask import ask_from

    flags = {name: getattr(args, name) for name in DEPTH}
    if args.baselines is not None:
        flags["baselines"] = [name.strip() for name in args.baselines.split(",") if name.strip()]
    words = [*args.words, *(["progress=false"] if args.quiet else [])]
    ask = ask_from(flags, words, Path(args.config_dir) if args.config_dir else None)
    results = depth_run(ask)
    print(report(results))
    return 0


def run_collapse(args: argparse.Namespace) -> int:
    from vestige.run.collapse import Ask, collapse, reasoning_for, settings_from

    overrides = [w for w in args.files if "=" in w and not Path(w).exists()]
    files = [w for w in args.files if w not in overrides]
    if not files:
        raise UserError("No rollouts given; name one or more files (JSONL, parquet, .pkl, .pt).")
    flags = {name: getattr(args, name) for name in COLLAPSE_SETTINGS}
    settings = settings_from(overrides, flags, Path(args.config_dir) if args.config_dir else None)
    reasoning = reasoning_for(
        settings, open=args.open_tag, close=args.close_tag, pattern=args.reasoning_pattern, mode=args.reasoning,
        unclosed=args.unclosed, tokenization=args.tokenization,
    )  # fmt: skip
    held = {"dtype": args.dtype, "device": args.device, "tokenizer": args.tokenizer}
    scheduled = args.compute_freq is not None or any("compute_freq" in o for o in overrides)
    report = collapse(
        Ask(
            files=files, models=args.model, settings=settings, reasoning=reasoning, format=args.format,
            prompt_template=args.prompt_template, steps=args.step, scheduled=scheduled, temperature=args.temperature,
            ema=Path(args.ema) if args.ema else None, out=Path(args.out), batch_tokens=args.batch_tokens,
            model_args={k: v for k, v in held.items() if v} | {"trust_remote_code": args.trust_remote_code},
            progress=not args.quiet,
        )
    )  # fmt: skip
    print(report)
    if not any(o.samples for o in report.outcomes):
        print("vestige: error: no collapse metric could be computed; the reasons are above.", file=sys.stderr)
        return 2
    return 0


def run_explain(args: argparse.Namespace) -> int:
    from vestige.integrations.plugins import load_plugins
    from vestige.run.explaining import explain

    load_plugins(args.plugin)
    print(explain(args.name, Path(args.config_dir) if args.config_dir else None))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    from vestige.run.diffing import diff

    print(diff(Path(args.run_a), Path(args.run_b), args.rows, args.metric))
    return 0


def run_import(args: argparse.Namespace) -> int:
    from vestige.run.importing import import_file, show

    out, retain = (Path(p) if p else None for p in (args.out, args.retain_logs))
    if Path(args.file).is_dir():
        from vestige.run.meta import import_tree, is_tree

        if is_tree(Path(args.file)):
            if retain is not None:
                raise UserError("A result tree brings its retain model's AUCs along; leave --retain-logs out.")
            print(import_tree(Path(args.file), out))
            return 0
    print(show(import_file(Path(args.file), out, retain), Path(args.file)))
    return 0


def run_published(args: argparse.Namespace) -> int:
    from vestige.run.published import published

    print(published(Path(args.run) if args.run else None, args.model, args.split))
    return 0


def run_meta(args: argparse.Namespace) -> int:
    from vestige.integrations.plugins import load_plugins
    from vestige.run.meta import MetaAsk, meta

    load_plugins(args.plugin)
    metrics = None if args.metrics is None else [m.strip() for m in args.metrics.split(",") if m.strip()]
    if metrics == []:
        raise UserError("--metrics is empty; name metrics, or leave it out for every metric the runs hold.")
    ask = MetaAsk(
        file=Path(args.file),
        out=Path(args.out),
        metrics=metrics,
        resamples=args.resamples,
        rule=args.robustness,
        thresholds=Path(args.thresholds) if args.thresholds else None,
        utility=Path(args.utility) if args.utility else None,
        least_utility=args.least_utility,
        own_thresholds=args.own_thresholds,
        floor=args.floor,
        rows=args.rows,
    )
    print(meta(args.what, ask))
    return 0


def run_train(args: argparse.Namespace) -> int:
    from vestige.run.training_flags import run_training_verb

    return run_training_verb(args)


def run_stress(args: argparse.Namespace) -> int:
    from vestige.run.stress_flags import run_stress_verb

    return run_stress_verb(args)


def run_demo(args: argparse.Namespace) -> int:
    from vestige.run.demo import demo

    return demo(Path(args.out), args.seed, not args.no_diffusion)


if __name__ == "__main__":
    sys.exit(main())
