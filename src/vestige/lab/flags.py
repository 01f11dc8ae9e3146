"""The verbs `demo` and `demo-meta`: their flags, and from flags to work. Imports wait, so that --help stays instant."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    demo = verbs.add_parser("demo", help="build the lab (tiny models, minutes) and evaluate it")
    demo.set_defaults(do=run_demo)
    shared_flags(demo, "demo", out={"default": "saves/demo"}, seed={"default": 0})
    demo.add_argument("--no-diffusion", action="store_true", help="leave out the diffusion models")
    meta = verbs.add_parser("demo-meta", help="pools of tiny models, attacked, and every metric judged")
    meta.set_defaults(do=run_demo_meta)
    meta.add_argument(
        "--pool-size", type=int, default=8, metavar="N", help="models in P and in N; N * 3 / 2 are unlearned (8)"
    )
    shared_flags(
        meta, "demo-meta", out={"default": "saves/demo_meta"}, seed={"default": 0}, slots="2, or 1 on one core"
    )


def run_demo(args: argparse.Namespace) -> int:
    from vestige.lab.demo import demo

    return demo(Path(args.out), args.seed, not args.no_diffusion)


def run_demo_meta(args: argparse.Namespace) -> int:
    from vestige.lab.demo_meta import BenchSettings, PoolSettings, demo_meta

    if args.slots is not None and args.slots < 1:
        raise UserError(f"--slots must be at least 1, it is {args.slots}.")
    pools, bench = PoolSettings(seed=args.seed, size=args.pool_size), BenchSettings(seed=args.seed, copies=1)
    return demo_meta(Path(args.out), pools, args.slots, bench)
