"""The verb `audit`: its flags, and from flags to work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.flags import flags_of, shared_flags

MINUTES = 30.0  # unless the user says otherwise
# Flags that say what is audited and where results go; every other shared flag is passed on to the evaluations.
OWN = ("retain-model", "forget", "retain", "out", "plugin")


def add_verbs(verbs: Any) -> None:
    audit = verbs.add_parser("audit", help="did it forget? two checkpoints and your own rows")
    audit.set_defaults(do=run_audit)
    audit.add_argument("--before", required=True, metavar="PATH", help="the model before unlearning")
    audit.add_argument("--after", required=True, metavar="PATH", help="the model after unlearning")
    audit.add_argument("--holdout", metavar="FILE", help="rows like the forget rows, never trained on")
    audit.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        metavar="N",
        help=f"time it may take: tests that do not fit are left out, and named (default: {MINUTES:g})",
    )
    audit.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="NAME,...",
        help="tests to leave out: layers, jailbreak, relearn, prune, quantise",
    )
    shared_flags(audit, "audit", forget={"required": True}, out={"default": "saves/audit"})


def run_audit(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.audit.run import audit
    from vestige.audit.work import TESTS, Audit
    from vestige.errors import unknown_name

    load_plugins(args.plugin)
    skip = [name.strip() for words in args.skip for name in words.split(",")]
    for name in skip:
        if name not in TESTS:
            raise unknown_name("test", name, TESTS, "(--skip)")
    names = ("before", "after", "forget", "retain", "holdout", "retain_model", "minutes")
    said = {f.attribute: getattr(args, f.attribute) for f in flags_of("audit") if f.name not in OWN}
    said |= {"plugins": args.plugin, "progress": False if args.quiet else None}
    return audit(Audit(**{n: getattr(args, n) for n in names}, skip=skip, out=Path(args.out), settings=said))
