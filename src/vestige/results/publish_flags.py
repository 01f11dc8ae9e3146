"""The verb `publish`: its flags, and from flags to work. Imports wait."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.flags import shared_flags

TARGETS = ("wandb", "mlflow", "tensorboard", "hub", "json")


def add_verbs(verbs: Any) -> None:
    publish = verbs.add_parser("publish", help="a run for W&B, MLflow, TensorBoard, the hub")
    publish.set_defaults(do=run_publish)
    publish.add_argument("run", metavar="RUN", help="a finished run directory, or a training that was watched")
    publish.add_argument("--to", required=True, metavar="|".join(TARGETS), help="whose form")
    publish.add_argument(
        "--online", action="store_true", help="send it (wandb, mlflow: as their own settings say); default: files only"
    )
    publish.add_argument(
        "--dataset", metavar="ORG/NAME", default="", help="hub: which data set of the hub was evaluated"
    )
    publish.add_argument("--project", metavar="NAME", default="vestige", help="wandb, mlflow: project or experiment")
    shared_flags(publish, "publish", out="default: saves/publish/RUN/TOOL")


def run_publish(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.publish import publish

    load_plugins(args.plugin)
    out = Path(args.out) if args.out else None
    print(publish(Path(args.run), args.to, out, args.online, args.project, args.dataset))
    return 0
