"""The verb `plan`: the flags of `eval`, and what that evaluation would cost."""

from __future__ import annotations

import argparse
from typing import Any

from vestige.engine.flags import evaluation_flags
from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    plan = verbs.add_parser("plan", help="say what an evaluation would cost", description="Say what it would cost.")
    evaluation_flags(plan, "plan")
    plan.set_defaults(do=run_plan, late="words")
    check = verbs.add_parser(
        "serve-check",
        help="what a model server can do; are its numbers right?",
        description="Ask a model server what it can do, and compare it with the same checkpoint in this process.",
    )
    check.add_argument("url", metavar="URL", help="http://127.0.0.1:8000")
    shared_flags(check, "serve-check", model={"required": True})
    check.set_defaults(do=run_check)


def run_check(args: argparse.Namespace) -> int:
    from vestige.costs.served import serve_check

    print(serve_check(args.url, args.model, args.tokenizer, args.server_key_env))
    return 0


def run_plan(args: argparse.Namespace) -> int:
    from vestige.costs.served import plan_of
    from vestige.engine.flags import print_config, runs_of

    runs = runs_of(args)
    if args.cfg:
        return print_config(runs)
    for run in runs:
        print(plan_of(run))
    return 0
