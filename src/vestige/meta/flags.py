"""The verb `meta`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    meta = verbs.add_parser("meta", help="metrics put to the test: faithfulness, robustness, axes")
    meta.set_defaults(do=run_meta)
    meta.add_argument("what", metavar="faithfulness|robustness|axes|verdict", help="the question")
    meta.add_argument(
        "file",
        metavar="FILE",
        help="a YAML list of finished runs (axes: or a method_results.json; verdict: a folder with truth.json)",
    )
    shared_flags(
        meta,
        "meta",
        out={"default": "saves/meta"},
        metrics="instead of every metric the runs hold",
        resamples={"default": 2000, "says": "default: 2000; 0: no intervals"},
        rows={"default": 20, "says": "axes; default: 20, 0: all"},
        accept_mixture="thresholds and halves; an AUC or an axis is never made of a mixture",
    )
    meta.add_argument("--robustness", default="symmetric", metavar="RULE", help="symmetric (default) | one-sided")
    meta.add_argument("--thresholds", metavar="FILE", help="default: optimal_thresholds.json in --out, if it is there")
    meta.add_argument("--utility", metavar="FILE", help="default: method_results.json in --out, if it is there")
    meta.add_argument("--least-utility", type=float, default=0.8, metavar="X", help="default: 0.8")
    meta.add_argument("--own-thresholds", action="store_true", help="s_mia_* by their own, not by their attack's")
    meta.add_argument("--floor", type=float, default=0.05, metavar="X", help="axes: default 0.05")


def run_meta(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.meta.run import MetaAsk, meta

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
        accept_mixture=args.accept_mixture,
        floor=args.floor,
        rows=args.rows,
    )
    print(meta(args.what, ask))
    return 0
