"""The verbs `sweep` and `job`: their flags, and from flags to work. Imports wait, so that --help stays instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    """The parsers of both verbs."""
    sweep = verbs.add_parser("sweep", help="models x suites x attacks of a plan; again for the rest")
    sweep.set_defaults(do=run_sweep)
    sweep.add_argument("plan", metavar="PLAN", help="a YAML file with models and suites")
    sweep.add_argument("--gpu", metavar="ID,...", help="one process for each of these GPUs")
    sweep.add_argument("--start-idx", type=int, default=0, metavar="I", help="only the plan's models from this one on")
    sweep.add_argument("--end-idx", type=int, metavar="J", help="and before this one")
    shared_flags(
        sweep, "sweep", plugin="besides `plugins` of the plan",
        server="instead of `server` of the plan", server_key_env="instead of `server_key_env` of the plan",
    )  # fmt: skip
    sweep.add_argument(
        "--slots", type=int, metavar="N", help="processes at a time (default: half the cores; 0: in this one)"
    )
    sweep.add_argument("--retries", type=int, metavar="N", help="how often a failed task is tried again")
    sweep.add_argument("--ray", nargs="?", const="auto", metavar="ADDRESS", help="on a Ray cluster (`local`: here)")
    sweep.add_argument(
        "--clear-cache", action="store_true", help="remove downloads of this sweep that no task needs any longer"
    )
    sweep.add_argument("--list", action="store_true", help="print the tasks and where they stand, and stop")
    sweep.add_argument("--meta", action="store_true", help="write what `vestige meta` reads from the runs, and stop")
    sweep.add_argument(
        "--clean", nargs="?", const="stale", choices=("stale", "all"), help="remove runs not in the plan, or all runs"
    )
    job = verbs.add_parser("job", help="any vestige command as a Kubernetes Job or RayJob")
    job.add_argument("job", nargs="*", metavar="NAME", help="of the job (default: vestige), as --set name=NAME")
    job.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="gpu.type=A100-40, image=...")
    job.add_argument("--file", metavar="FILE", help="YAML with the same settings")
    job.add_argument("--kind", choices=("job", "rayjob"), help="default: rayjob for sweep, job for the rest")
    job.add_argument("--dry-run", action="store_true", help="print it, do not submit it")
    job.epilog = "After `--`: the command as you would type it, with or without the word `vestige`."
    job.set_defaults(do=run_job, command=[], late="job")


def run_sweep(args: argparse.Namespace) -> int:
    from vestige.sweep.plan import read_plan
    from vestige.sweep.run import How, clean, listing, meta_files, sweep

    how = How(_gpus(args.gpu), args.slots, args.start_idx, args.end_idx, args.retries, args.ray, args.clear_cache)
    _check(args)
    said = {"server": args.server, "server_key_env": args.server_key_env}
    plan = read_plan(Path(args.plan), args.plugin, {key: value for key, value in said.items() if value is not None})
    if args.list:
        print(listing(plan))
        return 0
    if args.meta:
        print(meta_files(plan))
        return 0
    if args.clean:
        print(clean(plan, args.clean == "all"))
        return 0
    return sweep(plan, how)


def _check(args: argparse.Namespace) -> None:
    for flag, value, least in (("--slots", args.slots, 0), ("--retries", args.retries, 0)):
        if value is not None and value < least:
            raise UserError(f"{flag} must be at least {least}, it is {value}.")
    if args.start_idx < 0 or (args.end_idx is not None and args.end_idx <= args.start_idx):
        raise UserError(
            f"--start-idx {args.start_idx} --end-idx {args.end_idx} holds no model; models count from 0, and the end "
            "is not included."
        )
    if args.gpu is not None and args.ray is not None:
        raise UserError("--gpu is for this machine; on Ray write gpus: 1 (a task's share) in the plan instead.")


def _gpus(said: str | None) -> tuple[str, ...]:
    names = tuple(n.strip() for n in (said or "").split(",") if n.strip())
    if said is not None and not names:
        raise UserError("--gpu is empty; give GPU numbers or UUIDs, as in --gpu 0,1.")
    return names


def run_job(args: argparse.Namespace) -> int:
    from vestige.sweep.job import check, read_settings, render, submit, to_yaml

    file = Path(args.file) if args.file else None
    body = render(read_settings(args.set, file, _name(args.job, args.set)), args.command, args.kind)
    checked = check(body)
    if args.dry_run:
        print(to_yaml(body), end="")
        print(f"# {checked}", file=sys.stderr)
        return 0
    print(submit(body))
    return 0


def _name(words: Sequence[str], said: Sequence[str]) -> str | None:
    """The job's name, where it is given as a word of its own."""
    if len(words) > 1:
        raise UserError(f"A job has one name; '{words[1]}' is one more (a command is written after `--`).")
    if words and any(word.startswith("name=") for word in said):
        raise UserError(f"The job is named twice: '{words[0]}' and --set name=...; give one of them.")
    return words[0] if words else None
