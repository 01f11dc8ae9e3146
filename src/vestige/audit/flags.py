"""The verb `audit`: its flags, and from flags to work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.engine.loading_flags import plugin_flag


def add_verbs(verbs: Any) -> None:
    audit = verbs.add_parser("audit", help="did it forget? two checkpoints and your own rows")
    audit.set_defaults(do=run_audit)
    audit.add_argument("--before", required=True, metavar="PATH", help="the model before unlearning")
    audit.add_argument("--after", required=True, metavar="PATH", help="the model after unlearning")
    audit.add_argument("--forget", required=True, metavar="FILE", help="rows to forget (question and answer, or text)")
    audit.add_argument("--retain", metavar="FILE", help="rows to be kept")
    audit.add_argument("--holdout", metavar="FILE", help="rows like the forget rows, never trained on")
    audit.add_argument("--retain-model", metavar="PATH", help="a model trained without the forget rows")
    audit.add_argument("--system-prompt", metavar="TEXT")
    audit.add_argument("--limit", type=int, metavar="N", help="first N rows of every file")
    plugin_flag(audit)
    audit.add_argument("--out", default="saves/audit", metavar="DIR", help="default: saves/audit")


def run_audit(args: argparse.Namespace) -> int:
    from vestige.audit.run import Audit, audit
    from vestige.integrations.plugins import load_plugins

    load_plugins(args.plugin)
    names = ("before", "after", "forget", "retain", "holdout", "retain_model")
    ask = Audit(**{n: getattr(args, n) for n in names}, out=Path(args.out))
    return audit(ask, {"system_prompt": args.system_prompt, "limit": args.limit, "plugins": args.plugin})
