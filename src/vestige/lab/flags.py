"""The verbs `demo` and `demo-meta`: their flags, and from flags to work. Imports wait, so that --help stays instant."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError


def add_verbs(verbs: Any) -> None:
    demo = verbs.add_parser("demo", help="build the lab (tiny models, minutes) and evaluate it")
    demo.set_defaults(do=run_demo)
    demo.add_argument("--out", default="saves/demo", metavar="DIR", help="default: saves/demo")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--no-diffusion", action="store_true", help="leave out the diffusion models")
    parser = verbs.add_parser("demo-meta", help="make pools of tiny models, attack them, and judge every metric")
    parser.set_defaults(do=run_demo_meta)
    parser.add_argument("--out", default="saves/demo_meta", metavar="DIR", help="default: saves/demo_meta")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pool-size", type=int, default=8, metavar="N", help="models in P and in N; N * 3 / 2 are unlearned (8)"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="at a time (2, or 1 on one core)")


def run_demo(args: argparse.Namespace) -> int:
    from vestige.lab.demo import demo

    return demo(Path(args.out), args.seed, not args.no_diffusion)


def run_demo_meta(args: argparse.Namespace) -> int:
    from vestige.lab.demo_meta import PoolSettings, demo_meta

    if args.processes is not None and args.processes < 1:
        raise UserError(f"--processes must be at least 1, it is {args.processes}.")
    return demo_meta(Path(args.out), PoolSettings(seed=args.seed, size=args.pool_size), args.processes)
