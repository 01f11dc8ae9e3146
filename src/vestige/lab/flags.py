"""The verb `demo`: its flags, and from flags to work. Imports wait, so that --help stays instant."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    demo = verbs.add_parser("demo", help="build the lab (tiny models, minutes) and evaluate it")
    demo.set_defaults(do=run_demo)
    shared_flags(demo, "demo", out={"default": "saves/demo"}, seed={"default": 0})
    demo.add_argument("--no-diffusion", action="store_true", help="leave out the diffusion models")


def run_demo(args: argparse.Namespace) -> int:
    from vestige.lab.demo import demo

    return demo(Path(args.out), args.seed, not args.no_diffusion)
