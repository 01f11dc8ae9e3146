"""The verb `plan`: the flags of `eval`, and what that evaluation would cost."""

from __future__ import annotations

import argparse
from typing import Any

from vestige.engine.flags import evaluation_flags


def add_verbs(verbs: Any) -> None:
    plan = verbs.add_parser("plan", help="say what an evaluation would cost", description="Say what it would cost.")
    evaluation_flags(plan, "plan")
    plan.set_defaults(do=run_plan, late="words")


def run_plan(args: argparse.Namespace) -> int:
    from vestige.costs.served import plan_of
    from vestige.engine.flags import print_config, runs_of

    runs = runs_of(args)
    if args.cfg:
        return print_config(runs)
    for run in runs:
        print(plan_of(run))
    return 0
