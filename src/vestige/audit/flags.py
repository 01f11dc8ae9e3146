"""The verb `audit`: its flags, and from flags to work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.flags import shared_flags

# What an evaluation of each model is told, besides the rows: EvalAsk's names.
PASSED_ON = (
    "system_prompt", "limit", "cluster", "dtype", "device", "tokenizer", "trust_remote_code", "quantization",
    "compute_dtype", "batch_tokens", "batch_size",
)  # fmt: skip


def add_verbs(verbs: Any) -> None:
    audit = verbs.add_parser("audit", help="did it forget? two checkpoints and your own rows")
    audit.set_defaults(do=run_audit)
    audit.add_argument("--before", required=True, metavar="PATH", help="the model before unlearning")
    audit.add_argument("--after", required=True, metavar="PATH", help="the model after unlearning")
    audit.add_argument("--holdout", metavar="FILE", help="rows like the forget rows, never trained on")
    shared_flags(audit, "audit", forget={"required": True}, out={"default": "saves/audit"})


def run_audit(args: argparse.Namespace) -> int:
    from vestige.audit.run import Audit, audit
    from vestige.integrations.plugins import load_plugins

    load_plugins(args.plugin)
    names = ("before", "after", "forget", "retain", "holdout", "retain_model")
    ask = Audit(**{n: getattr(args, n) for n in names}, out=Path(args.out))
    said = {name: getattr(args, name) for name in PASSED_ON}
    return audit(ask, {**said, "plugins": args.plugin, "progress": False if args.quiet else None})
