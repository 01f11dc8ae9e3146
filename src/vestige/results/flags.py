"""The verbs that read results and definitions, and run no model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.flags import shared_flags

# What `vestige ls` can list; results/listing.py has a section for each.
KINDS = ("suites", "metrics", "handlers", "dialects", "models", "datasets", "methods", "experiments")


def add_verbs(verbs: Any) -> None:
    _scoring(verbs)
    _comparing(verbs)
    _looking_up(verbs)
    _other_peoples(verbs)


def _scoring(verbs: Any) -> None:
    score = verbs.add_parser("score", help="score a run again from its evidence, without a model")
    score.set_defaults(do=run_score, late="changes")
    score.add_argument("run", help="a run directory (saves/eval/NAME)")
    score.add_argument("changes", nargs="*", help="dialect=NAME, METRIC.KEY=VALUE (mia_min_k.k=0.2)")
    shared_flags(score, "score", retain_logs="instead of the one it was evaluated with")


def _comparing(verbs: Any) -> None:
    compare = verbs.add_parser("compare", help="runs side by side; could their differences be chance?")
    compare.set_defaults(do=run_compare, late="runs")
    compare.add_argument(
        "runs", nargs="+", metavar="RUN", help="two or more run directories; the first is the yardstick"
    )
    compare.add_argument(
        "--margin", type=float, default=0.05, metavar="X", help="what counts as equal on 0..1 metrics (0.05)"
    )
    shared_flags(
        compare, "compare", metrics="default: those the first run was asked for", resamples={"default": 10_000}
    )
    diff = verbs.add_parser("diff", help="why two runs disagree, and which rows moved")
    diff.set_defaults(do=run_diff)
    diff.add_argument("run_a", metavar="RUN_A", help="a run directory")
    diff.add_argument("run_b", metavar="RUN_B", help="another")
    shared_flags(diff, "diff", metrics="default: all that both have", rows={"default": 3})


def _looking_up(verbs: Any) -> None:
    listing = verbs.add_parser("ls", help="names there are: metrics, suites, models, data, ...")
    listing.set_defaults(do=run_ls)
    kinds = ", ".join(KINDS)
    listing.add_argument(
        "what", nargs="?", default="all", metavar="KIND", help=f"one of {kinds} (default: all of them)"
    )
    listing.epilog = (
        "Names that other commands take: suites and metrics for `vestige eval SUITE --metrics NAME,...`, dialects for "
        "--dialect, methods for `vestige unlearn --method`, models, datasets and experiments for Hydra words such as "
        "model=NAME. `vestige explain NAME` says what one means."
    )
    shared_flags(listing, "ls")
    explain = verbs.add_parser("explain", help="what a metric, handler or dialect means, by example")
    explain.set_defaults(do=run_explain)
    explain.add_argument("name", nargs="?", help="forget_quality, extraction_strength, strict, ...")
    shared_flags(explain, "explain")


def _other_peoples(verbs: Any) -> None:
    importing = verbs.add_parser("import", help="read result files of open-unlearning or locuslab/tofu")
    importing.set_defaults(do=run_import)
    importing.add_argument(
        "file", metavar="FILE", help="TOFU_EVAL.json, MUSE_EVAL.json, eval_log_aggregated.json or runs/"
    )
    shared_flags(
        importing,
        "import",
        out="TOFU_EVAL.json and TOFU_SUMMARY.json; default: nowhere",
        retain_logs="of any of these kinds",
    )
    importing.add_argument(
        "--baseline", metavar="EPOCH", help="of a tree runs/: whose full model all are relative to (ep10)"
    )


def _value(word: str, value: str) -> Any:
    from vestige.guard import parse_yaml

    try:
        return parse_yaml(value)
    except ValueError as error:
        raise UserError(f"Cannot read the value of '{word}' ({error}); write METRIC.KEY=VALUE.") from None


def run_score(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.store.kinds import Rescoring, score_run

    load_plugins(args.plugin)
    dialect: str | None = args.dialect
    changes: dict[str, dict[str, Any]] = {}
    for word in args.changes:
        key, _, value = word.partition("=")
        if key == "dialect":
            dialect = value
        elif "." in key and value:
            metric, _, name = key.partition(".")
            changes.setdefault(metric, {})[name] = _value(word, value)
        else:
            raise UserError(f"Cannot read '{word}'; write dialect=NAME or METRIC.KEY=VALUE.")
    print(score_run(Path(args.run), Rescoring(dialect, changes, args.retain_logs, args.cluster, args.accept_mixture)))
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.compare import compare

    if args.runs[-1] == "published":  # a run beside printed figures
        from vestige.results.published import published

        print(published(Path(args.runs[0])))
        return 0
    load_plugins(args.plugin)
    runs = [Path(run) for run in args.runs]
    print(compare(runs, args.metrics, args.margin, args.resamples, args.cluster, args.accept_mixture))
    return 0


def run_ls(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.listing import listing

    load_plugins(args.plugin)
    print(listing(args.what, Path(args.config_dir) if args.config_dir else None))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.explain import explain

    load_plugins(args.plugin)
    print(explain(args.name, Path(args.config_dir) if args.config_dir else None))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    from vestige.results.diff import diff

    metrics = None if args.metrics in (None, "all") else [m.strip() for m in args.metrics.split(",") if m.strip()]
    print(diff(Path(args.run_a), Path(args.run_b), args.rows, metrics))
    return 0


def run_import(args: argparse.Namespace) -> int:
    from vestige.results.imports import import_file, show

    out, retain = (Path(p) if p else None for p in (args.out, args.retain_logs))
    if Path(args.file).is_dir():
        from vestige.meta.run import import_tree, is_tree

        if is_tree(Path(args.file)):
            if retain is not None:
                raise UserError("A result tree brings its retain model's AUCs along; leave --retain-logs out.")
            print(import_tree(Path(args.file), out, baseline=args.baseline))
            return 0
    if args.baseline is not None:
        raise UserError("--baseline belongs to a result tree (runs/ with ep5, ep10); leave it out for a file.")
    print(show(import_file(Path(args.file), out, retain), Path(args.file)))
    return 0
